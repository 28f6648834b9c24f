#include "tests/kernels/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"

namespace trireme::testing {
namespace {

constexpr int64_t kGuard = 17;  // elements on each side; odd, so that no buffer is aligned to more than its element
constexpr int kGuardByte = 0xA5;
constexpr int kNanByte = 0xFF;

class GuardedTensor {
 public:
  GuardedTensor(const Context& ctx, const Operand& operand, DType dtype)
      : whole_(Tensor::empty(ctx, {operand.shape.numel() + 2 * kGuard}, dtype, MemoryCategory::kWorkspace)),
        tensor_(whole_.flat_view(kGuard, operand.shape)) {
    std::memset(whole_.raw(), kGuardByte, static_cast<size_t>(whole_.bytes()));
    if (operand.role == Role::kAssigned) {
      std::memset(tensor_.raw(), kNanByte, static_cast<size_t>(tensor_.bytes()));
    } else {
      write(operand.values);
    }
  }

  const Tensor& tensor() const { return tensor_; }

  bool guards_intact() const {
    const auto* bytes = static_cast<const unsigned char*>(whole_.raw());
    const int64_t margin = kGuard * size_of(whole_.dtype());
    const auto untouched = [](unsigned char byte) { return byte == kGuardByte; };
    return std::all_of(bytes, bytes + margin, untouched) && std::all_of(bytes + whole_.bytes() - margin, bytes + whole_.bytes(), untouched);
  }

  std::vector<double> read() const {
    std::vector<double> values;
    for (int64_t i = 0; i < tensor_.numel(); ++i) values.push_back(element(i));
    return values;
  }

  std::vector<unsigned char> bytes() const {
    const auto* first = static_cast<const unsigned char*>(tensor_.raw());
    return {first, first + tensor_.bytes()};
  }

 private:
  void write(const std::vector<double>& values) {
    TRIREME_CHECK(static_cast<int64_t>(values.size()) == tensor_.numel(), values.size(), " values for ", tensor_.shape().str());
    for (size_t i = 0; i < values.size(); ++i) {
      switch (tensor_.dtype()) {
        case DType::kF64: tensor_.data<double>()[i] = values[i]; break;
        case DType::kF32: tensor_.data<float>()[i] = static_cast<float>(values[i]); break;
        case DType::kI32: tensor_.data<int32_t>()[i] = static_cast<int32_t>(values[i]); break;
        case DType::kU8: tensor_.data<uint8_t>()[i] = static_cast<uint8_t>(values[i]); break;
      }
    }
  }

  double element(int64_t i) const {
    switch (tensor_.dtype()) {
      case DType::kF64: return tensor_.data<double>()[i];
      case DType::kF32: return tensor_.data<float>()[i];
      case DType::kI32: return tensor_.data<int32_t>()[i];
      case DType::kU8: return tensor_.data<uint8_t>()[i];
    }
    return 0;
  }

  Tensor whole_;
  Tensor tensor_;
};

std::vector<double> normal_values(const std::string& name, int64_t count) {
  const uint64_t key = random_key(1, name);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random_normal(key, static_cast<uint64_t>(i)));
  return values;
}

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

void check_close(const Operation& operation, const Values& values, const Values& expected, double tolerance) {
  for (size_t i = 0; i < values.size(); ++i) {
    INFO(operation.name << ": " << operation.operands[i].name << " " << operation.operands[i].shape.str());
    CHECK(normalised_error(values[i], expected[i], operation.operands[i].floor) <= tolerance);
  }
}

void run_on_meta(const Operation& operation) {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena};
  std::vector<Tensor> tensors;
  for (const Operand& operand : operation.operands) {
    tensors.push_back(Tensor::empty(ctx, operand.shape, operand.dtype.value_or(DType::kF32), MemoryCategory::kWorkspace));
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

void check_shapes_are_checked(const Operation& operation) {
  CHECK_NOTHROW(run_on_meta(operation));
  for (size_t i = 0; i < operation.operands.size(); ++i) {
    if (operation.operands[i].free_rows) continue;
    INFO(operation.name << " with a row too many in " << operation.operands[i].name);
    Operation wrong = operation;
    wrong.operands[i].shape = one_row_more(wrong.operands[i].shape);
    CHECK_THROWS_AS(run_on_meta(wrong), InternalError);
  }
}

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

const Operand& Operation::operand(const std::string& operand_name) const { return operands[index_of(*this, operand_name)]; }

Values run(const Operation& operation, Device device, DType dtype, int threads) {
  Arena arena(device, /*poison=*/true);
  Context ctx{device, &arena, threads};
  std::vector<GuardedTensor> guarded;
  std::vector<Tensor> tensors;
  std::vector<std::vector<unsigned char>> before;
  for (const Operand& operand : operation.operands) {
    guarded.emplace_back(ctx, operand, operand.dtype.value_or(dtype));
    tensors.push_back(guarded.back().tensor());
    before.push_back(guarded.back().bytes());
  }
  operation.run(ctx, tensors);
  Values after;
  for (size_t i = 0; i < guarded.size(); ++i) {
    INFO(operation.name << ": " << operation.operands[i].name << " " << operation.operands[i].shape.str());
    CHECK(guarded[i].guards_intact());
    if (operation.operands[i].role == Role::kInput) CHECK(guarded[i].bytes() == before[i]);
    after.push_back(guarded[i].read());
  }
  return after;
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

double normalised_error(const std::vector<double>& a, const std::vector<double>& b, double floor) {
  double error = 0, largest = floor;
  for (size_t i = 0; i < b.size(); ++i) {
    if (a[i] == b[i] && std::isinf(b[i])) continue;
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return error == 0 ? 0 : error / largest;
}

void check_engines(const Operation& operation, double tolerance) {
  check_shapes_are_checked(operation);
  const Values reference = run(operation, Device::kReference, DType::kF32);
  check_close(operation, reference, run(operation, Device::kReference, DType::kF64), tolerance);
  // Without the fast kernels kCpu is the reference under another name, and all of this still has to hold.
  const Values fast = run(operation, Device::kCpu, DType::kF32);
  check_close(operation, fast, reference, tolerance);
  for (int threads : {1, 2, 3}) {
    INFO(operation.name << " again with " << threads << " threads");
    const Values again = run(operation, Device::kCpu, DType::kF32, threads);
    if (threads > 1 && operation.bits_depend_on_threads) {
      check_close(operation, again, reference, tolerance);
    } else {
      CHECK(same_bits(again, fast));
    }
  }
}

void check_gradients(const Operation& forward, const std::string& y, const Operation& backward, const std::string& dy,
                     const std::vector<std::pair<std::string, std::string>>& pairs) {
  constexpr double kStep = 1e-5;       // truncation ~ kStep^2, rounding ~ 1e-16 / kStep: both near 1e-10
  constexpr double kTolerance = 1e-7;  // of the largest gradient, and never below that of 1
  constexpr size_t kElements = 40;     // probed in each input, spread evenly
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
