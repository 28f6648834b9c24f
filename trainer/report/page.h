#pragma once
#include <span>
#include <string>

#include "trainer/report/run_plots.h"

namespace trireme::report {

/// The report as one HTML document without references to other files: curves, throughput beside its forecast, memory, step time by cause, ranks, time
/// line, configuration. Several runs: curves over each other and tables of what differs. `version`: of the program, for the last line.
std::string page_html(std::span<const RunView> runs, const std::string& version);

}  // namespace trireme::report
