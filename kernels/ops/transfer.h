#pragma once
// Copies between the host and the device of a context. On a CPU the device is the host; on the meta device nothing is copied and values read as 0.
#include <vector>

#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"

namespace trireme {

/// The tensor on the host: on the CPU the tensor itself, otherwise a copy; waits for the device.
Tensor to_host(Context& ctx, const Tensor& tensor);
/// out := the elements of `from`, a host tensor of the same dtype and size. `from` may be overwritten on return; the copy is ordered with the
/// device's operations.
void from_host(Context& ctx, const Tensor& from, const Tensor& out);
/// A host tensor, for example as source of from_host(). The arena of the context does not count it.
Tensor host_tensor(const Shape& shape, DType dtype);

/// Value of scalar [1] f64; waits for the device.
double read_scalar(Context& ctx, const Tensor& scalar);

/// scalar [1] f64 := value; ordered with the device's operations.
void write_scalar(Context& ctx, double value, const Tensor& scalar);

/// A pending copy of a few f64 values to the host: loss and norm of a step are read while the next step runs.
class ScalarReadback {
 public:
  ScalarReadback() = default;
  ScalarReadback(Context& ctx, const std::vector<Tensor>& scalars);  ///< each [1] f64, after all work queued so far
  bool ready() const;                                                ///< never waits
  std::vector<double> wait() const;

 private:
  std::vector<double> values_;
  std::vector<cuda::Gpu::Readback> pending_;
};

}  // namespace trireme
