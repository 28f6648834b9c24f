#include "trainer/plan/step_bound.h"

#include <algorithm>

namespace trireme {

/// Fill: a rank starts when the first micro-batch has passed the stages before its first stage; then it has all its work to do. Drain: after its last
/// input gradient, that micro-batch still has to go back through the same stages, and the first rank then has a weight gradient left. Schedules that
/// do not defer weight gradients have full backwards in place of input gradients.
double step_seconds_lower_bound(const Layout& layout, int64_t microbatches, const std::vector<PartSeconds>& stages,
                                const std::vector<double>& transfers) {
  const bool defers_weight_gradients =
      layout.schedule == ScheduleKind::kZbH1 || layout.schedule == ScheduleKind::kZbH2 || layout.schedule == ScheduleKind::kZbV;
  const std::vector<int> rank_of = stage_ranks_of(layout);
  std::vector<double> all(static_cast<size_t>(layout.pipeline), 0), first(all);
  const auto before_last = [&](const PartSeconds& s) { return defers_weight_gradients ? s.input_gradient : s.input_gradient + s.weight_gradient; };
  for (size_t s = 0; s < stages.size(); ++s) {
    all[static_cast<size_t>(rank_of[s])] += stages[s].total();
    first[static_cast<size_t>(rank_of[s])] += stages[s].forward + before_last(stages[s]);
  }
  const auto times = static_cast<double>(microbatches);
  double least = 0, fill = 0, drain = defers_weight_gradients ? stages.front().weight_gradient : 0;
  for (size_t r = 0; r < all.size(); ++r) {
    least = std::max({least, fill + times * all[r], fill + times * first[r] + drain});
    const double transfer = r < transfers.size() ? transfers[r] : 0;
    fill += stages[r].forward + transfer;
    drain += before_last(stages[r]) + transfer;
  }
  return least;
}

double staggered_step_lower_bound(const Layout& layout, int64_t microbatches, const std::vector<PartSeconds>& stages) {
  const std::vector<int> rank_of = stage_ranks_of(layout);
  std::vector<double> work(static_cast<size_t>(layout.pipeline), 0);
  for (size_t s = 0; s < stages.size(); ++s) work[static_cast<size_t>(rank_of[s])] += static_cast<double>(microbatches) * stages[s].total();
  return std::ranges::max(work);
}

}  // namespace trireme
