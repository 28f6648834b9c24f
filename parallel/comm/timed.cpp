#include "parallel/comm/timed.h"

#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {

void CommunicationLog::start(Clock::time_point origin) {
  origin_ = origin;
  operations_.clear();
  running_ = true;
  ++recording_;
}

std::vector<TimedOperation> CommunicationLog::stop() {
  running_ = false;
  return std::exchange(operations_, {});
}

size_t CommunicationLog::add(TimedOperation operation) {
  operations_.push_back(std::move(operation));
  return operations_.size() - 1;
}

void CommunicationLog::waited(size_t place, uint64_t recording, double wait) {
  if (!running_ || recording != recording_) return;
  operations_[place].wait = wait;
  operations_[place].end = now();
}

namespace {

class TimedWork final : public Work::Operation {
 public:
  TimedWork(Work work, CommunicationLog& log, size_t place) : work_(std::move(work)), log_(log), place_(place), recording_(log.recording()) {}
  void wait(Context& ctx) override {
    const double begin = log_.now();
    work_.wait(ctx);
    log_.waited(place_, recording_, begin);
  }

 private:
  Work work_;
  CommunicationLog& log_;
  size_t place_;
  uint64_t recording_;
};

class TimedCommunicator final : public ForwardingCommunicator {
 public:
  template <class Inner>
  TimedCommunicator(Inner&& inner, CommunicationLog& log) : ForwardingCommunicator(std::forward<Inner>(inner)), log_(log) {}

  void barrier() override {
    static_cast<void>(note("barrier", [&] {
      inner().barrier();
      return Work();
    }));
  }

 protected:
  Work perform(Context& /*ctx*/, const char* verb, const Call& call) override { return note(verb, call); }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override {
    if (made->size() == 1) return made;  // a single rank never waits
    return std::make_unique<TimedCommunicator>(std::move(made), log_);
  }

 private:
  Work note(const char* verb, const Call& call) {
    if (!log_.running()) return call();
    const double begin = log_.now();
    Work work = call();
    const double started = log_.now();
    const size_t place = log_.add({name(), verb, begin, started, started, started});
    if (!work.pending()) return work;
    return Work(std::make_unique<TimedWork>(std::move(work), log_, place));
  }

  CommunicationLog& log_;
};

}  // namespace

std::unique_ptr<Communicator> timed(Communicator& inner, CommunicationLog& log) { return std::make_unique<TimedCommunicator>(inner, log); }

}  // namespace trireme
