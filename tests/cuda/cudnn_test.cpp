// Attention by cuDNN on the simulated GPU: the product's graphs, built by cuDNN's frontend library and computed by the simulated cuDNN.
#include <cuda_runtime_api.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_comparison.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/self.h"
#include "tests/cuda_sim/cublas_lt.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/cudnn.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/parity.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/bench/kernels.h"
#include "trainer/bench/step.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/machine.h"
#include "trainer/run/run.h"
#include "trainer/verify/ragged_dataset.h"

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using cuda::AttentionChoice;

/// The simulated cuDNN with these faults, until the end of the scope.
struct Faults {
  explicit Faults(const cuda_sim::CudnnOptions& options) { cuda_sim::set_cudnn(options); }
  ~Faults() { cuda_sim::set_cudnn({}); }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
};

struct Results {
  std::vector<char> out, lse, dqkv;
  bool operator==(const Results&) const = default;
};

/// One GPU, and the tensors of one attention.
class Bench {
 public:
  Bench(const AttentionShape& of, DType of_dtype, const cuda::GpuOptions& options = {.cudnn_attention = true}, uint64_t seed = 0)
      : shape(of), dtype(of_dtype), gpu_(fresh(options, seed)) {
    const int64_t rows = shape.batch * shape.sequence, columns = shape.heads * shape.head_size;
    qkv = tensor({rows, shape.columns()}, 1);
    dout = tensor({rows, columns}, 2);
    out = tensor({rows, columns}, 3);
    dqkv = tensor({rows, shape.columns()}, 4);
    lse = Tensor::empty(ctx, {shape.batch, shape.heads, shape.sequence}, accumulator_of(dtype), MemoryCategory::kWorkspace);
  }
  ~Bench() {
    cudaStreamSynchronize(gpu_->compute());
    if (sound) CHECK(testing::gpu_errors() == "");
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Results run() {
    attention_forward(ctx, qkv, shape, out, lse);
    attention_backward(ctx, dout, qkv, out, lse, shape, dqkv);
    return {bytes(out), bytes(lse), bytes(dqkv)};
  }
  std::vector<AttentionChoice> choices() { return cuda::attention_choices(*gpu_); }

  const AttentionShape shape;
  const DType dtype;
  bool sound = true;  ///< no error is expected

 private:
  static std::unique_ptr<cuda::Gpu> fresh(const cuda::GpuOptions& options, uint64_t seed) {
    cuda_sim::reset(seed);
    return std::make_unique<cuda::Gpu>(0, options);
  }
  Tensor tensor(const Shape& extents, uint64_t key) {
    const Tensor host = host_tensor(extents, dtype), device = Tensor::empty(ctx, extents, dtype, MemoryCategory::kWorkspace);
    for (int64_t i = 0; i < extents.numel(); ++i) {
      const auto value = static_cast<float>(random_normal(random_key(key, "cudnn"), static_cast<uint64_t>(i)));
      if (dtype == DType::kF32) host.data<float>()[i] = value;
      if (dtype == DType::kBF16) host.data<bfloat16>()[i] = bfloat16(value);
      if (dtype == DType::kF16) host.data<float16>()[i] = float16(value);
    }
    from_host(ctx, host, device);
    return device;
  }
  std::vector<char> bytes(const Tensor& of) {
    const Tensor host = to_host(ctx, of);
    const auto* const data = static_cast<const char*>(host.raw());
    return {data, data + host.bytes()};
  }

  std::unique_ptr<cuda::Gpu> gpu_;
  Arena arena_{*gpu_, /*poison=*/true};

 public:
  Context ctx{Device::kCuda, &arena_, 1, gpu_.get()};
  Tensor qkv, dout, out, lse, dqkv;
};

Results builtin_results(const AttentionShape& shape, DType dtype) { return Bench(shape, dtype, {}).run(); }

/// Largest difference of results as a share of what the comparison allows.
double difference(const Results& a, const Results& b, const AttentionShape& shape, DType dtype) {
  const int64_t rows = shape.batch * shape.sequence, queries = shape.heads * shape.head_size, keys = shape.kv_heads * shape.head_size;
  double worst = cuda::rows_difference(a.out.data(), b.out.data(), dtype, rows, queries, 0, queries, shape.head_size);
  for (const auto& [first, columns] : {std::pair(int64_t{0}, queries), std::pair(queries, keys), std::pair(queries + keys, keys)})
    worst = std::max(worst, cuda::rows_difference(a.dqkv.data(), b.dqkv.data(), dtype, rows, shape.columns(), first, columns, shape.head_size));
  return std::max(
      worst, cuda::lse_difference(reinterpret_cast<const float*>(a.lse.data()), reinterpret_cast<const float*>(b.lse.data()), rows * shape.heads));
}

// Head sizes with and without built-in tensor-core kernels, separate and shared kv heads, several sequences, lengths that are no multiples of tiles,
// windows of one token, of a few, of all and beyond.
constexpr AttentionShape kShapes[] = {{1, 70, 2, 2, 32},      {2, 33, 4, 2, 64},   {1, 129, 4, 1, 128},   {3, 20, 3, 3, 40},
                                      {1, 65, 2, 1, 96, 17},  {2, 40, 2, 1, 8, 1}, {1, 64, 4, 2, 64, 64}, {1, 50, 1, 1, 32, 49},
                                      {2, 17, 2, 2, 16, 100}, {1, 2, 1, 1, 8}};

/// A small model whose heads cuDNN supports.
Config small_config(const ParityLayout& layout, const std::string& precision = "bf16") {
  Config config = parity_config(ParityModel::kLlamaGrouped, layout, precision);
  config.model.head_size = 8;
  config.model.rope_scaling = {};
  config.model.vocab_size = 256;
  config.kernels.attention = AttentionEngine::kCudnn;
  config.run.device = DeviceType::kCuda;
  return config;
}

/// Runs a training run of this configuration with one GPU for each rank. Returns the events of its metrics.jsonl and its steps.
struct RunOutcome {
  std::vector<nlohmann::json> attention, steps, losses;
};
RunOutcome run_of(const ParityLayout& layout, const std::function<void(Config&)>& change, int64_t steps = 3) {
  const TemporaryDirectory directory;
  for (const char* name : {"train", "validation"}) write_tokens(directory.path / name, 12 * 40 + 1);
  run_ranks(layout.world(), [&](Communicator& threads) {
    Config config = small_config(layout);
    config.run.directory = directory.path / "run";
    config.data.train = {directory.path / "train"};
    config.data.validation = {directory.path / "validation"};
    config.training.evaluate = {2, 1};
    config.resilience.replica_check_every = 1;
    change(config);
    config = resolve(config, threads.size());
    Machine machine(whole_world(threads), {threads.rank(), threads.size()}, config);
    Progress progress;
    TRIREME_CHECK(run_training(machine.ctx(), machine.world(), config, {.max_steps = steps}, progress) == ExitCode::kOk, "the run failed");
  });
  RunOutcome outcome;
  std::ifstream file(directory.path / "run" / "metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (nlohmann::json value = nlohmann::json::parse(line); value.value("event", "") == "cudnn_attention")
      outcome.attention.push_back(std::move(value));
  outcome.steps = steps_of(directory.path / "run");
  return outcome;
}

/// Three steps on GPUs as `train` makes them.
RunRecord record_of(const Config& config, int ranks, int steps = 3, const std::function<void(Trainer&, const Config&)>& = {}) {
  RunRecord record;
  std::mutex mutex;
  run_ranks(ranks, [&](Communicator& threads) {
    Config own = config;
    Machine machine(whole_world(threads), {threads.rank(), threads.size()}, own);
    RunRecord mine = train(machine.ctx(), machine.world(), own, steps);
    if (threads.rank() != 0) return;
    const std::lock_guard lock(mutex);
    record = std::move(mine);
  });
  return record;
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("cuDNN attention: results are those of the built-in kernels within roundings, in every shape") {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const AttentionShape& shape : kShapes) {
      INFO(name_of(dtype) << ", " << shape.batch << " x " << shape.sequence << ", " << shape.heads << " heads, " << shape.kv_heads
                          << " kv heads of size " << shape.head_size << ", window " << shape.window);
      const cuda_sim::CudnnStatistics before = cuda_sim::cudnn_statistics();
      Bench bench(shape, dtype);
      const Results first = bench.run();
      CHECK(bench.run() == first);  // also after the comparison of the first use
      const cuda_sim::CudnnStatistics after = cuda_sim::cudnn_statistics();
      CHECK(after.forwards - before.forwards == 2);
      CHECK(after.backwards - before.backwards == 2);
      CHECK(after.plans - before.plans == 2);
      const std::vector<AttentionChoice> choices = bench.choices();
      REQUIRE(choices.size() == 2);
      const bool one_key = shape.window == 1;  // its probability is 1, so that nothing is rounded but the result
      for (const AttentionChoice& choice : choices) {
        CHECK(choice.reason == "");
        CHECK((choice.difference > 0) != one_key);
        CHECK(choice.difference < 0.6);  // the tolerance is twice what is seen
        CHECK_FALSE(choice.mismatch);
      }
      // Against results that the built-in kernels made without cuDNN. With two keys, the rounding of `out` alone may exceed the differences of dP.
      const double apart = difference(first, builtin_results(shape, dtype), shape, dtype);
      CHECK((apart > 0) != one_key);
      if (shape.sequence > 2) CHECK(apart < 0.6);
    }
  }
}

TEST_CASE("cuDNN attention: choices name shape and direction once") {
  Bench bench({2, 33, 4, 2, 64, 16}, DType::kBF16);
  bench.run();
  bench.run();
  const std::vector<AttentionChoice> choices = bench.choices();
  REQUIRE(choices.size() == 2);
  CHECK(choices[0].shape == "forward, 2 x 33 tokens, 4 heads, 2 kv heads of size 64, window 16, BF16");
  CHECK(choices[1].shape == "backward, 2 x 33 tokens, 4 heads, 2 kv heads of size 64, window 16, BF16");
}

TEST_CASE("cuDNN attention: every schedule of the GPU and every rerun gives the same bits") {
  const AttentionShape shape{2, 33, 4, 2, 64};
  const Results first = Bench(shape, DType::kBF16).run();
  for (uint64_t seed = 1; seed < 4; ++seed) CHECK(Bench(shape, DType::kBF16, {.cudnn_attention = true}, seed).run() == first);
}

TEST_CASE("cuDNN attention: the backward in slices of sequences or kv heads is bit-identical to one call") {
  for (const AttentionShape& shape : {AttentionShape{4, 33, 4, 2, 64}, AttentionShape{2, 21, 6, 3, 32, 5}}) {
    const Results whole = Bench(shape, DType::kBF16).run();
    const int64_t each = cuda::cudnn_kv_head_bytes(shape);
    for (const int64_t heads : {int64_t{1}, shape.kv_heads, 2 * shape.kv_heads}) {
      const cuda_sim::CudnnStatistics before = cuda_sim::cudnn_statistics();
      const int64_t limit = heads * each + cuda::kCudnnWorkspaceSlack;
      CHECK(Bench(shape, DType::kBF16, {.cudnn_attention = true, .cudnn_workspace = limit}).run() == whole);
      CHECK(cuda_sim::cudnn_statistics().backwards - before.backwards == shape.batch * shape.kv_heads / heads);
    }
    Bench none(shape, DType::kBF16, {.cudnn_attention = true, .cudnn_workspace = each + cuda::kCudnnWorkspaceSlack - 1});
    none.run();
    CHECK_THAT(none.choices()[1].reason, Contains("the deterministic backward would need " + std::to_string(each) + " bytes of workspace"));
  }
}

TEST_CASE("cuDNN attention: slices are whole sequences, or kv heads of one sequence, and fit the limit") {
  const AttentionShape llama_8b{2, 8192, 32, 8, 128}, small{6, 2048, 16, 16, 64}, odd{1, 8192, 24, 3, 128};
  const int64_t limit = int64_t{1} << 30;
  CHECK(cuda::cudnn_kv_head_bytes(llama_8b) == 4 * (int64_t{8192} * 8192 * 2 + 8192 * 4 + 8192 * 128 * 4));
  CHECK(cuda::cudnn_slice(llama_8b, limit).kv_heads == 1);
  CHECK(cuda::cudnn_slice(llama_8b, limit).sequences == 1);
  CHECK(cuda::cudnn_slice(llama_8b, 2 * limit).kv_heads == 2);  // three would fit, and do not divide eight
  CHECK(cuda::cudnn_slice(small, limit).sequences == 6);
  CHECK(cuda::cudnn_slice(small, limit / 2).sequences == 3);
  CHECK(cuda::cudnn_slice(odd, limit).sequences == 0);  // a kv head of eight query heads
  CHECK(cuda::cudnn_workspace_bytes(odd, DType::kBF16) == 0);
  CHECK(cuda::cudnn_workspace_bytes({1, 8192, 8, 8, 136}, DType::kBF16) == 0);
  CHECK(cuda::cudnn_workspace_bytes({1, 8192, 8, 8, 128}, DType::kF32) == 0);
  for (const AttentionShape& shape : {llama_8b, small, AttentionShape{3, 1000, 9, 3, 80}}) {
    const int64_t bytes = cuda::cudnn_workspace_bytes(shape, DType::kBF16);
    CHECK(bytes > 0);
    CHECK(bytes <= limit);
  }
}

TEST_CASE("cuDNN attention: a wrong result is found at the first use, and the built-in kernels' bits take its place") {
  const AttentionShape shape{2, 33, 4, 2, 64};
  const Results expected = builtin_results(shape, DType::kBF16);
  for (const bool backward : {false, true}) {
    INFO((backward ? "backward" : "forward"));
    const Faults faults({.wrong_forward = backward ? 0.0f : 0.5f, .wrong_backward = backward ? 0.5f : 0.0f});
    const cuda_sim::CudnnStatistics before = cuda_sim::cudnn_statistics();
    Bench bench(shape, DType::kBF16);
    const Results first = bench.run();
    CHECK(bench.run() == first);
    const cuda_sim::CudnnStatistics after = cuda_sim::cudnn_statistics();
    CHECK(after.forwards - before.forwards == (backward ? 2 : 1));
    CHECK(after.backwards - before.backwards == (backward ? 1 : 2));
    if (!backward) CHECK(first.out == expected.out);
    if (!backward) CHECK(first.lse == expected.lse);
    const std::vector<AttentionChoice> choices = bench.choices();
    REQUIRE(choices.size() == 2);
    CHECK(choices[backward ? 1 : 0].mismatch);
    CHECK(choices[backward ? 1 : 0].difference > 1);
    CHECK_THAT(choices[backward ? 1 : 0].reason, Contains("differs from that of the built-in kernels by ") && Contains(" times what is allowed"));
    CHECK(choices[backward ? 0 : 1].reason == "");
    CHECK(difference(first, expected, shape, DType::kBF16) < 1);
  }
}

TEST_CASE("cuDNN attention: a log-sum-exp of base 2 is found, whatever the output is") {
  const AttentionShape shape{1, 40, 4, 2, 64};
  const Faults faults({.lse_in_log2 = true});
  Bench bench(shape, DType::kBF16);
  bench.run();
  CHECK(bench.choices()[0].mismatch);
  CHECK(bench.choices()[1].reason == "");  // of the built-in kernels' log-sum-exp
}

TEST_CASE("cuDNN attention: what the library cannot do is computed by the built-in kernels, with the reason") {
  const AttentionShape shape{1, 40, 4, 2, 64};
  const Results expected = builtin_results(shape, DType::kBF16);
  const auto reasons = [&](const cuda_sim::CudnnOptions& options) {
    const Faults faults(options);
    Bench bench(shape, DType::kBF16);
    CHECK(bench.run() == expected);
    CHECK(bench.run() == expected);
    const std::vector<AttentionChoice> choices = bench.choices();
    REQUIRE(choices.size() == 2);
    CHECK_FALSE(choices[0].mismatch);
    return std::pair(choices[0].reason, choices[1].reason);
  };
  CHECK_THAT(reasons({.supported = false}).first, Contains("not supported: "));
  CHECK_THAT(reasons({.fails = true}).first, Contains("failed: ") && Contains("out of memory"));
  const auto [forward, backward] = reasons({.more_workspace = int64_t{64} << 20});
  CHECK_THAT(forward, Contains("bytes of workspace, more than the 33554432 that the memory forecast has for it"));
  CHECK_THAT(backward, Contains(" bytes of workspace, more than the "));
}

TEST_CASE("cuDNN attention: unsupported shapes, dtypes and alignments are computed by the built-in kernels, with the reason") {
  for (const auto& [shape, dtype] :
       {std::pair{AttentionShape{1, 20, 2, 1, 20}, DType::kBF16}, {{1, 20, 2, 1, 136}, DType::kF16}, {{1, 20, 2, 1, 64}, DType::kF32}}) {
    const cuda_sim::CudnnStatistics before = cuda_sim::cudnn_statistics();
    const Results expected = builtin_results(shape, dtype);
    Bench bench(shape, dtype);
    CHECK(bench.run() == expected);
    const std::vector<AttentionChoice> choices = bench.choices();
    REQUIRE(choices.size() == 2);
    for (const AttentionChoice& choice : choices) CHECK(choice.reason == "needs bf16 or fp16 and a head size that is a multiple of 8, up to 128");
    CHECK(cuda_sim::cudnn_statistics().plans == before.plans);
  }
  {
    const Results expected = builtin_results({3, 1, 2, 1, 64}, DType::kBF16);
    Bench one({3, 1, 2, 1, 64}, DType::kBF16);  // cuDNN has no backward of single tokens
    CHECK(one.run().dqkv == expected.dqkv);
    CHECK_THAT(one.choices()[1].reason, Contains("not supported: "));
  }
  Bench bench({1, 20, 2, 1, 64}, DType::kBF16);
  const Tensor longer = Tensor::empty(bench.ctx, {bench.qkv.numel() + 4}, DType::kBF16, MemoryCategory::kWorkspace);
  const Tensor shifted = longer.flat_view(4, bench.qkv.shape());
  attention_forward(bench.ctx, bench.qkv, bench.shape, bench.out, bench.lse);
  fill(bench.ctx, 0, shifted);
  attention_forward(bench.ctx, shifted, bench.shape, bench.out, bench.lse);
  const std::vector<AttentionChoice> choices = bench.choices();
  REQUIRE(choices.size() == 2);
  CHECK(choices[0].reason == "");
  CHECK(choices[1].reason == "its tensors are not aligned to 16 bytes");
}

TEST_CASE("cuDNN attention: a failure after the comparison ends the run with the shape") {
  Bench bench({1, 40, 4, 2, 64}, DType::kBF16);
  bench.run();
  const Faults faults({.fails = true});
  CHECK_THROWS_WITH(bench.run(), Contains("cuDNN: ") && Contains("out of memory") && Contains(": attention forward, 1 x 40 tokens"));
}

TEST_CASE("cuDNN attention: its objects are destroyed with their GPU") {
  const int64_t before = cuda_sim::cudnn_statistics().live_objects;
  {
    Bench bench({1, 40, 4, 2, 64}, DType::kBF16);
    bench.run();
    CHECK(cuda_sim::cudnn_statistics().live_objects > before);
  }
  CHECK(cuda_sim::cudnn_statistics().live_objects == before);
}

TEST_CASE("cuDNN attention: libraries that are too old or of another major version are refused") {
  CHECK(cuda::cudnn_version_text(91900) == "9.19.0");
  CHECK(cuda::cudnn_refusal(91600) == "");
  CHECK(cuda::cudnn_refusal(91900) == "");
  CHECK(cuda::cudnn_refusal(91501) == "version 9.15.1, but at least 9.16.0 of major version 9 is needed");
  CHECK_THAT(cuda::cudnn_refusal(100000), Contains("version 10.0.0, but"));
}

// ---- the comparison ----

TEST_CASE("attention comparison: roundings agree, and a wrong row, a wrong scale, NaN and a shifted window do not") {
  constexpr int64_t kRows = 1024, kHead = 8, kColumns = 16, kStride = 24;
  std::vector<bfloat16> exact(kRows * kStride), other;
  for (size_t i = 0; i < exact.size(); ++i) exact[i] = bfloat16(static_cast<float>(random_normal(random_key(1, "comparison"), i)));
  const auto apart = [&](const std::vector<bfloat16>& values) {
    return cuda::rows_difference(values.data(), exact.data(), DType::kBF16, kRows, kStride, 8, kColumns, kHead);
  };
  const auto changed = [&](const auto& change) {
    std::vector<bfloat16> values = exact;
    for (size_t i = 0; i < values.size(); ++i) values[i] = bfloat16(change(static_cast<float>(values[i]), static_cast<int64_t>(i)));
    return apart(values);
  };
  CHECK(apart(exact) == 0);
  CHECK(changed([](float x, int64_t i) { return x * (i % 3 == 0 ? 1.004f : 1); }) < 1);  // one rounding
  CHECK(changed([](float x, int64_t i) { return i % kStride < 8 ? 9 : x; }) == 0);       // columns that are not compared
  CHECK(changed([](float x, int64_t) { return 1.03f * x; }) > 1);
  // One head of 2,048, which the mean does not show.
  CHECK(changed([](float x, int64_t i) { return i / kStride == kRows - 1 && i % kStride >= 16 ? x / 2 : x; }) > 1);
  CHECK(changed([](float x, int64_t i) { return i == 70 * 1 + 12 ? NAN : x; }) == std::numeric_limits<double>::infinity());
  std::vector<bfloat16> broken = exact;
  broken[40] = bfloat16(NAN);
  std::swap(broken, exact);
  CHECK(apart(exact) == 0);  // the same NaN in both
  CHECK(apart(broken) == std::numeric_limits<double>::infinity());
  const std::vector<float> lse = {1, -5, 40, -INFINITY}, near = {1.0001f, -5.0005f, 40.005f, -INFINITY}, far = {1.001f, -5, 40, -INFINITY};
  CHECK(cuda::lse_difference(near.data(), lse.data(), 4) < 1);
  CHECK(cuda::lse_difference(far.data(), lse.data(), 4) > 1);
  CHECK(cuda::lse_difference(lse.data(), std::vector<float>{1, -5, 40, 2}.data(), 4) == std::numeric_limits<double>::infinity());
}

// ---- training ----

TEST_CASE("cuDNN attention: training has the losses and gradients of the built-in kernels within the roundings of bf16") {
  ParityLayout layout;
  for (const bool parallel : {false, true}) {
    if (parallel) layout.tensor = layout.pipeline = layout.data = 2, layout.zero = 3, layout.sequence_parallel = true;
    layout.window = 5;
    Config config = small_config(layout);
    const cuda_sim::CudnnStatistics before = cuda_sim::cudnn_statistics();
    testing::reset_gpus(3);
    const RunRecord record = record_of(config, layout.world());
    const cuda_sim::CudnnStatistics after = cuda_sim::cudnn_statistics();
    CHECK(after.forwards > before.forwards);
    CHECK(after.backwards - before.backwards >= 3 * 12 * 4);  // steps, sequences and layers, on all tensor ranks
    config.kernels.attention = AttentionEngine::kBuiltin;
    const RunRecord builtin = record_of(config, layout.world());
    CHECK(record.loss != builtin.loss);  // another order of roundings
    CHECK(record.loss[0] == Approx(builtin.loss[0]).epsilon(2e-3));
    Config exact = small_config({}, "fp64");
    if (layout.window > 0) exact.model.window = config.model.window;
    exact.model.window_layers = config.model.window_layers;
    exact.kernels.attention = AttentionEngine::kAuto;
    exact.run.device = DeviceType::kCpu;
    const RunRecord expected = train_on_threads(exact, 1, Device::kReference);
    CHECK(gradient_error(expected, record) < 1.3 * gradient_error(expected, builtin));
    CHECK(testing::gpu_errors() == "");
  }
}

TEST_CASE("cuDNN attention: steps launched as a captured graph are bit-identical to queued steps, and recomputation to saving") {
  ParityLayout layout;
  layout.data = 2;
  Config config = small_config(layout, "fp16");
  testing::reset_gpus(4);
  constexpr int kRunSteps = 4;  // the third is captured
  const RunRecord queued = record_of(config, 2, kRunSteps);
  const cuda_sim::CudnnStatistics before = cuda_sim::cudnn_statistics();
  config.kernels.cuda_graph = true;
  CHECK(record_of(config, 2, kRunSteps) == queued);
  CHECK(cuda_sim::cudnn_statistics().backwards > before.backwards);
  config.kernels.cuda_graph = false;
  config.training.recompute = RecomputeMode::kFull;
  CHECK(record_of(config, 2, kRunSteps) == queued);
}

TEST_CASE("cuDNN attention: a memory forecast equals the measured memory") {
  Config config = small_config({});
  config.training.micro_batch_size = 2;
  RankMemory measured;
  testing::reset_gpus(5);
  run_ranks(1, [&](Communicator& threads) {
    Config own = config;
    Machine machine(whole_world(threads), {0, 1}, own);
    Trainer trainer(machine.ctx(), machine.world(), own, true);
    trainer.initialise();
    const RaggedDataset data(29, own.training.sequence_length, *own.model.vocab_size, true, false);
    for (int step = 0; step < 2; ++step) trainer.step(data, step, 1e-3);
    measured = measured_memory(*machine.ctx().arena);
  });
  const RankMemory forecast = forecast_memory(config, 0, 1);
  for (size_t c = 0; c < kMemoryCategories; ++c) {
    INFO(name_of(static_cast<MemoryCategory>(c)));
    for (const MemoryPhase phase : {MemoryPhase::kForward, MemoryPhase::kBackward, MemoryPhase::kOptimizer})
      CHECK(forecast.phases[static_cast<size_t>(phase)].peak[c] == measured.phases[static_cast<size_t>(phase)].peak[c]);
  }
  config.kernels.attention = AttentionEngine::kBuiltin;
  const auto workspace = static_cast<size_t>(MemoryCategory::kWorkspace);
  CHECK(forecast_memory(config, 0, 1).peak[workspace] < forecast.peak[workspace]);
}

TEST_CASE("cuDNN attention: a run reports once which kernels compute which shapes") {
  ParityLayout layout;
  layout.pipeline = 2;
  const RunOutcome outcome = run_of(layout, [](Config&) {});
  REQUIRE(outcome.attention.size() == 1);
  CHECK(outcome.attention[0]["step"] == 1);
  CHECK(outcome.attention[0]["builtin"].empty());
  REQUIRE(outcome.attention[0]["cudnn"].size() == 2);
  CHECK(outcome.attention[0]["cudnn"][0]["ranks"] == 2);
  CHECK_THAT(outcome.attention[0]["cudnn"][1]["shape"].get<std::string>(), Contains("backward, 1 x 12 tokens, 12 heads, 2 kv heads of size 8, BF16"));
  CHECK(run_of(layout, [](Config& config) { config.kernels.attention = AttentionEngine::kBuiltin; }).attention.empty());
}

TEST_CASE("cuDNN attention: a mismatch on one rank is reported, and replicas stay equal") {
  ParityLayout layout;
  layout.data = 2;
  const Faults faults({.wrong_backward = 0.5f, .only_device = 1});
  const RunOutcome outcome = run_of(layout, [](Config&) {});  // compares replicas after every step
  REQUIRE(outcome.attention.size() == 1);
  const nlohmann::json& builtin = outcome.attention[0]["builtin"];
  REQUIRE(builtin.size() == 1);
  CHECK(builtin[0]["mismatch"] == true);
  CHECK(builtin[0]["ranks"] == 1);
  CHECK_THAT(builtin[0]["shape"].get<std::string>(), Contains("backward, "));
  CHECK_THAT(
      attention_warning(outcome.attention[0]),
      Contains("warning: kernels.attention=cudnn: the built-in kernels compute attention of\n  backward, ") && Contains(", on 1 rank: its result"));
  REQUIRE(outcome.attention[0]["cudnn"].size() == 2);
  CHECK(outcome.attention[0]["cudnn"][1]["ranks"] == 1);
  CHECK(outcome.steps.size() == 3);
}

TEST_CASE("cuDNN attention: a missing library and a CPU are refused before anything starts") {
  const auto open = [](const std::string& device) {
    Config config;
    config.run.device = OneOf<DeviceType>(device);
    config.training.precision = Arithmetic::kBf16;
    config.kernels.attention = AttentionEngine::kCudnn;
    const Machine machine(std::make_unique<SelfCommunicator>("world"), {0, 1}, config, {.device_files = "/nowhere"});
  };
  testing::reset_gpus(0);
  {
    const Faults faults({.missing = true});
    CHECK_THAT(message_of([&] { open("cuda"); }), Contains("kernels.attention=cudnn: cannot load libcudnn.so.9") &&
                                                      Contains("add its directory to LD_LIBRARY_PATH; tried:") && Contains("/usr/local/cuda/lib64/"));
  }
  CHECK(message_of([&] { open("cuda"); }) == "");
  cuda_sim::reset(0, {.driver_version = 0});
  CHECK(message_of([&] { open("auto"); }) ==
        "run.device=auto is cpu in this job: kernels.attention=cudnn: attention on CPUs has kernels of its own; allowed auto | builtin, or "
        "run.device cuda; "
        "nearest valid auto");
  cuda_sim::reset();
}

TEST_CASE("cuDNN attention: bench kernels says what it computed") {
  testing::reset_gpus(0);
  Config config = small_config({});
  Machine machine(std::make_unique<SelfCommunicator>("world"), {0, 1}, config);
  bench::KernelOptions options;
  options.gemm = options.bandwidth = false;
  options.tokens = 33;
  options.sequences = {33};
  options.head_sizes = {32, 20};
  options.effort = {.batch_seconds = 1e-6, .seconds = 1e-6, .world = nullptr};
  const auto result = bench::bench_kernels(machine.ctx(), config, options);
  CHECK(result["cudnn_attention"]["cudnn"].size() == 2);
  CHECK(result["cudnn_attention"]["builtin"].size() == 2);
  CHECK_THAT(bench::kernels_text(result),
             Contains("the built-in kernels 2\nwarning: kernels.attention=cudnn: ") && Contains("of size 20, BF16, on 1 rank: needs bf16"));
}

TEST_CASE("cuDNN attention: bench step says what it computed") {
  testing::reset_gpus(0);
  Config config = small_config({});
  Machine machine(std::make_unique<SelfCommunicator>("world"), {0, 1}, config);
  bench::StepOptions options;
  options.steps = options.warmup = 2;
  options.effort = {.batch_seconds = 1e-6, .seconds = 1e-6, .world = nullptr};
  const auto result = bench::bench_step(machine.ctx(), machine.world(), config, options);
  CHECK(result["cudnn_attention"]["cudnn"].size() == 2);
  CHECK(result["cudnn_attention"]["builtin"].empty());
  CHECK_THAT(bench::step_text(result), Contains("cuDNN computes 2 shapes of attention, the built-in kernels 0\n"));
  CHECK(result["system_allocations"] == 0);
  CHECK(result["environment"]["libraries"]["attention"] == "cuDNN 9.19.0");
}

}  // namespace trireme::test
