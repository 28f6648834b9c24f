#include "trainer/plan/step_bound.h"

#include <algorithm>

namespace trireme {

/// A rank begins when the first micro-batch has come through the stages before its first one, and then has all its work to do. When it has done all
/// forwards and input gradients, the last of these still goes back through the same stages, behind which the first rank has a weight gradient left.
/// Where weight gradients are not put off, that holds for whole backwards.
double least_step_seconds(const Layout& layout, int64_t microbatches, const std::vector<PartSeconds>& stages, const std::vector<double>& transfers) {
  const bool put_off = layout.schedule == ScheduleKind::kZbH1 || layout.schedule == ScheduleKind::kZbH2 || layout.schedule == ScheduleKind::kZbV;
  const std::vector<int> rank_of = stage_ranks_of(layout);
  std::vector<double> all(static_cast<size_t>(layout.pipeline), 0), first(all);
  const auto before_last = [&](const PartSeconds& s) { return put_off ? s.input_gradient : s.input_gradient + s.weight_gradient; };
  for (size_t s = 0; s < stages.size(); ++s) {
    all[static_cast<size_t>(rank_of[s])] += stages[s].total();
    first[static_cast<size_t>(rank_of[s])] += stages[s].forward + before_last(stages[s]);
  }
  const auto times = static_cast<double>(microbatches);
  double least = 0, fill = 0, drain = put_off ? stages.front().weight_gradient : 0;
  for (size_t r = 0; r < all.size(); ++r) {
    least = std::max({least, fill + times * all[r], fill + times * first[r] + drain});
    const double transfer = r < transfers.size() ? transfers[r] : 0;
    fill += stages[r].forward + transfer;
    drain += before_last(stages[r]) + transfer;
  }
  return least;
}

}  // namespace trireme
