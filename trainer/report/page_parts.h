#pragma once
// The sections of the HTML report. Each is empty if no run has recorded what it shows.
#include <span>
#include <string>

#include "trainer/report/run_plots.h"

namespace trireme::report {

std::string curves_section(std::span<const RunView> runs, PlotNumbers& numbers);
std::string time_line_section(std::span<const RunView> runs, PlotNumbers& numbers);
std::string memory_section(std::span<const RunView> runs);
std::string causes_section(std::span<const RunView> runs);
std::string ranks_section(std::span<const RunView> runs, PlotNumbers& numbers);
/// Texts of the events {"event": "sample", "step": ..., "prompt": ..., "text": ...}, which are optional; the last of each run.
std::string samples_section(std::span<const RunView> runs);
/// The starts of the Slurm jobs that `trireme submit` has submitted.
std::string slurm_section(std::span<const RunView> runs);
/// Keys whose values differ between several runs.
std::string differences_section(std::span<const RunView> runs);
std::string configuration_section(std::span<const RunView> runs);
std::string environment_section(std::span<const RunView> runs);

/// The heading of a part that belongs to run `i` of several; empty for one run.
std::string run_heading(std::span<const RunView> runs, size_t i);
/// The head of a table with a column for each run between `first` and `last`.
std::string table_head(std::span<const RunView> runs, const std::string& first, const std::string& last = "");
/// Text without what exceeds `most` bytes.
std::string shortened(const std::string& text, size_t most);
/// JSON for reading; invalid UTF-8 is replaced.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace trireme::report
