#pragma once
#include <span>
#include <string>
#include <vector>

#include "trainer/report/plot.h"
#include "trainer/report/run_record.h"
#include "trainer/sweep/results.h"

namespace trireme::sweep {

/// The loss of all points over steps: the best in a color of its own, the others of the best quarter in another one.
std::optional<report::Plot> losses_plot(const Results& results, std::span<const report::RunRecord> records);
/// The objective over the values of an axis, by number `axis` of the file; nullopt unless two points with an objective have different numbers there.
std::optional<report::Plot> axis_plot(const Results& results, size_t axis);
/// Loss over learning rate of a range test; nullopt before its second step.
std::optional<report::Plot> range_test_plot(const Results& results);

/// The report of a sweep as one HTML document without references to other files. `records`: the run of each row of the results, empty ones for points
/// that have not begun. `version`: of the program.
std::string page_html(const Results& results, std::span<const report::RunRecord> records, const std::string& version);

/// Writes DIRECTORY/sweep.html. Errors: IoError; those of report::read_run.
void write_page(const Results& results, const std::string& version);

}  // namespace trireme::sweep
