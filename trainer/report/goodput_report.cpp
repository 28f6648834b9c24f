#include "trainer/report/goodput_report.h"

#include <charconv>
#include <cmath>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/plan/text.h"
#include "trainer/report/slurm_jobs.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

std::string duration_text(double seconds) { return value_text(seconds, Quantity::kDuration); }

/// A number of the configuration; nullopt for auto.
std::optional<double> given_number(const RunRecord& run, const std::string& key) {
  const std::string text = run.value(key);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? std::optional(value) : std::nullopt;
}

/// The mean time from the copy of the state to a valid checkpoint, if training continues meanwhile.
double write_seconds_of(const RunRecord& run) {
  double sum = 0, count = 0;
  for (const EventRecord& event : run.events)
    if (const double seconds = event.kind == "checkpoint" ? number_in(event.fields, "write_seconds") : 0; seconds > 0) sum += seconds, ++count;
  return count > 0 && run.value("checkpoint.asynchronous") == "true" ? sum / count : 0;
}

const ChosenInterval* last_interval(const RunRecord& run) {
  const ChosenInterval* last = nullptr;
  for (const JobRecord& job : run.jobs)
    if (job.interval) last = &*job.interval;
  return last;
}

bool is_known(const Goodput& goodput, TimeCause cause) {
  return goodput.is_divided || (cause != TimeCause::kCommunication && cause != TimeCause::kData);
}

std::string row(const std::string& cause, const std::string& seconds, const std::string& share) {
  constexpr size_t kCause = 24, kNumber = 12;
  const auto right = [](const std::string& text) { return std::string(text.size() < kNumber ? kNumber - text.size() : 0, ' ') + text; };
  return cause + std::string(kCause - std::min(kCause, cause.size()), ' ') + right(seconds) + right(share) + "\n";
}

std::string causes_text(const Goodput& goodput) {
  std::string text = row("cause", "seconds", "share");
  double sum = 0;
  for (size_t i = 0; i < kTimeCauses.size(); ++i) {
    const double seconds = goodput.seconds[i];
    sum += seconds;
    const bool known = is_known(goodput, static_cast<TimeCause>(i));
    text += row(kTimeCauses[i], known ? print("%.3f", seconds) : "-", known ? print("%.2f %%", 100 * seconds / goodput.wall_seconds) : "-");
  }
  text += row("sum", print("%.3f", sum), print("%.2f %%", 100 * sum / goodput.wall_seconds));
  if (!goodput.is_divided) text += "compute includes communication and data, which were not measured: on GPUs train --trace-steps divides them\n";
  return text;
}

std::string forecast_text(const GoodputForecast& forecast, double step_seconds) {
  const Failures& f = forecast.failures;
  const auto steps = [&](double seconds) { return counted(std::max<int64_t>(1, std::llround(seconds / step_seconds)), "step"); };
  return concat("training, of training, saves and failures: measured ", percent_text(forecast.measured), ", expected ",
                percent_text(forecast.expected), "\n  from a save of ", duration_text(f.stall), " after every ", duration_text(forecast.interval),
                " (", steps(forecast.interval), ") of training, a failure every ", duration_text(f.mtbf), " (", forecast.mtbf_from, ") and ",
                duration_text(f.downtime), " for each\n  best by Daly's formula: a save every ", duration_text(forecast.best_interval), " (",
                steps(forecast.best_interval), "), ", percent_text(forecast.best_expected), "\n");
}

}  // namespace

std::optional<GoodputForecast> forecast_of(const RunRecord& run, const Goodput& goodput) {
  if (goodput.saves == 0) return std::nullopt;
  const double steps = goodput.useful_seconds() + goodput[TimeCause::kSlowSteps], lost = goodput[TimeCause::kReplayed];
  const double saves = goodput[TimeCause::kSaves];
  const int64_t failures = goodput.failures.failures;
  const std::optional<double> given = given_number(run, "resilience.mean_time_between_failures");
  GoodputForecast forecast;
  forecast.mtbf_from = failures > 0 ? "measured" : given ? "given" : "assumed";
  forecast.failures.mtbf = failures > 0 || !given ? learned_mtbf(goodput.failures.seconds, failures) : *given;
  forecast.failures.stall = saves / static_cast<double>(goodput.saves);
  const double start = (goodput[TimeCause::kStartUp] + goodput[TimeCause::kLoad]) / static_cast<double>(std::max<int64_t>(goodput.jobs, 1));
  forecast.failures.downtime = (failures > 0 ? goodput.down_seconds / static_cast<double>(failures) : start) + write_seconds_of(run);
  forecast.interval = (steps + lost) / static_cast<double>(goodput.saves);
  forecast.measured = steps / (steps + lost + saves + goodput.down_seconds);
  forecast.best_interval = daly_interval(forecast.failures.stall, forecast.failures.mtbf);
  if (!(forecast.interval > 0 && forecast.best_interval > 0 && forecast.failures.mtbf > 0)) return std::nullopt;
  forecast.expected = effective_share_exponential(forecast.failures, forecast.interval);
  forecast.best_expected = effective_share_exponential(forecast.failures, forecast.best_interval);
  return forecast;
}

std::string goodput_report_text(const RunRecord& run, const Goodput& goodput) {
  std::string text = concat(run.name(), ": ", percent_text(goodput.share()), " goodput: ", counted(goodput.steps, "step"), " x ",
                            duration_text(goodput.median_step_seconds), " (median) of ", duration_text(goodput.wall_seconds), "; ",
                            counted(goodput.jobs, "job"), ", ", counted(goodput.failures.failures, "failure"), ", ", counted(goodput.saves, "save"),
                            ", ", counted(goodput.replayed_steps, "step"), " made again\n\n", causes_text(goodput), "\n");
  if (const std::optional<GoodputForecast> forecast = forecast_of(run, goodput))
    text += forecast_text(*forecast, (goodput.useful_seconds() + goodput[TimeCause::kSlowSteps]) / static_cast<double>(goodput.steps));
  if (const ChosenInterval* const chosen = last_interval(run))
    text += concat("checkpoint.every auto: ", counted(chosen->steps, "step"), " at last, for a save of ", duration_text(chosen->save_seconds),
                   " and a failure every ", duration_text(chosen->mtbf), "\n");
  return text + slurm_jobs_text(slurm_jobs(run, run.accounts.jobs), run.accounts.note);
}

ordered_json goodput_report_json(const RunRecord& run, const Goodput& goodput) {
  ordered_json seconds, shares, forecast, interval;
  for (size_t i = 0; i < kTimeCauses.size(); ++i) {
    const bool known = is_known(goodput, static_cast<TimeCause>(i));
    seconds[kTimeCauses[i]] = known ? ordered_json(goodput.seconds[i]) : ordered_json();
    shares[kTimeCauses[i]] = known ? ordered_json(goodput.seconds[i] / goodput.wall_seconds) : ordered_json();
  }
  if (const std::optional<GoodputForecast> one = forecast_of(run, goodput))
    forecast = {{"measured_share", one->measured},
                {"expected_share", one->expected},
                {"save_seconds", one->failures.stall},
                {"save_interval_seconds", one->interval},
                {"mean_time_between_failures", one->failures.mtbf},
                {"mean_time_between_failures_from", one->mtbf_from},
                {"downtime_seconds", one->failures.downtime},
                {"best_interval_seconds", one->best_interval},
                {"best_expected_share", one->best_expected}};
  if (const ChosenInterval* const chosen = last_interval(run))
    interval = {{"steps", chosen->steps}, {"save_seconds", chosen->save_seconds}, {"mean_time_between_failures", chosen->mtbf}};
  return {{"run", run.name()},
          {"goodput", goodput.share()},
          {"wall_seconds", goodput.wall_seconds},
          {"steps", goodput.steps},
          {"median_step_seconds", goodput.median_step_seconds},
          {"replayed_steps", goodput.replayed_steps},
          {"jobs", goodput.jobs},
          {"failures", goodput.failures.failures},
          {"saves", goodput.saves},
          {"seconds", seconds},
          {"shares", shares},
          {"forecast", forecast},
          {"checkpoint_interval", interval},
          {"slurm_jobs", slurm_jobs_json(slurm_jobs(run, run.accounts.jobs))},
          {"slurm_note", run.accounts.note.empty() ? ordered_json() : ordered_json(run.accounts.note)}};
}

}  // namespace trireme::report
