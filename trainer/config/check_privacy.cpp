#include "trainer/config/check_privacy.h"

#include "kernels/core/counted.h"

namespace trireme {
namespace {

/// The keys of the section among each other.
void check_privacy_keys(Rules& rules, const PrivacyConfig& p) {
  if (!rules.apply({"security.privacy.clip", "security.privacy.noise", "security.privacy.target_epsilon", "security.privacy.delta"})) return;
  if (!p.noise && !p.target_epsilon)
    rules.broken("security.privacy.noise", "neither noise nor target_epsilon is set, so nothing says how much noise to add",
                 "a noise multiplier such as 1.0, or a target_epsilon from which it follows", "1");
  if (!p.delta)
    rules.broken("security.privacy.delta", "an epsilon means nothing without the delta that it is for",
                 "numbers above 0 and below 1, far below 1 / (number of sequences)", "1e-5");
  if (!p.key_file && rules.apply({"security.privacy.key_file"}))
    rules.broken("security.privacy.key_file", "samples and noise must be unpredictable for those who see the model",
                 "the path of a file with a secret key: head -c 32 /dev/urandom | base64", "a path");
}

/// Where each data rank adds noise to its own sum.
void check_noise_on_each_rank(Rules& rules, const Config& c) {
  if (!adds_noise_on_each_rank(c)) return;
  const bool compressed = c.training.compression.method != CompressionMethod::kNone;
  const char* const key = compressed ? "training.compression.method" : "security.aggregation.rule";
  const char* const off = compressed ? "none" : "mean";
  if (rules.apply({"parallel.gradient_accumulation"}) && c.parallel.gradient_accumulation == GradientAccumulation::kSharded)
    rules.broken("parallel.gradient_accumulation",
                 concat("with security.privacy and ", key, " each data rank adds its noise once a step, to its whole gradient"),
                 concat("auto | full, or ", key, " ", off, ", or security.privacy.clip null"), "full");
  if (compressed && rules.apply({"model.tied_embeddings", "parallel.pipeline", "parallel.schedule", key}) && c.model.tied_embeddings &&
      c.parallel.pipeline > 1 && c.parallel.schedule != "zb_v")  // with which first and last stage are on one rank
    rules.broken("model.tied_embeddings",
                 "the first and the last pipeline rank would each compress a part of the embedding's gradient, and only the sum of both is clipped",
                 "false, or parallel.pipeline 1, or parallel.schedule zb_v, or training.compression.method none, or security.privacy.clip null",
                 "false");
}

}  // namespace

void check_privacy(Rules& rules, const Config& c) {
  if (!is_private(c.security) || !rules.apply({"security.privacy.clip"})) return;
  check_privacy_keys(rules, c.security.privacy);
  const TrainingConfig& t = c.training;
  const ParallelConfig& p = c.parallel;
  const auto refuse = [&](bool refused, const char* key, const std::string& rule, const std::string& allowed) {
    if (refused && rules.apply({key})) rules.broken(key, rule, concat(allowed, ", or security.privacy.clip null"), allowed);
  };
  refuse(c.run.device == "cuda", "run.device", "clipping the gradient of each sequence has no CUDA kernels", "cpu");
  refuse(t.precision == "fp16", "training.precision", "whether a step is skipped for its loss scale would depend on single sequences", "bf16");
  refuse(t.reduce_dtype == "bf16", "training.reduce_dtype", "what a sum loses to rounding would depend on single sequences, before the noise",
         "auto");
  refuse(c.model.dropout > 0, "model.dropout",
         "dropout masks follow the places of sequences in a step, so that a sequence would change what the others contribute", "0");
  refuse(t.local.steps.has_value(), "training.local.steps", "islands would exchange weights of steps to which each adds noise of its own", "null");
  refuse(is_asynchronous(t), "training.asynchronous.mode", "noise is added to the gradient of a step of all ranks, which asynchronous updates lack",
         "none");
  if (!t.local.steps && !is_asynchronous(t))
    refuse(p.islands > 1, "parallel.islands", "the sequences of a step are drawn for all ranks together", "1");
  refuse(c.resilience.rebalance != Rebalance::kNone, "resilience.rebalance",
         "steps draw different numbers of sequences, so that there is no split to keep", "none");
  refuse(c.resilience.backup_replicas > 0, "resilience.backup_replicas", "which sequences a step leaves out would not be random", "0");
  refuse(p.schedule == "file", "parallel.schedule", "steps draw different numbers of sequences, and a file has the actions of one number", "1f1b");
  refuse(c.data.packing != Packing::kNone, "data.packing", "a document that is packed with others would not be part of one sequence alone", "none");
  refuse(c.data.balance != Balance::kNone, "data.balance", "the sequences of a step are drawn at random, and not assigned by their cost", "none");
  refuse(c.data.weights.has_value(), "data.weights", "every sequence is drawn with the same probability, which the accountant assumes", "auto");
  refuse(c.observe.anomalies.policy != AnomalyPolicy::kWarn, "observe.anomalies.policy",
         "whether a step is skipped or repeated would depend on its data, which the accountant does not count", "warn");
  check_noise_on_each_rank(rules, c);
  if (rules.apply({"parallel.tensor", "model.kv_heads"}) && p.tensor > 1 && *c.model.kv_heads % p.tensor != 0)
    refuse(true, "parallel.tensor",
           concat("tensor ranks would share key and value heads, of which there are ", *c.model.kv_heads,
                  ", and the norm of a sequence's gradient would count them twice"),
           concat("divisors of ", *c.model.kv_heads));
}

}  // namespace trireme
