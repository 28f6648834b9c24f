#pragma once
#include <memory>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Wraps a communicator so that a missing or late Work::wait fails on every machine, every time. Operations run on copies; from start to wait the
/// caller's output holds 0xFF bytes (NaN in every float format), and at wait every buffer must be as it was left: a write while in flight is an
/// InternalError that names the verb. After reduce_scatter into a part of its own input the rest of the input stays poisoned.
/// Groups are wrapped too. Copies come from an arena of its own, so memory counts of the caller do not change. Meta tensors pass straight through.
class PoisonCommunicator final : public Communicator {
 public:
  explicit PoisonCommunicator(std::unique_ptr<Communicator> inner);
  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override;
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override;
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override;
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override;
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override;

 private:
  std::string place(const char* verb) const;

  std::unique_ptr<Communicator> inner_;
  Arena arena_{Device::kReference};
};

}  // namespace trireme
