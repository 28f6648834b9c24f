#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace trireme::report {

/// A data rank that was suspected by security.aggregation.
struct Suspect {
  int rank = 0;
  int64_t steps = 0;     ///< in which it was suspected
  double farthest = 0;   ///< largest distance of its gradient in them, in median distances; 0: none was finite
  int64_t left_out = 0;  ///< steps in which its gradient was not finite or missing
};

/// The suspects among the steps of a run's history, the one suspected most often first.
std::vector<Suspect> suspects_of(const RunRecord& run);

/// "data rank 3 in 40 of 50 steps, up to 12.5 median distances away; ...".
std::string suspects_text(const std::vector<Suspect>& suspects, int64_t steps);

}  // namespace trireme::report
