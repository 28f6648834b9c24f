#include "trainer/bench/machine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <thread>

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "trainer/bench/bandwidth.h"
#include "trainer/bench/products.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/kernel_time.h"

namespace trireme::bench {
namespace {

/// Figures are means over passes that each measure all of them, because another program on the other hyperthread of a core can slow down measurements
/// intermittently, by half.
constexpr size_t kPasses = 3;
constexpr std::array kPrecisions{DType::kBF16, DType::kF32};

struct ProductShape {
  int64_t rows, inputs, outputs;
};
constexpr std::array<ProductShape, 5> kProducts{{{512, 128, 512}, {512, 256, 1376}, {512, 512, 512}, {512, 1376, 512}, {512, 768, 4096}}};

struct AttentionCase {
  int64_t sequences, length, heads, head_size;
};
constexpr std::array<AttentionCase, 3> kAttention{{{4, 128, 8, 32}, {4, 256, 8, 64}, {1, 1024, 8, 64}}};

/// Elementwise operations of blocks, head and embedding at the sizes of a small LLaMA. Their operands exceed a core's private caches.
constexpr const char* kModel = R"(model: {layers: 1, hidden_size: 512, heads: 8, ffn_size: 1408, vocab_size: 2048}
training: {steps: 1}
data: {train: [none]}
)";
constexpr int64_t kRows = 512, kWorkingSet = int64_t{8} << 20;
const std::vector<std::string> kElementwise = {"bias_backward",         "rope_forward",       "add_rmsnorm_forward", "rmsnorm_backward",
                                               "add_layernorm_forward", "layernorm_backward", "swiglu_forward",      "swiglu_backward",
                                               "gelu_forward",          "gelu_backward",      "cross_entropy_sums",  "cross_entropy_backward",
                                               "embedding_forward",     "embedding_backward"};
/// Operations of the optimizer step, whose state exceeds all caches.
const std::vector<std::string> kUpdate = {"adamw_step", "sum_of_squares"};
constexpr int64_t kStateSet = int64_t{256} << 20;

/// Keeps the other cores busy with the same kind of work, as in training: cores share caches, memory and power, and hyperthreads share a core.
class BusyCores {
 public:
  BusyCores(int64_t cores, const std::function<void()>& work) {
    for (int64_t i = 0; i < cores; ++i)
      threads_.emplace_back([this, work] {
        while (!stop_) work();
      });
  }
  ~BusyCores() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

/// A few milliseconds of matrix products.
void some_products(const Context& like) { time_product(like, DType::kF32, {"", 512, 512, 512}, {.batch_seconds = 0.002, .seconds = 0.01}); }
void some_traffic(const Context& like, int64_t working_set) {
  Workbench bench(like);
  const int64_t elements = working_set / size_of(DType::kF32);
  const Tensor a = random_tensor(bench.ctx(), {elements}, DType::kF32, 1), b = random_tensor(bench.ctx(), {elements}, DType::kF32, 2);
  for (int i = 0; i < 20; ++i) add(bench.ctx(), a, a, b);
}

void add_products(std::vector<ProductSample>& samples, const Context& like, DType dtype, const Effort& effort, const std::function<void()>& done) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  for (const auto& [rows, inputs, outputs] : kProducts) {
    const ProductTiming timing = time_product(like, dtype, {"", rows, inputs, outputs}, effort);
    const int64_t bytes = size_of(dtype);
    samples.push_back({number(rows), number(outputs), number(inputs), bytes, false, timing.forward.median});
    samples.push_back({number(rows), number(inputs), number(outputs), bytes, false, timing.backward_input.median});
    samples.push_back({number(outputs), number(inputs), number(rows), bytes, true, timing.backward_weight.median});
    done();
  }
}

void add_attention(MachineSamples& samples, const Context& like, DType dtype, const Effort& effort, const std::function<void()>& done) {
  for (const auto& [sequences, length, heads, head_size] : kAttention) {
    Workbench bench(like);
    Context& ctx = bench.ctx();
    const AttentionShape shape{sequences, length, heads, heads, head_size};
    const int64_t rows = sequences * length, width = heads * head_size;
    const Tensor qkv = random_tensor(ctx, {rows, shape.columns()}, dtype, 1), out = random_tensor(ctx, {rows, width}, dtype, 2);
    const Tensor lse = random_tensor(ctx, {sequences, heads, length}, accumulator_of(dtype), 3);
    const Tensor dout = random_tensor(ctx, {rows, width}, dtype, 4), dqkv = random_tensor(ctx, {rows, shape.columns()}, dtype, 5);
    const Timing forward = measure(ctx, effort, [&](int64_t) { attention_forward(ctx, qkv, shape, out, lse); });
    const Timing backward = measure(ctx, effort, [&](int64_t) { attention_backward(ctx, dout, qkv, out, lse, shape, dqkv); });
    samples.attention.push_back({static_cast<double>(sequences), static_cast<double>(length), static_cast<double>(heads),
                                 static_cast<double>(head_size), size_of(dtype), forward.median, backward.median});
    done();
  }
}

std::vector<TrafficSample> traffic(const Context& like, DType dtype, const BandwidthOptions& options) {
  const ModelConfig model = resolve(parse_config(kModel, "the model of bench machine")).model;
  std::vector<TrafficSample> samples;
  for (const auto& row : bench_bandwidth(like, dtype, model, 1, options))
    samples.push_back({concat(row["kernel"].get<std::string>(), dtype == DType::kBF16 ? ", bf16" : ", fp32"),
                       traffic_bytes(row["bytes"].get<double>(), size_of(dtype), true), row["microseconds"].get<double>() / 1e6});
  return samples;
}

double smallest_operation(const Context& like, const Effort& effort) {
  Workbench bench(like);
  const Tensor a = random_tensor(bench.ctx(), {1}, DType::kF32, 1), b = random_tensor(bench.ctx(), {1}, DType::kF32, 2);
  return measure(bench.ctx(), effort, [&](int64_t) { add(bench.ctx(), a, a, b); }).median;
}

void add_pass(MachineSamples& samples, const Context& one, const Context& all, const Effort& effort, const std::function<void()>& done) {
  const int64_t others = all.threads - 1;
  // Less time per figure: there are many of them, and only their sum matters.
  Effort quick = effort;
  quick.seconds /= 4;
  quick.batch_seconds /= 4;
  for (const DType dtype : kPrecisions) {
    {
      const BusyCores busy(others, [&] { some_products(one); });
      add_products(samples.products, one, dtype, effort, done);
      add_attention(samples, one, dtype, effort, done);
    }
    if (others > 0) add_products(samples.shared_products, all, dtype, effort, done);
    const BusyCores busy(others, [&] { some_traffic(one, kWorkingSet); });
    std::ranges::copy(traffic(one, dtype, {kRows, kWorkingSet, quick, kElementwise}), std::back_inserter(samples.elementwise));
    done();
  }
  const BusyCores busy(others, [&] { some_traffic(one, kStateSet / 8); });
  std::ranges::copy(traffic(one, DType::kF32, {kRows, kStateSet, effort, kUpdate}), std::back_inserter(samples.memory_traffic));
  done();
}

/// Averages each sample over the passes, which are stored one after the other.
template <class Sample>
void average(std::vector<Sample>& samples, std::initializer_list<double Sample::*> times) {
  const size_t count = samples.size() / kPasses;
  for (double Sample::*seconds : times)
    for (size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (size_t pass = 0; pass < kPasses; ++pass) sum += samples[pass * count + i].*seconds;
      samples[i].*seconds = sum / kPasses;
    }
  samples.resize(count);
}

}  // namespace

int64_t machine_figures() {
  const size_t shared = usable_cores() > 1 ? kProducts.size() : 0;
  return static_cast<int64_t>(kPasses * (kPrecisions.size() * (kProducts.size() + kAttention.size() + 1 + shared) + 1));
}

MachineSamples measure_machine(const Context& ctx, const Effort& effort, const std::function<void()>& done) {
  MachineSamples samples;
  Context one = ctx, all = ctx;
  one.threads = 1;
  all.threads = usable_cores();
  samples.kernel_seconds = smallest_operation(one, effort);
  Effort part = effort;
  part.seconds /= kPasses;
  for (size_t pass = 0; pass < kPasses; ++pass) add_pass(samples, one, all, part, done);
  average(samples.products, {&ProductSample::seconds});
  average(samples.shared_products, {&ProductSample::seconds});
  average(samples.attention, {&AttentionSample::forward, &AttentionSample::backward});
  average(samples.elementwise, {&TrafficSample::seconds});
  average(samples.memory_traffic, {&TrafficSample::seconds});
  return samples;
}

std::vector<LinkSample> link_samples(const nlohmann::json& comm, int64_t ranks) {
  std::vector<LinkSample> samples;
  for (const auto& row : comm) {
    const std::string operation = row["operation"].get<std::string>();
    if (operation.starts_with("all_to_all")) continue;  // links are fitted to ring collectives and sends only
    samples.push_back({operation == "all_reduce"     ? LinkOperation::kAllReduce
                       : operation == "send_receive" ? LinkOperation::kSend
                                                     : LinkOperation::kAllGather,
                       ranks, row["bytes"].get<double>(), row["microseconds"].get<double>() / 1e6});
  }
  return samples;
}

}  // namespace trireme::bench
