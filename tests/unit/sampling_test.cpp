#include "trainer/model/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

/// The definition: sort all tokens, truncate, draw.
int32_t drawn_from_all(const std::vector<double>& logits, const SamplingOptions& options, double uniform) {
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
  while (kept < weights.size() && (kept == 0 || mass < options.top_p * total * (1 - 1e-12))) mass += weights[kept++];
  double point = uniform * mass;
  for (size_t i = 0; i + 1 < kept; ++i) {
    if (point < weights[i]) return order[i];
    point -= weights[i];
  }
  return order[kept - 1];
}

TEST_CASE("sampling with a partial sort draws the same tokens as with a full sort") {
  const uint64_t key = random_key(5, "sampling");
  uint64_t draw = 0;
  const auto uniform = [&] { return random_uniform(key, draw++); };
  for (const size_t size : {1, 5, 63, 64, 65, 700, 3000}) {
    for (const double spread : {0.0, 0.1, 3.0}) {
      std::vector<double> logits(size);
      for (double& logit : logits) logit = std::round(spread * random_normal(key, draw++) * 4) / 4;  // with ties
      for (const SamplingOptions& options : {SamplingOptions{},
                                             {.temperature = 0},
                                             {.temperature = 0.3},
                                             {.top_k = 1},
                                             {.top_k = 3},
                                             {.top_k = 100},
                                             {.top_p = 0.0},
                                             {.top_p = 0.31},
                                             {.top_p = 0.97},
                                             {.temperature = 2, .top_k = 500, .top_p = 0.83}}) {
        for (int i = 0; i < 20; ++i) {
          const double point = i == 0   ? 0
                               : i == 1 ? 1 - 0x1p-30
                                        : uniform();  // at the upper end rounding of the total decides, and the orders of summation differ
          CAPTURE(size, spread, options.temperature, options.top_k, options.top_p, point);
          REQUIRE(sample_token(logits, options, point) == drawn_from_all(logits, options, point));
        }
      }
    }
  }
}

TEST_CASE("sampling draws tokens with their probabilities") {
  const std::vector<double> logits = {std::log(1.0), std::log(2.0), std::log(4.0), std::log(1.0)};
  const uint64_t key = random_key(6, "frequencies");
  std::map<int32_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[sample_token(logits, {}, random_uniform(key, static_cast<uint64_t>(i)))];
  for (int32_t token = 0; token < 4; ++token) {
    const double share = std::exp(logits[static_cast<size_t>(token)]) / 8;
    CHECK(std::abs(counts[token] - share * kDraws) < 5 * std::sqrt(kDraws * share * (1 - share)));  // five standard deviations
  }
}

TEST_CASE("sampling refuses logits that are not finite") {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    CHECK_THROWS_AS(sample_token({0.0, bad, 1.0}, {}, 0.5), DataError);
    CHECK_THROWS_AS(sample_token({0.0, bad, 1.0}, {.temperature = 0}, 0.5), DataError);
  }
  CHECK(sample_token({-HUGE_VAL, 0.0, -HUGE_VAL}, {}, 1 - 0x1p-53) == 1);  // impossible tokens
}

TEST_CASE("sampling never draws an id outside the tokenizer's vocabulary, even the most likely one") {
  const std::vector<double> logits = {0.0, 1.0, 0.5, 9.0, std::nan("")};  // rows 3 and 4 have no token
  const uint64_t key = random_key(7, "vocabulary");
  for (SamplingOptions options : {SamplingOptions{}, {.temperature = 0}, {.temperature = 1e6}, {.top_k = 1}, {.top_k = 5}, {.top_p = 0.9}}) {
    options.vocab_size = 3;
    CAPTURE(options.temperature, options.top_k, options.top_p);
    for (uint64_t i = 0; i < 200; ++i) {
      const double uniform = random_uniform(key, i);
      const int32_t token = sample_token(logits, options, uniform);
      REQUIRE(token < 3);
      REQUIRE(token == drawn_from_all({0.0, 1.0, 0.5}, options, uniform));
    }
  }
  CHECK(sample_token({0.0, 1.0}, {.temperature = 0, .vocab_size = 300}, 0) == 1);  // the tokenizer has more ids than the model has rows
}

}  // namespace
}  // namespace trireme::test
