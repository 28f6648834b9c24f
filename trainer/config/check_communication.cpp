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
  if (!rules.apply({"training.compression.rank", "model.hidden_size", "model.heads", "model.head_size", "model.ffn_size", "model.vocab_size",
                    "model.max_positions", "parallel.tensor"}))
    return;
  const int64_t largest = largest_rank(c);
  if (largest == 0)
    rules.broken("training.compression.method", "every matrix of the model is too small for factors", "none or another method", "none");
  else
    rules.at_most("training.compression.rank", k.rank, 1, largest,
                  "no matrix of the model would be compressed, because factors must have less than half of its elements");
}

void check_compression(Rules& rules, const Config& c) {
  const CompressionConfig& k = c.training.compression;
  const bool gradients = k.method != CompressionMethod::kNone, parameters = k.parameters != ParameterEncoding::kNone;
  if ((gradients || parameters) && rules.apply({"training.compression.block"}) && k.block % 8 != 0)
    rules.broken("training.compression.block", "not a multiple of 8", "multiples of 8",
                 nearest(k.block, 8, static_cast<int64_t>(kMaxExtent), [](int64_t n) { return n % 8 == 0; }));
  if (gradients && rules.apply({"training.compression.method"})) check_low_rank(rules, c);
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

/// The rounds of local updates.
void check_local(Rules& rules, const Config& c) {
  const LocalConfig& local = c.training.local;
  if (!local.steps || !rules.apply({"parallel.islands", "training.local.steps"})) return;
  const int64_t steps = *local.steps, fragments = local.fragments;
  const auto legal = [&] { return nearest(fragments, 1, std::min(steps, c.model.layers), [&](int64_t n) { return steps % n == 0; }); };
  if (rules.apply({"training.local.fragments", "model.layers"}) && fragments > c.model.layers)
    rules.broken("training.local.fragments", concat("the model has ", counted(c.model.layers, "block")), concat("1 to ", c.model.layers), legal());
  if (rules.apply({"training.local.fragments"}) && steps % fragments != 0)
    rules.broken("training.local.fragments", concat("does not divide training.local.steps ", steps), concat("divisors of ", steps), legal());
  if (rules.apply({"training.local.fragments", "training.local.delay"}) && steps % fragments == 0)
    rules.at_most("training.local.delay", local.delay, 0, steps / fragments - 1,
                  concat("a fragment synchronises every ", counted(steps / fragments, "step"), ", before its sum has arrived"));
  check_whole_rounds(rules, c, "training.local.steps", steps, "the islands have the same shared weights only after a round");
}

/// The rounds of asynchronous updates, and how many gradients islands can give an update.
void check_asynchronous(Rules& rules, const Config& c) {
  const AsynchronousConfig& a = c.training.asynchronous;
  const int64_t islands = c.parallel.islands, backups = c.resilience.backup_replicas, needed = islands - backups;
  if (!is_asynchronous(c.training) || !rules.apply({"training.asynchronous.mode"})) return;
  check_whole_rounds(rules, c, "training.asynchronous.steps", a.steps, "the islands have the same weights only after a round");
  if (averages_elastically(c.training) && rules.apply({"training.asynchronous.steps", "training.asynchronous.every"}) && a.steps % a.every != 0)
    rules.broken("training.asynchronous.every", concat("does not divide training.asynchronous.steps ", a.steps), concat("divisors of ", a.steps),
                 nearest(a.every, 1, a.steps, [&](int64_t n) { return a.steps % n == 0; }));
  if (!has_parameter_servers(c.training)) return;
  if (rules.apply({"training.asynchronous.apply_after", "parallel.islands"}))
    rules.at_most("training.asynchronous.apply_after", a.apply_after, 1, islands,
                  concat("more gradients than parallel.islands ", islands, " compute at a time"));
  // Backup replicas are the islands beyond the gradients that an update needs.
  if (backups == 0 || !rules.apply({"resilience.backup_replicas"})) return;
  rules.at_most("resilience.backup_replicas", backups, 0, islands - 1,
                concat("leaves none of parallel.islands ", islands, " for the gradients of an update"));
  if (needed > 0 && a.apply_after != needed && rules.apply({"training.asynchronous.apply_after"}))
    rules.broken("training.asynchronous.apply_after",
                 concat("with backup replicas an update needs a gradient of each of the other islands, ", islands, " - ", backups),
                 concat(needed, ", or resilience.backup_replicas 0"), std::to_string(needed));
}

/// How many data ranks a robust rule needs.
void check_aggregation(Rules& rules, const Config& c) {
  const AggregationConfig& a = c.security.aggregation;
  if (!is_robust(c.security) || a.byzantine < 1 || !c.parallel.data) return;
  if (!rules.apply({"security.aggregation.rule", "security.aggregation.byzantine", "parallel.data"})) return;
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

/// Whether a data rank has micro-batches that it can give away.
void check_rebalance(Rules& rules, const Config& c) {
  const ParallelConfig& p = c.parallel;
  if (c.resilience.rebalance == Rebalance::kNone || p.data.value_or(1) == 1) return;
  if (!rules.apply({"resilience.rebalance", "parallel.data", "parallel.pipeline", "training.global_batch_size", "training.micro_batch_size"})) return;
  const int64_t microbatches = c.training.global_batch_size / c.training.micro_batch_size / *p.data;
  if (microbatches <= p.pipeline)
    rules.broken("resilience.rebalance",
                 concat("a data rank has ", counted(microbatches, "micro-batch", "micro-batches"), " and needs ", p.pipeline,
                        " for its pipeline, so it could give none away"),
                 concat("none, or training.global_batch_size from ", (p.pipeline + 1) * *p.data * c.training.micro_batch_size), "none");
}

/// How many data ranks an elastic job may lose, and how many ranks there are for copies.
void check_replicas(Rules& rules, const Config& c) {
  const ParallelConfig& p = c.parallel;
  const ResilienceConfig& r = c.resilience;
  if (!p.data || !rules.apply({"parallel.data"})) return;
  if (is_elastic(r) && rules.apply({"resilience.minimum_replicas"}))
    rules.at_most("resilience.minimum_replicas", r.minimum_replicas, 1, *p.data, concat("more than parallel.data ", *p.data));
  const bool fixed = !is_elastic(r);  // a smaller job makes fewer copies
  if (r.peer_copies == 0 || !fixed || !rules.apply({"parallel.tensor", "parallel.pipeline", "parallel.islands"})) return;
  const int64_t ranks = p.tensor * p.pipeline * *p.data * p.islands;
  rules.at_most("resilience.peer_copies", r.peer_copies, 0, ranks - 1,
                concat("the job has ", counted(ranks, "rank"), ", and a state and its copies are on different ones"));
}

}  // namespace

void check_communication(Rules& rules, const Config& c) {
  check_compression(rules, c);
  check_local(rules, c);
  check_asynchronous(rules, c);
  check_rebalance(rules, c);
  check_aggregation(rules, c);
  check_replicas(rules, c);
}

}  // namespace trireme
