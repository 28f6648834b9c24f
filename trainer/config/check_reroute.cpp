#include "trainer/config/check_reroute.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "kernels/core/counted.h"

namespace trireme {
namespace {

constexpr const char* kRerouteKey = "resilience.reroute";

/// Refuses other features, each with the reason why a relieved rank does not go with it.
void check_reroute_features(Rules& rules, const Config& c) {
  const auto refuse = [&](bool refused, const char* key, const std::string& rule, const std::string& allowed) {
    if (refused && rules.apply({key})) rules.broken(kRerouteKey, rule, concat("[], or ", key, " ", allowed), "[]");
  };
  refuse(is_asynchronous(c.training), "training.asynchronous.mode", "asynchronous workers compute a gradient each, and share no step", "none");
  refuse(c.training.local.steps.has_value(), "training.local.steps", "islands exchange nothing within a round of training.local", "null");
  if (!is_asynchronous(c.training) && !c.training.local.steps)
    refuse(c.parallel.islands > 1, "parallel.islands", "islands exchange nothing within a step", "1");
  refuse(is_private(c.security), "security.privacy.clip", "steps draw different numbers of sequences, and clip each on the ranks of one pipeline",
         "null");
  refuse(is_robust(c.security), "security.aggregation.rule",
         "a robust rule compares the gradients of data ranks, and that of a helper would contain samples of another one", "mean");
  refuse(c.training.compression.method != CompressionMethod::kNone, "training.compression.method",
         "each data rank would encode the gradients of other samples than in the undisturbed step", "none");
  refuse(c.resilience.rebalance != Rebalance::kNone, "resilience.rebalance", "data ranks with different numbers of micro-batches are not rerouted",
         "none");
  refuse(c.observe.samples.every > 0, "observe.samples.every", "every pipeline continues texts by itself, which a relieved rank cannot", "0");
  refuse(c.observe.anomalies.policy == AnomalyPolicy::kRerun, "observe.anomalies.policy",
         "a repeated step is computed by other data ranks, whose losses would be those of other samples", "warn | skip | stop");
}

/// Reads the ranks of the key; reports those that the mesh does not have, or that are named twice.
std::vector<RelievedRank> read_relieved_ranks(Rules& rules, const Config& c) {
  std::vector<RelievedRank> ranks;
  const std::string allowed = concat("DATA/PIPELINE with DATA from 0 to ", *c.parallel.data - 1, " and PIPELINE from 0 to ", c.parallel.pipeline - 1);
  for (const std::string& text : c.resilience.reroute) {
    const std::optional<RelievedRank> rank = parse_relieved_rank(text);
    if (!rank) {
      rules.broken(kRerouteKey, concat(text, " is not a data rank and a pipeline rank"), allowed, "0/0");
    } else if (rank->data >= *c.parallel.data || rank->pipeline >= c.parallel.pipeline) {
      rules.broken(kRerouteKey, concat(text, " is outside the mesh"), allowed,
                   concat(std::min(rank->data, *c.parallel.data - 1), "/", std::min(rank->pipeline, c.parallel.pipeline - 1)));
    } else if (std::ranges::find(ranks, *rank) != ranks.end()) {
      rules.broken(kRerouteKey, concat(text, " is named twice"), "different ranks");
    } else {
      ranks.push_back(*rank);
    }
  }
  return ranks;
}

}  // namespace

std::optional<RelievedRank> parse_relieved_rank(const std::string& text) {
  RelievedRank rank;
  const char* const end = text.data() + text.size();
  const auto is_digit = [&](const char* at) { return at != end && *at >= '0' && *at <= '9'; };
  if (!is_digit(text.data())) return std::nullopt;
  const auto [slash, bad_data] = std::from_chars(text.data(), end, rank.data);
  if (bad_data != std::errc{} || slash == end || *slash != '/' || !is_digit(slash + 1)) return std::nullopt;
  const auto [last, bad_pipeline] = std::from_chars(slash + 1, end, rank.pipeline);
  if (bad_pipeline != std::errc{} || last != end) return std::nullopt;
  return rank;
}

void check_reroute(Rules& rules, const Config& c) {
  const ParallelConfig& p = c.parallel;
  if (c.resilience.reroute.empty() || !rules.apply({kRerouteKey})) return;
  check_reroute_features(rules, c);
  if (!p.data || !rules.apply({"parallel.data", "parallel.pipeline"})) return;
  if (*p.data < 2) return rules.broken(kRerouteKey, "there is one data rank, so nobody could help", "[], or parallel.data from 2", "[]");
  if (p.pipeline < 2)
    return rules.broken(kRerouteKey, "without a pipeline a data rank is relieved as a whole, which is a step of fewer data ranks",
                        "[], or parallel.pipeline from 2", "[]");
  const std::vector<RelievedRank> ranks = read_relieved_ranks(rules, c);
  for (int64_t pipeline = 0; pipeline < p.pipeline; ++pipeline)
    if (std::ranges::count(ranks, pipeline, &RelievedRank::pipeline) == *p.data)
      rules.broken(kRerouteKey, concat("no data rank is left that computes pipeline rank ", pipeline),
                   concat("at most ", *p.data - 1, " of each pipeline rank"));
  if (!rules.apply({"resilience.reroute_from", "training.global_batch_size", "training.micro_batch_size"})) return;
  const int64_t microbatches = c.training.global_batch_size / c.training.micro_batch_size / *p.data;
  if (c.resilience.reroute_from >= microbatches)
    rules.broken("resilience.reroute_from", concat("a data rank has ", counted(microbatches, "micro-batch", "micro-batches"), ", counted from 0"),
                 concat("0 to ", microbatches - 1), std::to_string(microbatches - 1));
}

}  // namespace trireme
