#ifdef TRIREME_CUDA
#include "tests/kernels/sampled_rows.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <limits>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "tests/kernels/guarded_tensor.h"
#include "tests/support/gpu.h"

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
DType dtype_of(const LargeOperand& of) { return of.integers > 0 ? DType::kI32 : of.dtype; }

Tensor device_operand(Context& ctx, const LargeOperand& of, int64_t rows) {
  const Tensor tensor = Tensor::empty(ctx, {rows, of.columns}, dtype_of(of), MemoryCategory::kWorkspace);
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
    tensors.push_back(Tensor::empty(ctx, shape, dtype_of(of) == DType::kI32 ? DType::kI32 : DType::kF64, MemoryCategory::kWorkspace));
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

#ifndef TRIREME_REAL_GPU
namespace {

constexpr size_t kPage = cuda_sim::kPageBytes;
constexpr int64_t kPatternPages = 257;  // odd, so that an address that is wrong by a power of two holds another value
constexpr int kRepeats = 8;             // of the pattern, to map less often
constexpr int64_t kSmall = int64_t{1} << 26;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t whole_pages(const Tensor& tensor) { return (tensor.bytes() + static_cast<int64_t>(kPage) - 1) / static_cast<int64_t>(kPage) * kPage; }

/// The values that an operand repeats.
Tensor pattern_of(const LargeOperand& of) {
  const DType dtype = dtype_of(of);
  const Tensor pattern = host_tensor({kRepeats * kPatternPages * static_cast<int64_t>(kPage) / size_of(dtype)}, dtype);
  const uint64_t key = random_key(1, of.name);
  for (int64_t i = 0; i < pattern.numel() / kRepeats; ++i) {
    const auto index = static_cast<uint64_t>(i);
    const auto value = of.positive ? 0.25F : static_cast<float>(random_normal(key, index));
    if (dtype == DType::kI32) pattern.data<int32_t>()[i] = static_cast<int32_t>(random_bits(key, index) % static_cast<uint64_t>(of.integers));
    if (dtype == DType::kF32) pattern.data<float>()[i] = value;
    if (dtype == DType::kBF16) pattern.data<bfloat16>()[i] = bfloat16(value);
  }
  auto* const bytes = static_cast<unsigned char*>(pattern.raw());
  for (int repeat = 1; repeat < kRepeats; ++repeat) std::memcpy(bytes + repeat * pattern.bytes() / kRepeats, bytes, pattern.bytes() / kRepeats);
  return pattern;
}

Tensor sparse_operand(Context& ctx, const LargeOperand& of, int64_t rows) {
  const Tensor tensor = Tensor::empty(ctx, {rows, of.columns}, dtype_of(of), MemoryCategory::kWorkspace);
  if (of.role == Role::kAssigned) return tensor;
  const Tensor pattern = pattern_of(of);
  const auto* const bytes = static_cast<const unsigned char*>(pattern.raw());
  if (tensor.bytes() >= kSmall) {
    cuda_sim::fill_with_copies(tensor.raw(), static_cast<size_t>(whole_pages(tensor)), {bytes, bytes + pattern.bytes()});
    return tensor;
  }
  const Tensor host = host_tensor(tensor.shape(), tensor.dtype());
  for (int64_t at = 0; at < host.bytes(); at += pattern.bytes())
    std::memcpy(static_cast<unsigned char*>(host.raw()) + at, bytes, static_cast<size_t>(std::min(pattern.bytes(), host.bytes() - at)));
  from_host(ctx, host, tensor);
  return tensor;
}

/// At most kMost of the units that lie in written pages, with the first, the last and those next to elements 2^31 and 2^32.
std::vector<int64_t> written_units(const LargeOperation& operation, const Tensor& tensor, int64_t units) {
  const int64_t unit_bytes = operation.unit * tensor.dim(1) * size_of(tensor.dtype());
  std::vector<int64_t> all;
  for (const size_t page : cuda_sim::written_pages(tensor.raw(), static_cast<size_t>(tensor.bytes()))) {
    const auto begin = static_cast<int64_t>(page), last = begin + static_cast<int64_t>(kPage) - 1;
    for (int64_t unit = begin / unit_bytes; unit <= std::min(units - 1, last / unit_bytes); ++unit)
      if (all.empty() || all.back() < unit) all.push_back(unit);
  }
  constexpr size_t kMost = 24;
  if (all.size() <= kMost) return all;
  std::vector<int64_t> chosen = {all.front(), all.back()};
  for (const int bits : {31, 32}) {
    const auto above = std::lower_bound(all.begin(), all.end(), (size_of(tensor.dtype()) << bits) / unit_bytes);
    if (above != all.end()) chosen.push_back(*above);
    if (above != all.begin()) chosen.push_back(above[-1]);
  }
  for (uint64_t i = 0; chosen.size() < kMost; ++i) chosen.push_back(all[random_bits(11, i) % all.size()]);
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

/// The elements of `values` that the device has computed: those whose bits differ from the bits before.
std::vector<double> computed(const std::vector<double>& values, const Tensor& after, const std::vector<unsigned char>& before) {
  const auto size = static_cast<size_t>(size_of(after.dtype()));
  const auto* const bytes = static_cast<const unsigned char*>(after.raw());
  std::vector<double> selected;
  for (size_t i = 0; i < values.size(); ++i)
    if (std::memcmp(bytes + i * size, before.data() + i * size, size) != 0) selected.push_back(values[i]);
  return selected;
}

}  // namespace

double error_of_few_blocks(const LargeOperation& operation, int64_t units, Samples samples) {
  const OptionsScope scope([&](cuda_sim::Options& options) {
    options.memory = size_t{1} << 40;
    options.multiprocessors = samples == Samples::kItems ? INT32_MAX : 132;
    if (samples != Samples::kLaunches) options.sampled_blocks = 20;
    if (samples == Samples::kLaunches) options.sampled_launches = {0, units / 2, units - 1};
  });
  cuda::Gpu gpu(0, {});
  Arena arena(gpu);  // fresh memory is NaN without writing it
  Context ctx{Device::kCuda, &arena, 1, &gpu};
  std::vector<Tensor> before, tensors;
  for (const LargeOperand& of : operation.operands) {
    const int64_t rows = of.shared_rows > 0 ? of.shared_rows : units * operation.unit;
    tensors.push_back(sparse_operand(ctx, of, rows));
    before.push_back(of.role == Role::kInPlace ? sparse_operand(ctx, of, rows) : tensors.back());
  }
  operation.run(ctx, tensors, 0);
  gpu.synchronize();

  const auto rows_of = [&](const std::vector<Tensor>& from, size_t i, int64_t unit) {
    return to_host(ctx, operation.operands[i].shared_rows > 0 ? from[i] : from[i].rows(unit * operation.unit, operation.unit));
  };
  double error = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const LargeOperand& of = operation.operands[i];
    const bool large = tensors[i].bytes() >= kSmall;
    const std::vector<int64_t> chosen = large ? written_units(operation, tensors[i], units) : std::vector<int64_t>();
    if (of.role == Role::kInput) {
      if (!chosen.empty()) return kInfinity;
      continue;
    }
    if (chosen.empty() || chosen.front() > units / 16 || chosen.back() < units - 1 - units / 16) return kInfinity;
    std::vector<std::future<std::vector<std::vector<double>>>> expected;
    for (const int64_t unit : chosen) {
      std::vector<std::vector<double>> values;
      for (size_t k = 0; k < tensors.size(); ++k) values.push_back(values_of(rows_of(before, k, unit)));
      expected.push_back(std::async(std::launch::async, exact, std::cref(operation), std::move(values), unit * operation.unit));
    }
    for (size_t k = 0; k < chosen.size(); ++k) {
      const Tensor after = rows_of(tensors, i, chosen[k]), untouched = rows_of(before, i, chosen[k]);
      std::vector<unsigned char> bits(static_cast<size_t>(after.bytes()), 0xFF);
      if (of.role == Role::kInPlace) std::memcpy(bits.data(), untouched.raw(), bits.size());
      const std::vector<double> got = computed(values_of(after), after, bits), want = computed(expected[k].get()[i], after, bits);
      error = std::max(error, normalised_error(got, want, 0.1, of.dtype == DType::kBF16 ? 0x1p-8 : 0));
    }
  }
  return error;
}
#endif

}  // namespace trireme::testing
#endif
