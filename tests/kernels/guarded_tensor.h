#pragma once
// A test tensor between two guard regions, which an operation must neither read nor write.
#include <vector>

#include "tests/kernels/harness.h"

namespace trireme::testing {

/// The device of a test's buffers: the host, or the GPU of tests/support/gpu.h. Memory is poisoned.
class TestDevice {
 public:
  TestDevice(Device device, int threads, Isa isa = best_isa());
  ~TestDevice();  ///< waits for work that an operation queued before it threw
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;
  Context& context() { return ctx_; }

 private:
  Arena arena_;
  Context ctx_;
};

class GuardedTensor {
 public:
  /// Contains the operand's values, or NaN for an assigned operand.
  GuardedTensor(Context& ctx, const Operand& operand, DType dtype, Alignment alignment);

  const Tensor& tensor() const { return tensor_; }
  /// Reads the buffer; waits for the device. The functions below return the data of the last read.
  void read();
  bool guards_intact() const;
  std::vector<unsigned char> bytes() const;
  std::vector<double> values() const;

 private:
  Context* ctx_;
  int64_t guard_;         ///< number of elements on each side
  unsigned char filler_;  ///< value of the guard bytes
  Tensor whole_;
  Tensor tensor_;
  Tensor host_;  ///< whole_ at the last read
};

}  // namespace trireme::testing
