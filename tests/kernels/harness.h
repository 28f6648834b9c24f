#pragma once
// All checks of an operation from one declaration: every engine (a device, and on the CPU an instruction-set level) in fp32, bf16 and fp16 against
// the reference, gradients against finite differences, guards around every buffer, bit-identical reruns, shapes on the meta device.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/tensor.h"

namespace trireme::testing {

enum class Role {
  kInput,     ///< must not change
  kAssigned,  ///< contains NaN before the call
  kAddedTo,   ///< the result is added to its values
  kInPlace,   ///< the result overwrites an input
};

struct Operand {
  std::string name;
  Shape shape;
  Role role = Role::kInput;
  std::vector<double> values;       ///< before the call; drawn from a normal distribution when empty
  std::optional<DType> dtype = {};  ///< default: the dtype of the run
  double floor = 0;                 ///< errors are relative to max(|reference|, floor): for results that cancel to nearly zero
  bool free_rows = false;           ///< dimension 0 may have any size
  bool wide = false;                ///< has the accumulator dtype of the run's dtype (kernels/core/dtype.h)

  DType dtype_in(DType run) const { return dtype.value_or(wide ? accumulator_of(run) : run); }
};
Operand input(const std::string& name, const Shape& shape, const std::vector<double>& values = {});
Operand assigned(const std::string& name, const Shape& shape);
Operand added_to(const std::string& name, const Shape& shape, const std::vector<double>& values = {});
Operand in_place(const std::string& name, const Shape& shape, const std::vector<double>& values = {});
Operand integers(const std::string& name, const Shape& shape, const std::vector<double>& values);
Operand always_f64(Operand operand);
Operand free_rows(Operand operand);
Operand wide(Operand operand);

struct Operation {
  std::string name;
  std::vector<Operand> operands;
  std::function<void(Context&, const std::vector<Tensor>&)> run;
  bool bits_depend_on_threads = false;  ///< a library chooses how sums are split
  /// Additional tolerance, relative to the largest element, for bf16 kernels that round intermediate values to bf16 (probabilities that are an
  /// operand of a second product, a sum that is stored and then normalised); an eighth of it for fp16. 0: all intermediate values are fp32.
  double bf16_intermediates = 0;

  const Operand& operand(const std::string& operand_name) const;
};

/// Values of every operand after the call, in the order of the declaration.
using Values = std::vector<std::vector<double>>;

/// Alignment of buffers: only that of the element, or 16 bytes, which allows vector loads.
enum class Alignment : uint8_t { kElement, kVector };

/// Runs on poisoned, guarded buffers; checks guards and inputs. Guards of inputs are NaN, so that an out-of-bounds read appears in the result.
Values run(const Operation& operation, Device device, DType dtype, int threads = 1, Alignment alignment = Alignment::kElement, Isa isa = best_isa());

/// Every device of this build that computes: reference, CPU and, if built, the GPU.
std::vector<Device> devices();

/// `later`, with the operands that it shares by name with `earlier` set to their values after `earlier` (fp64 reference): a backward pass after its
/// forward.
Operation following(Operation later, const Operation& earlier);

/// max(|a - b| - rounding |b|) / max(max |b|, floor); infinities must be equal, and NaN is an infinite error.
double normalised_error(const std::vector<double>& a, const std::vector<double>& b, double floor = 0, double rounding = 0);

/// In fp32 and, if an operand has the dtype of the run, in bf16 and fp16 (on operands rounded to it): checks the reference against the fp64
/// reference, and the CPU kernels of every instruction-set level of this CPU and the GPU kernels against both. Reruns, 1, 2 and 3 threads, and any
/// schedule of the GPU must give the same bits. An operand of a wrong shape must be rejected, also on the meta device. An element of a bf16 or fp16
/// result may differ by its own rounding, 2^-8 or 2^-11 of it, in addition to `tolerance`; fp32 results (statistics, parameter gradients) may not,
/// because their operands are exact and their sums are fp32.
void check_engines(const Operation& operation, double tolerance);
#ifdef TRIREME_CUDA
/// The part of it that kernels on tensor cores run: on the GPU, in bf16 and fp16, on aligned buffers.
void check_tensor_core_kernels(const Operation& operation, double tolerance);
#endif

/// Checks d(sum dy * y)/d(input) by central differences of `forward` in fp64 against the value that `backward` writes (or adds) to the gradient
/// operand, for each pair {input of forward, gradient of backward}. `dy` names an operand of `backward`, `y` of `forward`.
void check_gradients(const Operation& forward, const std::string& y, const Operation& backward, const std::string& dy,
                     const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace trireme::testing
