#include "trainer/sweep/runner.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/plan/text.h"
#include "trainer/report/axis.h"

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace trireme::sweep {
namespace {

constexpr auto kPoll = milliseconds(50);
constexpr auto kMark = seconds(60);

}  // namespace

std::optional<int64_t> Slots::threads(int ranks) const {
  if (!cores) return std::nullopt;
  return std::max<int64_t>(1, *cores / ranks);
}

Slots slots_of(const SweepWhere& where, const std::vector<PointRun>& runs, int usable_cores, bool gpus, const LaunchEnvironment& environment) {
  int most = 1;
  for (const PointRun& run : runs) most = std::max(most, run.ranks);
  Slots slots;
  slots.at_once = where.at_once.value_or(gpus ? 1 : std::max(1, usable_cores / most));
  slots.at_once = std::min(slots.at_once, static_cast<int64_t>(runs.size()));
  if (where.cores || !environment.omp_threads) slots.cores = where.cores.value_or(std::max<int64_t>(1, usable_cores / slots.at_once));
  return slots;
}

Runner::Runner(const SweepFile& file, const std::vector<PointRun>& runs, Slots slots, const StopRequest& stop, Say say, std::optional<size_t> only)
    : file_(file), runs_(runs), slots_(slots), stop_(stop), say_(std::move(say)), only_(only), next_mark_(StopRequest::Clock::now() + kMark) {
  if (!only) clock_.emplace(file.directory);
  for (const PointRun& run : runs_) {
    histories_.push_back(history_of(file_.directory, run));
    shown_ += histories_.back().done_until;
  }
  line_.emplace("sweep", ProgressUnit::kItems, planned_steps(file_.config, runs_), shown_);
}

SweepEnd Runner::run() {
  for (;;) {
    forward_requests();
    reap();
    start_points();
    if (running_.empty()) break;
    show_progress();
    if (stop_.requested() || out_of_hours_)
      std::this_thread::sleep_for(kPoll);
    else
      stop_.sleep(kPoll);
  }
  line_.reset();
  const bool left = next_point().has_value();
  if (clock_) clock_->mark("end");
  if (stop_.requested()) return stop_.second_requested() ? SweepEnd::kKilled : SweepEnd::kStopped;
  if (out_of_hours_) return SweepEnd::kHours;
  if (left) return SweepEnd::kFailures;
  return blocked_.empty() ? SweepEnd::kComplete : SweepEnd::kBlocked;
}

std::vector<Standing> Runner::standings() {
  std::vector<Standing> standings =
      standings_of(file_.config, runs_, histories_, [this](size_t index, int64_t until) { return score_at(index, until); });
  if (!file_.config.budget.steps) return standings;
  // What is done or running counts first, then what is to be started, in the order in which it is started.
  int64_t used = 0;
  const auto running = [this](size_t i) {
    return std::ranges::any_of(running_, [&](const auto& process) { return process->run().point.index == i; });
  };
  for (size_t i = 0; i < runs_.size(); ++i) used += running(i) ? std::max(histories_[i].done_until, standings[i].target) : histories_[i].done_until;
  for (size_t i = 0; i < runs_.size(); ++i) {
    Standing& one = standings[i];
    if (running(i) || (one.state != PointState::kWaiting && one.state != PointState::kBegun)) continue;
    const int64_t cost = one.target - histories_[i].done_until;
    if (used + cost > *file_.config.budget.steps)
      one.state = PointState::kLeftOut;
    else
      used += cost;
  }
  return standings;
}

std::optional<Score> Runner::score_at(size_t index, int64_t until) {
  const auto [found, fresh] = scores_.try_emplace({index, until});
  if (fresh) found->second = score_of(report::read_run(runs_[index].config.run.directory), file_.config.objective, until);
  return found->second;
}

/// The first point that is to be started and does not run.
std::optional<size_t> Runner::next_point() {
  const std::vector<Standing> now = standings();
  for (size_t i = 0; i < now.size(); ++i) {
    if ((now[i].state != PointState::kWaiting && now[i].state != PointState::kBegun) || (only_ && i != *only_) || blocked_.contains(i)) continue;
    if (std::ranges::none_of(running_, [&](const auto& process) { return process->run().point.index == i; })) return i;
  }
  return std::nullopt;
}

bool Runner::may_start() const {
  if (stop_.requested() || out_of_hours_ || std::ssize(running_) >= slots_.at_once) return false;
  const auto failed = std::ranges::count_if(histories_, [&](const PointHistory& one) { return one.failure && !ends_range_test(file_.config, one); });
  return !file_.config.stop_after_failures || failed < *file_.config.stop_after_failures;
}

void Runner::start_points() {
  while (may_start()) {
    const std::optional<size_t> next = next_point();
    if (!next) return;
    try {
      start(*next);
    } catch (const ConfigError& error) {  // from the lock
      if (only_) throw;
      line_->clear();
      say_(concat(error.what(), "; it is left to that process"));
      blocked_.insert(*next);
    }
  }
}

void Runner::start(size_t index) {
  const PointRun& run = runs_[index];
  running_.push_back(std::make_unique<PointProcess>(file_.directory, run, standings()[index].target, slots_.threads(run.ranks)));
}

void Runner::reap() {
  for (auto process = running_.begin(); process != running_.end();) {
    const std::optional<PointEnd> end = (*process)->poll();
    if (!end) {
      ++process;
      continue;
    }
    end_of(**process, *end);
    process = running_.erase(process);
  }
}

std::string Runner::point_text(size_t index) const { return concat("point ", index, " (", label_of(runs_[index].point), ")"); }

/// A point that was stopped or killed has not failed: unless that happens again and again, it is started again, by this job or the next one.
void Runner::end_of(const PointProcess& process, const PointEnd& end) {
  const size_t index = process.run().point.index;
  const bool disturbed = end.killed || end.code == static_cast<int>(ExitCode::kRequeue);
  const bool again = disturbed && (told_ || kills_[index]++ < file_.config.retries);
  record_end(file_.directory, index, process.until(),
             again                      ? static_cast<int>(ExitCode::kRequeue)
             : disturbed && !end.killed ? 128 + SIGTERM
                                        : end.code,
             end.seconds, disturbed && !end.killed ? "stopped by a signal from elsewhere" : end.message);
  histories_[index] = history_of(file_.directory, process.run());
  if (again && told_) return;
  if (line_) line_->clear();
  if (again)
    say_(concat(point_text(index), ": ", end.killed ? end.message : "stopped by a signal from elsewhere", "; started again"));
  else
    say_end(process);
}

void Runner::say_end(const PointProcess& process) {
  const size_t index = process.run().point.index;
  const PointHistory& history = histories_[index];
  if (ends_range_test(file_.config, history)) return say_("the range test has ended: its loss has diverged");
  if (history.failure) return say_(concat(point_text(index), ": failed with exit code ", history.failure->code, ": ", history.failure->message));
  const std::optional<Score> score = score_at(index, process.until());
  say_(concat(point_text(index), ": ", counted(process.until(), "step"), ", ",
              score ? concat(objective_text(file_.config.objective), " ", report::value_text(score->value, report::Quantity::kNumber))
                    : "no finite objective"));
}

void Runner::forward_requests() {
  const auto now = StopRequest::Clock::now();
  if (save_.requested()) {
    save_.clear();
    for (const auto& process : running_) process->signal(SIGUSR2);
  }
  if (!out_of_hours_ && file_.config.budget.hours && clock_ && clock_->hours() >= *file_.config.budget.hours) out_of_hours_ = true;
  if ((stop_.requested() || out_of_hours_) && !told_) {
    told_ = now;
    for (const auto& process : running_) process->signal(SIGTERM);
  }
  if (stop_.second_requested())
    for (const auto& process : running_) process->signal(SIGKILL);
  if (now < next_mark_) return;
  next_mark_ = now + kMark;
  if (clock_) clock_->mark("alive");
}

int64_t Runner::step_of(size_t index) const {
  for (const auto& process : running_)
    if (process->run().point.index == index) return std::max(histories_[index].done_until, process->last_step());
  return histories_[index].done_until;
}

void Runner::show_progress() {
  int64_t steps = 0;
  for (size_t i = 0; i < runs_.size(); ++i) steps += step_of(i);
  const auto ended = std::ranges::count_if(histories_, [](const PointHistory& one) { return one.done_until > 0 || one.failure; });
  line_->advance(steps - shown_, concat(ended, " of ", counted(runs_.size(), "point"), ", ", running_.size(), " running"));
  shown_ = steps;
}

}  // namespace trireme::sweep
