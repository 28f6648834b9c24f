#include "tests/support/byzantine.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/rng.h"

namespace trireme::test {
namespace {

/// `gradients` [n,m]: those of all data ranks, of which the last `attackers` are to be replaced by `gradient` [m].
template <class T>
void replace(Attack attack, const T* gradients, int64_t good, uint64_t key, int64_t m, T* gradient) {
  double squares = 0;
  for (int64_t k = 0; k < m; ++k) squares += std::pow(static_cast<double>(gradient[k]), 2);
  const double rms = std::sqrt(squares / static_cast<double>(m));
  for (int64_t k = 0; k < m; ++k) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < good; ++i) mean += static_cast<double>(gradients[i * m + k]) / static_cast<double>(good);
    for (int64_t i = 0; i < good; ++i) variance += std::pow(static_cast<double>(gradients[i * m + k]) - mean, 2) / static_cast<double>(good);
    const auto own = static_cast<double>(gradient[k]);
    const double sent = attack == Attack::kSignFlip       ? -10 * own
                        : attack == Attack::kGaussian     ? 100 * rms * random_normal(key, static_cast<uint64_t>(k))
                        : attack == Attack::kAlie         ? mean - 1.22 * std::sqrt(variance)
                        : attack == Attack::kInnerProduct ? -0.5 * mean
                        : attack == Attack::kZero         ? 0
                                                          : std::numeric_limits<double>::quiet_NaN();
    gradient[k] = static_cast<T>(sent);
  }
}

}  // namespace

const char* name_of(Attack attack) {
  switch (attack) {
    case Attack::kNone: return "none";
    case Attack::kSignFlip: return "sign flip";
    case Attack::kGaussian: return "Gaussian";
    case Attack::kAlie: return "ALIE";
    case Attack::kInnerProduct: return "inner product";
    case Attack::kZero: return "zero";
    case Attack::kNan: return "NaN";
  }
  return "?";
}

void ByzantineCommunicator::strike(Context& ctx, const Tensor& gradient) {
  const int64_t good = size() - attackers_, m = gradient.numel();
  if (attack_ == Attack::kNone) return;
  const Tensor all = Tensor::empty(ctx, {size() * m}, gradient.dtype(), MemoryCategory::kWorkspace);
  inner().all_gather(ctx, gradient, all).wait(ctx);
  if (rank() < good) return;
  const uint64_t key = random_key(static_cast<uint64_t>(rank()), "attack") + draws_++;
  if (gradient.dtype() == DType::kF64)
    replace(attack_, all.data<double>(), good, key, m, gradient.data<double>());
  else
    replace(attack_, all.data<float>(), good, key, m, gradient.data<float>());
}

Work ByzantineCommunicator::reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) {
  if (name() == "shard") strike(ctx, in);
  return inner().reduce_scatter(ctx, in, out, op);
}

Work ByzantineCommunicator::all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                         std::span<const int64_t> receive_counts) {
  if (name() == "data") strike(ctx, in);
  return inner().all_to_all_v(ctx, in, send_counts, out, receive_counts);
}

std::unique_ptr<Communicator> ByzantineCommunicator::wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) {
  return std::make_unique<ByzantineCommunicator>(std::move(made), attack_, attackers_);
}

}  // namespace trireme::test
