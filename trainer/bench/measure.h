#pragma once
// How every figure of `trireme bench` is taken: calls queued in batches of 20 ms and more between two looks at the host's clock, with the device idle
// at both, so that neither launch latency nor the clock's grain is in it; the median over batches, after a warm-up; on random data, never zeros.
#include <functional>
#include <memory>
#include <vector>

#include "kernels/core/tensor.h"
#include "parallel/comm/communicator.h"

namespace trireme::bench {

/// How long one figure may take.
struct Effort {
  double batch_seconds = 0.02;    ///< at least, of one batch of calls; a slower call is a batch by itself
  double seconds = 0.4;           ///< of all batches together; at least three of them
  Communicator* world = nullptr;  ///< ranks that measure together make the same number of calls
};

/// Seconds of one call: quantiles over the batches.
struct Timing {
  double median = 0;
  double low = 0;   ///< 10 %
  double high = 0;  ///< 90 %
  int64_t batches = 0;
  int64_t calls = 0;  ///< of all batches
};

/// call(i) for i = 0, 1, ... queues one repetition. Collective where effort.world is set.
Timing measure(Context& ctx, const Effort& effort, const std::function<void(int64_t)>& call);

/// quantile in [0, 1], interpolated; values is not empty.
double quantile_of(std::vector<double> values, double quantile);

/// A context like another one with an arena of its own, so that the memory of one measurement is gone before the next.
class Workbench {
 public:
  explicit Workbench(const Context& like);
  Context& ctx() { return ctx_; }

 private:
  std::unique_ptr<Arena> arena_;
  Context ctx_;
};

/// Standard normal numbers; another stream for each `key`. Beyond 131,072 elements they repeat.
Tensor random_tensor(Context& ctx, const Shape& shape, DType dtype, uint64_t key = 0);
/// [count] int32, uniform in [0, limit).
Tensor random_tokens(Context& ctx, int64_t count, int64_t limit, uint64_t key = 0);

}  // namespace trireme::bench
