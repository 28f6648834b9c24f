// Tiles and shared memory of the attention kernels by compute capability, and the figures that scripts/sass-lint.py counts with.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/cuda/attention.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/transfer.h"
#include "tests/cuda/launched_memory.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/support/catch.h"

using namespace trireme;

namespace {

struct Result {
  std::vector<char> gradients;
  std::map<std::string, int64_t> shared;  ///< of each kernel, bytes

  std::vector<float> values() const {  ///< of gradients in bf16
    std::vector<float> result(gradients.size() / 2);
    for (size_t i = 0; i < result.size(); ++i) {
      bfloat16 value;
      std::memcpy(&value, gradients.data() + 2 * i, 2);
      result[i] = static_cast<float>(value);
    }
    return result;
  }
};

/// Gradients of one shape on a GPU of this compute capability.
Result backward_on(int major, int minor, const AttentionShape& shape, DType dtype) {
  cuda_sim::reset(3, {.devices = 1, .major = major, .minor = minor});
  Result result;
  {
    cuda::Gpu gpu(0, {});
    Arena arena{gpu, /*poison=*/true};
    Context ctx{Device::kCuda, &arena, 1, &gpu};
    const auto tensor = [&](const Shape& of, DType type, uint64_t key) {
      const Tensor host = host_tensor(of, type), out = Tensor::empty(ctx, of, type, MemoryCategory::kWorkspace);
      for (int64_t i = 0; i < of.numel(); ++i) {
        const auto value = static_cast<float>(random_normal(random_key(key, "attention"), static_cast<uint64_t>(i)));
        if (type == DType::kF32) host.data<float>()[i] = value;
        if (type == DType::kBF16) host.data<bfloat16>()[i] = bfloat16(value);
        if (type == DType::kF16) host.data<float16>()[i] = float16(value);
      }
      from_host(ctx, host, out);
      return out;
    };
    const int64_t rows = shape.batch * shape.sequence, columns = shape.heads * shape.head_size;
    const Tensor qkv = tensor({rows, shape.columns()}, dtype, 1), dout = tensor({rows, columns}, dtype, 2), out = tensor({rows, columns}, dtype, 3);
    const Tensor lse = Tensor::empty(ctx, {shape.batch, shape.heads, shape.sequence}, DType::kF32, MemoryCategory::kWorkspace);
    const Tensor dqkv = tensor({rows, shape.columns()}, dtype, 4);
    attention_forward(ctx, qkv, shape, out, lse);
    attention_backward(ctx, dout, qkv, out, lse, shape, dqkv);
    const Tensor host = to_host(ctx, dqkv);
    result.gradients.resize(static_cast<size_t>(host.bytes()));
    std::memcpy(result.gradients.data(), host.raw(), result.gradients.size());
    result.shared = launched_memory();
  }
  CHECK(cuda_sim::errors().empty());
  return result;
}

/// Name and dynamic shared memory of the backward kernel on tensor cores.
std::pair<std::string, int64_t> backward_kernel(const Result& result) {
  for (const auto& [name, shared] : result.shared)
    if (name.find("flash_backward_kernel<") == 0 || name.find("hopper_backward_kernel<") == 0) return {name, shared};
  return {};
}

}  // namespace

// A block may take 163 KB of shared memory on sm_80, 227 KB on sm_90 and 99 KB on sm_86, of which the smaller tiles leave no block's worth.
TEST_CASE("attention: the backward takes the larger of its two sizes of tiles whose shared memory a block may have") {
  for (const int64_t head_size : {32, 64, 96, 128}) {
    const AttentionShape shape{1, 70, 2, 1, head_size};
    INFO("head size " << head_size);
    const auto on = [&](int major, int minor) { return backward_kernel(backward_on(major, minor, shape, DType::kBF16)); };
    const auto large = on(8, 0), small = on(8, 6);
    CHECK(large.second <= 163 << 10);
    CHECK(large.second > 99 << 10);
    CHECK(small.second <= 99 << 10);
    CHECK(on(10, 0) == large);
    CHECK(on(8, 9) == small);
    const bool warpgroups = cuda::hopper_supports(head_size);
    CHECK(on(9, 0).first.find(warpgroups ? "hopper" : "flash") == 0);
    if (!warpgroups) CHECK(on(9, 0) == large);
  }
}

// Each sum has the same terms in the same order: keys ascend in it, queries descend. With several query heads for a kv head, they alternate by tiles.
TEST_CASE("attention: smaller tiles give the bits of larger ones, apart from the order of query heads") {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t head_size : {32, 64, 96, 128}) {
      for (const AttentionShape shape : {AttentionShape{1, 300, 2, 2, head_size}, AttentionShape{1, 300, 1, 1, head_size, 70}}) {
        INFO(name_of(dtype) << ", head size " << head_size << ", window " << shape.window);
        const Result small = backward_on(8, 6, shape, dtype), large = backward_on(8, 0, shape, dtype);
        CHECK(backward_kernel(small).first != backward_kernel(large).first);
        CHECK((small.gradients == large.gradients));  // in parentheses: bytes are not worth printing
      }
    }
  }
  for (const int64_t window : {0, 150}) {
    const AttentionShape shape{1, 300, 4, 2, 128, window};
    const std::vector<float> small = backward_on(8, 6, shape, DType::kBF16).values(), large = backward_on(8, 0, shape, DType::kBF16).values();
    double difference = 0, size = 0;
    for (size_t i = 0; i < large.size(); ++i) {
      difference += (small[i] - large[i]) * (small[i] - large[i]);
      size += large[i] * large[i];
    }
    CHECK(difference < 1e-6 * size);
    CHECK(difference > 0);
  }
}

// The machine code does not tell how much dynamic shared memory a launch asks for.
TEST_CASE("attention: tests/kernels/sass.txt has the shared memory of the launches") {
  std::map<std::string, int64_t> recorded = recorded_memory();
  const auto check = [&](int major, int minor, const AttentionShape& shape, DType dtype) {
    for (const auto& [name, bytes] : backward_on(major, minor, shape, dtype).shared) {
      if (bytes == 0) continue;
      INFO(name);
      REQUIRE(recorded.count(name) == 1);
      CHECK(recorded[name] == bytes);
    }
  };
  for (const int64_t window : {0, 5}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t head_size : {32, 64, 96, 128}) {
        check(9, 0, {1, 20, 2, 1, head_size, window}, dtype);
        check(8, 0, {1, 20, 2, 1, head_size, window}, dtype);
        check(8, 6, {1, 20, 2, 1, head_size, window}, dtype);
      }
    }
  }
  // The largest head sizes of each instance of the plain kernels: 1, 2, 4 or 8 columns a lane. Those of bf16 and fp16 take as much as those of fp32.
  for (const int64_t head_size : {32, 64, 128, 256}) check(9, 0, {1, 9, 1, 1, head_size}, DType::kF32);
}
