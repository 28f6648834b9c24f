#pragma once
// Draws a pipeline schedule as SVG.
#include <string>
#include <vector>

#include "parallel/pipeline/timeline.h"

namespace trireme {

/// Draws one row per rank of a pipeline below `title`. Each F, I, W or B of a stage and micro-batch is a box to scale, labelled with the
/// micro-batch's number if it fits, and lighter for a rank's further stages. Grey is idle time; its share is printed beside the row. A picture that
/// would exceed 1 MB shows only the first 500 ranks and the beginning of the step, and says so.
/// Errors: ConfigError if no rank computes.
std::string pipeline_svg(const std::vector<Timeline>& ranks, const std::string& title = {});

}  // namespace trireme
