// Kernels at the sizes of real training: at the shapes of a step of a 1.3B model, and on tensors of more than 2^31 elements, whose offsets need 64
// bits. Only real GPUs run them whole (tag [large], for test_kernels_gpu). The simulated GPU runs the same comparisons at toy sizes, and at the shapes of
// a 405B model a few blocks of each launch.
#ifdef TRIREME_CUDA
#include <algorithm>
#include <cmath>
#include <future>

#include "kernels/core/rng.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/matmul_plain.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/columns.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/transfer.h"
#include "tests/kernels/guarded_tensor.h"
#include "tests/kernels/sampled_rows.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

void check(const LargeOperation& operation, int64_t units, int64_t count) {
  INFO(operation.name << " on " << units << " x " << operation.unit << " rows");
  CHECK(sampled_error(operation, units, count) <= operation.tolerance);
}

constexpr double kFewRoundings = 4e-6;  // fp32 in between, as in the tests of small shapes
/// Sums of k products in fp32: a tensor core truncates the sum of each group of 8 by at most one unit of 2^-23.
double of_sum(int64_t k) { return 2e-6 + 0x1p-23 * static_cast<double>(k) / 8; }
using Role::kAssigned, Role::kInPlace, Role::kInput;

LargeOperation product(int64_t inputs, int64_t outputs) {
  return {"linear_forward",
          1,
          {{"x", inputs}, {"w", inputs, kInput, DType::kBF16, outputs}, {"y", outputs, kAssigned}},
          [](Context& ctx, const std::vector<Tensor>& t, int64_t) { linear_forward(ctx, t[0], t[1], {}, t[2]); },
          of_sum(inputs)};
}
LargeOperation input_gradient(int64_t inputs, int64_t outputs) {
  return {"linear_backward_input",
          1,
          {{"dy", outputs}, {"w", inputs, kInput, DType::kBF16, outputs}, {"dx", inputs, kAssigned}},
          [](Context& ctx, const std::vector<Tensor>& t, int64_t) { linear_backward_input(ctx, t[0], t[1], t[2]); },
          of_sum(outputs)};
}
/// Forward and backward, through the tensors of the forward. dout is the input; lse is made and used within.
LargeOperation attention(int64_t sequence, int64_t heads, int64_t kv_heads, int64_t head_size) {
  const AttentionShape one{1, sequence, heads, kv_heads, head_size};
  return {"attention",
          sequence,
          {{"qkv", one.columns()}, {"dout", heads * head_size}, {"out", heads * head_size, kAssigned}, {"dqkv", one.columns(), kAssigned}},
          [one](Context& ctx, const std::vector<Tensor>& t, int64_t) {
            AttentionShape shape = one;
            shape.batch = t[0].dim(0) / one.sequence;
            const DType wide = accumulator_of(t[0].dtype());
            const Tensor lse = Tensor::empty(ctx, {shape.batch, shape.heads, shape.sequence}, wide, MemoryCategory::kWorkspace);
            attention_forward(ctx, t[0], shape, t[2], lse);
            attention_backward(ctx, t[1], t[0], t[2], lse, shape, t[3]);
          },
          4e-6 + 2 * 0x1p-8};  // probabilities and the stored output are bf16 operands of the gradients
}
LargeOperation loss(int64_t vocabulary) {
  return {"cross_entropy",
          1,
          {{"logits", vocabulary, kInPlace}, {"targets", 1, kInput, DType::kI32, 0, vocabulary}},
          [vocabulary](Context& ctx, const std::vector<Tensor>& t, int64_t) {
            const int64_t rows = t[0].dim(0);
            const DType wide = accumulator_of(t[0].dtype());
            const Tensor highest = Tensor::empty(ctx, {rows}, wide, MemoryCategory::kWorkspace), targets = t[1].view({rows});
            const Tensor sums = Tensor::empty(ctx, {2, rows}, wide, MemoryCategory::kWorkspace),
                         scale = Tensor::empty(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
            write_scalar(ctx, 1, scale);
            cross_entropy_sums(ctx, t[0], {0, vocabulary}, highest, sums);
            cross_entropy_rescale(ctx, t[0], targets, {0, vocabulary}, highest, sums);
            cross_entropy_backward(ctx, targets, {0, vocabulary}, highest, sums, scale, t[0]);
          },
          kFewRoundings};
}
LargeOperation rope(int64_t sequence, int64_t heads, int64_t head_size, int64_t columns) {
  return {"rope_forward",
          sequence,
          {{"qkv", columns, kInPlace}},
          [=](Context& ctx, const std::vector<Tensor>& t, int64_t) {
            std::vector<double> turns;
            for (int64_t i = 0; i < head_size / 2; ++i)
              turns.push_back(std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(head_size)));
            const Tensor table = Tensor::empty(ctx, {sequence, head_size}, accumulator_of(t[0].dtype()), MemoryCategory::kWorkspace);
            rope_table(ctx, turns, table);
            rope_forward(ctx, table, heads, head_size, t[0]);
          },
          kFewRoundings};
}
LargeOperation adam(int64_t columns) {
  using enum DType;
  return {"adamw_step",
          1,
          {{"w", columns, kInPlace, kF32}, {"g", columns, kInput, kF32}, {"m", columns, kInPlace, kF32}, {"v", columns, kInPlace, kF32, 0, 0, true}},
          [](Context& ctx, const std::vector<Tensor>& t, int64_t) {
            const Tensor scalars = Tensor::zeros(ctx, {kStepScalars}, kF64, MemoryCategory::kWorkspace);
            for (const int one : {kGradScale, kAccepted, kBiasCorrection1, kBiasCorrection2}) write_scalar(ctx, 1, scalars.flat(one, 1));
            write_scalar(ctx, 1e-3, scalars.flat(kLearningRate, 1));
            const AdamWSlice slice{t[0], t[1], t[2], t[3], true};
            adamw_step(ctx, AdamW{.weight_decay = 0.1}, scalars, std::span(&slice, 1));
          },
          kFewRoundings};
}
/// Operations whose rows are independent, on rows of about `columns` elements.
std::vector<LargeOperation> by_row(int64_t columns) {
  const LargeOperand w{"w", columns, kInput, DType::kBF16, 1}, x{"x", columns}, y{"y", columns, kAssigned};
  using Tensors = const std::vector<Tensor>&;
  const auto rstd_of = [](Context& ctx, const Tensor& t) {
    return Tensor::empty(ctx, {t.dim(0)}, accumulator_of(t.dtype()), MemoryCategory::kWorkspace);
  };
  return {
      {"add", 1, {x, {"b", columns}, y}, [](Context& ctx, Tensors t, int64_t) { add(ctx, t[0], t[1], t[2]); }, kFewRoundings},
      {"copy to fp32", 1, {x, {"y", columns, kAssigned, DType::kF32}}, [](Context& ctx, Tensors t, int64_t) { copy(ctx, t[0], t[1]); }, 0},
      {"dropout",
       1,
       {x, y},
       [columns](Context& ctx, Tensors t, int64_t row) {
         dropout(ctx, t[0], {7, 5, static_cast<uint64_t>(row * columns), 0.3}, t[1]);
       },
       kFewRoundings},
      {"swiglu",
       1,
       {{"gate_up", columns}, {"dy", columns / 2}, {"y", columns / 2, kAssigned}, {"dgate_up", columns, kAssigned}},
       [](Context& ctx, Tensors t, int64_t) { swiglu_forward(ctx, t[0], t[2]), swiglu_backward(ctx, t[1], t[0], t[3]); },
       kFewRoundings},
      {"gelu",
       1,
       {x, {"dy", columns}, y, {"dx", columns, kAssigned}},
       [](Context& ctx, Tensors t, int64_t) { gelu_forward(ctx, t[0], t[2], Gelu::kTanh), gelu_backward(ctx, t[1], t[0], t[3], Gelu::kTanh); },
       kFewRoundings},
      {"rmsnorm",
       1,
       {x, {"dy", columns}, w, y, {"dx", columns, kAssigned}},
       [rstd_of](Context& ctx, Tensors t, int64_t) {
         const Tensor rstd = rstd_of(ctx, t[0]), weight = t[2].view({t[2].numel()});
         rmsnorm_forward(ctx, t[0], weight, 1e-5, t[3], rstd);
         rmsnorm_backward_input(ctx, t[1], t[0], weight, rstd, {}, t[4]);
       },
       kFewRoundings},
      {"layernorm",
       1,
       {x, {"dy", columns}, w, y, {"dx", columns, kAssigned}},
       [rstd_of](Context& ctx, Tensors t, int64_t) {
         const Tensor mean = rstd_of(ctx, t[0]), rstd = rstd_of(ctx, t[0]), weight = t[2].view({t[2].numel()});
         layernorm_forward(ctx, t[0], weight, weight, 1e-5, t[3], mean, rstd);
         layernorm_backward_input(ctx, t[1], t[0], weight, mean, rstd, {}, t[4]);
       },
       kFewRoundings},
      {"embedding_forward",
       1,
       {{"tokens", 1, kInput, DType::kI32, 0, 97}, {"table", columns, kInput, DType::kBF16, 97}, y},
       [](Context& ctx, Tensors t, int64_t) { embedding_forward(ctx, t[0].view({t[0].numel()}), t[1], 0, 97, t[2]); },
       0},
  };
}

/// Sums over all rows of a [rows, columns] tensor of ones, where the last `marked` rows are twos: the sum shows rows left out, read twice or misplaced.
void check_sums(int64_t rows, int64_t columns, int64_t marked) {
  TestDevice machine(Device::kCuda, 1);
  Context& ctx = machine.context();
  const auto filled = [&](const Shape& shape, DType dtype, double value) {
    const Tensor tensor = Tensor::empty(ctx, shape, dtype, MemoryCategory::kWorkspace);
    fill(ctx, value, tensor);
    return tensor;
  };
  const Tensor ones = filled({rows, columns}, DType::kBF16, 1), rstd = filled({rows}, DType::kF32, 1), narrow = filled({rows, 8}, DType::kBF16, 1);
  fill(ctx, 2, ones.rows(rows - marked, marked));
  const Tensor sums[] = {filled({columns}, DType::kF32, 0), filled({columns}, DType::kF32, 0), filled({columns, 8}, DType::kF32, 0)};
  bias_backward(ctx, ones, sums[0]);
  rmsnorm_backward_weight(ctx, filled({rows, columns}, DType::kBF16, 1), ones, rstd, sums[1]);
  linear_backward_weight(ctx, ones, narrow, sums[2]);
  for (const Tensor& sum : sums) {
    const std::vector<double> values = values_of(to_host(ctx, sum));
    const auto wrong = std::count_if(values.begin(), values.end(), [&](double value) { return value != static_cast<double>(rows + marked); });
    INFO("sum " << &sum - sums << " is " << values[0]);
    CHECK(wrong == 0);
  }
  const Tensor squares = filled({1}, DType::kF64, 0);
  sum_of_squares(ctx, std::span(&ones, 1), squares);
  CHECK(read_scalar(ctx, squares) == static_cast<double>(columns) * static_cast<double>(rows + 3 * marked));
}

/// dw of `count` random outputs, each a sum over all tokens, in fp64. Returns the error relative to the largest element.
double weight_gradient_error(int64_t tokens, int64_t inputs, int64_t outputs, int64_t count) {
  TestDevice machine(Device::kCuda, 1);
  Context& ctx = machine.context();
  const Tensor x = Tensor::empty(ctx, {tokens, inputs}, DType::kBF16, MemoryCategory::kWorkspace);
  const Tensor dy = Tensor::empty(ctx, {tokens, outputs}, DType::kBF16, MemoryCategory::kWorkspace);
  const Tensor dw = Tensor::zeros(ctx, {outputs, inputs}, DType::kF32, MemoryCategory::kWorkspace);
  fill_normal(ctx, random_key(1, "x"), 1, inputs, 0, 0, x);
  fill_normal(ctx, random_key(1, "dy"), 1, outputs, 0, 0, dy);
  linear_backward_weight(ctx, dy, x, dw);
  const Tensor host_x = to_host(ctx, x), host_dy = to_host(ctx, dy);
  const auto exact = [&](int64_t output) {
    std::vector<double> sums(static_cast<size_t>(inputs), 0.0);
    for (int64_t m = 0; m < tokens; ++m) {
      const double factor = static_cast<float>(host_dy.data<bfloat16>()[m * outputs + output]);
      for (int64_t i = 0; i < inputs; ++i) sums[static_cast<size_t>(i)] += factor * static_cast<float>(host_x.data<bfloat16>()[m * inputs + i]);
    }
    return sums;
  };
  std::vector<int64_t> chosen = {0, outputs - 1};
  for (uint64_t i = 2; static_cast<int64_t>(i) < count; ++i)
    chosen.push_back(static_cast<int64_t>(random_bits(13, i) % static_cast<uint64_t>(outputs)));
  std::vector<std::future<std::vector<double>>> expected;
  for (const int64_t output : chosen) expected.push_back(std::async(std::launch::async, exact, output));
  double error = 0;
  for (size_t i = 0; i < chosen.size(); ++i)
    error = std::max(error, normalised_error(values_of(to_host(ctx, dw.rows(chosen[i], 1))), expected[i].get()));
  return error;
}

}  // namespace

TEST_CASE("sampled rows: agree with fp64, and a row that was left out is found") {
  for (const LargeOperation& operation : by_row(64)) check(operation, 9, 5);
  for (const LargeOperation& operation : {product(32, 48), input_gradient(32, 48), loss(130), adam(40)}) check(operation, 9, 5);
  check(attention(70, 4, 2, 32), 3, 3);
  check(rope(5, 2, 16, 48), 3, 3);
  check_sums(300, 24, 7);
  CHECK(weight_gradient_error(50, 24, 40, 5) <= of_sum(50));
  LargeOperation wrong = by_row(64)[0];
  wrong.run = [](Context& ctx, const std::vector<Tensor>& t, int64_t) {
    const int64_t rows = ctx.device == Device::kCuda ? t[0].dim(0) - 1 : t[0].dim(0);
    add(ctx, t[0].rows(0, rows), t[1].rows(0, rows), t[2].rows(0, rows));
  };
  CHECK(sampled_error(wrong, 9, 5) > 1);
}

#if !defined(TRIREME_REAL_GPU) && !defined(__SANITIZE_ADDRESS__)  // whose shadow of such memory is not sparse
namespace {

constexpr int64_t kHidden = 16384, kFfn = 53248, kVocabulary = 128256, kColumns = 18432;  // Llama 3.1 405B: arXiv:2407.21783, table 3

/// The number of rows of `columns` elements that have more than 2^32 elements in all: no 32-bit offset, signed or unsigned, reaches the last one.
int64_t beyond(int64_t columns) { return (int64_t{1} << 32) / columns + 37; }

void check_few_blocks(const LargeOperation& operation, Samples samples = Samples::kBlocks) {
  int64_t columns = 0;
  for (const LargeOperand& of : operation.operands) columns = std::max(columns, of.shared_rows > 0 ? 0 : of.columns);
  const int64_t units = beyond(columns) / operation.unit + 1;
  INFO(operation.name << " on " << units << " x " << operation.unit << " rows of " << columns);
  CHECK(error_of_few_blocks(operation, units, samples) <= operation.tolerance);
}

LargeOperation plain_product(int64_t inputs, int64_t outputs) {
  LargeOperation operation = product(inputs, outputs);
  operation.name = "plain product";
  operation.run = [on_cpu = operation.run](Context& ctx, const std::vector<Tensor>& t, int64_t row) {
    if (ctx.device != Device::kCuda) return on_cpu(ctx, t, row);
    const int64_t depth = t[0].dim(1);
    cuda::plain_product(
        ctx, {t[2].dim(0), t[2].dim(1), depth, t[0].dtype(), t[2].dtype(), t[0].raw(), depth, 1, t[1].raw(), depth, 1, nullptr, t[2].raw(), false});
  };
  return operation;
}
LargeOperation attention_out(int64_t sequence, int64_t heads, int64_t kv_heads, int64_t head_size) {
  LargeOperation operation = attention(sequence, heads, kv_heads, head_size);
  operation.operands = {operation.operands[0], operation.operands[2]};
  operation.run = [=](Context& ctx, const std::vector<Tensor>& t, int64_t) {
    const AttentionShape shape{t[0].dim(0) / sequence, sequence, heads, kv_heads, head_size};
    const Tensor lse = Tensor::empty(ctx, {shape.batch, heads, sequence}, accumulator_of(t[0].dtype()), MemoryCategory::kWorkspace);
    attention_forward(ctx, t[0], shape, t[1], lse);
  };
  return operation;
}
/// With a launch for each sequence: the workspace is enough for one. One kv head, as with tensor parallelism.
LargeOperation attention_gradients(int64_t sequence, int64_t heads, int64_t head_size) {
  const AttentionShape one{1, sequence, heads, 1, head_size};
  return {"attention_backward",
          sequence,
          {{"qkv", one.columns()},
           {"dout", heads * head_size},
           {"out", heads * head_size},
           {"lse", heads, kInput, DType::kF32},
           {"dqkv", one.columns(), kAssigned}},
          [one](Context& ctx, const std::vector<Tensor>& t, int64_t) {
            AttentionShape shape = one;
            shape.batch = t[0].dim(0) / one.sequence;
            const Tensor lse = t[3].view({shape.batch, shape.heads, shape.sequence});
            if (ctx.device != Device::kCuda) return attention_backward(ctx, t[1], t[0], t[2], lse, shape, t[4]);
            const int64_t bytes = cuda::attention_workspace_bytes(one, t[0].dtype());
            const Tensor workspace = Tensor::empty(ctx, {bytes / 4}, DType::kF32, MemoryCategory::kWorkspace);
            cuda::attention_backward(ctx, t[1], t[0], t[2], lse, shape, {}, t[4], workspace);
          },
          4e-6 + 2 * 0x1p-8};
}
/// Operations that by_row() leaves out.
std::vector<LargeOperation> more_by_row() {
  using Tensors = const std::vector<Tensor>&;
  const LargeOperand y{"y", kHidden, kInPlace};
  return {
      {"bias_forward",
       1,
       {{"bias", kHidden, kInput, DType::kBF16, 1}, y},
       [](Context& ctx, Tensors t, int64_t) { bias_forward(ctx, t[0].view({t[0].numel()}), t[1]); },
       kFewRoundings},
      {"position_forward",
       1,
       {{"table", kHidden, kInput, DType::kBF16, 64}, y},
       [](Context& ctx, Tensors t, int64_t row) { position_forward(ctx, t[0], row, 64, t[1]); },
       kFewRoundings},
      {"copy_columns",
       1,
       {{"from", kHidden}, {"to", kColumns, kInPlace}},
       [](Context& ctx, Tensors t, int64_t) { copy_columns(ctx, t[0], 128, t[1], 1024, kHidden - 128); },
       0},
      {"add_columns",
       1,
       {{"x", kHidden}, {"to", kColumns, kInPlace}},
       [](Context& ctx, Tensors t, int64_t) { add_columns(ctx, t[0], t[1], 1024); },
       kFewRoundings},
      {"embedding_backward",
       1,
       {{"tokens", 1, kInput, DType::kI32, 64, beyond(kHidden)}, {"dy", kHidden, kInput, DType::kBF16, 64}, {"dw", kHidden, kInPlace, DType::kF32}},
       [](Context& ctx, Tensors t, int64_t row) { embedding_backward(ctx, t[0].view({64}), t[1], row, t[2].dim(0), t[2]); },
       kFewRoundings},
  };
}

}  // namespace

TEST_CASE("few blocks: operations on rows of a 405B model beyond 2^32 elements") {
  for (const LargeOperation& operation : by_row(kHidden)) check_few_blocks(operation);
  for (const LargeOperation& operation : by_row(2 * kFfn))
    if (operation.name == "swiglu") check_few_blocks(operation);
  for (const LargeOperation& operation : more_by_row()) check_few_blocks(operation);
  check_few_blocks(rope(16, 136, 128, kColumns));
}
TEST_CASE("few blocks: loss, optimizer, products and attention beyond 2^32 elements") {
  check_few_blocks(loss(kVocabulary));
  check_few_blocks(adam(kHidden));
  check_few_blocks(plain_product(64, 32768));
  check_few_blocks(attention_out(256, 2, 1, 128), Samples::kItems);
  check_few_blocks(attention_gradients(128, 16, 128), Samples::kLaunches);
}
TEST_CASE("few blocks: rows at a wrong offset, rows left out and a written input are found") {
  using Tensors = const std::vector<Tensor>&;
  const auto error_of = [](const auto& on_gpu) {
    LargeOperation operation = by_row(kHidden)[0];
    operation.run = [&](Context& ctx, Tensors t, int64_t) { ctx.device == Device::kCuda ? on_gpu(ctx, t) : add(ctx, t[0], t[1], t[2]); };
    return error_of_few_blocks(operation, beyond(kHidden));
  };
  constexpr int64_t kLow = (int64_t{1} << 31) / kHidden;  // the first row beyond element 2^31
  CHECK(error_of([](Context& ctx, Tensors t) { add(ctx, t[0], t[1], t[2]); }) <= kFewRoundings);
  CHECK(error_of([](Context& ctx, Tensors t) {
          const int64_t rest = t[0].dim(0) - kLow;
          add(ctx, t[0].rows(0, kLow), t[1].rows(0, kLow), t[2].rows(0, kLow));
          add(ctx, t[0].rows(0, rest), t[1].rows(kLow, rest), t[2].rows(kLow, rest));
        }) > 1);
  CHECK(error_of([](Context& ctx, Tensors t) {
          const int64_t most = kLow / 4 * 3;
          add(ctx, t[0].rows(0, most), t[1].rows(0, most), t[2].rows(0, most));
        }) > 1);
  CHECK(error_of([](Context& ctx, Tensors t) {
          add(ctx, t[0], t[1], t[2]);
          add(ctx, t[0].rows(0, 1), t[1].rows(0, 1), t[1].rows(0, 1));
        }) > 1);
}
#endif

#ifdef TRIREME_REAL_GPU
namespace {
constexpr int64_t kTokens = 16384, kHidden = 2048, kFfn = 5504, kVocabulary = 32000, kRows = 64;
constexpr std::pair<int64_t, int64_t> kProducts[] = {
    {kHidden, 3 * kHidden}, {kHidden, kHidden}, {kHidden, 2 * kFfn}, {kFfn, kHidden}, {kHidden, kVocabulary}};  // inputs, outputs
constexpr int64_t kBeyond = (int64_t{1} << 31) / 4096 + 37;                                                     // rows of 4096
}  // namespace

TEST_CASE("large: products at the shapes of a step", "[large]") {
  for (const auto& [inputs, outputs] : kProducts)
    for (const LargeOperation& operation : {product(inputs, outputs), input_gradient(inputs, outputs)}) check(operation, kTokens, kRows);
}
TEST_CASE("large: weight gradients at the shapes of a step", "[large]") {
  for (const auto& [inputs, outputs] : kProducts) CHECK(weight_gradient_error(kTokens, inputs, outputs, kRows) <= of_sum(kTokens));
}
TEST_CASE("large: operations on rows at the shapes of a step", "[large]") {
  for (const int64_t columns : {kHidden, 2 * kFfn})
    for (const LargeOperation& operation : by_row(columns)) check(operation, kTokens, kRows);
  check(loss(kVocabulary), kTokens, kRows);
  check(rope(2048, 32, 128, 3 * kHidden), 8, 3);
}
// 32 heads of 1 MiB are in flight together, so that 36 and 80 heads end with a round that is not full.
TEST_CASE("large: attention in a second round of blocks, 12 heads", "[large]") { check(attention(2048, 12, 12, 128), 3, 3); }
TEST_CASE("large: attention in a third round of blocks, grouped heads", "[large]") { check(attention(4096, 2, 1, 128), 40, 4); }
TEST_CASE("large: operations on rows beyond 2^31 elements", "[large]") {
  for (const LargeOperation& operation : by_row(4096)) check(operation, kBeyond, kRows);
  check(rope(2048, 24, 128, 4096), kBeyond / 2048 + 1, 5);
}
TEST_CASE("large: the loss beyond 2^31 elements", "[large]") { check(loss(kVocabulary), (int64_t{1} << 31) / kVocabulary + 37, kRows); }
TEST_CASE("large: products beyond 2^31 elements", "[large]") {
  for (const LargeOperation& operation : {product(64, 32768), input_gradient(64, 32768)}) check(operation, 65536 + 37, kRows);
}
TEST_CASE("large: attention beyond 2^31 elements", "[large]") { check(attention(512, 16, 16, 128), (int64_t{1} << 31) / (512 * 6144) + 2, 5); }
TEST_CASE("large: the optimizer beyond 2^31 elements", "[large]") { check(adam(4096), kBeyond, kRows); }
TEST_CASE("large: sums over rows beyond 2^31 elements", "[large]") { check_sums(kBeyond, 4096, 37); }
#endif
#endif
