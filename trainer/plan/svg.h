#pragma once
// A pipeline as a picture that any browser shows.
#include <string>
#include <vector>

#include "parallel/pipeline/timeline.h"

namespace trireme {

/// One row for each rank of a pipeline, under a line of `title`; a box for each F, I, W or B of a stage and micro-batch, with the micro-batch's
/// number where it fits, paler for a rank's further stages; what is left grey is idle, and its share stands beside the row. Times are to scale. A
/// picture that would exceed 1 MB shows the first 500 ranks and the beginning of the step only, and says so.
/// Errors: ConfigError where nothing runs.
std::string pipeline_svg(const std::vector<Timeline>& ranks, const std::string& title = {});

}  // namespace trireme
