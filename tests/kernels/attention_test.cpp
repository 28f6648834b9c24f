#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention.h"
#include "tests/kernels/attention_operations.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr AttentionShape kCases[] = {{1, 1, 1, 1, 1},          {2, 3, 3, 1, 5},   {1, 7, 6, 2, 17},   {3, 5, 5, 5, 3},
                                     {2, 33, 3, 3, 8, 0, 0.5}, {1, 65, 4, 2, 10}, {2, 100, 2, 1, 33}, {1, 130, 3, 1, 64}};

// At the edges of every engine's tiles and blocks: head sizes of the tensor-core kernels (32, 64, 96, 128), of the other kernels, and multiples of
// only 16 (48, 80); scales other than 1/sqrt(H) in each kernel; one to five blocks of 64 or 128 tokens, which add to each other's sums in the backward; shared and separate kv heads.
constexpr AttentionShape kTileCases[] = {{1, 1, 1, 1, 32},
                                         {1, 2, 2, 1, 64},
                                         {1, 15, 1, 1, 96},
                                         {1, 16, 2, 2, 128},
                                         {2, 17, 4, 2, 32},
                                         {1, 63, 1, 1, 64},
                                         {1, 64, 1, 1, 128},
                                         {1, 65, 2, 1, 96, 0, 0.05},
                                         {1, 127, 1, 1, 32, 0, 0.25},
                                         {1, 128, 1, 1, 64},
                                         {1, 129, 1, 1, 128, 0, 0.0625},
                                         {1, 200, 1, 1, 64, 0, 0.2},
                                         {1, 257, 1, 1, 32},
                                         {2, 17, 3, 1, 5},
                                         {1, 65, 2, 1, 40, 0, 0.1},
                                         {1, 33, 2, 2, 2},
                                         {1, 18, 1, 1, 160},
                                         {1, 97, 2, 1, 80}};
constexpr AttentionShape kSeveralTileCases[] = {{2, 65, 3, 1, 128}, {1, 300, 2, 1, 128}, {1, 270, 4, 2, 64}, {2, 260, 2, 1, 96},
                                                {1, 385, 3, 1, 32}, {1, 129, 2, 1, 96},  {1, 300, 1, 1, 48}};

constexpr int64_t kSharedHeads = kSimulatedGpu ? 12 : 400;  // more than the GPU's multiprocessors; of two tiles each, half as many do
constexpr int64_t kSharedHeadsOfTwoTiles = kSimulatedGpu ? 12 : 200;

template <size_t N>
void check_tiles(const AttentionShape (&shapes)[N], bool in_turn) {
  for (size_t i = 0; i < N; ++i) {
    const AttentionShape& shape = shapes[i];
    const DTypes dtypes = in_turn ? dtypes_in_turn(i / 4) : kAllDTypes;  // four head sizes follow each other
    check_on_each_gpu(forward(shape), shape.head_size, dtypes);
    check_on_each_gpu(following(backward(shape), forward(shape)), shape.head_size, dtypes);
  }
}

}  // namespace

TEST_CASE("attention: engines agree") {
  for (const AttentionShape& shape : kCases) {
    check_engines(forward(shape), kTolerance);
    check_engines(following(backward(shape), forward(shape)), kTolerance);
  }
}

TEST_CASE("attention: engines agree at the edges of tiles") { check_tiles(kTileCases, true); }
TEST_CASE("attention: engines agree at the edges of tiles of several heads", "[slow]") {
  check_tiles(kTileCases, false);
  check_tiles(kSeveralTileCases, false);
}

// The forward on sm_90a has at most one block for each multiprocessor, four in the simulation, which share the items. Some block computes three heads
// or more, with one tile of keys and with two: the queries of the third head replace those of the first.
void check_several_heads(int64_t head_size) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 40, kSharedHeads, 1, head_size, 10}, AttentionShape{1, 140, kSharedHeadsOfTwoTiles, 1, head_size}})
    check_engines(forward(shape), kTolerance);
}
TEST_CASE("attention: engines agree where a block of a GPU computes several heads") { check_several_heads(64); }
TEST_CASE("attention: engines agree where a block of a GPU computes several wide heads", "[slow]") { check_several_heads(128); }

TEST_CASE("attention: gradients") {
  for (const AttentionShape& shape : kCases) check_gradients(forward(shape), "out", backward(shape), "dout", {{"qkv", "dqkv"}});
}

TEST_CASE("attention: scores near 1000 neither overflow nor lose precision") {
  const AttentionShape shape{1, 40, 2, 1, 7};
  Operation operation = forward(shape);
  for (size_t i = 0; i < operation.operands[0].values.size(); ++i) operation.operands[0].values[i] *= 30;
  check_engines(operation, 2e-4);  // scores near 1000 have a rounding error of 6e-5, which is the relative error of their exponentials
}

// The first key has all the weight, and nine blocks of keys follow: an error in rescaling the sum would accumulate over the blocks.
TEST_CASE("attention: with an unchanged maximum, the sum stays accurate over many blocks of keys") {
  const AttentionShape shape{1, 640, 1, 1, 64};
  const int64_t columns = shape.columns();
  Operation operation = forward(shape);
  std::vector<double>& qkv = operation.operands[0].values;
  std::fill(qkv.begin(), qkv.end(), 0);
  for (int64_t t = 0; t < shape.sequence; ++t) qkv[t * columns] = 0.5 + static_cast<float>(t) / 640.0F;
  qkv[shape.head_size] = 240;  // token 0: its score is 30 times the query
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    const Values values = run(operation, Device::kCpu, DType::kF32, 1, Alignment::kElement, static_cast<Isa>(level));
    double largest = 0;
    for (int64_t t = 0; t < shape.sequence; ++t) {
      const double score = 30 * static_cast<double>(static_cast<float>(qkv[t * columns]));
      largest = std::max(largest, std::abs(values[2][t] - (score + std::log1p(static_cast<double>(t) * std::exp(-score)))));
    }
    INFO(name_of(static_cast<Isa>(level)));
    CHECK(largest <= 6e-6);  // 1.5 ulp of the largest score: score and logarithm are each rounded once
  }
}

// If the maximum grows without a rescaling of the sums, the exponentials exceed the range of fp16: e^13 is above 65504.
TEST_CASE("attention: the maximum grows by 13 nats between tiles of keys") {
  for (const int64_t head_size : {64, 128}) {
    const AttentionShape shape{1, 200, 1, 1, head_size};
    const int64_t columns = shape.columns(), tile = 128;  // of 64 keys or of 128
    Operation operation = forward(shape);
    std::vector<double>& qkv = operation.operands[0].values;
    for (int64_t t = 0; t < shape.sequence; ++t)
      for (int64_t c = 0; c < 2 * head_size; ++c) {
        const bool key = c >= head_size, first = c % head_size == 0;
        qkv[static_cast<size_t>(t * columns + c)] = !first ? 0 : !key ? std::sqrt(static_cast<double>(head_size)) : t < tile ? 0 : 13;
      }
    check_engines(operation, kTolerance);
  }
}

TEST_CASE("attention: a query attends to no later token, and neighbouring query heads share a kv head") {
  const AttentionShape shape{1, 6, 4, 2, 3};
  const Operation operation = forward(shape);
  const Values before = run(operation, Device::kCpu, DType::kF32);
  Operation changed = operation;
  const int64_t columns = shape.columns();
  for (int64_t c = shape.heads * shape.head_size; c < columns; ++c) changed.operands[0].values[4 * columns + c] = 7;  // keys and values of token 4
  const Values after = run(changed, Device::kCpu, DType::kF32);
  const auto row = [&](const Values& values, int64_t t) { return std::vector<double>(values[1].begin() + t * 12, values[1].begin() + (t + 1) * 12); };
  for (int64_t t = 0; t < 4; ++t) CHECK(row(before, t) == row(after, t));
  for (int64_t t = 4; t < 6; ++t) CHECK(row(before, t) != row(after, t));
  // Token 0 attends only to itself: each query head returns the value of its kv head.
  const std::vector<double>& qkv = operation.operands[0].values;
  for (int64_t n = 0; n < shape.heads; ++n) {
    for (int64_t h = 0; h < shape.head_size; ++h) CHECK(before[1][n * 3 + h] == Approx(qkv[(shape.heads + shape.kv_heads + n / 2) * 3 + h]));
  }
}

TEST_CASE("attention propagates NaN") {
  const AttentionShape shape{1, 150, 2, 1, 20};
  constexpr int64_t kToken = 70;
  const int64_t columns = shape.columns(), query = 3, key = 2 * 20 + 3, value = 3 * 20 + 3;
  const auto all_nan = [](const std::vector<double>& values, int64_t begin, int64_t end) {
    return std::all_of(values.begin() + begin, values.begin() + end, [](double x) { return std::isnan(x); });
  };
  const auto any_nan = [](const std::vector<double>& values, int64_t begin, int64_t end) {
    return std::any_of(values.begin() + begin, values.begin() + end, [](double x) { return std::isnan(x); });
  };
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO(name_of(dtype) << " on " << name_of(static_cast<Isa>(level)));
      const auto results = [&](Operation operation, size_t operand, int64_t column) {
        operation.operands[operand].values[kToken * operation.operands[operand].shape[1] + column] = std::nan("");
        return run(operation, Device::kCpu, dtype, 1, Alignment::kElement, static_cast<Isa>(level));
      };
      const Values of_query = results(forward(shape), 0, query), of_key = results(forward(shape), 0, key),
                   of_value = results(forward(shape), 0, value);
      CHECK(all_nan(of_query[1], kToken * 40, kToken * 40 + 20));  // only this row and head
      CHECK_FALSE(any_nan(of_query[1], kToken * 40 + 20, 150 * 40));
      CHECK(std::isnan(of_query[2][kToken]));
      CHECK_FALSE(any_nan(of_key[1], 0, kToken * 40));  // earlier queries do not attend to the key, all others do
      CHECK(all_nan(of_key[1], kToken * 40, 150 * 40));
      CHECK(all_nan(of_key[2], kToken, 150));
      for (int64_t t = kToken; t < 150; ++t) CHECK(std::isnan(of_value[1][t * 40 + 3]));
      CHECK_FALSE(any_nan(of_value[2], 0, 300));

      const Operation gradient = following(backward(shape), forward(shape));
      const Values of_dout = results(gradient, 0, 3);
      CHECK(all_nan(of_dout[4], kToken * columns, kToken * columns + 20));
      for (int64_t t = 0; t <= kToken; ++t) {
        CHECK(all_nan(of_dout[4], t * columns + 40, t * columns + 60));
        CHECK(std::isnan(of_dout[4][t * columns + value]));
      }
    }
  }
}

#ifdef TRIREME_CUDA
namespace {

/// Root mean square of the error relative to that of the values.
double mean_error(const std::vector<double>& values, const std::vector<double>& exact) {
  double errors = 0, squares = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    errors += (values[i] - exact[i]) * (values[i] - exact[i]);
    squares += exact[i] * exact[i];
  }
  return std::sqrt(errors / squares);
}

}  // namespace

// Rounding to bf16 has a mean error of 1.7e-3 (2^-8 / sqrt(3), less for mantissas far from a power of two), rounding to fp16 an eighth of that.
// Results are rounded once; terms of sums are also rounded, but their errors average out. Measured in bf16: 1.7e-3 to 1.9e-3 for out, 2.2e-3 to
// 2.6e-3 for gradients.
TEST_CASE("attention on tensor cores: the error is that of the roundings to bf16 or fp16") {
  const DType dtype = GENERATE(DType::kBF16, DType::kF16);
  const double share = dtype == DType::kBF16 ? 1 : 1.0 / 8;
  for (const int64_t head_size : {32, 64, 96, 128}) {
    INFO(name_of(dtype) << ", head size " << head_size);
    const AttentionShape shape{1, 150, 2, 1, head_size};
    const Operation operation = of_narrow(forward(shape), dtype), gradient = of_narrow(following(backward(shape), forward(shape)), dtype);
    const auto on_gpu = [&](const Operation& of) { return run(of, Device::kCuda, dtype, 1, Alignment::kVector); };
    const auto exact = [](const Operation& of) { return run(of, Device::kReference, DType::kF64); };
    on_each_gpu(head_size, [&] {
      const Values values = on_gpu(operation), expected = exact(operation);
      CHECK(mean_error(values[1], expected[1]) < 2.2e-3 * share);
      CHECK(mean_error(values[2], expected[2]) < 3e-7);  // lse is fp32
      CHECK(mean_error(on_gpu(gradient)[4], exact(gradient)[4]) < 3e-3 * share);
    });
  }
}

// The blocks of a launch take their items by a ticket, which each launch must leave at zero.
TEST_CASE("attention: each launch of a captured forward has the bits of one that was queued") {
  for (const int64_t head_size : {64, 128}) {
    const AttentionShape shape{1, 140, kSharedHeads, 1, head_size};
    const Operation queued = forward(shape);
    const auto results = [&](const Operation& of) { return run(of, Device::kCuda, DType::kBF16, 1, Alignment::kVector); };
    const Values expected = results(queued);
    for (const int launches : {1, 2, 3}) {
      INFO("head size " << head_size << ", launch " << launches);
      Operation captured = queued;
      captured.run = [&](Context& ctx, const std::vector<Tensor>& t) {
        const cuda::Gpu::Graph graph = ctx.gpu->capture([&] { queued.run(ctx, t); });
        for (int launch = 0; launch < launches; ++launch) {
          for (const Tensor& result : {t[1], t[2]}) ctx.gpu->fill_bytes(result.raw(), 0xFF, result.bytes());
          ctx.gpu->launch(graph);
        }
        ctx.gpu->synchronize();
      };
      CHECK((results(captured) == expected));  // in parentheses: values are not worth printing
    }
  }
}

void check_rounds(std::initializer_list<AttentionShape> shapes) {
  for (const AttentionShape& shape : shapes) {
    const Operation whole = following(backward(shape), forward(shape));
    Operation rounds = whole;
    const auto backward_in = [&](Context& ctx, const std::vector<Tensor>& t, int64_t bytes) {
      const Tensor workspace = Tensor::empty(ctx, {bytes / 4}, DType::kF32, MemoryCategory::kWorkspace);
      cuda::attention_backward(ctx, t[0], t[1], t[2], t[3], shape, {}, t[4], workspace);
    };
    rounds.run = [&](Context& ctx, const std::vector<Tensor>& t) {  // memory for two of the six or four kv heads
      const bool flash = t[0].dtype() != DType::kF32 && cuda::flash_supports(shape.head_size);
      backward_in(ctx, t, cuda::kTicketBytes + 2 * cuda::kv_head_bytes(shape, flash) + 100);
    };
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const auto dqkv = [&](const Operation& of) { return run(of, Device::kCuda, dtype, 1, Alignment::kVector)[4]; };
      CHECK(dqkv(rounds) == dqkv(whole));
    }
    rounds.run = [&](Context& ctx, const std::vector<Tensor>& t) {
      CHECK_THROWS_WITH(backward_in(ctx, t, 8), Catch::Contains("8 bytes of workspace are too few for 2 query heads"));
      backward_in(ctx, t, cuda::attention_workspace_bytes(shape, DType::kF32));
    };
    run(rounds, Device::kCuda, DType::kF32);
  }
}

// In the shapes of 300 tokens blocks wait for each other: the counters of the first round must not serve the second.
TEST_CASE("attention: a backward in several rounds is bit-identical to one in a single round") {
  check_rounds({{2, 70, 6, 3, 32}, {2, 300, 4, 2, 32}, {2, 40, 4, 2, 6}});
}
TEST_CASE("attention: a backward of wide heads in several rounds is bit-identical to one in a single round", "[slow]") {
  check_rounds({{2, 300, 4, 2, 128}});
}

TEST_CASE("attention: the backward's workspace on a GPU is for all kv heads, or for as many as fit 132 MiB, but at least one") {
  const auto bytes = [](const AttentionShape& shape, DType dtype) { return cuda::attention_workspace_bytes(shape, dtype); };
  // Llama 8B at T 8192: a kv head takes 4 x 8192 x (8 + 4 x 128 + 1/8) bytes.
  const int64_t each = int64_t{4} * 8192 * 4161 / 8;
  CHECK(bytes({1, 8192, 32, 8, 128}, DType::kBF16) == 16 + 8 * each);
  CHECK(bytes({4, 8192, 32, 8, 128}, DType::kBF16) == 16 + 8 * each);
  CHECK(bytes({1, 8192, 8, 2, 128}, DType::kF16) == 16 + 2 * each);
  CHECK(bytes({1, 8192, 32, 8, 128}, DType::kF32) == 16 + int64_t{32} * 8192 * 8);
  CHECK(bytes({1, 8192, 32, 8, 80}, DType::kBF16) == 16 + int64_t{32} * 8192 * 8);
  CHECK(bytes({1, 131072, 64, 8, 128}, DType::kBF16) == 16 + 32 * each);                            // one kv head of eight times 128 K tokens
  CHECK(bytes({3, 1, 2, 1, 32}, DType::kBF16) == 16 + 3 * 2 * 128 * (8 + 4 * 32) + 3 * 2 * 4 * 4);  // tokens are rounded up to 128
}

TEST_CASE("attention: the GPU rejects head sizes above 256 and reports the size") {
  Operation operation = forward({1, 1, 1, 1, 257});
  const auto run_it = operation.run;
  operation.run = [&](Context& ctx, const std::vector<Tensor>& t) { CHECK_THROWS_WITH(run_it(ctx, t), Catch::Contains("head size 257")); };
  run(operation, Device::kCuda, DType::kF32);
}
#endif
