#include "parallel/comm/progress.h"

#include <utility>

#include "parallel/comm/black_box.h"

namespace trireme {

// Only the main thread changes now_, so it reads it without the mutex. The black box is written without it too: a write to a file of a lost file
// system may last forever, and a watchdog that takes a snapshot must not wait for it.

using Change = BlackBoxWriter::Change;

Progress::Progress() = default;
Progress::~Progress() = default;

size_t Progress::add_group(std::string name, std::vector<int> ranks) {
  {
    const std::lock_guard lock(mutex_);
    now_.groups.push_back({std::move(name), std::move(ranks), 0, {}, {}});
    waited_.push_back(0);
  }
  if (box_ != nullptr) box_->add_group(now_.groups.back());
  return now_.groups.size() - 1;
}

uint64_t Progress::enter(size_t group, const char* verb, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    ++now_.groups[group].started;
  }
  if (box_ != nullptr) box_->begin(group, now_.groups[group], verb, bytes);
  return now_.groups[group].started;
}

Progress::Message Progress::enter_message(size_t group, size_t peer, bool send, int64_t bytes) {
  Message message{peer, send, 0};
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    Group& in = now_.groups[group];
    if (in.sent.empty()) {
      in.sent.resize(in.ranks.size());
      in.received.resize(in.ranks.size());
    }
    message.number = ++(send ? in.sent : in.received)[peer];
  }
  if (box_ != nullptr) box_->begin_message(group, now_.groups[group], message, bytes);
  return message;
}

void Progress::finish(const Wait& operation) {
  if (box_ != nullptr) box_->finish(operation, now_.groups);
}

void Progress::begin_wait(Wait wait) {
  wait_begin_ = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    now_.wait = std::move(wait);
  }
  if (box_ != nullptr) box_->wait(now_);
}

void Progress::end_wait() {
  if (now_.wait && now_.wait->group)
    waited_[*now_.wait->group] += std::chrono::duration<double>(std::chrono::steady_clock::now() - wait_begin_).count();
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    now_.wait.reset();
  }
  if (box_ != nullptr) box_->wait(now_);
}

void Progress::act(std::string action, int64_t microbatch) {
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    now_.action = std::move(action);
    now_.microbatch = microbatch;
  }
  if (box_ != nullptr) box_->activity(now_, Change::kAction);
}

void Progress::begin_step(int64_t step, int64_t memory_peak, int64_t resident_peak) {
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    now_.step = step;
    now_.memory_peak = memory_peak;
    now_.resident_peak = resident_peak;
  }
  if (box_ != nullptr) box_->activity(now_, Change::kStep);
}

void Progress::set_timeout(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    ++now_.count;
    now_.timeout = seconds;
  }
  if (box_ != nullptr) box_->activity(now_, Change::kOther);
}

void Progress::record(BlackBox* box) {
  box_.reset();
  if (box == nullptr) return;
  box_ = std::make_unique<BlackBoxWriter>(*box);
  for (const Group& group : now_.groups) box_->add_group(group);
  box_->activity(now_, now_.action.empty() ? Change::kOther : Change::kAction);
  box_->wait(now_);
}

Progress::Snapshot Progress::snapshot() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

}  // namespace trireme
