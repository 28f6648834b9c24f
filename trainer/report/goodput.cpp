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

constexpr double kRounding = 2e-3;  ///< seconds between two steps that are no gap, as times have milliseconds
constexpr double kSameTime = 0.01;  ///< seconds: times of lines are those of writing them, in milliseconds

/// Seconds of stall by the step that was saved, from the events "checkpoint".
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

/// The job of a start event, of a version without jobs.jsonl.
JobRecord job_of(const EventRecord& start) {
  JobRecord job{.launched = start.time, .joined = start.time, .started = start.time, .step = start.after_step};
  const auto found = start.fields.find("discarded");
  if (found == start.fields.end() || !found->is_object()) return job;
  const double steps = number_in(*found, "steps");
  job.discarded_steps = steps > 0 && steps < 1e15 ? static_cast<int64_t>(steps) : 0;
  const auto until = found->find("until");
  const auto time = until != found->end() && until->is_string() ? time_of_utc(until->get_ref<const std::string&>()) : std::nullopt;
  if (time) job.discarded_until = seconds_since_1970(*time);
  return job;
}

/// Goes through the time of a run once, so that every moment has one cause.
class Division {
 public:
  explicit Division(const RunRecord& run);
  std::optional<Goodput> result();

 private:
  bool is_timed() const;
  double begin_of(const JobRecord& job) const;
  const JobRecord* after(size_t job) const { return job + 1 < jobs_.size() ? &jobs_[job + 1] : nullptr; }
  void advance(double until, TimeCause cause);
  bool is_interrupted(double until);
  double limit_of(size_t job) const { return after(job) != nullptr ? begin_of(*after(job)) : INFINITY; }
  bool is_restart(size_t job) const;
  bool is_rolled_back(size_t job) const;
  void add_pause(size_t job);
  void add_launch(size_t job);
  void add_steps(size_t job);
  void add_end(size_t job);
  void add_gap(double until, TimeCause rest);
  void add(TimeCause cause, double seconds) { goodput_.seconds[static_cast<size_t>(cause)] += seconds; }
  void divide_steps();

  const RunRecord& run_;
  std::vector<JobRecord> jobs_;
  std::vector<double> last_lines_;       ///< of each job
  std::map<int64_t, double> evaluated_;  ///< time by step
  /// What interrupts other causes: spans in the order of their begin.
  std::vector<std::pair<TimeSpan, TimeCause>> interruptions_;
  size_t past_ = 0;          ///< interruptions that have ended
  size_t next_ = 0;          ///< the first step that is not accounted
  int64_t step_ = 0;         ///< the last one that is
  double at_ = 0;            ///< time up to which all is accounted
  double step_seconds_ = 0;  ///< of the steps of the history, as far as they do not overlap with what came before
  bool trained_ = false;     ///< the job had its first step, or was about to
  Goodput goodput_;
};

Division::Division(const RunRecord& run) : run_(run), jobs_(run.jobs) {
  double recorded = INFINITY;  // the launcher's clock may differ from that of rank 0
  if (!jobs_.empty())
    for (const double time : {begin_of(jobs_.front()), jobs_.front().joined, jobs_.front().started})
      recorded = std::min(recorded, std::isfinite(time) ? time : recorded);
  std::vector<JobRecord> older;
  for (const EventRecord& event : run.events)
    if (event.kind == "start" && !(event.time >= recorded)) older.push_back(job_of(event));
  jobs_.insert(jobs_.begin(), older.begin(), older.end());
  for (const EvaluationRecord& one : run.evaluations) evaluated_[one.step] = one.time;
  for (const JobRecord& job : jobs_) {
    for (const TimeSpan& save : job.saves) interruptions_.emplace_back(save, TimeCause::kSaves);
    for (const TimeSpan& wait : job.waits) interruptions_.emplace_back(wait, TimeCause::kWaiting);
    goodput_.saves += job.save_count;
  }
  const std::map<int64_t, double> stalls = stalls_of(run);
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const auto stall = stalls.find(run.steps.step[i]);
    if (stall == stalls.end() || !(run.steps.time[i] < recorded)) continue;
    interruptions_.push_back({{run.steps.time[i], run.steps.time[i] + stall->second}, TimeCause::kSaves});
    ++goodput_.saves;
  }
  std::ranges::stable_sort(interruptions_, {}, [](const auto& one) { return one.first.begin; });
  for (size_t i = 0; i < jobs_.size(); ++i) last_lines_.push_back(begin_of(jobs_[i]));
  const auto extend = [&](double time) {
    for (size_t i = jobs_.size(); std::isfinite(time) && i-- > 0;)
      if (begin_of(jobs_[i]) <= time) return void(last_lines_[i] = std::max(last_lines_[i], time));
  };
  for (const double time : run.steps.time) extend(time);
  for (const EvaluationRecord& one : run.evaluations) extend(one.time);
  for (const EventRecord& event : run.events) extend(event.time);
  for (const JobRecord& job : jobs_)
    if (!job.saves.empty()) extend(job.saves.back().end);
}

double Division::begin_of(const JobRecord& job) const {
  for (const double time : {job.launched, job.joined, job.started})
    if (std::isfinite(time)) return time;
  return std::nan("");
}

bool Division::is_timed() const {
  const auto finite = [](double value) { return std::isfinite(value); };
  return run_.steps.size() > 0 && !jobs_.empty() && std::ranges::all_of(run_.steps.time, finite) &&
         std::ranges::all_of(run_.steps[Figure::kStepSeconds], finite) &&
         std::ranges::all_of(jobs_, [&](const JobRecord& job) { return finite(begin_of(job)); });
}

/// The time up to `until` has this cause, but for interruptions.
void Division::advance(double until, TimeCause cause) {
  if (!(until > at_)) return;
  double rest = until - at_;
  for (size_t i = is_interrupted(until) ? past_ : interruptions_.size(); i < interruptions_.size() && interruptions_[i].first.begin < until; ++i) {
    const auto& [span, why] = interruptions_[i];
    const double part = std::min({until, span.end}) - std::max(at_, span.begin);
    if (part <= 0) continue;
    const double taken = std::min(part, rest);
    add(why, taken);
    rest -= taken;
  }
  add(cause, rest);
  at_ = until;
}

bool Division::is_interrupted(double until) {
  while (past_ < interruptions_.size() && interruptions_[past_].first.end <= at_) ++past_;
  return past_ < interruptions_.size() && interruptions_[past_].first.begin < until;
}

bool Division::is_restart(size_t index) const { return index > 0 && jobs_[index].launcher <= begin_of(jobs_[index - 1]) + kSameTime; }

/// Up to the start of the ranks.
void Division::add_pause(size_t index) {
  if (index == 0) return;
  const JobRecord &job = jobs_[index], &last = jobs_[index - 1];
  const bool is_requeue = !job.slurm_job.empty() && job.slurm_job == last.slurm_job && job.slurm_restarts > last.slurm_restarts;
  if (is_restart(index)) return advance(std::isfinite(job.joined) ? job.joined : begin_of(job), TimeCause::kRestart);
  advance(begin_of(job), is_requeue ? TimeCause::kWaiting : TimeCause::kNotRunning);
}

/// Up to the first step of a job, if it came so far.
void Division::add_launch(size_t index) {
  const JobRecord &job = jobs_[index], *const next = after(index);
  const double before = at_;
  add_pause(index);
  const double begin = is_restart(index) ? before : at_;
  const bool has_steps = next_ < run_.steps.size() && run_.steps.time[next_] < limit_of(index);
  const bool lost_steps = next != nullptr && next->discarded_steps > 0 && next->discarded_until > begin;
  double ready = job.ready;
  if (!std::isfinite(ready) && has_steps) ready = run_.steps.time[next_] - run_.steps[Figure::kStepSeconds][next_];
  if (!std::isfinite(ready) && lost_steps) ready = last_lines_[index];
  trained_ = std::isfinite(ready);
  if (trained_) {
    const double load = std::clamp(ready - at_, 0.0, job.load_seconds);
    advance(ready - load, TimeCause::kStartUp);
    advance(ready, TimeCause::kLoad);
  }
  if (index > 0 && !jobs_[index - 1].ended_as_planned()) goodput_.down_seconds += at_ - begin;
}

/// Up to the next step, or the end of a job: an evaluation of the last step ends with its line.
void Division::add_gap(double until, TimeCause rest) {
  if (const auto evaluation = evaluated_.find(step_); evaluation != evaluated_.end() && evaluation->second <= until + kSameTime)
    advance(std::min(evaluation->second, until), TimeCause::kEvaluation);
  advance(until, rest);
}

void Division::add_steps(size_t index) {
  const StepTable& steps = run_.steps;
  step_ = jobs_[index].step;
  for (const double limit = limit_of(index); next_ < steps.size() && steps.time[next_] < limit; ++next_) {
    const double begin = steps.time[next_] - steps[Figure::kStepSeconds][next_];
    if (begin - at_ > kRounding || is_interrupted(begin)) add_gap(begin, TimeCause::kOther);
    step_ = steps.step[next_];
    step_seconds_ += std::max(0.0, steps.time[next_] - at_);
    at_ = std::max(at_, steps.time[next_]);
  }
}

/// True if a later resume went back behind the end of this job, which ended as planned.
bool Division::is_rolled_back(size_t index) const {
  const JobRecord* const next = after(index);
  return next != nullptr && (next->discarded_steps > 0 || std::any_of(next, &jobs_.back() + 1, [&](const JobRecord& later) {
                               return std::isfinite(later.started) && std::isfinite(next->started) && later.step < next->step;
                             }));
}

/// Behind the last step of the history that a job made.
void Division::add_end(size_t index) {
  const JobRecord &job = jobs_[index], *const next = after(index);
  const auto known = [](double time, double otherwise) { return std::isfinite(time) ? time : otherwise; };
  const bool is_running = next == nullptr && !std::isfinite(job.exited) && !std::isfinite(job.ended);
  if (is_running) return add_gap(last_lines_[index], trained_ ? TimeCause::kOther : TimeCause::kStartUp);
  if (job.ended_as_planned()) {
    add_gap(job.ended, is_rolled_back(index) ? TimeCause::kReplayed : TimeCause::kOther);
    return advance(job.exited, TimeCause::kOther);
  }
  const double begin = at_;
  double last_sign = last_lines_[index];
  if (next != nullptr && next->discarded_until > last_sign) last_sign = next->discarded_until;
  if (!trained_) last_sign = known(job.exited, last_sign);  // what nobody detected was still the start
  add_gap(known(job.failed, known(job.ended, last_sign)), trained_ ? TimeCause::kReplayed : TimeCause::kStartUp);
  const double failed = trained_ ? at_ : begin;
  advance(job.exited, TimeCause::kDetection);
  goodput_.down_seconds += at_ - failed;
}

/// Divides the time of the steps into its causes.
void Division::divide_steps() {
  const StepShares& shares = run_.shares;
  goodput_.median_step_seconds = median_of(run_.steps[Figure::kStepSeconds]);
  const double useful = std::min(step_seconds_, static_cast<double>(goodput_.steps) * goodput_.median_step_seconds);
  goodput_.is_divided = shares.measured > 0;
  const double communication = goodput_.is_divided ? std::clamp(shares.communication / shares.measured, 0.0, 1.0) : 0;
  const double data = goodput_.is_divided ? std::clamp(shares.data / shares.measured, 0.0, 1 - communication) : 0;
  add(TimeCause::kCommunication, useful * communication);
  add(TimeCause::kData, useful * data);
  add(TimeCause::kCompute, useful * (1 - communication - data));
  add(TimeCause::kSlowSteps, step_seconds_ - useful);
}

std::optional<Goodput> Division::result() {
  if (!is_timed()) return std::nullopt;
  goodput_.steps = static_cast<int64_t>(run_.steps.size());
  goodput_.jobs = static_cast<int64_t>(jobs_.size());
  goodput_.failures = failures_of(jobs_);
  const JobRecord& first = jobs_.front();
  const double begin = at_ = std::isfinite(first.launcher) ? std::min(first.launcher, begin_of(first)) : begin_of(first);
  for (size_t job = 0; job < jobs_.size(); ++job) {
    add_launch(job);
    add_steps(job);
    add_end(job);
    goodput_.replayed_steps += jobs_[job].discarded_steps;
  }
  divide_steps();
  goodput_.wall_seconds = at_ - begin;
  if (!(goodput_.wall_seconds > 0)) return std::nullopt;
  return goodput_;
}

/// Causes that share a color of a bar.
struct CauseGroup {
  const char* name;
  std::vector<TimeCause> causes;
};

std::vector<CauseGroup> cause_groups() {
  using enum TimeCause;
  return {{"useful", {kCompute, kCommunication, kData}},
          {"slow steps", {kSlowSteps}},
          {"start-up and load", {kStartUp, kLoad}},
          {"saves", {kSaves}},
          {"evaluation", {kEvaluation}},
          {"replayed steps", {kReplayed}},
          {"detection and restart", {kDetection, kRestart}},
          {"not running", {kWaiting, kNotRunning}},
          {"other", {kOther}}};
}

}  // namespace

std::optional<Goodput> goodput_of(const RunRecord& run) { return Division(run).result(); }

Bars goodput_bars(const Goodput& goodput) {
  Bars bars{.title = "Wall-clock time by cause", .quantity = Quantity::kDuration, .key = {}, .rows = {}};
  Bar bar{.name = "", .segments = {}};
  const std::vector<CauseGroup> groups = cause_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    double seconds = 0;
    for (const TimeCause cause : groups[i].causes) seconds += goodput[cause];
    if (seconds <= 0) continue;
    bars.key.emplace_back(i, groups[i].name);
    bar.segments.push_back({i, seconds});
  }
  bars.rows.push_back({"time since the first start", {std::move(bar)}});
  return bars;
}

std::string goodput_text(const Goodput& goodput) {
  constexpr double kLeast = 0.01;
  std::vector<std::pair<std::string, double>> causes;
  for (size_t i = kUsefulCauses; i < kTimeCauses.size(); ++i) causes.emplace_back(kTimeCauses[i], goodput.seconds[i]);
  std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, double>::second);
  std::string text = concat(percent_text(goodput.share()), " of ", value_text(goodput.wall_seconds, Quantity::kDuration)), lost;
  for (const auto& [cause, seconds] : causes)
    if (seconds >= kLeast * goodput.wall_seconds)
      lost += concat(lost.empty() ? "; lost: " : ", ", cause, " ", percent_text(seconds / goodput.wall_seconds));
  return text + lost;
}

}  // namespace trireme::report
