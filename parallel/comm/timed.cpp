#include "parallel/comm/timed.h"

#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {

void CommunicationLog::start(DeviceClock& clock) {
  clock_ = &clock;
  operations_.clear();
  ++recording_;
}

std::vector<TimedOperation> CommunicationLog::stop() {
  const DeviceClock& clock = *std::exchange(clock_, nullptr);
  std::vector<TimedOperation> timed;
  for (Operation& one : operations_)
    timed.push_back({std::move(one.group), std::move(one.verb), clock.seconds(one.begin), clock.seconds(one.started), clock.seconds(one.wait),
                     clock.seconds(one.end)});
  operations_.clear();
  return timed;
}

size_t CommunicationLog::add(const std::string& group, const std::string& verb, const Moment& begin, const Moment& started) {
  operations_.push_back({group, verb, begin, started, started, started});
  return operations_.size() - 1;
}

void CommunicationLog::waited(size_t place, uint64_t recording, const Moment& wait, const Moment& end) {
  if (!running() || recording != recording_) return;
  operations_[place].wait = wait;
  operations_[place].end = end;
}

namespace {

class TimedWork final : public Work::Operation {
 public:
  TimedWork(Work work, CommunicationLog& log, size_t place) : work_(std::move(work)), log_(log), place_(place), recording_(log.recording()) {}
  void wait(Context& ctx) override {
    if (!log_.running()) return work_.wait(ctx);
    const DeviceClock::Moment begin = log_.clock().mark(ctx);
    work_.wait(ctx);
    log_.waited(place_, recording_, begin, log_.clock().mark(ctx));
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
    if (!log_.running()) return inner().barrier();
    const DeviceClock::Moment begin = log_.clock().now();
    inner().barrier();
    log_.add(name(), "barrier", begin, log_.clock().now());
  }

 protected:
  Work perform(Context& ctx, const char* verb, int64_t /*bytes*/, const Call& call) override {
    if (!log_.running()) return call();
    const DeviceClock::Moment begin = log_.clock().mark(ctx);
    Work work = call();
    const size_t place = log_.add(name(), verb, begin, log_.clock().mark(ctx));
    if (!work.pending()) return work;
    return Work(std::make_unique<TimedWork>(std::move(work), log_, place));
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override {
    if (made->size() == 1) return made;  // a single rank never waits
    return std::make_unique<TimedCommunicator>(std::move(made), log_);
  }

 private:
  CommunicationLog& log_;
};

}  // namespace

std::unique_ptr<Communicator> timed(Communicator& inner, CommunicationLog& log) { return std::make_unique<TimedCommunicator>(inner, log); }

}  // namespace trireme
