#include "trainer/config/check_reroute.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "kernels/core/counted.h"

namespace trireme {
namespace {

constexpr const char* kRerouteKey = "resilience.reroute";

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
  if (p.data.value_or(1) < 2 || p.pipeline < 2 || !rules.apply({"parallel.data", "parallel.pipeline"})) return;
  const std::vector<RelievedRank> ranks = read_relieved_ranks(rules, c);
  for (int64_t pipeline = 0; pipeline < p.pipeline; ++pipeline)
    if (std::ranges::count(ranks, pipeline, &RelievedRank::pipeline) == *p.data)
      rules.broken(kRerouteKey, concat("no data rank is left that computes pipeline rank ", pipeline),
                   concat("at most ", *p.data - 1, " of each pipeline rank"));
  if (!rules.apply({"resilience.reroute_from", "training.global_batch_size", "training.micro_batch_size"})) return;
  const int64_t microbatches = c.training.global_batch_size / c.training.micro_batch_size / *p.data;
  rules.at_most("resilience.reroute_from", c.resilience.reroute_from, 0, microbatches - 1,
                concat("a data rank has ", counted(microbatches, "micro-batch", "micro-batches"), ", counted from 0"));
}

}  // namespace trireme
