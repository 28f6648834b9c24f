#pragma once
#include "parallel/comm/communicator.h"

namespace trireme {

/// A group of one rank: in-place verbs do nothing; all_gather and reduce_scatter copy if `in` and `out` differ; all_to_all copies. Copies run on the
/// context's device. Nothing is ever in flight.
/// An exchange with itself pairs its sends and receives in order within the call.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(const std::string& name) : Communicator(0, 1, name) {}
  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override;
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override;
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override;
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override;
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override;
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override;
  void barrier() override {}
  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override;
};

}  // namespace trireme
