#pragma once
// The plots of one or several runs.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/report/plot.h"
#include "trainer/report/run_record.h"
#include "trainer/report/series.h"

namespace trireme::report {

enum class ProgressAxis : uint8_t { kSteps, kTokens, kTime };  ///< x axis of a curve over training
inline constexpr std::array kProgressNames{"steps", "tokens", "time"};

/// The forecast of a job: figures per step in the layout that it began with.
struct JobForecast {
  int64_t after_step = 0;  ///< the step that the job began after
  double step_seconds = 0, step_low = 0, step_high = 0;
};

/// A run with its bins and its forecasts.
struct RunView {
  explicit RunView(const RunRecord& record, std::string name);

  const RunRecord* run;
  std::string label;
  std::vector<Bin> bins;
  std::vector<double> x[kProgressNames.size()];  ///< of each bin, by ProgressAxis

  double tokens_per_step = 0;          ///< of the last step; NaN: unknown
  std::vector<JobForecast> forecasts;  ///< those that differ from the one before; empty: none are recorded
  bool is_binned() const { return bins.size() < run->steps.size(); }
  /// Place of a step on an x axis.
  double at(int64_t step, ProgressAxis progress) const;
};

/// nullopt if no run has the figures.
std::optional<Plot> loss_plot(std::span<const RunView> runs, ProgressAxis progress);
std::optional<Plot> figure_plot(std::span<const RunView> runs, Figure figure, ProgressAxis progress);
/// Tokens per second beside the forecast.
std::optional<Plot> throughput_plot(std::span<const RunView> runs, ProgressAxis progress);
/// Steps over wall-clock time: pauses between jobs are shaded, and restarts are marked. nullopt if times are not recorded.
std::optional<Plot> time_line_plot(const RunView& run);
/// Seconds per step of each rank: mean, minimum and maximum.
std::optional<Plot> rank_plot(const RunView& run);

struct NamedPlot {
  std::string name;  ///< for a file name: "loss-steps", "gradient-norm", "time-line"
  Plot plot;
};
/// Every plot of the runs.
std::vector<NamedPlot> all_plots(std::span<const RunView> runs);

/// A job of a run: from its start event to the last record before the next one. Seconds since 1970.
struct Job {
  double begin = 0, end = 0;
  int64_t step = 0;  ///< that it began after
};
std::vector<Job> jobs_of(const RunRecord& run);

}  // namespace trireme::report
