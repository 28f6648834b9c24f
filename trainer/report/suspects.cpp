#include "trainer/report/suspects.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/report/axis.h"

namespace trireme::report {

std::vector<Suspect> suspects_of(const RunRecord& run) {
  std::map<int, Suspect> by_rank;
  for (const auto& of_step : run.steps.suspects) {
    for (const auto& [rank, distance] : of_step) {
      Suspect& suspect = by_rank[rank];
      suspect.rank = rank;
      ++suspect.steps;
      if (std::isfinite(distance))
        suspect.farthest = std::max(suspect.farthest, distance);
      else
        ++suspect.left_out;
    }
  }
  std::vector<Suspect> all;
  for (const auto& [rank, suspect] : by_rank) all.push_back(suspect);
  std::ranges::stable_sort(all, std::ranges::greater(), &Suspect::steps);
  return all;
}

std::string suspects_text(const std::vector<Suspect>& suspects, int64_t steps) {
  std::string text;
  for (const Suspect& suspect : suspects) {
    text += concat(text.empty() ? "" : "; ", "data rank ", suspect.rank, " in ", suspect.steps, " of ", counted(steps, "step"));
    if (suspect.farthest > 0) text += concat(", up to ", value_text(suspect.farthest, Quantity::kNumber), " median distances away");
    if (suspect.left_out > 0) text += concat(", without a finite gradient in ", suspect.left_out);
  }
  return text;
}

}  // namespace trireme::report
