#pragma once
#include <string>

#include "trainer/report/plot.h"
#include "trainer/report/rank_step_times.h"

namespace trireme::report {

/// Step times by rank and step, relative to the median of all ranks in the step, so that a slow rank is a line, and a step that was slow for all
/// ranks is not seen. More than 128 ranks share rows in groups, which show their slowest rank; more than 120 columns are merged, which show the mean.
std::string heat_map_html(const RankStepTimes& times, PlotNumbers& numbers);
/// An SVG document.
std::string heat_map_svg(const RankStepTimes& times);

}  // namespace trireme::report
