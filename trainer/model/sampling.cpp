#include "trainer/model/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// Tokens from the most to the least likely, sorted lazily.
class Ranking {
 public:
  explicit Ranking(std::span<const double> logits) : logits_(logits), order_(logits.size()) { std::iota(order_.begin(), order_.end(), 0); }

  int32_t operator[](size_t place) {
    while (place >= sorted_) sort_more();
    return order_[place];
  }

 private:
  void sort_more() {
    constexpr size_t kFirst = 64;  // enough for most draws
    const auto before = [&](int32_t a, int32_t b) {
      const double x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    };
    const size_t count = std::min(order_.size(), std::max(kFirst, 4 * sorted_));
    const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(sorted_), end = order_.begin() + static_cast<std::ptrdiff_t>(count);
    if (end != order_.end()) std::nth_element(begin, end, order_.end(), before);
    std::sort(begin, end, before);
    sorted_ = count;
  }

  std::span<const double> logits_;
  std::vector<int32_t> order_;
  size_t sorted_ = 0;
};

}  // namespace

int32_t sample_token(const std::vector<double>& all_logits, const SamplingOptions& options, double uniform) {
  std::span<const double> logits = all_logits;
  if (options.vocab_size > 0) logits = logits.first(std::min(logits.size(), static_cast<size_t>(options.vocab_size)));
  if (std::any_of(logits.begin(), logits.end(), [](double x) { return std::isnan(x) || x == INFINITY; }))
    throw DataError("the model's logits are not finite: some weights are not finite, or too large for the precision");
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<int32_t>(best - logits.begin());

  const bool all = options.top_k == 0 || static_cast<size_t>(options.top_k) >= logits.size();
  const size_t candidates = all ? logits.size() : static_cast<size_t>(options.top_k);
  Ranking ranking(logits);
  const auto weight_of = [&](double logit) { return std::exp((logit - *best) / options.temperature); };
  const auto weight = [&](size_t place) { return weight_of(logits[static_cast<size_t>(ranking[place])]); };
  double total = 0;
  if (all) {
    for (const double logit : logits) total += weight_of(logit);
  } else {
    for (size_t place = 0; place < candidates; ++place) total += weight(place);
  }
  size_t kept = candidates;
  double mass = total;
  if (options.top_p < 1) {
    constexpr double kRounding = 1e-12;  // relative: `total` is summed in token order, `mass` in order of likelihood
    const double enough = options.top_p * total * (1 - kRounding);
    kept = 0;
    mass = 0;
    while (kept < candidates && (kept == 0 || mass < enough)) mass += weight(kept++);
  }

  double point = uniform * mass, passed = 0;
  for (size_t place = 0;; ++place) {
    const double here = weight(place);
    passed += here;
    if (point < here || place + 1 == kept || passed >= mass) return ranking[place];
    point -= here;
  }
}

}  // namespace trireme
