#ifdef TRIREME_CUDA
#include "tests/kernels/sampled_rows.h"

#include <algorithm>
#include <future>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "tests/kernels/guarded_tensor.h"

namespace trireme::testing {
namespace {

double value_at(const Tensor& t, int64_t i) {
  switch (t.dtype()) {
    case DType::kF64: return t.data<double>()[i];
    case DType::kF32: return t.data<float>()[i];
    case DType::kBF16: return static_cast<float>(t.data<bfloat16>()[i]);
    case DType::kI32: return t.data<int32_t>()[i];
    default: throw InternalError("unexpected dtype");
  }
}
Tensor device_operand(Context& ctx, const LargeOperand& of, int64_t rows) {
  const Tensor tensor = Tensor::empty(ctx, {rows, of.columns}, of.integers > 0 ? DType::kI32 : of.dtype, MemoryCategory::kWorkspace);
  const uint64_t key = random_key(1, of.name);
  if (of.integers > 0) {
    const Tensor host = host_tensor(tensor.shape(), DType::kI32);
    for (int64_t i = 0; i < host.numel(); ++i)
      host.data<int32_t>()[i] = static_cast<int32_t>(random_bits(key, static_cast<uint64_t>(i)) % static_cast<uint64_t>(of.integers));
    from_host(ctx, host, tensor);
  } else if (of.positive) {
    fill(ctx, 0.25, tensor);
  } else if (of.role != Role::kAssigned) {
    fill_normal(ctx, key, 1, of.columns, 0, 0, tensor);
  }
  return tensor;
}

/// The operation on one unit in fp64. `values`: of each operand before it; returns those after it.
std::vector<std::vector<double>> exact(const LargeOperation& operation, std::vector<std::vector<double>> values, int64_t first_row) {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < values.size(); ++i) {
    const LargeOperand& of = operation.operands[i];
    const Shape shape{of.shared_rows > 0 ? of.shared_rows : operation.unit, of.columns};
    tensors.push_back(Tensor::empty(ctx, shape, of.integers > 0 ? DType::kI32 : DType::kF64, MemoryCategory::kWorkspace));
    for (int64_t j = 0; j < shape.numel(); ++j) {
      if (of.integers > 0)
        tensors[i].data<int32_t>()[j] = static_cast<int32_t>(values[i][static_cast<size_t>(j)]);
      else
        tensors[i].data<double>()[j] = values[i][static_cast<size_t>(j)];
    }
  }
  operation.run(ctx, tensors, first_row);
  for (size_t i = 0; i < values.size(); ++i) values[i] = values_of(tensors[i]);
  return values;
}

/// The first and the last unit, those around element 2^31 of the widest operand, and random ones: `count` in all, or every unit.
std::vector<int64_t> sample(const LargeOperation& operation, int64_t units, int64_t count) {
  std::vector<int64_t> chosen = {0, units - 1};
  int64_t columns = 0;
  for (const LargeOperand& of : operation.operands) columns = std::max(columns, of.shared_rows > 0 ? 0 : of.columns);
  const int64_t at_limit = (int64_t{1} << 31) / (columns * operation.unit);
  for (int64_t unit : {at_limit - 1, at_limit, at_limit + 1})
    if (unit < units) chosen.push_back(unit);
  for (uint64_t i = 0; static_cast<int64_t>(chosen.size()) < count; ++i)
    chosen.push_back(static_cast<int64_t>(random_bits(11, i) % static_cast<uint64_t>(units)));
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

}  // namespace

std::vector<double> values_of(const Tensor& host) {
  std::vector<double> values(static_cast<size_t>(host.numel()));
  for (int64_t i = 0; i < host.numel(); ++i) values[static_cast<size_t>(i)] = value_at(host, i);
  return values;
}

double sampled_error(const LargeOperation& operation, int64_t units, int64_t count) {
  TestDevice machine(Device::kCuda, 1);
  Context& ctx = machine.context();
  std::vector<Tensor> tensors;
  for (const LargeOperand& of : operation.operands)
    tensors.push_back(device_operand(ctx, of, of.shared_rows > 0 ? of.shared_rows : units * operation.unit));
  const auto read = [&](size_t i, int64_t unit) {
    const bool shared = operation.operands[i].shared_rows > 0;
    return values_of(to_host(ctx, shared ? tensors[i] : tensors[i].rows(unit * operation.unit, operation.unit)));
  };
  const std::vector<int64_t> chosen = sample(operation, units, count);
  std::vector<std::future<std::vector<std::vector<double>>>> expected;
  for (const int64_t unit : chosen) {
    std::vector<std::vector<double>> before;
    for (size_t i = 0; i < tensors.size(); ++i) before.push_back(read(i, unit));
    expected.push_back(std::async(std::launch::async, exact, std::cref(operation), std::move(before), unit * operation.unit));
  }
  operation.run(ctx, tensors, 0);
  double error = 0;
  for (size_t k = 0; k < chosen.size(); ++k) {
    const auto after = expected[k].get();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const LargeOperand& of = operation.operands[i];
      if (of.role == Role::kInput) continue;
      error = std::max(error, normalised_error(read(i, chosen[k]), after[i], 0.1, of.dtype == DType::kBF16 ? 0x1p-8 : 0));
    }
  }
  return error;
}

}  // namespace trireme::testing
#endif
