#include "parallel/comm/blocking.h"

#include <utility>

namespace trireme {
namespace {

class BlockingCommunicator final : public Communicator {
 public:
  /// `owned` is null for the world, which is somebody else's.
  BlockingCommunicator(Communicator& inner, std::unique_ptr<Communicator> owned)
      : Communicator(inner.rank(), inner.size(), inner.name()), inner_(inner), owned_(std::move(owned)) {}

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override { return ended(ctx, inner_.all_reduce(ctx, buffer, op)); }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override { return ended(ctx, inner_.all_gather(ctx, in, out)); }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    return ended(ctx, inner_.reduce_scatter(ctx, in, out, op));
  }
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override { return ended(ctx, inner_.broadcast(ctx, buffer, root)); }
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override { return ended(ctx, inner_.exchange(ctx, messages)); }
  void barrier() override { inner_.barrier(); }
  void raise_errors() override { inner_.raise_errors(); }
  void advance() override { inner_.advance(); }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    std::unique_ptr<Communicator> made = inner_.group(ranks, name);
    Communicator& inner = *made;
    return std::make_unique<BlockingCommunicator>(inner, std::move(made));
  }

 private:
  static Work ended(Context& ctx, Work work) {
    work.wait(ctx);
    return {};
  }

  Communicator& inner_;
  std::unique_ptr<Communicator> owned_;
};

}  // namespace

std::unique_ptr<Communicator> blocking(Communicator& inner) { return std::make_unique<BlockingCommunicator>(inner, nullptr); }

}  // namespace trireme
