#include "trainer/plan/shape_rates.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/attention.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/dims.h"

namespace trireme {
namespace {

/// Length of rows that tensor cores read at the full rate.
constexpr int64_t kFullAlignment = 16;

/// By `bench kernels` with ffn_size 5460 to 5462 on an H100, in bf16, relative to the same products with 5464
/// (bench/shapes_nvidia-h100_2026-11-27.md): harmonic means over the measured products of each kind. Rows of 8 bytes: 0.33 to 0.42 for forward and
/// input gradient, 0.26 and 0.30 for the weight gradient; 4 bytes: 0.33 to 0.42, 0.28 and 0.37; 2 bytes: 0.18 and 0.20, 0.026. Of an odd number of
/// elements only the inputs of a layer were measured, not its outputs.
struct AlignmentRate {
  int64_t bytes;
  double activation, weight_gradient;
};
constexpr std::array<AlignmentRate, 4> kAlignmentRates{{{16, 1, 1}, {8, 0.375, 0.28}, {4, 0.38, 0.315}, {2, 0.193, 0.0263}}};

/// Largest power of two that divides the bytes of a row, at most 16.
int64_t alignment_of_row(int64_t elements, int64_t element_bytes) {
  const int64_t bytes = elements * element_bytes;
  return std::min(kFullAlignment, bytes & -bytes);
}

/// The last entry, for 2 bytes, if none has this alignment.
const AlignmentRate& rate_of(int64_t alignment) {
  const auto* const found = std::ranges::find(kAlignmentRates, alignment, &AlignmentRate::bytes);
  return found != kAlignmentRates.end() ? *found : kAlignmentRates.back();
}

/// The rate of forward, input gradient and weight gradient together, which have equal numbers of FLOPs.
std::string percent_of(int64_t alignment) {
  const AlignmentRate& rate = rate_of(alignment);
  return concat(static_cast<int64_t>(100 * 3 / (2 / rate.activation + 1 / rate.weight_gradient) + 0.5), " %");
}

std::string nearest_text(int64_t below, int64_t above) {
  if (below <= 0) return concat("the nearest good value is ", above);
  if (above <= 0) return concat("the nearest good value is ", below);
  return concat("the nearest good values are ", below, " and ", above);
}

class ShapeWarnings {
 public:
  explicit ShapeWarnings(const Config& config)
      : config_(config),
        dtype_(precision_of(config.training).compute),
        multiple_(kFullAlignment / size_of(dtype_)),
        dims_(config.model, static_cast<int>(config.parallel.tensor)) {}

  std::vector<std::string> lines(bool own) {
    // In fp32 without TF32 products do not run on tensor cores.
    if (size_of(dtype_) != 2 && !config_.kernels.tf32) return {};
    // A head size of auto is hidden_size / heads, and even.
    const int64_t heads = dims_.D == dims_.N * dims_.H ? std::lcm(multiple_, 2 * dims_.N) : multiple_;
    add_rows("model.hidden_size", dims_.D, dims_.D, heads);
    if (own && size_of(dtype_) == 2 && config_.kernels.attention != AttentionEngine::kCudnn && !has_fast_attention(dims_.H, size_of(dtype_)))
      add_attention();
    else
      add_head_rows();
    add_rows("model.ffn_size", dims_.F, dims_.local_F, multiple_ * config_.parallel.tensor);
    return lines_;
  }

 private:
  int64_t alignment_of(int64_t row) const { return alignment_of_row(row, size_of(dtype_)); }

  /// `value` of `key` makes rows of `row` elements, and multiples of `good` make aligned ones.
  void add_rows(const char* key, int64_t value, int64_t row, int64_t good) {
    const int64_t alignment = alignment_of(row);
    if (alignment == kFullAlignment) return;
    const int64_t below = value / good * good;
    const std::string tensor = config_.parallel.tensor > 1 && row != value ? concat(" with parallel.tensor=", config_.parallel.tensor) : "";
    lines_.push_back(concat(key, "=", value, tensor, ": rows of ", row, " elements in ", config_.training.precision,
                            " are not a multiple of 16 bytes long; on an H100, matrix products with such rows ran at ", percent_of(alignment),
                            " of their rate", size_of(dtype_) == 2 ? "" : " in bf16, and TF32 was not measured", "; ",
                            nearest_text(below, below + good)));
  }

  /// Rows of queries, keys and values together, and of attention's result.
  void add_head_rows() {
    const int64_t packed = (dims_.local_N + 2 * dims_.local_K) * dims_.H, result = dims_.local_N * dims_.H;
    add_rows("model.head_size", dims_.H, alignment_of(packed) <= alignment_of(result) ? packed : result, multiple_);
  }

  void add_attention() {
    int64_t below = dims_.H, above = dims_.H;
    while (below > 0 && !has_fast_attention(below, size_of(dtype_))) --below;
    while (above <= 128 && !has_fast_attention(above, size_of(dtype_))) ++above;
    // Rates in bench/shapes_nvidia-h100_2026-11-27.md: 6.2 to 7.5 TFLOP/s forward, beside 211 and 272 for head sizes 32 and 96.
    lines_.push_back(concat("model.head_size=", dims_.H,
                            ": Trireme has no attention for tensor cores with this head size; on an H100, attention without them ran at about a "
                            "fortieth of the rate; ",
                            nearest_text(below, above <= 128 ? above : 0)));
  }

  const Config& config_;
  DType dtype_;
  int64_t multiple_;  ///< elements of 16 bytes
  Dims dims_;
  std::vector<std::string> lines_;
};

}  // namespace

double alignment_rate(int64_t inputs, int64_t outputs, int64_t element_bytes, bool weight_gradient) {
  const AlignmentRate& rate = rate_of(std::min(alignment_of_row(inputs, element_bytes), alignment_of_row(outputs, element_bytes)));
  return weight_gradient ? rate.weight_gradient : rate.activation;
}

bool has_fast_attention(int64_t head_size, int64_t element_bytes) { return element_bytes == 2 && cuda::flash_supports(head_size); }

std::vector<std::string> shape_warnings(const Config& config, bool own) { return ShapeWarnings(config).lines(own); }

}  // namespace trireme
