#include "trainer/config/check_communication.h"

#include <algorithm>

#include "kernels/core/counted.h"

namespace trireme {
namespace {

/// The largest rank at which the factors of any matrix, as a tensor rank has it, have less than half of its elements (has_low_rank in
/// parallel/sharding/low_rank_reducer.h). Each matrix has hidden_size as one side, and the longest other side decides.
int64_t largest_rank(const Config& c) {
  const ModelConfig& m = c.model;
  const int64_t tensor = c.parallel.tensor, width = m.hidden_size;
  int64_t side = (std::max({*m.vocab_size, *m.ffn_size, m.heads * *m.head_size}) + tensor - 1) / tensor;
  if (m.preset().positions == PositionKind::kLearned && !(tensor > 1 && c.parallel.sequence_parallel)) side = std::max(side, *m.max_positions);
  return (side * width - 1) / (2 * (side + width));
}

void check_low_rank(Rules& rules, const Config& c) {
  const CompressionConfig& k = c.training.compression;
  if (k.method != CompressionMethod::kPowerSgd) return;
  if (rules.apply({"run.device"}) && c.run.device == "cuda")
    rules.broken("training.compression.method", "power_sgd sums over all data ranks, which GPUs cannot do yet", "another method, or run.device cpu",
                 "none");
  if (k.scope == CompressionScope::kReplicate && rules.apply({"training.compression.scope"}))
    rules.broken("training.compression.scope", "power_sgd sums whole matrices over all data ranks", "data", "data");
  if (!rules.apply({"training.compression.rank", "model.hidden_size", "model.heads", "model.head_size", "model.ffn_size", "model.vocab_size",
                    "model.max_positions", "parallel.tensor"}))
    return;
  const int64_t largest = largest_rank(c);
  if (largest == 0)
    rules.broken("training.compression.method", "every matrix of the model is too small for factors", "none or another method", "none");
  else if (k.rank > largest)
    rules.broken("training.compression.rank", "no matrix of the model would be compressed, because factors must have less than half of its elements",
                 concat("1 to ", largest), std::to_string(largest));
}

void check_compression(Rules& rules, const Config& c) {
  const CompressionConfig& k = c.training.compression;
  const ParallelConfig& p = c.parallel;
  const bool gradients = k.method != CompressionMethod::kNone, parameters = k.parameters != ParameterEncoding::kNone;
  if (parameters && rules.apply({"training.compression.parameters", "parallel.zero_stage"}) && p.zero_stage == 0)
    rules.broken("training.compression.parameters", "with parallel.zero_stage 0 no parameters are gathered", "none, or a parallel.zero_stage from 1",
                 "none");
  if ((gradients || parameters) && rules.apply({"training.compression.block"}) && k.block % 8 != 0)
    rules.broken("training.compression.block", "not a multiple of 8", "multiples of 8",
                 nearest(k.block, 8, static_cast<int64_t>(kMaxExtent), [](int64_t n) { return n % 8 == 0; }));
  if (!gradients || !rules.apply({"training.compression.method"})) return;
  if (rules.apply({"training.precision"}) && c.training.precision == "fp16")
    rules.broken("training.compression.method", "the errors of earlier steps would have another loss scale", "none, or precision fp32 | bf16 | fp64",
                 "none");
  check_low_rank(rules, c);
  if (k.method == CompressionMethod::kOneBitAdam) {
    if (rules.apply({"training.optimizer.name"}) && c.training.optimizer.name != Optimizer::kAdamW)
      rules.broken("training.compression.method", "of the optimizers only adamw has a second moment to keep", "another method, or adamw", "sign");
    if (rules.apply({"training.compression.warmup_steps"}) && k.warmup_steps == 0)
      rules.broken("training.compression.warmup_steps", "one_bit_adam keeps the second moment that these steps find", "1 or more", "1");
  }
  const bool replicas_only = k.scope == CompressionScope::kReplicate;
  if (!replicas_only && rules.apply({"parallel.gradient_accumulation"}) && p.gradient_accumulation == GradientAccumulation::kSharded)
    rules.broken("parallel.gradient_accumulation", "training.compression encodes a step's gradient once, so it needs all of it",
                 "auto | full, or training.compression.scope replicate", "full");
  if (!replicas_only && rules.apply({"training.reduce_dtype"}) && c.training.reduce_dtype == "bf16")
    rules.broken("training.reduce_dtype", "training.compression has messages of its own, with vectors and a warm-up in fp32",
                 "auto | fp32, or training.compression.scope replicate", "auto");
  if (replicas_only && rules.apply({"training.compression.scope", "parallel.zero_stage", "parallel.replicate"}) && p.zero_stage > 0 &&
      p.replicate == 1)
    rules.broken("training.compression.scope", "parallel.replicate is 1, so nothing would be compressed", "data, or a parallel.replicate from 2",
                 "data");
}

/// `steps`: of a round, by `round`. `why`: nothing else is done within one.
void check_whole_rounds(Rules& rules, const Config& c, const char* round, int64_t steps, const char* why) {
  const auto whole = [&](const char* key, int64_t every) {
    if (every % steps == 0 || !rules.apply({key, round})) return;
    rules.broken(key, concat("not a multiple of ", round, " ", steps, ": ", why), concat("0, or multiples of ", steps),
                 nearest(every, steps, static_cast<int64_t>(kMaxExtent), [&](int64_t n) { return n % steps == 0; }));
  };
  if (c.checkpoint.every)
    whole("checkpoint.every", *c.checkpoint.every);
  else if (c.checkpoint.keep_every)
    whole("checkpoint.keep_every", *c.checkpoint.keep_every);
  whole("training.evaluate.every", c.training.evaluate.every);
  whole("observe.samples.every", c.observe.samples.every);
}

/// Local updates, and what does not go with them. State and decisions that would differ between islands are refused, not approximated.
void check_local(Rules& rules, const Config& c) {
  const TrainingConfig& t = c.training;
  const bool local = t.local.steps.has_value();
  if (!rules.apply({"parallel.islands", "training.local.steps"})) return;
  if (!local && c.parallel.islands > 1 && !is_asynchronous(t) && rules.apply({"training.asynchronous.mode"}))
    rules.broken("parallel.islands", "training.local.steps is not set, so the islands would never synchronise",
                 "1, or a training.local.steps from 1, or a training.asynchronous.mode", "1");
  if (!local) return;
  if (rules.apply({"training.compression.method"}) && t.compression.method != CompressionMethod::kNone)
    rules.broken("training.compression.method", "training.local saves no errors of compression for each island", "none, or training.local.steps null",
                 "none");
  if (rules.apply({"training.ema.decay"}) && t.ema.decay)
    rules.broken("training.ema.decay", "between outer steps of training.local the weights of islands differ, and so would their averages",
                 "null, or training.local.steps null", "null");
  if (rules.apply({"training.precision"}) && t.precision == "fp16")
    rules.broken("training.precision", "with training.local each island would have a loss scale of its own",
                 "fp64 | fp32 | bf16, or training.local.steps null", "bf16");
  if (rules.apply({"observe.anomalies.policy"}) && c.observe.anomalies.policy != AnomalyPolicy::kWarn)
    rules.broken("observe.anomalies.policy", "with training.local the islands would not agree on an anomalous step",
                 "warn, or training.local.steps null", "warn");
  if (c.parallel.islands > 1 && rules.apply({"data.packing"}) && c.data.packing != Packing::kNone)
    rules.broken("data.packing", "the tokens of a step would be counted over all islands, which exchange nothing within a round of training.local",
                 "none, or parallel.islands 1", "none");
  if (c.parallel.islands > 1 && rules.apply({"data.balance"}) && c.data.balance != Balance::kNone)
    rules.broken("data.balance",
                 "the sequences of a step would be assigned over all islands, which exchange nothing within a round of training.local",
                 "none, or parallel.islands 1", "none");
  const int64_t steps = *t.local.steps, fragments = t.local.fragments;
  const auto legal = [&] { return nearest(fragments, 1, std::min(steps, c.model.layers), [&](int64_t n) { return steps % n == 0; }); };
  if (rules.apply({"training.local.fragments", "model.layers"}) && fragments > c.model.layers)
    rules.broken("training.local.fragments", concat("the model has ", counted(c.model.layers, "block")), concat("1 to ", c.model.layers), legal());
  if (rules.apply({"training.local.fragments"}) && steps % fragments != 0)
    rules.broken("training.local.fragments", concat("does not divide training.local.steps ", steps), concat("divisors of ", steps), legal());
  if (rules.apply({"training.local.fragments", "training.local.delay"}) && steps % fragments == 0 && t.local.delay >= steps / fragments)
    rules.broken("training.local.delay", concat("a fragment synchronises every ", counted(steps / fragments, "step"), ", before its sum has arrived"),
                 concat("0 to ", steps / fragments - 1), std::to_string(steps / fragments - 1));
  check_whole_rounds(rules, c, "training.local.steps", *t.local.steps, "the islands have the same shared weights only after a round");
}

/// Hogwild is an experiment with plain SGD. Everything else that could share weights is refused.
template <class Refuse>
void check_hogwild(const Config& c, const Refuse& refuse) {
  const TrainingConfig& t = c.training;
  const ParallelConfig& p = c.parallel;
  const char* const one_rank = "an island of hogwild is one rank, which steps on whole weights";
  refuse(t.optimizer.name != Optimizer::kSgd, "training.optimizer.name",
         "hogwild updates shared weights without a lock, and knows no shared state of an optimizer", "sgd");
  refuse(t.precision != "fp32", "training.precision", "hogwild updates shared weights in fp32", "fp32");
  refuse(p.tensor > 1, "parallel.tensor", one_rank, "1");
  refuse(p.pipeline > 1, "parallel.pipeline", one_rank, "1");
  refuse(p.data && *p.data > 1, "parallel.data", one_rank, "1");
  refuse(p.zero_stage > 0, "parallel.zero_stage", one_rank, "0");
  refuse(t.compression.method != CompressionMethod::kNone, "training.compression.method", "hogwild sends no gradients", "none");
  refuse(t.ema.decay.has_value(), "training.ema.decay", "with hogwild an average of the weights would be of other weights on each island", "null");
  refuse(c.observe.anomalies.policy != AnomalyPolicy::kWarn, "observe.anomalies.policy",
         "with hogwild the islands would not agree on an anomalous step", "warn");
  refuse(c.data.packing != Packing::kNone, "data.packing",
         "the tokens of a step would be counted over all islands, which exchange nothing with hogwild", "none");
  refuse(c.data.balance != Balance::kNone, "data.balance",
         "the sequences of a step would be assigned over all islands, which exchange nothing with hogwild", "none");
  refuse(c.resilience.rebalance != Rebalance::kNone, "resilience.rebalance", "an island of hogwild has one data rank", "none");
}

/// What does not go with asynchronous updates. With parameter servers a rank computes gradients that are not steps, so what belongs to a step of all
/// ranks is refused; with elastic averaging state and decisions that would differ between islands.
void check_asynchronous(Rules& rules, const Config& c) {
  const TrainingConfig& t = c.training;
  const AsynchronousConfig& a = t.asynchronous;
  if (!is_asynchronous(t) || !rules.apply({"training.asynchronous.mode"})) return;
  const auto refuse = [&](bool refused, const char* key, const std::string& rule, const std::string& allowed) {
    if (refused && rules.apply({key})) rules.broken(key, rule, concat(allowed, ", or training.asynchronous.mode none"), allowed);
  };
  refuse(c.run.device == "cuda", "run.device", concat("training.asynchronous.mode ", a.mode, " has no CUDA kernels"), "cpu");
  refuse(t.local.steps.has_value(), "training.local.steps",
         shares_weights(t) ? "islands of hogwild have the same weights" : "islands synchronise either by outer steps or by training.asynchronous",
         "null");
  check_whole_rounds(rules, c, "training.asynchronous.steps", a.steps, "the islands have the same weights only after a round");
  if (shares_weights(t)) return check_hogwild(c, refuse);
  if (averages_elastically(t)) {
    refuse(t.precision == "fp16", "training.precision", "with elastic averaging each island would have a loss scale of its own", "bf16");
    refuse(t.compression.method != CompressionMethod::kNone, "training.compression.method",
           "elastic averaging saves no errors of compression for each island", "none");
    refuse(t.ema.decay.has_value(), "training.ema.decay",
           "with elastic averaging the weights of islands differ, and so would their averages; the centre is an average itself", "null");
    refuse(c.observe.anomalies.policy != AnomalyPolicy::kWarn, "observe.anomalies.policy",
           "with elastic averaging the islands would not agree on an anomalous step", "warn");
    refuse(c.data.packing != Packing::kNone, "data.packing",
           "the tokens of a step would be counted over all islands, which exchange only weights with elastic averaging", "none");
    refuse(c.data.balance != Balance::kNone, "data.balance",
           "the sequences of a step would be assigned over all islands, which exchange only weights with elastic averaging", "none");
    refuse(c.resilience.rebalance != Rebalance::kNone, "resilience.rebalance",
           "islands exchange only weights with elastic averaging, so they could not agree on a split", "none");
    if (rules.apply({"training.asynchronous.steps", "training.asynchronous.every"}) && a.steps % a.every != 0)
      rules.broken("training.asynchronous.every", concat("does not divide training.asynchronous.steps ", a.steps), concat("divisors of ", a.steps),
                   nearest(a.every, 1, a.steps, [&](int64_t n) { return a.steps % n == 0; }));
    return;
  }
  refuse(traits_of(t.optimizer.name.value()).updates_matrices, "training.optimizer.name",
         concat("parameter servers update pieces of weights, and ", t.optimizer.name, " updates whole matrices"), "adamw");
  refuse(t.precision == "fp16", "training.precision", "with training.asynchronous the gradients of an update would have several loss scales", "bf16");
  refuse(t.compression.method != CompressionMethod::kNone, "training.compression.method",
         "training.asynchronous sends whole gradients to the parameter servers", "none");
  refuse(c.observe.anomalies.policy != AnomalyPolicy::kWarn, "observe.anomalies.policy",
         "parameter servers apply an update of training.asynchronous before all ranks can judge it", "warn");
  refuse(c.observe.activations.every > 0, "observe.activations.every", "with training.asynchronous the islands compute gradients of different steps",
         "0");
  refuse(c.observe.histograms.every > 0, "observe.histograms.every", "with training.asynchronous the islands have gradients of different steps", "0");
  refuse(c.data.packing != Packing::kNone, "data.packing", "with training.asynchronous the padding of a step is not counted", "none");
  refuse(c.data.balance != Balance::kNone, "data.balance", "with training.asynchronous the batches of a step are assigned as workers arrive", "none");
  refuse(c.resilience.rebalance != Rebalance::kNone, "resilience.rebalance",
         "with training.asynchronous a fast island already computes more gradients than a slow one", "none");
  if (rules.apply({"training.asynchronous.apply_after", "parallel.islands"}) && a.apply_after > c.parallel.islands)
    rules.broken("training.asynchronous.apply_after", concat("more gradients than parallel.islands ", c.parallel.islands, " compute at a time"),
                 concat("1 to ", c.parallel.islands), std::to_string(c.parallel.islands));
}

/// Backup replicas are islands of asynchronous updates: those beyond the gradients that an update needs.
void check_backup_replicas(Rules& rules, const Config& c) {
  const AsynchronousConfig& a = c.training.asynchronous;
  const int64_t backups = c.resilience.backup_replicas, needed = c.parallel.islands - backups;
  if (backups == 0 || !rules.apply({"resilience.backup_replicas"})) return;
  const auto refuse = [&](bool refused, const char* key, const std::string& rule, const std::string& allowed) {
    if (refused && rules.apply({key})) rules.broken(key, rule, concat(allowed, ", or resilience.backup_replicas 0"), allowed);
  };
  refuse(!has_parameter_servers(c.training), "training.asynchronous.mode",
         "backup replicas are islands whose gradients parameter servers may leave out", "parameter_server");
  if (!has_parameter_servers(c.training)) return;
  if (needed < 1)
    return rules.broken("resilience.backup_replicas",
                        concat("leaves none of parallel.islands ", c.parallel.islands, " for the gradients of an update"),
                        concat("0 to ", c.parallel.islands - 1), std::to_string(c.parallel.islands - 1));
  refuse(a.apply_after != needed, "training.asynchronous.apply_after",
         concat("with backup replicas an update needs a gradient of each of the other islands, ", c.parallel.islands, " - ", backups),
         std::to_string(needed));
  refuse(a.staleness != 0, "training.asynchronous.staleness", "with backup replicas every gradient of an update is by the newest weights", "0");
  refuse(a.compensation != StalenessCompensation::kNone, "training.asynchronous.compensation",
         "with backup replicas no gradient of an update is stale", "none");
}

/// Robust rules, and what does not go with them.
void check_aggregation(Rules& rules, const Config& c) {
  const AggregationConfig& a = c.security.aggregation;
  const TrainingConfig& t = c.training;
  if (!is_robust(c.security) || !rules.apply({"security.aggregation.rule"})) return;
  const auto refuse = [&](bool refused, const char* key, const std::string& rule, const std::string& allowed) {
    if (refused && rules.apply({key})) rules.broken(key, rule, concat(allowed, ", or security.aggregation.rule mean"), allowed);
  };
  refuse(c.run.device == "cuda", "run.device", "robust rules have no CUDA kernels", "cpu");
  refuse(t.precision == "fp16", "training.precision",
         "with a robust rule a data rank whose gradient overflows would count as faulty instead of lowering the loss scale", "bf16");
  refuse(t.reduce_dtype == "bf16", "training.reduce_dtype", "robust rules compare gradients in fp32", "auto");
  refuse(t.compression.method == CompressionMethod::kPowerSgd, "training.compression.method",
         "power_sgd sums factors over the data ranks, so that no rank has the gradients that a robust rule compares", "another method | none");
  refuse(t.compression.method != CompressionMethod::kNone && t.compression.scope == CompressionScope::kReplicate, "training.compression.scope",
         "a robust rule gets the gradients of all data ranks in one exchange, without sums over replicas", "data");
  refuse(t.local.steps.has_value(), "training.local.steps", "islands exchange weights and not gradients, to which no robust rule applies", "null");
  refuse(is_asynchronous(t), "training.asynchronous.mode", "the gradients of training.asynchronous arrive one by one, and a robust rule compares all",
         "none");
  refuse(c.resilience.rebalance != Rebalance::kNone, "resilience.rebalance",
         "robust rules weigh data ranks alike, so what is trained would depend on the samples of each", "none");
  refuse(c.observe.anomalies.policy != AnomalyPolicy::kWarn, "observe.anomalies.policy",
         "with a robust rule the loss of one faulty data rank would decide on the step of all", "warn");
  if (a.rule == AggregationRule::kCenteredClipping && a.momentum && *a.momentum == 0 && rules.apply({"security.aggregation.momentum"}))
    rules.broken("security.aggregation.momentum", "centered_clipping without momentum does not stop attackers who stay within the noise of a step",
                 "auto, or numbers above 0 and below 1", "auto");
  if (!rules.apply({"security.aggregation.byzantine"})) return;
  if (a.byzantine < 1)
    return rules.broken("security.aggregation.byzantine", concat("rule ", a.rule, " needs the number of data ranks that may be faulty"),
                        "integers from 1, or security.aggregation.rule mean", "1");
  if (!c.parallel.data || !rules.apply({"parallel.data"})) return;
  const int64_t least = least_data_ranks(a.rule.value(), a.byzantine), ranks = *c.parallel.data;
  if (ranks >= least) return;
  int64_t most = a.byzantine;
  while (most > 0 && least_data_ranks(a.rule.value(), most) > ranks) --most;
  rules.broken(
      "security.aggregation.byzantine",
      concat("rule ", a.rule, " needs at least ", least, " data ranks for ", counted(a.byzantine, "faulty one"), ", and parallel.data is ", ranks),
      most > 0 ? concat("1 to ", most, ", or parallel.data from ", least) : concat("a parallel.data from ", least),
      most > 0 ? std::to_string(most) : concat("parallel.data ", least));
}

void check_encryption(Rules& rules, const Config& c) {
  if (is_encrypted(c.security) && c.observe.prometheus.port && rules.apply({"security.encryption", "observe.prometheus.address"}) &&
      c.observe.prometheus.address != "127.0.0.1" && c.observe.prometheus.address != "::1" && c.observe.prometheus.address != "localhost")
    rules.broken("observe.prometheus.address", "figures of the run would leave the host in clear text, which security.encryption required rules out",
                 "127.0.0.1, or security.encryption none", "127.0.0.1");
  if (!is_encrypted(c.security) || c.security.key_file || !rules.apply({"security.encryption", "security.key_file"})) return;
  rules.broken("security.key_file", "security.encryption required needs a key that all hosts share",
               "the path of a file, or security.encryption none", "security.encryption none");
}

/// Micro-batches that move between data ranks, and what does not go with them.
void check_rebalance(Rules& rules, const Config& c) {
  const ParallelConfig& p = c.parallel;
  const auto refuse = [&](const std::string& rule, const std::string& allowed) {
    rules.broken("resilience.rebalance", rule, concat("none, or ", allowed), "none");
  };
  if (c.resilience.rebalance == Rebalance::kNone || !rules.apply({"resilience.rebalance"})) return;
  if (rules.apply({"run.device"}) && c.run.device == "cuda") refuse("how long a GPU computes in a step is not measured", "run.device cpu");
  if (rules.apply({"parallel.islands"}) && p.islands > 1)
    refuse("islands exchange nothing within a round of training.local, so they could not agree on a split", "parallel.islands 1");
  if (rules.apply({"parallel.schedule"}) && p.schedule == "file")
    refuse("parallel.schedule_file is for one number of micro-batches", "another parallel.schedule");
  if (rules.apply({"data.balance"}) && c.data.balance != Balance::kNone)
    refuse("data.balance gives every data rank the same number of sequences", "data.balance none");
  if (!p.data || !rules.apply({"parallel.data", "parallel.pipeline", "training.global_batch_size", "training.micro_batch_size"})) return;
  const int64_t microbatches = c.training.global_batch_size / c.training.micro_batch_size / *p.data;
  if (*p.data == 1)
    refuse("there is one data rank", "parallel.data from 2");
  else if (microbatches <= p.pipeline)
    refuse(concat("a data rank has ", counted(microbatches, "micro-batch", "micro-batches"), " and needs ", p.pipeline,
                  " for its pipeline, so it could give none away"),
           concat("training.global_batch_size from ", (p.pipeline + 1) * *p.data * c.training.micro_batch_size));
}

}  // namespace

void check_communication(Rules& rules, const Config& c) {
  check_compression(rules, c);
  check_local(rules, c);
  check_asynchronous(rules, c);
  check_backup_replicas(rules, c);
  check_rebalance(rules, c);
  check_aggregation(rules, c);
  check_encryption(rules, c);
}

}  // namespace trireme
