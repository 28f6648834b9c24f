#include "trainer/bench/machine.h"

#include <array>
#include <atomic>
#include <thread>

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "trainer/bench/bandwidth.h"
#include "trainer/bench/products.h"
#include "trainer/config/load.h"
#include "trainer/loop/environment.h"
#include "trainer/plan/kernel_time.h"

namespace trireme::bench {
namespace {

constexpr std::array kPrecisions{DType::kBF16, DType::kF32};

struct ProductShape {
  int64_t rows, inputs, outputs;
};
constexpr std::array<ProductShape, 5> kProducts{{{512, 128, 512}, {512, 256, 1376}, {512, 512, 512}, {512, 1376, 512}, {512, 768, 4096}}};

struct AttentionCase {
  int64_t sequences, length, heads, head_size;
};
constexpr std::array<AttentionCase, 3> kAttention{{{4, 128, 8, 32}, {4, 256, 8, 64}, {1, 1024, 8, 64}}};

/// Memory-bound kernels at the sizes of a small LLaMA; their operands go through more than a core's caches.
constexpr const char* kModel = R"(model: {layers: 1, hidden_size: 512, heads: 8, ffn_size: 1408, vocab_size: 2048}
training: {steps: 1}
data: {train: [none]}
)";
constexpr int64_t kRows = 512, kWorkingSet = int64_t{8} << 20;

/// Other cores at the same work meanwhile, as in training: cores share caches, memory, power, and two of them often one core.
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

/// A few milliseconds of it.
void some_products(const Context& like) { time_product(like, DType::kF32, {"", 512, 512, 512}, {.batch_seconds = 0.002, .seconds = 0.01}); }
void some_traffic(const Context& like) {
  Workbench bench(like);
  const int64_t elements = kWorkingSet / size_of(DType::kF32);
  const Tensor a = random_tensor(bench.ctx(), {elements}, DType::kF32, 1), b = random_tensor(bench.ctx(), {elements}, DType::kF32, 2);
  for (int i = 0; i < 20; ++i) add(bench.ctx(), a, a, b);
}

void add_products(MachineSamples& samples, const Context& like, DType dtype, const Effort& effort, const std::function<void()>& done) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  for (const auto& [rows, inputs, outputs] : kProducts) {
    const ProductTiming timing = time_product(like, dtype, {"", rows, inputs, outputs}, effort);
    const int64_t bytes = size_of(dtype);
    samples.products.push_back({number(rows), number(outputs), number(inputs), bytes, false, timing.forward.median});
    samples.products.push_back({number(rows), number(inputs), number(outputs), bytes, false, timing.backward_input.median});
    samples.products.push_back({number(outputs), number(inputs), number(rows), bytes, true, timing.backward_weight.median});
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

void add_traffic(MachineSamples& samples, const Context& like, DType dtype, const Effort& effort) {
  const ModelConfig model = resolve(parse_config(kModel, "the model of bench machine")).model;
  for (const auto& row : bench_bandwidth(like, dtype, model, 1, {kRows, kWorkingSet, effort}))
    samples.traffic.push_back({concat(row["kernel"].get<std::string>(), dtype == DType::kBF16 ? ", bf16" : ", fp32"),
                               traffic_bytes(row["bytes"].get<double>(), size_of(dtype), true), row["microseconds"].get<double>() / 1e6});
}

double smallest_operation(const Context& like, const Effort& effort) {
  Workbench bench(like);
  const Tensor a = random_tensor(bench.ctx(), {1}, DType::kF32, 1), b = random_tensor(bench.ctx(), {1}, DType::kF32, 2);
  return measure(bench.ctx(), effort, [&](int64_t) { add(bench.ctx(), a, a, b); }).median;
}

}  // namespace

int64_t machine_figures() { return static_cast<int64_t>(kPrecisions.size() * (kProducts.size() + kAttention.size() + 1)); }

MachineSamples measure_machine(const Context& ctx, const Effort& effort, const std::function<void()>& done) {
  MachineSamples samples;
  samples.threads = ctx.threads;
  samples.kernel_seconds = smallest_operation(ctx, effort);
  // There are many of these, and only their sum counts.
  Effort quick = effort;
  quick.seconds /= 4;
  quick.batch_seconds /= 4;
  const int64_t others = usable_cores() / ctx.threads - 1;
  for (const DType dtype : kPrecisions) {
    {
      const BusyCores busy(others, [&] { some_products(ctx); });
      add_products(samples, ctx, dtype, effort, done);
      add_attention(samples, ctx, dtype, effort, done);
    }
    const BusyCores busy(others, [&] { some_traffic(ctx); });
    add_traffic(samples, ctx, dtype, quick);
    done();
  }
  return samples;
}

std::vector<LinkSample> link_samples(const nlohmann::json& comm, int64_t ranks) {
  std::vector<LinkSample> samples;
  for (const auto& row : comm) {
    const std::string operation = row["operation"].get<std::string>();
    samples.push_back({operation == "all_reduce"     ? LinkOperation::kAllReduce
                       : operation == "send_receive" ? LinkOperation::kSend
                                                     : LinkOperation::kAllGather,
                       ranks, row["bytes"].get<double>(), row["microseconds"].get<double>() / 1e6});
  }
  return samples;
}

}  // namespace trireme::bench
