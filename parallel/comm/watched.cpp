#include "parallel/comm/watched.h"

#include <numeric>
#include <utility>

namespace trireme {
namespace {

/// In flight, and noted while somebody waits for it.
class WatchedOperation final : public Work::Operation {
 public:
  WatchedOperation(Work work, Progress& progress, Progress::Wait noted) : work_(std::move(work)), progress_(progress), noted_(std::move(noted)) {}
  void wait(Context& ctx) override {
    const NotedWait waiting(progress_, std::move(noted_));
    work_.wait(ctx);
  }

 private:
  Work work_;
  Progress& progress_;
  Progress::Wait noted_;
};

class WatchedCommunicator final : public Communicator {
 public:
  /// `owned` is null for the world, which is somebody else's.
  WatchedCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned, Progress& progress, std::vector<int> ranks)
      : Communicator(inner.rank(), inner.size(), inner.name()),
        inner_(inner),
        owned_(std::move(owned)),
        progress_(progress),
        ranks_(std::move(ranks)),
        group_(progress.add_group(inner.name(), ranks_)) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    return note(collective("all_reduce"), [&] { return inner_.all_reduce(ctx, buffer, op); });
  }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    return note(collective("all_gather"), [&] { return inner_.all_gather(ctx, in, out); });
  }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    return note(collective("reduce_scatter"), [&] { return inner_.reduce_scatter(ctx, in, out, op); });
  }
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    return note(collective("broadcast"), [&] { return inner_.broadcast(ctx, buffer, root); });
  }
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    Progress::Wait noted{"exchange", group_, 0, {}};
    for (const PointToPoint& message : messages) {
      if (message.peer < 0 || message.peer >= size()) continue;  // the inner communicator's to refuse
      noted.messages.push_back(progress_.enter_message(group_, static_cast<size_t>(message.peer), message.kind == PointToPoint::Kind::kSend));
    }
    return note(std::move(noted), [&] { return inner_.exchange(ctx, messages); });
  }
  void barrier() override {
    const NotedWait waiting(progress_, collective("barrier"));
    inner_.barrier();
  }
  void raise_errors() override { inner_.raise_errors(); }
  void advance() override { inner_.advance(); }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    std::unique_ptr<Communicator> made = inner_.group(ranks, name);
    if (made->size() == 1) return made;  // waits for nobody
    std::vector<int> of_world;
    for (int rank : ranks) of_world.push_back(ranks_[static_cast<size_t>(rank)]);
    Communicator& inner = *made;
    return std::make_unique<WatchedCommunicator>(inner, std::move(made), progress_, std::move(of_world));
  }

 private:
  Progress::Wait collective(const char* verb) { return {verb, group_, progress_.enter(group_), {}}; }

  /// A call may block before it returns (the verbs of a GPU's communicator that goes through host memory do), so it counts as waiting too.
  template <class Call>
  Work note(Progress::Wait noted, const Call& call) {
    Work work;
    {
      const NotedWait waiting(progress_, noted);
      work = call();
    }
    if (!work.pending()) return work;
    return Work(std::make_unique<WatchedOperation>(std::move(work), progress_, std::move(noted)));
  }

  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;
  Progress& progress_;
  std::vector<int> ranks_;
  size_t group_;
};

}  // namespace

std::unique_ptr<Communicator> watched(Communicator& inner, Progress& progress) {
  std::vector<int> ranks(static_cast<size_t>(inner.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<WatchedCommunicator>(inner, nullptr, progress, std::move(ranks));
}

}  // namespace trireme
