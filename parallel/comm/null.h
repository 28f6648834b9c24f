#pragma once
#include "parallel/comm/communicator.h"

namespace trireme {

/// One rank of a group whose other ranks do not exist: arguments are checked, no data moves. For Device::kMeta, on which one machine forecasts a
/// whole cluster. The host helpers see only this rank: all_gather_strings returns "" for the others, all_reduce_scalar and all_reduce_count their
/// argument.
class NullCommunicator final : public Communicator {
 public:
  NullCommunicator(int rank, int size, const std::string& name);
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
