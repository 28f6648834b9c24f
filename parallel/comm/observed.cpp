#include "parallel/comm/observed.h"

#include <numeric>
#include <utility>

#include "parallel/comm/forwarding.h"

namespace trireme {
namespace {

/// What is observed of one communicator; operations in flight share it.
struct ObservedGroup {
  std::string name;
  std::vector<int> ranks;
  BufferObserver observer;
};

struct Part {
  const char* verb;
  int64_t number;
  int peer;
  Tensor buffer;

  void show(Context& ctx, const ObservedGroup& group, bool outgoing) const {
    group.observer(ctx, {group.name, group.ranks, verb, outgoing, number, peer, buffer});
  }
};

class ObservedWork final : public Work::Operation {
 public:
  ObservedWork(Work work, std::shared_ptr<const ObservedGroup> group, std::vector<Part> received)
      : work_(std::move(work)), group_(std::move(group)), received_(std::move(received)) {}
  void wait(Context& ctx) override {
    work_.wait(ctx);
    for (const Part& part : received_) part.show(ctx, *group_, false);
  }

 private:
  Work work_;
  std::shared_ptr<const ObservedGroup> group_;
  std::vector<Part> received_;
};

class ObservedCommunicator final : public ForwardingCommunicator {
 public:
  ObservedCommunicator(Communicator& inner, std::vector<int> ranks, BufferObserver observer)
      : ForwardingCommunicator(inner), group_(describe(std::move(ranks), std::move(observer))) {}
  ObservedCommunicator(std::unique_ptr<Communicator> inner, std::vector<int> ranks, BufferObserver observer)
      : ForwardingCommunicator(std::move(inner)), group_(describe(std::move(ranks), std::move(observer))) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    return collective(ctx, "all_reduce", &buffer, &buffer, [&] { return inner().all_reduce(ctx, buffer, op); });
  }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    return collective(ctx, "all_gather", &in, &out, [&] { return inner().all_gather(ctx, in, out); });
  }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    return collective(ctx, "reduce_scatter", &in, &out, [&] { return inner().reduce_scatter(ctx, in, out, op); });
  }
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    return collective(ctx, "all_to_all", &in, &out, [&] { return inner().all_to_all(ctx, in, out); });
  }
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    return collective(ctx, "all_to_all_v", &in, &out, [&] { return inner().all_to_all_v(ctx, in, send_counts, out, receive_counts); });
  }
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    const bool sends = root == rank();
    return collective(ctx, "broadcast", sends ? &buffer : nullptr, sends ? nullptr : &buffer, [&] { return inner().broadcast(ctx, buffer, root); });
  }
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    if (ctx.device == Device::kMeta) return inner().exchange(ctx, messages);
    std::vector<Part> received;
    for (const PointToPoint& message : messages) {
      const bool sends = message.kind == PointToPoint::Kind::kSend;
      const auto peer = static_cast<size_t>(message.peer);
      const Part part{"exchange", ++(sends ? sent_ : received_)[peer], group_->ranks[peer], message.buffer};
      if (sends)
        part.show(ctx, *group_, true);
      else
        received.push_back(part);
    }
    return after(ctx, inner().exchange(ctx, messages), std::move(received));
  }

 protected:
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override {
    std::vector<int> of_world;
    for (const int rank : ranks) of_world.push_back(group_->ranks[static_cast<size_t>(rank)]);
    return std::make_unique<ObservedCommunicator>(std::move(made), std::move(of_world), group_->observer);
  }

 private:
  std::shared_ptr<const ObservedGroup> describe(std::vector<int> ranks, BufferObserver observer) {
    sent_.resize(ranks.size());
    received_.resize(ranks.size());
    return std::make_shared<ObservedGroup>(ObservedGroup{name(), std::move(ranks), std::move(observer)});
  }
  /// `in` and `out`: null if this rank sends or receives nothing.
  Work collective(Context& ctx, const char* verb, const Tensor* in, const Tensor* out, const Call& call) {
    if (ctx.device == Device::kMeta) return call();
    const int64_t number = ++collectives_;
    if (in != nullptr) Part{verb, number, -1, *in}.show(ctx, *group_, true);
    std::vector<Part> received;
    if (out != nullptr) received.push_back({verb, number, -1, *out});
    return after(ctx, call(), std::move(received));
  }
  Work after(Context& ctx, Work work, std::vector<Part> received) const {
    if (!work.pending()) {
      for (const Part& part : received) part.show(ctx, *group_, false);
      return work;
    }
    return Work(std::make_unique<ObservedWork>(std::move(work), group_, std::move(received)));
  }

  int64_t collectives_ = 0;
  std::vector<int64_t> sent_, received_;  ///< messages to and from each rank of the group
  std::shared_ptr<const ObservedGroup> group_;
};

}  // namespace

std::unique_ptr<Communicator> observed(Communicator& inner, BufferObserver observer) {
  std::vector<int> all(static_cast<size_t>(inner.size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<ObservedCommunicator>(inner, std::move(all), std::move(observer));
}

}  // namespace trireme
