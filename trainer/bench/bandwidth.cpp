#include "trainer/bench/bandwidth.h"

#include <algorithm>
#include <set>

#include "kernels/ops/activation.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/transfer.h"
#include "trainer/model/dims.h"
#include "trainer/model/rope_frequencies.h"

namespace trireme::bench {
namespace {

using Call = std::function<void()>;

struct Case {
  const char* name;
  double bytes;                ///< minimum traffic of one call
  std::function<Call()> make;  ///< creates a call with its own operands
};

constexpr double kEpsilon = 1e-5;
constexpr int64_t kPositions = 2048;

/// The cases of one model. All operands, including results, are filled with random values, because the system does not back unwritten memory.
class Cases {
 public:
  Cases(Context& ctx, DType dtype, const Dims& dims, int64_t rows)
      : ctx_(ctx),
        dtype_(dtype),
        wide_(accumulator_of(dtype)),
        d_(dims),
        rows_(rows),
        element_(static_cast<double>(size_of(dtype))),
        residual_(static_cast<double>(rows * dims.D) * element_) {}

  std::vector<Case> all() {
    std::vector<Case> cases;
    for (const auto& group : {elementwise(), rms_norms(), layer_norms(), activations(), loss(), embeddings(), optimizer()})
      cases.insert(cases.end(), group.begin(), group.end());
    return cases;
  }

 private:
  Tensor random(const Shape& shape) { return random_tensor(ctx_, shape, dtype_, ++key_); }
  Tensor random_wide(const Shape& shape) { return random_tensor(ctx_, shape, wide_, ++key_); }
  Tensor residual() { return random({rows_, d_.D}); }
  Tensor statistic() { return random_wide({rows_}); }

  std::vector<Case> elementwise();
  std::vector<Case> rms_norms();
  std::vector<Case> layer_norms();
  std::vector<Case> activations();
  std::vector<Case> loss();
  std::vector<Case> embeddings();
  std::vector<Case> optimizer();

  Context& ctx_;
  DType dtype_, wide_;
  Dims d_;
  int64_t rows_;
  double element_;   ///< bytes
  double residual_;  ///< bytes of [M,D]
  uint64_t key_ = 0;
};

std::vector<Case> Cases::elementwise() {
  std::vector<Case> cases{
      {"add", 3 * residual_, [this] { return [this, a = residual(), b = residual(), out = residual()] { add(ctx_, a, b, out); }; }},
      {"cast to fp32", residual_ + residual_ / element_ * 4,
       [this] {
         return [this, from = residual(), to = random_tensor(ctx_, {rows_, d_.D}, DType::kF32)] { copy(ctx_, from, to); };
       }},
      {"bias_backward", residual_, [this] { return [this, dy = residual(), dbias = random_wide({d_.D})] { bias_backward(ctx_, dy, dbias); }; }}};
  const int64_t turned = d_.N + d_.K, heads = d_.N + 2 * d_.K;
  if (d_.H % 2 == 0)
    cases.push_back({"rope_forward", 2 * static_cast<double>(rows_ * turned * d_.H) * element_, [this, turned, heads] {
                       const int64_t positions = rows_ % kPositions == 0 ? kPositions : rows_;
                       const Tensor table = random_wide({positions, d_.H});
                       rope_table(ctx_, rope_frequencies(10000, d_.H, {}), table);
                       return [this, turned, table, qkv = random({rows_, heads * d_.H})] { rope_forward(ctx_, table, turned, d_.H, qkv); };
                     }});
  return cases;
}

std::vector<Case> Cases::rms_norms() {
  return {{"rmsnorm_forward", 2 * residual_,
           [this] {
             return
                 [this, x = residual(), w = random({d_.D}), y = residual(), rstd = statistic()] { rmsnorm_forward(ctx_, x, w, kEpsilon, y, rstd); };
           }},
          {"add_rmsnorm_forward", 4 * residual_,
           [this] {
             return [this, a = residual(), b = residual(), w = random({d_.D}), sum = residual(), y = residual(), rstd = statistic()] {
               add_rmsnorm_forward(ctx_, a, b, w, kEpsilon, sum, y, rstd);
             };
           }},
          {"rmsnorm_backward", 4 * residual_, [this] {
             return [this, dy = residual(), x = residual(), w = random({d_.D}), rstd = statistic(), past = residual(), dx = residual(),
                     dw = random_wide({d_.D})] { rmsnorm_backward(ctx_, dy, x, w, rstd, past, dx, dw); };
           }}};
}

std::vector<Case> Cases::layer_norms() {
  return {{"layernorm_forward", 2 * residual_,
           [this] {
             return [this, x = residual(), w = random({d_.D}), b = random({d_.D}), y = residual(), mean = statistic(), rstd = statistic()] {
               layernorm_forward(ctx_, x, w, b, kEpsilon, y, mean, rstd);
             };
           }},
          {"add_layernorm_forward", 4 * residual_,
           [this] {
             return [this, x = residual(), z = residual(), w = random({d_.D}), b = random({d_.D}), sum = residual(), y = residual(),
                     mean = statistic(), rstd = statistic()] { add_layernorm_forward(ctx_, x, z, w, b, kEpsilon, sum, y, mean, rstd); };
           }},
          {"layernorm_backward", 4 * residual_, [this] {
             return [this, dy = residual(), x = residual(), w = random({d_.D}), mean = statistic(), rstd = statistic(), past = residual(),
                     dx = residual(), dw = random_wide({d_.D}),
                     db = random_wide({d_.D})] { layernorm_backward(ctx_, dy, x, w, mean, rstd, past, dx, dw, db); };
           }}};
}

std::vector<Case> Cases::activations() {
  const double inner = static_cast<double>(rows_ * d_.F) * element_;
  const Shape one{rows_, d_.F}, both{rows_, 2 * d_.F};
  return {{"swiglu_forward", 3 * inner, [=, this] { return [this, x = random(both), y = random(one)] { swiglu_forward(ctx_, x, y); }; }},
          {"swiglu_backward", 5 * inner,
           [=, this] { return [this, dy = random(one), x = random(both), dx = random(both)] { swiglu_backward(ctx_, dy, x, dx); }; }},
          {"geglu_forward", 3 * inner, [=, this] { return [this, x = random(both), y = random(one)] { geglu_forward(ctx_, x, y, Gelu::kTanh); }; }},
          {"geglu_backward", 5 * inner,
           [=, this] { return [this, dy = random(one), x = random(both), dx = random(both)] { geglu_backward(ctx_, dy, x, dx, Gelu::kTanh); }; }},
          {"gelu_forward", 2 * inner, [=, this] { return [this, x = random(one), y = random(one)] { gelu_forward(ctx_, x, y, Gelu::kTanh); }; }},
          {"gelu_backward", 3 * inner,
           [=, this] { return [this, dy = random(one), x = random(one), dx = random(one)] { gelu_backward(ctx_, dy, x, dx, Gelu::kTanh); }; }},
          {"gelu_erf_forward", 2 * inner, [=, this] { return [this, x = random(one), y = random(one)] { gelu_forward(ctx_, x, y, Gelu::kErf); }; }},
          {"gelu_erf_backward", 3 * inner,
           [=, this] { return [this, dy = random(one), x = random(one), dx = random(one)] { gelu_backward(ctx_, dy, x, dx, Gelu::kErf); }; }}};
}

/// The passes separately, because tensor ranks reduce between them.
std::vector<Case> Cases::loss() {
  const double logits = static_cast<double>(rows_ * d_.V) * element_;
  const VocabRange range{0, d_.V};
  const auto make = [this] { return random({rows_, d_.V}); };
  return {
      {"cross_entropy_sums", logits,
       [=, this] {
         return [=, this, x = make(), row_max = statistic(), sums = random_wide({2, rows_})] { cross_entropy_sums(ctx_, x, range, row_max, sums); };
       }},
      {"cross_entropy_backward", 2 * logits, [=, this] {
         // In place, so repeated calls process their own result: a large maximum and sum keep every softmax near zero and the values finite.
         const Tensor row_max = random_wide({rows_}), sums = random_wide({2, rows_}), scale = random_tensor(ctx_, {1}, DType::kF64);
         fill(ctx_, 8, row_max);
         fill(ctx_, static_cast<double>(d_.V), sums);
         fill(ctx_, 1.0 / static_cast<double>(rows_), scale);
         return [=, this, x = make(), targets = random_tokens(ctx_, rows_, d_.V)] {
           cross_entropy_backward(ctx_, targets, range, row_max, sums, scale, x);
         };
       }}};
}

std::vector<Case> Cases::embeddings() {
  const Tensor tokens = random_tokens(ctx_, rows_, d_.V);
  const Tensor host = to_host(ctx_, tokens);
  const auto touched = static_cast<double>(std::set<int32_t>(host.data<int32_t>(), host.data<int32_t>() + rows_).size());
  const double row = static_cast<double>(d_.D);
  return {{"embedding_forward", residual_ + touched * row * element_,
           [=, this] {
             return [=, this, w = random({d_.V, d_.D}), y = residual()] { embedding_forward(ctx_, tokens, w, 0, d_.V, y); };
           }},
          {"embedding_backward", residual_ + 2 * touched * row * static_cast<double>(size_of(wide_)), [=, this] {
             return [=, this, dy = residual(), dw = random_wide({d_.V, d_.D})] { embedding_backward(ctx_, tokens, dy, 0, d_.V, dw); };
           }}};
}

std::vector<Case> Cases::optimizer() {
  const int64_t count = rows_ * d_.D;
  const double master = static_cast<double>(count * size_of(wide_));
  return {{"adamw_step", 7 * master,
           [=, this] {
             const Tensor scalars = random_tensor(ctx_, {kStepScalars}, DType::kF64), v = random_wide({count});
             fill(ctx_, 1, scalars);
             fill(ctx_, 1e-4, scalars.flat(kLearningRate, 1));
             fill(ctx_, 0.5, v);  // a second moment is not negative
             return [=, this, slices = std::vector<AdamWSlice>{{random_wide({count}), random_wide({count}), random_wide({count}), v, true}}] {
               adamw_step(ctx_, AdamW{.weight_decay = 0.1}, scalars, slices);
             };
           }},
          {"sum_of_squares", master, [=, this] {
             return [=, this, tensors = std::vector<Tensor>{random_wide({count})}, sum = random_tensor(ctx_, {1}, DType::kF64)] {
               sum_of_squares(ctx_, tensors, sum);
             };
           }}};
}

}  // namespace

double copy_bandwidth(const Context& like, const BandwidthOptions& options) {
  Workbench bench(like);
  const int64_t count = std::max<int64_t>(options.working_set / 2 / size_of(DType::kF32), 1);
  const Tensor from = random_tensor(bench.ctx(), {count}, DType::kF32, 1), to = random_tensor(bench.ctx(), {count}, DType::kF32, 2);
  const Timing timing = measure(bench.ctx(), options.effort, [&](int64_t) { copy(bench.ctx(), from, to); });
  return 2 * static_cast<double>(from.bytes()) / timing.median;
}

nlohmann::ordered_json bench_bandwidth(const Context& like, DType dtype, const ModelConfig& model, double copy_bytes_per_second,
                                       const BandwidthOptions& options) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const size_t count = [&] {
    Workbench bench(like);
    return Cases(bench.ctx(), dtype, Dims(model, 1), options.rows).all().size();
  }();
  for (size_t i = 0; i < count; ++i) {
    Workbench bench(like);
    Cases cases(bench.ctx(), dtype, Dims(model, 1), options.rows);
    const Case chosen = cases.all()[i];
    if (!options.kernels.empty() && std::ranges::find(options.kernels, chosen.name) == options.kernels.end()) continue;
    const auto sets = static_cast<int64_t>(static_cast<double>(options.working_set) / chosen.bytes) + 2;
    std::vector<Call> calls;
    for (int64_t s = 0; s < sets; ++s) calls.push_back(chosen.make());
    const Timing timing = measure(bench.ctx(), options.effort, [&](int64_t call) { calls[static_cast<size_t>(call % sets)](); });
    const double rate = chosen.bytes / timing.median;
    rows.push_back({{"kernel", chosen.name},
                    {"microseconds", timing.median * 1e6},
                    {"bytes", chosen.bytes},
                    {"gb_per_second", rate / 1e9},
                    {"share_of_copy", rate / copy_bytes_per_second}});
  }
  TRIREME_CHECK(options.kernels.empty() || rows.size() == options.kernels.size(), "unknown kernel in BandwidthOptions::kernels");
  return rows;
}

}  // namespace trireme::bench
