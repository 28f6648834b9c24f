#include "trainer/run/rank_results.h"

#include <bit>
#include <cmath>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"

namespace trireme {

using nlohmann::ordered_json;

std::vector<RankResult> gather_rank_results(Trainer& trainer, const StepResult& result, const StepLimits& limits) {
  const auto bits = [](double value) { return std::to_string(std::bit_cast<uint64_t>(value)); };
  const bool has_loss = trainer.counts_loss() && result.local_targets > 0;
  const double loss = result.local_loss / static_cast<double>(std::max<int64_t>(result.local_targets, 1));
  const double norm = std::sqrt(result.local_squares) / static_cast<double>(result.loss_scale.value_or(1));
  std::vector<RankResult> all;
  const int first = trainer.mesh().world.rank() - trainer.mesh().step.rank();
  for (const std::string& text : all_gather_strings(trainer.mesh().step, concat(has_loss, " ", bits(loss), " ", bits(norm), " ",
                                                                                bits(limits.rank_loss), " ", result.stands_out, " ", host_name()))) {
    std::istringstream words(text);
    bool known = false;
    uint64_t loss_bits = 0, norm_bits = 0, limit_bits = 0;
    RankResult& one = all.emplace_back();
    one.rank = first + static_cast<int>(all.size()) - 1;
    words >> known >> loss_bits >> norm_bits >> limit_bits >> one.stands_out >> one.host;
    if (known) one.loss = std::bit_cast<double>(loss_bits);
    one.grad_norm = std::bit_cast<double>(norm_bits);
    one.loss_limit = std::bit_cast<double>(limit_bits);
  }
  return all;
}

namespace {

/// Orders values; one that is not finite is larger than every other.
bool larger(double a, double b) { return !std::isfinite(a) ? std::isfinite(b) : a > b; }

}  // namespace

std::string outliers_text(const std::vector<RankResult>& ranks) {
  constexpr int kMost = 4;
  int count = 0;
  std::string text;
  for (const RankResult& rank : ranks) {
    if (!rank.stands_out || ++count > kMost) continue;
    text += concat(text.empty() ? ": rank " : ", rank ", rank.rank, " on ", rank.host, " with a loss of ", rank.loss.value_or(0), " (limit ",
                   rank.loss_limit, ")");
  }
  return count > kMost ? concat(text, " and ", counted(count - kMost, "more rank")) : text;
}

std::string highest_text(const std::vector<RankResult>& ranks) {
  if (ranks.size() <= 1) return "";
  size_t norm = 0;
  std::optional<size_t> loss;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (larger(ranks[rank].grad_norm, ranks[norm].grad_norm)) norm = rank;
    if (ranks[rank].loss && (!loss || larger(*ranks[rank].loss, *ranks[*loss].loss))) loss = rank;
  }
  const auto name = [&](size_t rank) { return concat("rank ", ranks[rank].rank, " on ", ranks[rank].host); };
  return concat("; ", loss ? concat(name(*loss), " has the highest loss, ", *ranks[*loss].loss, ", and ") : "", name(norm),
                loss ? " the highest gradient norm, " : " has the highest gradient norm, ", ranks[norm].grad_norm);
}

ordered_json to_json(const std::vector<RankResult>& ranks) {
  ordered_json losses = ordered_json::array(), norms = losses, limits = losses, outliers = losses;
  for (const RankResult& rank : ranks) {
    losses.push_back(rank.loss ? ordered_json(*rank.loss) : ordered_json());
    norms.push_back(rank.grad_norm);
    limits.push_back(std::isfinite(rank.loss_limit) ? ordered_json(rank.loss_limit) : ordered_json());
    if (rank.stands_out) outliers.push_back(rank.rank);
  }
  return {{"rank_loss", losses}, {"rank_loss_limit", limits}, {"rank_grad_norm", norms}, {"outliers", outliers}};
}

}  // namespace trireme
