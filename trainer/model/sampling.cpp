#include "trainer/model/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme {

int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) order.resize(static_cast<size_t>(options.top_k));

  std::vector<double> weights;
  const double largest = logits[static_cast<size_t>(order.front())];
  for (const int32_t token : order) weights.push_back(std::exp((logits[static_cast<size_t>(token)] - largest) / options.temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t kept = 0;
  double mass = 0;
  while (kept < weights.size() && (kept == 0 || mass < options.top_p * total)) mass += weights[kept++];

  double point = uniform * mass;
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (point < weights[i]) return order[i];
    point -= weights[i];
  }
  return order[kept - 1];
}

}  // namespace trireme
