// Which products use cuBLASLt and which the plain kernel, how often the heuristic is called, which of its algorithms are timed and used, and TF32.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/cuda/matmul.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/transfer.h"
#include "tests/cuda_sim/cublas_lt.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/machine.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"

using namespace trireme;
using Catch::Matchers::Contains;

namespace {

struct Machine {
  explicit Machine(const cuda::GpuOptions& options = {}, const cuda_sim::Options& machine = {}) : gpu(fresh(options, machine)) {}

  /// Normally distributed values, `offset` elements after the beginning of a buffer.
  Tensor tensor(const Shape& shape, DType dtype, uint64_t key = 0, int64_t offset = 0) {
    const Tensor whole = Tensor::empty(ctx, {shape.numel() + offset}, dtype, MemoryCategory::kWorkspace);
    const Tensor host = host_tensor(shape, dtype);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      const auto value = static_cast<float>(random_normal(random_key(1, "product"), key + static_cast<uint64_t>(i)));
      if (dtype == DType::kF32) host.data<float>()[i] = value;
      if (dtype == DType::kBF16) host.data<bfloat16>()[i] = bfloat16(value);
      if (dtype == DType::kF16) host.data<float16>()[i] = float16(value);
    }
    const Tensor out = whole.flat_view(offset, shape);
    from_host(ctx, host, out);
    return out;
  }

  ~Machine() {
    cudaStreamSynchronize(gpu->compute());
    if (sound) CHECK(cuda_sim::errors().empty());
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  static std::unique_ptr<cuda::Gpu> fresh(const cuda::GpuOptions& options, const cuda_sim::Options& machine) {
    cuda_sim::reset(0, machine);
    return std::make_unique<cuda::Gpu>(0, options);
  }

  std::unique_ptr<cuda::Gpu> gpu;
  Arena arena{*gpu, /*poison=*/true};
  Context ctx{Device::kCuda, &arena, 1, gpu.get()};
  bool sound = true;  ///< no error is expected
};

struct Counts {
  int64_t library, plain, plans;
  bool operator==(const Counts&) const = default;
};
Counts counts(Machine& machine) {
  const cuda::ProductCounts now = cuda::product_counts(*machine.gpu);
  return {now.library, now.plain, now.plans};
}

/// y = x w^T in bf16, where x begins `offset` elements after a 16-byte boundary.
void forward(Machine& machine, int64_t rows, int64_t inputs, int64_t outputs, int64_t offset = 0) {
  const Tensor x = machine.tensor({rows, inputs}, DType::kBF16, 0, offset), w = machine.tensor({outputs, inputs}, DType::kBF16, 7);
  linear_forward(machine.ctx, x, w, {}, machine.tensor({rows, outputs}, DType::kBF16));
}

/// Sets what the algorithms of cuBLASLt do, until the end of a test.
struct ScopedAlgorithms {
  explicit ScopedAlgorithms(const cuda_sim::AlgorithmBehaviour& behaviour) { cuda_sim::set_algorithms(behaviour); }
  ~ScopedAlgorithms() { cuda_sim::set_algorithms({}); }
  ScopedAlgorithms(const ScopedAlgorithms&) = delete;
  ScopedAlgorithms& operator=(const ScopedAlgorithms&) = delete;
};

/// A product in fp32 of a depth at which each order of summation gives other bits, on a machine with a clock of its own.
struct OwnProduct {
  explicit OwnProduct(bool tf32 = false) : machine({.tf32 = tf32}, {.operation_seconds = 1e-3}) {}

  static constexpr const char* kKind = "rows 16, columns 8, depth 96 (F32 to F32, a transposed, epilogue 1, alignments 16 16 16)";
  Machine machine;
  Tensor x = machine.tensor({16, 96}, DType::kF32, 0), w = machine.tensor({8, 96}, DType::kF32, 5000), y = machine.tensor({16, 8}, DType::kF32);

  void queue() { linear_forward(machine.ctx, x, w, {}, y); }
  std::vector<cuda::ProductTimes> time(const cuda::ProductAlgorithms& known = {}) {
    return cuda::time_products(*machine.gpu, known, [this] { queue(); });
  }
  /// The result with this algorithm.
  std::vector<float> result(const std::string& algorithm) {
    cuda::use_algorithms(*machine.gpu, {{kKind, algorithm}});
    queue();
    const Tensor host = to_host(machine.ctx, y);
    return {host.data<float>(), host.data<float>() + host.numel()};
  }
};

double tf32_error(bool tf32) {
  Machine machine({.tf32 = tf32});
  const Tensor x = machine.tensor({16, 64}, DType::kF32, 0), w = machine.tensor({8, 64}, DType::kF32, 5000), y = machine.tensor({16, 8}, DType::kF32);
  linear_forward(machine.ctx, x, w, {}, y);
  const Tensor hx = to_host(machine.ctx, x), hw = to_host(machine.ctx, w), hy = to_host(machine.ctx, y);
  double error = 0, largest = 0;
  for (int64_t m = 0; m < 16; ++m) {
    for (int64_t f = 0; f < 8; ++f) {
      double sum = 0;
      for (int64_t d = 0; d < 64; ++d) sum += double{hx.data<float>()[m * 64 + d]} * hw.data<float>()[f * 64 + d];
      error = std::max(error, std::abs(sum - hy.data<float>()[m * 8 + f]));
      largest = std::max(largest, std::abs(sum));
    }
  }
  return error / largest;
}

}  // namespace

TEST_CASE("the heuristic is called once per shape and alignment") {
  Machine machine;
  CHECK(counts(machine) == Counts{0, 0, 0});
  for (int i = 0; i < 3; ++i) forward(machine, 16, 32, 8);
  CHECK(counts(machine) == Counts{3, 0, 1});
  forward(machine, 17, 32, 8);
  forward(machine, 16, 32, 8, 2);  // 4 bytes off
  forward(machine, 16, 32, 8, 2);
  CHECK(counts(machine) == Counts{6, 0, 3});
}

TEST_CASE("products without a cuBLASLt kernel use the plain kernel") {
  Machine machine;
  forward(machine, 16, 33, 8);     // rows of 66 bytes
  forward(machine, 16, 32, 7);     // result rows of 14 bytes
  forward(machine, 16, 32, 8, 1);  // 2 bytes off
  CHECK(counts(machine) == Counts{0, 3, 3});
  forward(machine, 16, 33, 8);
  CHECK(counts(machine) == Counts{0, 4, 3});
  CHECK(cuda::plain_shapes(*machine.gpu) == std::vector<std::string>{"rows 16, columns 8, depth 33, BF16 to BF16",
                                                                     "rows 16, columns 7, depth 32, BF16 to BF16",
                                                                     "rows 16, columns 8, depth 32, BF16 to BF16"});
  forward(machine, 0, 33, 8);
  forward(machine, 16, 0, 8);  // empty, which no padding avoids
  CHECK(cuda::plain_shapes(*machine.gpu).size() == 3);
}

TEST_CASE("the algorithms of a kind of product are timed at its first use") {
  const std::vector<double> seconds = {4e-3, 3e-3, 1e-3, 2e-3, 5e-3};
  const ScopedAlgorithms behaviour({.seconds = [&](int, int place) { return seconds[static_cast<size_t>(place)]; }});
  OwnProduct product;
  Machine& machine = product.machine;
  const Tensor dy = machine.tensor({16, 8}, DType::kF32), dw = machine.tensor({8, 96}, DType::kF32);
  const std::vector<cuda::ProductTimes> times = cuda::time_products(*machine.gpu, {}, [&] {
    for (int i = 0; i < 2; ++i) product.queue();
    for (const bool add : {false, true}) linear_backward_weight(machine.ctx, dy, product.x, dw, add);
  });
  REQUIRE(times.size() == 2);
  CHECK(times[0].kind == OwnProduct::kKind);
  CHECK(times[1].kind == "rows 8, columns 96, depth 16 (F32 to F32, b transposed, epilogue 1, alignments 16 16 16)");
  for (const cuda::ProductTimes& one : times) {
    REQUIRE(one.algorithms.size() == seconds.size());
    for (size_t i = 0; i < seconds.size(); ++i) CHECK(one.seconds[i] == Approx(seconds[i]));
    CHECK(one.algorithms[2] == "id 102 tile 0 stages 0 split 3 reduction 0 swizzle 0 option 0 inner 0 cluster 0");
  }
  const int64_t before = cuda_sim::cublas_lt_statistics().products;
  product.queue();
  CHECK(cuda_sim::cublas_lt_statistics().products == before + 1);  // nothing is timed afterwards
}

TEST_CASE("products in TF32 are kinds of their own") {
  OwnProduct product(true);
  const std::vector<cuda::ProductTimes> times = product.time({{OwnProduct::kKind, "id 101"}});
  REQUIRE(times.size() == 1);
  CHECK(times[0].kind == std::string(OwnProduct::kKind) + ", TF32");
}

TEST_CASE("products use the algorithm that is set by its text, and otherwise the first") {
  OwnProduct product;
  const std::vector<std::string> algorithms = product.time().at(0).algorithms;
  REQUIRE(algorithms.size() == cuda_sim::kAlgorithms);
  std::vector<std::vector<float>> results;
  for (const std::string& algorithm : algorithms) {
    results.push_back(product.result(algorithm));
    CHECK(std::ranges::count(results, results.back()) == 1);  // an order of summation of its own
    CHECK(product.result(algorithm) == results.back());
  }
  CHECK(product.result("id 7") == results[0]);
  CHECK(product.result(algorithms[0]) == results[0]);
  cuda::use_algorithms(*product.machine.gpu, {});
  product.queue();
  const Tensor host = to_host(product.machine.ctx, product.y);
  CHECK(std::equal(results[0].begin(), results[0].end(), host.data<float>()));
}

TEST_CASE("algorithms that cuBLASLt does not support or refuses are neither timed nor used") {
  const ScopedAlgorithms behaviour({.unusable = 0, .refused = 3});
  OwnProduct product;
  const std::vector<cuda::ProductTimes> times = product.time();
  REQUIRE(times.size() == 1);
  CHECK(times[0].seconds.size() == 3);
  std::string all;
  for (const std::string& algorithm : times[0].algorithms) all += algorithm.substr(0, 6) + ";";
  CHECK(all == "id 101;id 102;id 104;");
  cuda::use_algorithms(*product.machine.gpu, {});
  const int64_t before = counts(product.machine).plain;
  product.queue();
  CHECK(counts(product.machine).plain == before + 1);  // the heuristic's first algorithm is not usable
}

TEST_CASE("an algorithm that is known is not timed, and one that cuBLASLt does not offer is replaced") {
  OwnProduct product;
  const std::string known = product.time().at(0).algorithms[3];
  const int64_t before = cuda_sim::cublas_lt_statistics().products;
  const std::vector<cuda::ProductTimes> times = product.time({{OwnProduct::kKind, known}});
  CHECK(cuda_sim::cublas_lt_statistics().products == before + 1);
  REQUIRE(times.size() == 1);
  CHECK(times[0].kind == OwnProduct::kKind);
  CHECK(times[0].algorithms == std::vector{known});
  CHECK(times[0].seconds == std::vector{0.0});
  CHECK(product.time({{OwnProduct::kKind, "id 7"}}).at(0).seconds.size() == cuda_sim::kAlgorithms);
}

TEST_CASE("algorithms that need more than the workspace of every product are no candidates") {
  Machine machine({}, {.major = 8});
  const Tensor x = machine.tensor({1024, 8}, DType::kF32), w = machine.tensor({768, 8}, DType::kF32), y = machine.tensor({1024, 768}, DType::kF32);
  const int64_t before = machine.ctx.arena->system_allocations(), invalid = cuda_sim::cublas_lt_statistics().invalid;
  const auto times = cuda::time_products(*machine.gpu, {}, [&] { linear_forward(machine.ctx, x, w, {}, y); });
  CHECK(cuda_sim::cublas_lt_statistics().invalid == invalid);  // none is tried either
  REQUIRE(times.size() == 1);
  CHECK(times[0].algorithms.size() == 1);  // partial sums of two slices, 6 MiB, do not fit the workspace of 4 MiB
  CHECK(machine.ctx.arena->system_allocations() == before);
}

TEST_CASE("a captured CUDA graph keeps its algorithms, and nothing is timed while it exists") {
  OwnProduct product;
  const std::vector<std::string> algorithms = product.time().at(0).algorithms;
  const std::vector<float> expected = product.result(algorithms[2]);
  const cuda::Gpu::Graph graph = product.machine.gpu->capture([&] { product.queue(); });
  CHECK_THROWS_WITH(product.time(), Contains("cannot be timed while a CUDA graph exists"));
  CHECK(product.result(algorithms[0]) != expected);
  product.machine.gpu->launch(graph);
  const Tensor host = to_host(product.machine.ctx, product.y);
  CHECK(std::equal(expected.begin(), expected.end(), host.data<float>()));
}

namespace {

struct Products {
  std::vector<double> values;  ///< all results
  Counts counted;
};

/// Every kind of product at two shapes. `refused`: the probability that the library has no kernel.
Products products(DType dtype, double refused, uint64_t seed) {
  Machine machine;
  testing::set_schedule(seed);
  const testing::OptionsScope scope([&](cuda_sim::Options& options) { options.refused_products = refused; });
  Products result;
  for (const auto& [rows, inputs, outputs] : {std::array<int64_t, 3>{16, 32, 8}, {24, 64, 40}}) {
    const Tensor x = machine.tensor({rows, inputs}, dtype), w = machine.tensor({outputs, inputs}, dtype, 7),
                 bias = machine.tensor({outputs}, dtype, 9);
    const Tensor dy = machine.tensor({rows, outputs}, dtype, 11);
    const Tensor y = machine.tensor({rows, outputs}, dtype), hidden = machine.tensor({rows, outputs}, dtype);
    const Tensor activated = machine.tensor({rows, outputs}, dtype), dx = machine.tensor({rows, inputs}, dtype);
    const Tensor dw = machine.tensor({outputs, inputs}, DType::kF32, 13);
    linear_forward(machine.ctx, x, w, bias, y);
    linear_gelu_forward(machine.ctx, x, w, bias, hidden, activated);
    linear_backward_input(machine.ctx, dy, w, dx);
    linear_backward_weight(machine.ctx, dy, x, dw);
    for (const Tensor& tensor : {y, hidden, activated, dx, dw}) {
      const Tensor host = to_host(machine.ctx, tensor);
      for (int64_t i = 0; i < host.numel(); ++i)
        result.values.push_back(host.dtype() == DType::kBF16 ? static_cast<float>(host.data<bfloat16>()[i]) : host.data<float>()[i]);
    }
  }
  result.counted = counts(machine);
  return result;
}

}  // namespace

TEST_CASE("results do not depend on which products cuBLASLt refuses") {
  const auto [dtype, unit] = GENERATE(table<DType, double>({{DType::kF32, 0x1p-24 * 64 * 4}, {DType::kBF16, 0x1p-7}}));
  const Products accepted = products(dtype, 0, 0);
  CHECK(accepted.counted.plain == 0);
  CHECK(products(dtype, 1, 0).counted.library == 0);
  int mixed = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    INFO(name_of(dtype) << ", seed " << seed);
    const Products some = products(dtype, 0.5, seed);
    mixed += some.counted.plain > 0 && some.counted.library > 0;
    REQUIRE(some.values.size() == accepted.values.size());
    double error = 0;
    for (size_t i = 0; i < some.values.size(); ++i)
      error = std::max(error, std::abs(some.values[i] - accepted.values[i]) / std::max(1.0, std::abs(accepted.values[i])));
    CHECK(error <= 2 * unit);  // sums of up to 64 products in another order; in 16 bits two roundings where the epilogue has one
  }
  CHECK(mixed >= 10);
}

TEST_CASE("empty products") {
  Machine machine;
  forward(machine, 0, 32, 8);
  CHECK(counts(machine) == Counts{0, 0, 0});
  const Tensor dy = machine.tensor({0, 8}, DType::kBF16), x = machine.tensor({0, 32}, DType::kBF16), dw = machine.tensor({8, 32}, DType::kF32);
  const Tensor before = to_host(machine.ctx, dw);
  linear_backward_weight(machine.ctx, dy, x, dw);
  const Tensor after = to_host(machine.ctx, dw);
  CHECK(std::equal(before.data<float>(), before.data<float>() + before.numel(), after.data<float>()));
}

TEST_CASE("GELU is fused as the epilogue in bf16 if row size and alignment allow it") {
  Machine machine;
  const auto fused = [&](DType dtype, int64_t outputs, int64_t offset) {
    const int64_t before = cuda_sim::cublas_lt_statistics().fused_gelu;
    const Tensor x = machine.tensor({6, 16}, dtype), w = machine.tensor({outputs, 16}, dtype), bias = machine.tensor({outputs}, dtype, 0, offset);
    linear_gelu_forward(machine.ctx, x, w, bias, machine.tensor({6, outputs}, dtype), machine.tensor({6, outputs}, dtype));
    machine.gpu->synchronize();
    return cuda_sim::cublas_lt_statistics().fused_gelu - before;
  };
  CHECK(fused(DType::kBF16, 24, 0) == 1);
  CHECK(fused(DType::kBF16, 24, 1) == 0);
  CHECK(fused(DType::kBF16, 20, 0) == 0);
  CHECK(fused(DType::kF16, 24, 0) == 0);
  CHECK(fused(DType::kF32, 24, 0) == 0);
}

TEST_CASE("TF32 is used only when enabled") {
  CHECK(tf32_error(false) < 1e-6);
  const double rounded = tf32_error(true);
  CHECK(rounded > 1e-5);
  CHECK(rounded < 2e-3);
}

TEST_CASE("library objects are destroyed with their GPU, and library versions are reported") {
  const int64_t before = cuda_sim::cublas_lt_statistics().live_objects;
  {
    Machine machine;
    forward(machine, 16, 32, 8);
    forward(machine, 16, 33, 8);
    CHECK(cuda_sim::cublas_lt_statistics().live_objects > before);
    CHECK_THAT(cuda::library_versions(*machine.gpu), Contains("cuBLASLt 13.") && Contains("CUDA runtime 13.0, driver 13.0"));
  }
  CHECK(cuda_sim::cublas_lt_statistics().live_objects == before);
}

TEST_CASE("a failing product names the call and the shape") {
  {
    Machine machine;
    const Tensor x = machine.tensor({16, 32}, DType::kBF16), w = machine.tensor({8, 32}, DType::kBF16), y = machine.tensor({16, 8}, DType::kBF16);
    machine.sound = false;
    cuda_sim::fail(0, cudaErrorIllegalAddress, "planted");
    CHECK_THROWS_WITH(linear_forward(machine.ctx, x, w, {}, y), Contains("cublasLtMatmul") && Contains("rows 16, columns 8, depth 32 (BF16 to BF16"));
  }
  cuda_sim::reset();
}
