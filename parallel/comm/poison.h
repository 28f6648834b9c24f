#pragma once
#include <memory>

#include "parallel/comm/forwarding.h"

namespace trireme {

/// Wraps a communicator so that a missing or late Work::wait fails on every machine, every time. Operations run on copies. From start to wait the
/// caller's output contains 0xFF bytes (NaN in every float format), and at wait every buffer must be unmodified: a write while in flight is an
/// InternalError that names the verb. After reduce_scatter into a part of its own input the rest of the input stays poisoned.
/// Groups are wrapped, too. Copies come from a separate arena, so the caller's memory counts do not change. Meta tensors are passed through.
class PoisonCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override;
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override;
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override;
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override;
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override;

 protected:
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override;

 private:
  std::string place(const char* verb) const;

  Arena arena_{Device::kReference};
};

}  // namespace trireme
