#pragma once
// What a run has achieved, in words and as bars.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/bars.h"
#include "trainer/report/run_plots.h"

namespace trireme::report {

struct Fact {
  std::string name;
  std::string text;         ///< "–" if unknown
  std::string remark = {};  ///< such as the step or the forecast
  bool headline = false;    ///< one of the few figures at the top of a report
};

/// The same facts in the same order for every run.
std::vector<Fact> facts_of(const RunView& run);

/// "llama, 771,200 parameters; tensor 2 x pipeline 2 x data 2, ZeRO-3; fp32".
std::string description_of(const RunRecord& run);

/// Peak memory by category, forecast and measured, of the pipeline ranks with the highest peaks, at most three; empty if the run has not reported it,
/// which it does at the end of a job.
std::vector<Bars> memory_bars(const RunRecord& run);
/// Seconds by cause of each step that `train --trace-steps` has traced, at most the last 20; nullopt if there are none.
std::optional<Bars> cause_bars(const RunRecord& run);

}  // namespace trireme::report
