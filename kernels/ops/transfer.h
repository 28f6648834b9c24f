#pragma once
// Between the host and the device of a context. On a CPU the device is the host; on the meta device nothing moves and every value reads as 0.
#include <vector>

#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"

namespace trireme {

/// The elements on the host: on the CPU the tensor itself, else a copy, for which the host waits.
Tensor to_host(Context& ctx, const Tensor& tensor);
/// out := the elements of `from`, a host tensor of the same dtype and size, which may be written again on return; ordered among the device's operations.
void from_host(Context& ctx, const Tensor& from, const Tensor& out);
/// A host tensor to fill for from_host, and to fill in place where the device is the host; it counts in no category of a GPU's arena.
Tensor host_tensor(const Shape& shape, DType dtype);

/// scalar [1] f64. Waits.
double read_scalar(Context& ctx, const Tensor& scalar);

/// scalar [1] f64 := value; ordered among the device's operations.
void write_scalar(Context& ctx, double value, const Tensor& scalar);

/// A few f64 values on their way to the host: a step's loss and norm are read when the next step is under way.
class ScalarReadback {
 public:
  ScalarReadback() = default;
  ScalarReadback(Context& ctx, const std::vector<Tensor>& scalars);  ///< each [1] f64, as they are after what is queued now
  bool ready() const;                                                ///< never waits
  std::vector<double> wait() const;

 private:
  std::vector<double> values_;
  std::vector<cuda::Gpu::Readback> pending_;
};

}  // namespace trireme
