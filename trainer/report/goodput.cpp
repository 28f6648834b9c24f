#include "trainer/report/goodput.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "kernels/core/check.h"
#include "trainer/files/clock_text.h"
#include "trainer/plan/text.h"
#include "trainer/report/run_plots.h"
#include "trainer/report/series.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

/// Seconds of stall by the step that was saved.
std::map<int64_t, double> stalls_of(const RunRecord& run) {
  constexpr std::string_view kPrefix = "step-";
  std::map<int64_t, double> stalls;
  for (const EventRecord& event : run.events) {
    const auto name = event.fields.find("checkpoint");
    if (event.kind != "checkpoint" || name == event.fields.end() || !name->is_string()) continue;
    const std::string text = name->get<std::string>();
    int64_t step = 0;
    if (!text.starts_with(kPrefix) || std::from_chars(text.data() + kPrefix.size(), text.data() + text.size(), step).ec != std::errc()) continue;
    if (const double seconds = number_in(event.fields, "stall_seconds"); seconds > 0) stalls[step] += seconds;
  }
  return stalls;
}

/// What a resume has removed: {steps, time of the last line}; the time is NaN if nothing is recorded.
std::pair<int64_t, double> discarded_by(const EventRecord& start) {
  const auto found = start.fields.find("discarded");
  if (found == start.fields.end() || !found->is_object()) return {0, std::nan("")};
  const auto until = found->find("until");
  const auto time = until != found->end() && until->is_string() ? time_of_utc(until->get_ref<const std::string&>()) : std::nullopt;
  const double steps = number_in(*found, "steps");
  return {steps > 0 && steps < 1e15 ? static_cast<int64_t>(steps) : 0,
          time ? std::chrono::duration<double>(time->time_since_epoch()).count() : std::nan("")};
}

/// Divides what lies between the steps of each job.
class Division {
 public:
  explicit Division(const RunRecord& run) : run_(run), jobs_(jobs_of(run)), stalls_(stalls_of(run)) {
    for (const EvaluationRecord& one : run.evaluations) evaluated_[one.step] = one.time;
  }
  std::optional<Goodput> result();

 private:
  void add_pause(size_t job);
  void add_job(size_t job);
  void add_gap(int64_t step, double begin, double end);

  const RunRecord& run_;
  std::vector<Job> jobs_;
  std::map<int64_t, double> stalls_;
  std::map<int64_t, double> evaluated_;  ///< time by step
  size_t next_ = 0;                      ///< the first step of the job
  double set_up_ = 0, saves_ = 0, evaluation_ = 0, replayed_ = 0, down_ = 0;
  int64_t replayed_steps_ = 0;
};

void Division::add_pause(size_t job) {
  const auto start =
      std::ranges::find_if(run_.events, [&](const EventRecord& event) { return event.kind == "start" && event.time == jobs_[job].begin; });
  const auto [steps, until] = discarded_by(*start);
  const double kept = jobs_[job - 1].end, end = std::isfinite(until) ? std::clamp(until, kept, std::max(kept, jobs_[job].begin)) : kept;
  replayed_steps_ += steps;
  replayed_ += end - kept;
  down_ += std::max(0.0, jobs_[job].begin - end);
}

/// Between the line of `step` and the beginning of the next one, or the end of the job.
void Division::add_gap(int64_t step, double begin, double end) {
  const double gap = std::max(0.0, end - begin);
  const auto stall = stalls_.find(step);
  const double saved = stall == stalls_.end() ? 0 : std::min(gap, stall->second);
  saves_ += saved;
  if (const auto evaluation = evaluated_.find(step); evaluation != evaluated_.end())
    evaluation_ += std::clamp(evaluation->second - begin - saved, 0.0, gap - saved);
}

void Division::add_job(size_t job) {
  const StepTable& steps = run_.steps;
  const double limit = job + 1 < jobs_.size() ? jobs_[job + 1].begin : INFINITY;
  const auto began = [&](size_t i) { return steps.time[i] - steps[Figure::kStepSeconds][i]; };
  const size_t first = next_;
  while (next_ < steps.size() && steps.time[next_] < limit) ++next_;
  if (first == next_) {
    set_up_ += jobs_[job].end - jobs_[job].begin;
    return;
  }
  set_up_ += std::max(0.0, began(first) - jobs_[job].begin);
  for (size_t i = first; i + 1 < next_; ++i) add_gap(steps.step[i], steps.time[i], began(i + 1));
  add_gap(steps.step[next_ - 1], steps.time[next_ - 1], jobs_[job].end);
}

std::optional<Goodput> Division::result() {
  const StepTable& steps = run_.steps;
  const auto finite = [](double value) { return std::isfinite(value); };
  const bool timed = std::ranges::all_of(steps.time, finite) && std::ranges::all_of(steps[Figure::kStepSeconds], finite) &&
                     std::ranges::all_of(jobs_, [&](const Job& job) { return finite(job.begin); });
  if (steps.size() == 0 || jobs_.empty() || !timed) return std::nullopt;
  Goodput goodput{.steps = static_cast<int64_t>(steps.size()),
                  .median_step_seconds = median_of(steps[Figure::kStepSeconds]),
                  .wall_seconds = jobs_.back().end - jobs_.front().begin,
                  .lost = {}};
  if (!(goodput.wall_seconds > 0)) return std::nullopt;
  for (size_t job = 0; job < jobs_.size(); ++job) {
    if (job > 0) add_pause(job);
    add_job(job);
  }
  goodput.replayed_steps = replayed_steps_;
  double other = goodput.wall_seconds - goodput.useful_seconds();
  const auto add = [&](const char* cause, double seconds) {
    goodput.lost.emplace_back(cause, seconds);
    other -= seconds;
  };
  add("set-up", set_up_);
  add("saves", saves_);
  add("evaluation", evaluation_);
  add("replayed", replayed_);
  add("down", down_);
  add("slow steps", steps.elapsed_seconds.back() - goodput.useful_seconds());
  goodput.lost.emplace_back("other", other);
  return goodput;
}

}  // namespace

std::optional<Goodput> goodput_of(const RunRecord& run) { return Division(run).result(); }

Bars goodput_bars(const Goodput& goodput) {
  Bars bars{.title = "Wall-clock time by cause", .quantity = Quantity::kDuration, .key = {{0, "useful"}}, .rows = {}};
  Bar bar{.name = "", .segments = {{0, goodput.useful_seconds()}}};
  for (size_t i = 0; i < goodput.lost.size(); ++i) {
    const auto& [cause, seconds] = goodput.lost[i];
    if (seconds <= 0) continue;
    bars.key.emplace_back(i + 1, cause);
    bar.segments.push_back({i + 1, seconds});
  }
  bars.rows.push_back({"time since the first start", {std::move(bar)}});
  return bars;
}

std::string goodput_text(const Goodput& goodput) {
  constexpr double kLeast = 0.01;
  std::vector<std::pair<std::string, double>> causes = goodput.lost;
  std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, double>::second);
  std::string text = concat(percent_text(goodput.share()), " of ", value_text(goodput.wall_seconds, Quantity::kDuration)), lost;
  for (const auto& [cause, seconds] : causes)
    if (seconds >= kLeast * goodput.wall_seconds)
      lost += concat(lost.empty() ? "; lost: " : ", ", cause, " ", percent_text(seconds / goodput.wall_seconds));
  return text + lost;
}

}  // namespace trireme::report
