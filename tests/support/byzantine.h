#pragma once
// Data ranks that send wrong gradients, through the real trainer: a communicator that changes what they send to other data ranks.
#include <cstdint>
#include <memory>

#include "parallel/comm/forwarding.h"

namespace trireme::test {

enum class Attack : uint8_t {
  kNone,
  kSignFlip,      ///< minus ten times the gradient
  kGaussian,      ///< noise of a hundred times the gradient's root mean square
  kAlie,          ///< mean minus 1.22 standard deviations of the good gradients; Baruch et al. 2019, arXiv:1902.06156
  kInnerProduct,  ///< minus half of the mean of the good gradients; Xie et al. 2019, arXiv:1903.03936
  kZero,
  kNan,
};
const char* name_of(Attack attack);

/// The last `attackers` data ranks attack: what they give to reduce-scatters over `shard` and to all_to_all_v over `data` is replaced. The attackers know
/// all good gradients. For fp32 and fp64, and layouts in which the plain sum is a reduce-scatter over all data ranks: ZeRO from stage 1 without replicas.
class ByzantineCommunicator final : public ForwardingCommunicator {
 public:
  ByzantineCommunicator(std::unique_ptr<Communicator> inner, Attack attack, int attackers)
      : ForwardingCommunicator(std::move(inner)), attack_(attack), attackers_(attackers) {}

  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override;
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override;

 protected:
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override;

 private:
  void strike(Context& ctx, const Tensor& gradient);

  Attack attack_;
  int attackers_;
  uint64_t draws_ = 0;
};

}  // namespace trireme::test
