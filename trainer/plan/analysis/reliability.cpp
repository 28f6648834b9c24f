#include "trainer/plan/analysis/reliability.h"

#include <algorithm>
#include <cmath>

namespace trireme {

double young_interval(double stall, double mtbf) { return std::sqrt(2 * stall * mtbf); }

double daly_interval(double stall, double mtbf) {
  if (stall >= 2 * mtbf) return mtbf;
  const double x = stall / (2 * mtbf);
  return young_interval(stall, mtbf) * (1 + std::sqrt(x) / 3 + x / 9) - stall;
}

double learned_mtbf(double seconds, int64_t failures) {
  constexpr double kDay = 86400;
  return failures > 0 ? seconds / static_cast<double>(failures) : seconds + kDay;
}

double effective_share(const Failures& failures, double interval) {
  return std::max(0.0, 1 - failures.stall / interval - (interval / 2 + failures.downtime) / failures.mtbf);
}

double effective_share_exponential(const Failures& failures, double interval) {
  const double m = failures.mtbf;
  return interval / m * std::exp(-failures.downtime / m) / std::expm1((interval + failures.stall) / m);
}

}  // namespace trireme
