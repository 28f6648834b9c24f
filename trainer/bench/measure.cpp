#include "trainer/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"

namespace trireme::bench {

Timing measure(Context& ctx, const Effort& effort, const std::function<void(int64_t)>& call) {
  constexpr double kShortest = 1e-7;  // least duration of a call, to avoid division by zero
  constexpr int64_t kMostCalls = 100000, kFewestBatches = 3, kMostBatches = 200;
  int64_t next = 0;
  const auto run = [&](int64_t calls) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) call(next++);
    if (ctx.device == Device::kCuda) ctx.gpu->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(calls);
  };
  const auto agreed = [&](double seconds) {
    return std::max(kShortest, effort.world == nullptr ? seconds : all_reduce_scalar(*effort.world, seconds, ReduceOp::kMax));
  };
  const auto batch_of = [&](double seconds) {
    return std::clamp(static_cast<int64_t>(std::ceil(effort.batch_seconds / seconds)), int64_t{1}, kMostCalls);
  };
  run(1);  // library handles, first touch of the operands
  // A single call is mostly latency, so the estimate is repeated with a batch.
  double once = agreed(run(1));
  once = agreed(run(batch_of(once)));
  const int64_t calls = batch_of(once);
  const auto wanted = static_cast<int64_t>(effort.seconds / (once * static_cast<double>(calls)));
  const int64_t batches = std::clamp(wanted, kFewestBatches, kMostBatches);
  std::vector<double> seconds;
  for (int64_t b = 0; b < batches; ++b) {
    if (effort.world != nullptr) effort.world->barrier();
    seconds.push_back(run(calls));
  }
  return {.median = quantile_of(seconds, 0.5),
          .low = quantile_of(seconds, 0.1),
          .high = quantile_of(seconds, 0.9),
          .least = quantile_of(seconds, 0),
          .most = quantile_of(seconds, 1),
          .batches = batches,
          .calls = batches * calls};
}

Timing fastest_of(const Timing& a, const Timing& b) {
  Timing fastest = a.median <= b.median ? a : b;
  fastest.low = std::min(a.low, b.low);
  fastest.high = std::max(a.high, b.high);
  fastest.least = std::min(a.least, b.least);
  fastest.most = std::max(a.most, b.most);
  return fastest;
}

double quantile_of(std::vector<double> values, double quantile) {
  TRIREME_CHECK(!values.empty(), "quantile of no values");
  std::sort(values.begin(), values.end());
  const double place = quantile * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - std::floor(place));
}

Workbench::Workbench(const Context& like)
    : arena_(like.device == Device::kCuda ? std::make_unique<Arena>(*like.gpu) : std::make_unique<Arena>(like.device)), ctx_(like) {
  ctx_.arena = arena_.get();
}

Tensor random_tensor(Context& ctx, const Shape& shape, DType dtype, uint64_t key) {
  // Drawing a normal value is far more expensive than copying it. The count is prime, so that the rows of a matrix differ: on equal keys and values the
  // gradients of attention are nothing but rounding.
  constexpr int64_t kDrawn = 4093;
  const Tensor tensor = Tensor::empty(ctx, shape, dtype, MemoryCategory::kWorkspace);
  const int64_t count = tensor.numel();
  int64_t filled = std::min(count, kDrawn);
  fill_normal(ctx, random_key(key, "bench"), 1.0, filled, 0, 0, tensor.flat(0, filled));
  for (int64_t part = 0; filled < count; filled += part) {
    part = std::min(filled, count - filled);
    copy(ctx, tensor.flat(0, part), tensor.flat(filled, part));
  }
  return tensor;
}

Tensor random_tokens(Context& ctx, int64_t count, int64_t limit, uint64_t key) {
  const Tensor host = host_tensor({count}, DType::kI32);
  int32_t* const tokens = host.data<int32_t>();
  for (int64_t i = 0; i < count; ++i)
    tokens[i] = static_cast<int32_t>(random_bits(random_key(key, "bench tokens"), static_cast<uint64_t>(i)) % static_cast<uint64_t>(limit));
  const Tensor tensor = Tensor::empty(ctx, {count}, DType::kI32, MemoryCategory::kData);
  from_host(ctx, host, tensor);
  return tensor;
}

}  // namespace trireme::bench
