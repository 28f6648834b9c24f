#pragma once
// A pipeline as a picture that any browser shows.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pipeline/timeline.h"

namespace trireme {

struct PipelinePicture {
  std::string title = {};                                ///< one line above the picture
  std::vector<std::string> names = {};                   ///< of the rows; "pipeline 0", ... where none are given
  std::optional<std::pair<double, double>> window = {};  ///< seconds of the step to show; the whole step where none is given
};

/// One row for each rank, a box for each F, I, W or B of a stage and micro-batch, with the micro-batch's number where it fits, paler for a rank's further
/// stages; what is left grey is idle, and its share of the window stands beside the row. Times are to scale. A picture of so many boxes that it would
/// exceed 1 MB shows the window's beginning only and says so.
/// Errors: ConfigError where nothing runs in the window.
std::string pipeline_svg(const std::vector<Timeline>& ranks, const PipelinePicture& picture = {});

}  // namespace trireme
