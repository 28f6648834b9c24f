#pragma once
// Timing for `trireme bench`. Calls are queued in batches of at least 20 ms between two readings of the host's clock, with the device idle at both,
// to exclude launch latency and clock resolution. Results are medians over batches after a warm-up, on random data, never zeros.
#include <functional>
#include <memory>
#include <vector>

#include "kernels/core/tensor.h"
#include "parallel/comm/communicator.h"

namespace trireme::bench {

/// Time budget of one figure.
struct Effort {
  double batch_seconds = 0.02;    ///< minimum duration of a batch of calls; a slower call forms a batch alone
  double seconds = 0.4;           ///< total of all batches; there are at least three
  Communicator* world = nullptr;  ///< set if ranks measure together; they make the same number of calls
};

/// Seconds of one call: quantiles over the batches.
struct Timing {
  double median = 0;
  double low = 0;   ///< 10 %
  double high = 0;  ///< 90 %
  double least = 0, most = 0;
  int64_t batches = 0;
  int64_t calls = 0;  ///< total over all batches
};

/// Two measurements of the same call at different times: the figures of the faster one, since other programs can only slow it down, and the quantiles of
/// both.
Timing fastest_of(const Timing& a, const Timing& b);

/// Measures `call`: call(i) for i = 0, 1, ... queues one repetition. Collective if effort.world is set.
Timing measure(Context& ctx, const Effort& effort, const std::function<void(int64_t)>& call);

/// Interpolated quantile. `quantile` is in [0, 1]; `values` is not empty.
double quantile_of(std::vector<double> values, double quantile);

/// A copy of a context with its own arena, so that the memory of a measurement is freed before the next one.
class Workbench {
 public:
  explicit Workbench(const Context& like);
  Context& ctx() { return ctx_; }

 private:
  std::unique_ptr<Arena> arena_;
  Context ctx_;
};

/// Standard normal values, with a separate random stream per `key`. The values repeat after 1,024 elements.
Tensor random_tensor(Context& ctx, const Shape& shape, DType dtype, uint64_t key = 0);
/// [count] int32, uniform in [0, limit).
Tensor random_tokens(Context& ctx, int64_t count, int64_t limit, uint64_t key = 0);

}  // namespace trireme::bench
