#include "trainer/sweep/halving.h"

#include <algorithm>

namespace trireme::sweep {

std::vector<int64_t> rungs_of(const SweepHalving& halving, int64_t steps) {
  std::vector<int64_t> rungs;
  if (halving.first_steps)
    for (int64_t rung = *halving.first_steps; rung<steps; rung = rung> steps / halving.eta ? steps : rung * halving.eta) rungs.push_back(rung);
  rungs.push_back(steps);
  return rungs;
}

std::vector<size_t> promoted(std::vector<Contender> contenders, int64_t eta, const SweepObjective& objective) {
  std::ranges::sort(contenders, {}, &Contender::index);
  std::ranges::stable_sort(contenders, [&](const Contender& a, const Contender& b) { return is_better(a.score, b.score, objective); });
  const auto size = static_cast<size_t>(eta);
  contenders.resize((contenders.size() + size - 1) / size);
  std::vector<size_t> chosen;
  for (const Contender& one : contenders) chosen.push_back(one.index);
  std::ranges::sort(chosen);
  return chosen;
}

}  // namespace trireme::sweep
