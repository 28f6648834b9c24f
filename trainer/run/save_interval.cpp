#include "trainer/run/save_interval.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "trainer/plan/analysis/reliability.h"

namespace trireme {
namespace {

constexpr int64_t kFirstSave = 10;  ///< steps of a job before its first save, if no save has been measured
constexpr size_t kSteps = 100;      ///< to remember
constexpr size_t kSaves = 10;       ///< likewise

void push(std::deque<double>& values, double value, size_t most) {
  if (values.size() == most) values.pop_front();
  values.push_back(value);
}

double mean_of(const std::deque<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

SaveInterval::SaveInterval(const Start& start)
    : start_(start), interval_(kFirstSave), saved_(start.step), next_(start.step + kFirstSave), steps_to_look_(kSteps) {
  if (start.save_seconds <= 0 || start.step_seconds <= 0) return;
  stalls_.push_back(start.save_seconds);
  choose(start.save_seconds, start.step_seconds);  // again, because the failures are those of now
}

void SaveInterval::add_step(double seconds) {
  seconds_ += seconds;
  if (unsteady_ > 0) return void(--unsteady_);
  if (!pending_) {
    push(steps_, seconds, kSteps);
    return follow_speed();
  }
  pending_->extra += seconds;
  ++pending_->steps;
  if (pending_->is_written) settle();
}

void SaveInterval::saved(int64_t step, double seconds) {
  if (pending_) settle();
  seconds_ += seconds;
  saved_ = step;
  pending_ = Pending{.stall = seconds};
  choose();
}

void SaveInterval::written(std::optional<double> seconds) {
  if (!pending_) return;
  pending_->is_written = true;
  if (seconds) write_seconds_ = *seconds;
}

/// The cost of the last save is known.
void SaveInterval::settle() {
  const Pending save = *std::exchange(pending_, std::nullopt);
  push(stalls_, save.stall, kSaves);
  if (!steps_.empty()) push(extras_, save.extra - static_cast<double>(save.steps) * mean_step(), kSaves);
  choose();
}

void SaveInterval::choose() {
  next_ = saved_ + interval_;
  if (stalls_.empty() || steps_.empty()) return;  // the cost is known one step after the first save
  choose(mean_of(stalls_) + std::max(0.0, mean_of(extras_)), mean_step());
  steps_to_look_ = steps_.size();
}

void SaveInterval::choose(double save_seconds, double step_seconds) {
  Choice choice{.save_seconds = save_seconds, .step_seconds = step_seconds, .mtbf = mtbf(), .failures = start_.failures};
  // A save waits for the one before, so an interval is not shorter than the writing of a checkpoint.
  const double seconds = std::max(daly_interval(choice.save_seconds, choice.mtbf), write_seconds_);
  const double most = static_cast<double>(std::max<int64_t>(1, start_.last_step - saved_));
  choice.steps = static_cast<int64_t>(std::clamp(std::round(seconds / choice.step_seconds), 1.0, most));
  chosen_for_ = choice.step_seconds;
  interval_ = choice.steps;
  next_ = saved_ + interval_;
  choice_ = choice;
}

/// Chooses again if the choice was made for another speed. Looks when as many steps have followed as it was made from, so that it is not noise.
void SaveInterval::follow_speed() {
  constexpr double kOther = 0.25;
  if (chosen_for_ == 0 || --steps_to_look_ > 0) return;
  steps_to_look_ = steps_.size();
  if (std::abs(mean_step() - chosen_for_) > kOther * chosen_for_) choose();
}

double SaveInterval::mean_step() const { return mean_of(steps_); }

double SaveInterval::mtbf() const { return start_.mtbf.value_or(learned_mtbf(start_.trained_seconds + seconds_, start_.failures)); }

std::optional<SaveInterval::Choice> SaveInterval::take_choice() { return pending_ ? std::nullopt : std::exchange(choice_, std::nullopt); }

}  // namespace trireme
