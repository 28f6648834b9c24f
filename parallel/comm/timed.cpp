#include "parallel/comm/timed.h"

#include <utility>

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

class TimedCommunicator final : public Communicator {
 public:
  /// `owned` is null for the world, which is somebody else's.
  TimedCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned, CommunicationLog& log)
      : Communicator(inner.rank(), inner.size(), inner.name()), inner_(inner), owned_(std::move(owned)), log_(log) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    return note("all_reduce", [&] { return inner_.all_reduce(ctx, buffer, op); });
  }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    return note("all_gather", [&] { return inner_.all_gather(ctx, in, out); });
  }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    return note("reduce_scatter", [&] { return inner_.reduce_scatter(ctx, in, out, op); });
  }
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    return note("broadcast", [&] { return inner_.broadcast(ctx, buffer, root); });
  }
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    return note("exchange", [&] { return inner_.exchange(ctx, messages); });
  }
  void barrier() override {
    static_cast<void>(note("barrier", [&] {
      inner_.barrier();
      return Work();
    }));
  }
  void raise_errors() override { inner_.raise_errors(); }
  void advance() override { inner_.advance(); }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    std::unique_ptr<Communicator> made = inner_.group(ranks, name);
    if (made->size() == 1) return made;  // waits for nobody
    Communicator& inner = *made;
    return std::make_unique<TimedCommunicator>(inner, std::move(made), log_);
  }

 private:
  template <class Call>
  Work note(const char* verb, const Call& call) {
    if (!log_.running()) return call();
    const double begin = log_.now();
    Work work = call();
    const double started = log_.now();
    const size_t place = log_.add({name(), verb, begin, started, started, started});
    if (!work.pending()) return work;
    return Work(std::make_unique<TimedWork>(std::move(work), log_, place));
  }

  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;
  CommunicationLog& log_;
};

}  // namespace

std::unique_ptr<Communicator> timed(Communicator& inner, CommunicationLog& log) { return std::make_unique<TimedCommunicator>(inner, nullptr, log); }

}  // namespace trireme
