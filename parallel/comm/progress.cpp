#include "parallel/comm/progress.h"

#include <utility>

namespace trireme {

size_t Progress::add_group(std::string name, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  now_.groups.push_back({std::move(name), std::move(ranks), 0, {}, {}});
  waited_.push_back(0);
  return now_.groups.size() - 1;
}

uint64_t Progress::enter(size_t group) {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  return ++now_.groups[group].started;
}

Progress::Message Progress::enter_message(size_t group, size_t peer, bool send) {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  Group& in = now_.groups[group];
  if (in.sent.empty()) {
    in.sent.resize(in.ranks.size());
    in.received.resize(in.ranks.size());
  }
  return {peer, send, ++(send ? in.sent : in.received)[peer]};
}

void Progress::begin_wait(Wait wait) {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  now_.wait = std::move(wait);
  wait_begin_ = std::chrono::steady_clock::now();
}

void Progress::end_wait() {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  if (now_.wait && now_.wait->group)
    waited_[*now_.wait->group] += std::chrono::duration<double>(std::chrono::steady_clock::now() - wait_begin_).count();
  now_.wait.reset();
}

void Progress::act(std::string action) {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  now_.action = std::move(action);
}

void Progress::begin_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  now_.step = step;
}

void Progress::set_timeout(double seconds) {
  const std::lock_guard lock(mutex_);
  ++now_.count;
  now_.timeout = seconds;
}

Progress::Snapshot Progress::snapshot() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

}  // namespace trireme
