#include "parallel/comm/watched.h"

#include <numeric>
#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {
namespace {

/// An operation in flight whose wait is recorded.
class WatchedOperation final : public Work::Operation {
 public:
  WatchedOperation(Work work, Progress& progress, Progress::Wait noted) : work_(std::move(work)), progress_(progress), noted_(std::move(noted)) {}
  void wait(Context& ctx) override {
    {
      const ScopedWait waiting(progress_, noted_);
      work_.wait(ctx);
    }
    progress_.finish(noted_);
  }

 private:
  Work work_;
  Progress& progress_;
  Progress::Wait noted_;
};

class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  template <class Inner>
  WatchedCommunicator(Inner&& inner, Progress& progress, std::vector<int> ranks)
      : ForwardingCommunicator(std::forward<Inner>(inner)),
        progress_(progress),
        ranks_(std::move(ranks)),
        group_(progress.add_group(name(), ranks_)) {}

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    Progress::Wait noted{"exchange", group_, 0, {}};
    for (const PointToPoint& message : messages) {
      if (message.peer < 0 || message.peer >= size()) continue;  // the inner communicator refuses it
      noted.messages.push_back(
          progress_.enter_message(group_, static_cast<size_t>(message.peer), message.kind == PointToPoint::Kind::kSend, message.buffer.bytes()));
    }
    return note(std::move(noted), [&] { return inner().exchange(ctx, messages); });
  }
  void barrier() override {
    const Progress::Wait noted = collective("barrier", 0);
    {
      const ScopedWait waiting(progress_, noted);
      inner().barrier();
    }
    progress_.finish(noted);
  }

 protected:
  Work perform(Context& /*ctx*/, const char* verb, int64_t bytes, const Call& call) override { return note(collective(verb, bytes), call); }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override {
    if (made->size() == 1) return made;  // a single rank never waits
    std::vector<int> of_world;
    for (int rank : ranks) of_world.push_back(ranks_[static_cast<size_t>(rank)]);
    return std::make_unique<WatchedCommunicator>(std::move(made), progress_, std::move(of_world));
  }

 private:
  Progress::Wait collective(const char* verb, int64_t bytes) { return {verb, group_, progress_.enter(group_, verb, bytes), {}}; }

  /// A call may block before it returns (the verbs of a GPU's communicator that goes through host memory do), so it counts as waiting too.
  Work note(Progress::Wait noted, const Call& call) {
    Work work;
    {
      const ScopedWait waiting(progress_, noted);
      work = call();
    }
    if (!work.pending()) {
      progress_.finish(noted);
      return work;
    }
    return Work(std::make_unique<WatchedOperation>(std::move(work), progress_, std::move(noted)));
  }

  Progress& progress_;
  std::vector<int> ranks_;
  size_t group_;
};

}  // namespace

std::unique_ptr<Communicator> watched(Communicator& inner, Progress& progress) {
  std::vector<int> ranks(static_cast<size_t>(inner.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<WatchedCommunicator>(inner, progress, std::move(ranks));
}

}  // namespace trireme
