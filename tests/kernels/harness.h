#pragma once
// One declaration of an operation, from which come all its checks: fast against reference, gradients against finite differences, guards around
// every buffer, bits of a rerun, shapes on the meta device.
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
  std::optional<DType> dtype = {};  ///< the float type of the run when not given
  double floor = 0;                 ///< errors are measured against max(|reference|, floor): for results that cancel to nearly zero
  bool free_rows = false;           ///< dimension 0 may have any size
};
Operand input(const std::string& name, const Shape& shape, const std::vector<double>& values = {});
Operand assigned(const std::string& name, const Shape& shape);
Operand added_to(const std::string& name, const Shape& shape, const std::vector<double>& values = {});
Operand in_place(const std::string& name, const Shape& shape, const std::vector<double>& values = {});
Operand integers(const std::string& name, const Shape& shape, const std::vector<double>& values);
Operand always_f64(Operand operand);
Operand free_rows(Operand operand);

struct Operation {
  std::string name;
  std::vector<Operand> operands;
  std::function<void(Context&, const std::vector<Tensor>&)> run;
  bool bits_depend_on_threads = false;  ///< a library chooses how sums are split

  const Operand& operand(const std::string& operand_name) const;
};

/// Values of every operand after the call, in the order of the declaration.
using Values = std::vector<std::vector<double>>;

/// Runs on poisoned, guarded buffers that begin off every alignment but the element's; checks guards and inputs.
Values run(const Operation& operation, Device device, DType dtype, int threads = 1);

/// `later` with the operands that it shares by name with `earlier` set to what `earlier` leaves in them (fp64 reference): a backward pass after its
/// forward.
Operation following(Operation later, const Operation& earlier);

/// max |a - b| / max(max |b|, floor); infinities must coincide, and a NaN is an infinite error.
double normalised_error(const std::vector<double>& a, const std::vector<double>& b, double floor = 0);

/// fp32 against fp64 on the reference; where the fast kernels are built, fast against reference in fp32, and the same bits from a rerun and from 1, 2
/// and 3 threads. Every operand of a wrong shape is refused, on the meta device too.
void check_engines(const Operation& operation, double tolerance);

/// d(sum dy * y)/d(input) by central differences of `forward` in fp64 against what `backward` leaves in (or adds to) the gradient operand, for each
/// pair {input of forward, gradient of backward}. `dy` names an operand of `backward`, `y` of `forward`.
void check_gradients(const Operation& forward, const std::string& y, const Operation& backward, const std::string& dy,
                     const std::vector<std::pair<std::string, std::string>>& pairs);

}  // namespace trireme::testing
