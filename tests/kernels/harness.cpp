#include "tests/kernels/harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>

#include "kernels/core/rng.h"
#include "tests/kernels/dtypes.h"
#include "tests/kernels/guarded_tensor.h"
#include "tests/support/catch.h"
#ifdef TRIREME_CUDA
#include "tests/support/gpu.h"
#endif

namespace trireme::testing {
namespace {

std::vector<double> normal_values(const std::string& name, int64_t count) {
  thread_local std::map<std::string, std::vector<double>>
      drawn;  // operands of one name begin with the same values; drawing takes longer than most kernels
  std::vector<double>& values = drawn[name];
  const uint64_t key = random_key(1, name);
  while (static_cast<int64_t>(values.size()) < count) values.push_back(random_normal(key, values.size()));
  return {values.begin(), values.begin() + count};
}

#ifdef TRIREME_CUDA
/// False if TRIREME_TEST_DEVICES is "cpu": for runs that repeat tests with other settings of the CPU's libraries.
bool tests_gpu() {
  const char* const wanted = std::getenv("TRIREME_TEST_DEVICES");
  return wanted == nullptr || std::string(wanted) != "cpu";
}
#endif

size_t index_of(const Operation& operation, const std::string& name) {
  const auto found = std::find_if(operation.operands.begin(), operation.operands.end(), [&](const Operand& operand) { return operand.name == name; });
  TRIREME_CHECK(found != operation.operands.end(), operation.name, " has no operand ", name);
  return static_cast<size_t>(found - operation.operands.begin());
}

bool same_bits(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
  });
}

void run_on_meta(const Operation& operation, DType dtype) {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena};
  std::vector<Tensor> tensors;
  for (const Operand& operand : operation.operands) {
    tensors.push_back(Tensor::empty(ctx, operand.shape, operand.dtype_in(dtype), MemoryCategory::kWorkspace));
  }
  operation.run(ctx, tensors);
}

Shape one_row_more(const Shape& shape) {
  switch (shape.dims()) {
    case 1: return {shape[0] + 1};
    case 2: return {shape[0] + 1, shape[1]};
    default: return {shape[0] + 1, shape[1], shape[2]};
  }
}

void check_shapes_are_checked(const Operation& operation, DType dtype) {
  CHECK_NOTHROW(run_on_meta(operation, dtype));
  for (size_t i = 0; i < operation.operands.size(); ++i) {
    if (operation.operands[i].free_rows) continue;
    INFO(operation.name << " with an extra row in " << operation.operands[i].name);
    Operation wrong = operation;
    wrong.operands[i].shape = one_row_more(wrong.operands[i].shape);
    CHECK_THROWS_AS(run_on_meta(wrong, dtype), InternalError);
  }
}

/// CUDA reports an error of a kernel at a later call, and only as a number. The simulated GPU adds details.
void run_and_read(const Operation& operation, Context& ctx, const std::vector<Tensor>& tensors, std::vector<GuardedTensor>& guarded) try {
  operation.run(ctx, tensors);
  for (GuardedTensor& tensor : guarded) tensor.read();
} catch (const InternalError& error) {
#ifdef TRIREME_CUDA
  if (ctx.device == Device::kCuda && !gpu_errors().empty()) throw InternalError(concat(operation.name, ": ", error.what(), gpu_errors()));
#endif
  throw;
}

bool takes(const Operation& operation, DType dtype) {
  return std::any_of(operation.operands.begin(), operation.operands.end(), [&](const Operand& operand) { return operand.dtype_in(dtype) == dtype; });
}

/// The operation with every value rounded to the dtype of its operand, so that all engines, including fp64, start from the same numbers.
Operation rounded_to(DType narrow, Operation operation) {
  for (Operand& operand : operation.operands) {
    const DType dtype = operand.dtype_in(narrow);
    for (double& value : operand.values) {
      if (dtype == DType::kBF16) value = static_cast<bfloat16>(value);
      if (dtype == DType::kF16) value = static_cast<float16>(value);
      if (dtype == DType::kF32) value = static_cast<float>(value);
    }
  }
  return operation;
}

/// Half a unit in the last place of a dtype, relative to the number.
double half_unit(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0; }

/// Checks one operation in one dtype on every engine.
class EngineCheck {
 public:
  EngineCheck(const Operation& operation, DType dtype, double tolerance)
      : operation_(dtype == DType::kF32 ? operation : rounded_to(dtype, operation)),
        dtype_(dtype),
        tolerance_(tolerance + half_unit(dtype) / half_unit(DType::kBF16) * operation.bf16_intermediates),
        exact_(run(operation_, Device::kReference, DType::kF64)),
        reference_(run(operation_, Device::kReference, dtype)) {
    check_close("reference", reference_, exact_);
  }

  /// In a build without fast CPU kernels kCpu runs the reference, and the same checks apply.
  void cpu() const {
    for (int level = 0; level <= static_cast<int>(best_isa()); ++level) cpu(static_cast<Isa>(level));
  }
  void cpu(Isa isa) const {
    INFO("on " << name_of(isa));
    const Values fast = run(operation_, Device::kCpu, dtype_, 1, Alignment::kElement, isa);
    check_close("CPU", fast, exact_);
    check_close("CPU against reference", fast, reference_);
    for (int threads : {1, 2, 3}) {
      INFO(operation_.name << " " << name_of(dtype_) << " again with " << threads << " threads");
      const Values again = run(operation_, Device::kCpu, dtype_, threads, Alignment::kElement, isa);
      if (threads > 1 && operation_.bits_depend_on_threads) {
        check_close("CPU", again, exact_);
      } else {
        CHECK(same_bits(again, fast));
      }
    }
  }

#ifdef TRIREME_CUDA
  void gpu(std::initializer_list<Alignment> alignments = {Alignment::kElement, Alignment::kVector}) const {
    for (const Alignment alignment : alignments) {
      Values first;
      const auto again = [&] {
        INFO(operation_.name << " " << name_of(dtype_) << (alignment == Alignment::kVector ? " aligned" : " not aligned"));
        const Values values = run(operation_, Device::kCuda, dtype_, 1, alignment);
        if (first.empty()) {
          check_close("GPU", values, exact_);
          check_close("GPU against reference", values, reference_);
          first = values;
        }
        CHECK(same_bits(values, first));
      };
      for_each_schedule(alignment == Alignment::kVector ? 3 : 2, again);  // aligned buffers have more kernels
      if (!kSimulatedGpu) again();
    }
    with_hardware_rounding([&] {
      const Values values = run(operation_, Device::kCuda, dtype_, 1, Alignment::kVector);
      check_close("GPU with hardware rounding", values, exact_);
      check_close("GPU with hardware rounding against reference", values, reference_);
    });
  }
#endif

 private:
  void check_close(const char* engine, const Values& values, const Values& expected) const {
    for (size_t i = 0; i < values.size(); ++i) {
      const Operand& operand = operation_.operands[i];
      INFO(operation_.name << " " << name_of(dtype_) << " on " << engine << ": " << operand.name << " " << operand.shape.str());
      // Both sides of a comparison may have rounded the element.
      const double rounding = half_unit(operand.dtype_in(dtype_)) * (&expected == &exact_ ? 1 : 2);
      CHECK(normalised_error(values[i], expected[i], operand.floor, rounding) <= tolerance_);
    }
  }

  Operation operation_;
  DType dtype_;
  double tolerance_;
  Values exact_;      ///< fp64 reference
  Values reference_;  ///< reference in the dtype of the run
};

}  // namespace

Operand input(const std::string& name, const Shape& shape, const std::vector<double>& values) {
  return {name, shape, Role::kInput, values.empty() ? normal_values(name, shape.numel()) : values};
}
Operand assigned(const std::string& name, const Shape& shape) { return {name, shape, Role::kAssigned, {}}; }
Operand added_to(const std::string& name, const Shape& shape, const std::vector<double>& values) {
  return {name, shape, Role::kAddedTo, values.empty() ? normal_values(name, shape.numel()) : values};
}
Operand in_place(const std::string& name, const Shape& shape, const std::vector<double>& values) {
  return {name, shape, Role::kInPlace, values.empty() ? normal_values(name, shape.numel()) : values};
}
Operand integers(const std::string& name, const Shape& shape, const std::vector<double>& values) {
  return {name, shape, Role::kInput, values, DType::kI32};
}
Operand always_f64(Operand operand) {
  operand.dtype = DType::kF64;
  return operand;
}
Operand free_rows(Operand operand) {
  operand.free_rows = true;
  return operand;
}
Operand wide(Operand operand) {
  operand.wide = true;
  return operand;
}

const Operand& Operation::operand(const std::string& operand_name) const { return operands[index_of(*this, operand_name)]; }

Values run(const Operation& operation, Device device, DType dtype, int threads, Alignment alignment, Isa isa) {
  TestDevice machine(device, threads, isa);
  std::vector<GuardedTensor> guarded;
  std::vector<Tensor> tensors;
  std::vector<std::vector<unsigned char>> before;
  for (const Operand& operand : operation.operands) {
    guarded.emplace_back(machine.context(), operand, operand.dtype_in(dtype), alignment);
    tensors.push_back(guarded.back().tensor());
    before.push_back(guarded.back().bytes());
  }
  run_and_read(operation, machine.context(), tensors, guarded);
  Values after;
  for (size_t i = 0; i < guarded.size(); ++i) {
    INFO(operation.name << ": " << operation.operands[i].name << " " << operation.operands[i].shape.str());
    CHECK(guarded[i].guards_intact());
    const bool kept = operation.operands[i].role != Role::kInput || guarded[i].bytes() == before[i];
    CHECK(kept);
    after.push_back(guarded[i].values());
  }
  return after;
}

std::vector<Device> devices() {
#ifdef TRIREME_CUDA
  if (tests_gpu()) return {Device::kReference, Device::kCpu, Device::kCuda};
#endif
  return {Device::kReference, Device::kCpu};
}

Operation following(Operation later, const Operation& earlier) {
  const Values after = run(earlier, Device::kReference, DType::kF64);
  for (Operand& operand : later.operands) {
    for (size_t i = 0; i < after.size(); ++i) {
      if (earlier.operands[i].name == operand.name) operand.values = after[i];
    }
  }
  return later;
}

double normalised_error(const std::vector<double>& a, const std::vector<double>& b, double floor, double rounding) {
  double error = 0, largest = floor;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] == b[i] && std::isinf(b[i])) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(a[i] - b[i]) - rounding * std::abs(b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return error == 0 ? 0 : error / largest;
}

void check_engines(const Operation& operation, double tolerance) { check_engines(operation, tolerance, kAllDTypes); }
void check_engines(const Operation& operation, double tolerance, const DTypes& dtypes) {
  for (const DType dtype : dtypes) {
    if (!takes(operation, dtype) && dtype != DType::kF32) continue;
    check_shapes_are_checked(operation, dtype);
    const EngineCheck check(operation, dtype, tolerance);
    check.cpu();
#ifdef TRIREME_CUDA
    if (tests_gpu()) check.gpu();
#endif
  }
}

#ifdef TRIREME_CUDA
void check_tensor_core_kernels(const Operation& operation, double tolerance) { check_tensor_core_kernels(operation, tolerance, kAllDTypes); }
void check_tensor_core_kernels(const Operation& operation, double tolerance, const DTypes& dtypes) {
  for (const DType dtype : dtypes)
    if (dtype != DType::kF32) EngineCheck(operation, dtype, tolerance).gpu({Alignment::kVector});
}
#endif

void check_gradients(const Operation& forward, const std::string& y, const Operation& backward, const std::string& dy,
                     const std::vector<std::pair<std::string, std::string>>& pairs) {
  constexpr double kStep = 1e-5;       // truncation ~ kStep^2, rounding ~ 1e-16 / kStep: both near 1e-10
  constexpr double kTolerance = 1e-7;  // relative to max(largest gradient, 1)
  constexpr size_t kElements = 40;     // probed per input, evenly spaced
  const Operation bound = following(backward, forward);
  const Values gradients = run(bound, Device::kReference, DType::kF64);
  const std::vector<double>& weight = bound.operand(dy).values;
  const auto objective = [&](const Operation& operation) {
    const Values after = run(operation, Device::kReference, DType::kF64);
    const std::vector<double>& outputs = after[index_of(forward, y)];
    double sum = 0;
    for (size_t i = 0; i < outputs.size(); ++i) sum += weight[i] * outputs[i];
    return sum;
  };
  for (const auto& [input_name, gradient_name] : pairs) {
    const Operand& gradient = bound.operand(gradient_name);
    const std::vector<double>& after = gradients[index_of(bound, gradient_name)];
    const size_t count = forward.operand(input_name).values.size();
    std::vector<double> analytic, numeric;
    Operation probe = forward;
    std::vector<double>& elements = probe.operands[index_of(forward, input_name)].values;
    for (size_t i = 0; i < count; i += count / kElements + 1) {
      const double value = elements[i];
      elements[i] = value + kStep;
      const double above = objective(probe);
      elements[i] = value - kStep;
      const double below = objective(probe);
      elements[i] = value;
      numeric.push_back((above - below) / (2 * kStep));
      analytic.push_back(after[i] - (gradient.role == Role::kAddedTo ? gradient.values[i] : 0));
    }
    INFO(forward.name << " d" << y << "/d" << input_name << " for " << forward.operand(input_name).shape.str());
    CHECK(normalised_error(analytic, numeric, 1.0) <= kTolerance);
  }
}

}  // namespace trireme::testing
