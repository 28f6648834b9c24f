#pragma once
// A tensor of the tests between two guards: what an operation must neither read nor write.
#include <vector>

#include "tests/kernels/harness.h"

namespace trireme::testing {

/// Where buffers of a test lie: on the host, or on the GPU of tests/support/gpu.h. Poisoned.
class TestDevice {
 public:
  TestDevice(Device device, int threads, Isa isa = best_isa());
  ~TestDevice();  ///< waits for what an operation queued before it threw
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;
  Context& context() { return ctx_; }

 private:
  Arena arena_;
  Context ctx_;
};

class GuardedTensor {
 public:
  /// Holds the operand's values, or NaN where it is assigned.
  GuardedTensor(Context& ctx, const Operand& operand, DType dtype, Alignment alignment);

  const Tensor& tensor() const { return tensor_; }
  /// What is there now. Waits for the device; the functions below look at the last read.
  void read();
  bool guards_intact() const;
  std::vector<unsigned char> bytes() const;
  std::vector<double> values() const;

 private:
  Context* ctx_;
  int64_t guard_;         ///< elements on each side
  unsigned char filler_;  ///< bytes of the guards
  Tensor whole_;
  Tensor tensor_;
  Tensor host_;  ///< whole_ as it was read last
};

}  // namespace trireme::testing
