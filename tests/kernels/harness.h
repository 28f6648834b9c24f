#pragma once
// One declaration of an operation, from which come all its checks: every engine in fp32 and bf16 against the reference, gradients against finite
// differences, guards around every buffer, bits of a rerun, shapes on the meta device.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/tensor.h"

namespace trireme::testing {

enum class Role {
  kInput,     ///< must not change
  kAssigned,  ///< holds NaN before the call
  kAddedTo,   ///< the result is added to what it holds
  kInPlace,   ///< the result replaces what it was computed from
};

struct Operand {
  std::string name;
  Shape shape;
  Role role = Role::kInput;
  std::vector<double> values;       ///< before the call; drawn from a normal distribution when empty
  std::optional<DType> dtype = {};  ///< of the run when not given
  double floor = 0;                 ///< errors are measured against max(|reference|, floor): for results that cancel to nearly zero
  bool free_rows = false;           ///< dimension 0 may have any size
  bool wide = false;                ///< of the accumulator of the run's dtype (kernels/core/dtype.h)

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
  /// What kernels of a narrow dtype may lose by rounding intermediate values to it (probabilities that are an operand of a second product, a sum that is stored and
  /// then normalised), as a share of the largest element; given for bf16, an eighth of it holds in fp16. 0: everything between operands and results is fp32.
  double bf16_intermediates = 0;

  const Operand& operand(const std::string& operand_name) const;
};

/// Values of every operand after the call, in the order of the declaration.
using Values = std::vector<std::vector<double>>;

/// Where buffers begin: at no alignment but the element's, or at 16 bytes, where vector loads are possible.
enum class Alignment : uint8_t { kElement, kVector };

/// Runs on poisoned, guarded buffers; checks guards and inputs. Guards of inputs are NaN, so that a read beyond them shows in the result.
Values run(const Operation& operation, Device device, DType dtype, int threads = 1, Alignment alignment = Alignment::kElement,
           Isa isa = best_isa());

/// Every device of this build that computes: reference, CPU and, where it is built, the GPU.
std::vector<Device> devices();

/// `later` with the operands that it shares by name with `earlier` set to what `earlier` leaves in them (fp64 reference): a backward pass after its
/// forward.
Operation following(Operation later, const Operation& earlier);

/// max(|a - b| - rounding |b|) / max(max |b|, floor); infinities must coincide, and a NaN is an infinite error.
double normalised_error(const std::vector<double>& a, const std::vector<double>& b, double floor = 0, double rounding = 0);

/// In fp32 and, where an operand takes them, in bf16 and fp16 (on operands rounded to it): reference against the fp64 reference, the CPU kernels of every
/// level of instructions that this CPU has and GPU kernels against both. Equal bits from a rerun, from 1, 2 and 3 threads, under any schedule
/// of the GPU. Every operand of a wrong shape is refused, on the meta device too. An element of a bf16 or fp16 result may differ by its own rounding, 2^-8 or
/// 2^-11 of it, beside `tolerance`; fp32 results (statistics, parameter gradients) of such operands have no such allowance, as their operands are exact and
/// their sums fp32.
void check_engines(const Operation& operation, double tolerance);

/// d(sum dy * y)/d(input) by central differences of `forward` in fp64 against what `backward` leaves in (or adds to) the gradient operand, for each
/// pair {input of forward, gradient of backward}. `dy` names an operand of `backward`, `y` of `forward`.
void check_gradients(const Operation& forward, const std::string& y, const Operation& backward, const std::string& dy,
                     const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace trireme::testing
