#pragma once
// Front end of every operation: checks the operands once, then selects the engine. Internal to kernels/ops.
#include <cstdint>
#include <initializer_list>

#include "kernels/core/operation_log.h"
#include "kernels/core/tensor.h"

namespace trireme {

#ifdef TRIREME_FAST_CPU
constexpr bool kFastCpu = true;
#else
constexpr bool kFastCpu = false;
#endif
#ifdef TRIREME_CUDA
constexpr bool kCudaBuilt = true;
#else
constexpr bool kCudaBuilt = false;
#endif

/// How often OperationRecord::bytes counts an operand: once, twice, or not at all because only a small part is accessed.
enum class Passes : uint8_t { kOnce, kReadAndWritten, kNotCounted };

struct Operand {
  const char* name;
  const Tensor& tensor;
  Shape shape;
  DType dtype;
  Passes passes = Passes::kOnce;
};

/// Checks that every operand is defined and has exactly its shape and dtype.
inline void expect(const char* operation, std::initializer_list<Operand> operands) {
  for (const Operand& operand : operands) {
    const Tensor& tensor = operand.tensor;
    TRIREME_CHECK(tensor.defined(), operation, ": ", operand.name, " is undefined");
    TRIREME_CHECK(tensor.shape() == operand.shape && tensor.dtype() == operand.dtype, operation, ": ", operand.name, " is ", name_of(tensor.dtype()),
                  " ", tensor.shape().str(), ", expected ", name_of(operand.dtype), " ", operand.shape.str());
  }
}

/// The kernel of kernels/cpu for an operation, and whether it supports bf16 and fp16 in addition to fp32.
template <class Kernel>
struct FastCpu {
  Kernel kernel;
  bool narrow = false;
};
template <class Kernel>
FastCpu(Kernel) -> FastCpu<Kernel>;
template <class Kernel>
FastCpu(Kernel, bool) -> FastCpu<Kernel>;

/// One operation: checks its operands, runs on the selected engine, and adds a record to Context::log.
class Operation {
 public:
  Operation(Context& ctx, const char* name, std::initializer_list<Operand> operands) : ctx_(ctx) {
    expect(name, operands);
    record_.name = name;
    if (ctx.log == nullptr) return;
    for (const Operand& operand : operands) add(operand.tensor, operand.passes);
  }
  /// For an operation whose operands the caller has checked.
  Operation(Context& ctx, const char* name, std::initializer_list<const Tensor*> operands) : ctx_(ctx) {
    record_.name = name;
    if (ctx.log == nullptr) return;
    for (const Tensor* operand : operands) add(*operand, Passes::kOnce);
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Checks and records a further operand.
  void operand(const Operand& operand) {
    expect(record_.name, {operand});
    if (ctx_.log != nullptr) add(operand.tensor, operand.passes);
  }
  /// The same for an operand that may be undefined.
  void optional(const Operand& operand) {
    if (operand.tensor.defined()) this->operand(operand);
  }
  /// Overrides the recorded bytes, for operations that access only a part of their operands.
  void moves(int64_t bytes) { record_.bytes = bytes; }
  void product(int64_t m, int64_t n, int64_t k, bool accumulates = false) {
    record_.kind = OperationKind::kProduct;
    record_.m = m, record_.n = n, record_.k = k, record_.accumulates = accumulates;
  }
  void attention(const AttentionWork& work) {
    record_.kind = OperationKind::kAttention;
    record_.attention = work;
  }

  /// The switch over devices. `cuda()` is the kernel of kernels/cuda, `fast.kernel()` that of kernels/cpu, `reference(T{})` the template of
  /// kernels/reference, which also computes dtypes that the fast kernel does not support. On the meta device nothing runs.
  template <class Cuda, class Fast, class Reference>
  void run(DType dtype, Cuda&& cuda, FastCpu<Fast> fast, Reference&& reference);
  /// For operations too small to have a fast CPU kernel.
  template <class Cuda, class Reference>
  void run(DType dtype, Cuda&& cuda, Reference&& reference);

 private:
  template <class Cuda, class Fast, class Reference>
  void choose(DType dtype, Cuda&& cuda, FastCpu<Fast> fast, Reference&& reference);
  void add(const Tensor& operand, Passes passes) {
    // The record has the narrowest floating-point dtype: statistics and gradients are wider than the activations, and indices are integers.
    const DType dtype = operand.dtype();
    const bool number = !is_integer(dtype);
    if (number && (!typed_ || size_of(dtype) < size_of(record_.dtype))) record_.dtype = dtype;
    typed_ = typed_ || number;
    if (passes != Passes::kNotCounted) record_.bytes += (passes == Passes::kReadAndWritten ? 2 : 1) * operand.bytes();
  }

  Context& ctx_;
  OperationRecord record_;
  bool typed_ = false;
};

template <class Cuda, class Fast, class Reference>
void Operation::choose(DType dtype, Cuda&& cuda, FastCpu<Fast> fast, Reference&& reference) {
  switch (ctx_.device) {
    case Device::kMeta: return;
    case Device::kCuda:
      if constexpr (kCudaBuilt) return cuda();
      throw InternalError("this build has no CUDA kernels");
    case Device::kCpu:
      if constexpr (kFastCpu) {
        if (dtype == DType::kF32 || (size_of(dtype) == 2 && fast.narrow)) return fast.kernel();
      }
      [[fallthrough]];
    case Device::kReference: return dispatch_float(dtype, reference);
  }
}

template <class Cuda, class Fast, class Reference>
void Operation::run(DType dtype, Cuda&& cuda, FastCpu<Fast> fast, Reference&& reference) {
  if (ctx_.log != nullptr) ctx_.log->open(ctx_, record_);
  choose(dtype, cuda, fast, reference);
  if (ctx_.log != nullptr) ctx_.log->close(ctx_);
}

template <class Cuda, class Reference>
void Operation::run(DType dtype, Cuda&& cuda, Reference&& reference) {
  run(dtype, cuda, FastCpu{[&] { dispatch_float(dtype, reference); }}, reference);
}

}  // namespace trireme
