#include "kernels/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/rng.h"
#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, columns;
  VocabRange range;
};
constexpr Case kCases[] = {{1, 1, {0, 1}},     {3, 5, {0, 5}},   {7, 19, {7, 17}}, {33, 130, {0, 129}}, {5, 301, {11, 257}}, {301, 130, {60, 121}},
                           {9, 136, {7, 131}}, {3, 64, {0, 64}}, {4, 128, {9, 0}}, {2, 1000, {0, 999}}, {3, 5003, {4, 4999}}};
constexpr int64_t kVocabulary = 301;

// Sums of blocks of at most 1024 fp32 exponentials of a couple of ulp each.
constexpr double kTolerance = 2e-6;

/// Some targets are masked, some are on other ranks, the others are on this rank.
std::vector<double> targets(int64_t rows, int64_t vocabulary) {
  std::vector<double> values;
  for (int64_t m = 0; m < rows; ++m) {
    const double token = static_cast<double>(random_bits(5, static_cast<uint64_t>(m)) % static_cast<uint64_t>(vocabulary));
    values.push_back(m % 5 == 2 ? -100 : token);
  }
  return values;
}

Operation own_sums(const Case& c) {
  return {"cross_entropy_sums",
          {input("logits", {c.rows, c.columns}), wide(assigned("row_max", {c.rows})), wide(assigned("sums", {2, c.rows}))},
          [c](Context& ctx, const std::vector<Tensor>& t) { cross_entropy_sums(ctx, t[0], c.range, t[1], t[2]); }};
}
Operation rescaled_sums(const Case& c) {
  return {"cross_entropy_rescale",
          {input("logits", {c.rows, c.columns}), integers("targets", {c.rows}, targets(c.rows, kVocabulary)), wide(input("row_max", {c.rows})),
           wide(in_place("sums", {2, c.rows}))},
          [c](Context& ctx, const std::vector<Tensor>& t) { cross_entropy_rescale(ctx, t[0], t[1], c.range, t[2], t[3]); }};
}
/// The maxima of these rows on this rank, or on another rank where that is higher.
std::vector<double> maxima_of_ranks(std::vector<double> own) {
  for (size_t m = 0; m < own.size(); ++m) own[m] = std::max(own[m] + (m % 3 == 0 ? 0 : 0.37 * static_cast<double>(m % 7)), -1.5);
  return own;
}
Operation total_loss(int64_t rows) {
  return {"cross_entropy_loss",
          {integers("targets", {rows}, targets(rows, kVocabulary)), wide(input("sums", {2, rows})), always_f64(added_to("loss", {1}, {0.5}))},
          [](Context& ctx, const std::vector<Tensor>& t) { cross_entropy_loss(ctx, t[0], t[1], t[2]); }};
}
Operation backward(const Case& c) {
  return {"cross_entropy_backward",
          {integers("targets", {c.rows}, targets(c.rows, kVocabulary)), wide(input("row_max", {c.rows})), wide(input("sums", {2, c.rows})),
           always_f64(input("scale", {1}, {0.25})), in_place("logits", {c.rows, c.columns})},
          [c](Context& ctx, const std::vector<Tensor>& t) { cross_entropy_backward(ctx, t[0], c.range, t[1], t[2], t[3], t[4]); }};
}
/// The passes of the forward for a vocabulary on one rank.
Operation whole_loss(const Case& c) {
  return {"cross_entropy",
          {input("logits", {c.rows, c.columns}), integers("targets", {c.rows}, targets(c.rows, c.range.valid)), wide(assigned("row_max", {c.rows})),
           wide(assigned("sums", {2, c.rows})), always_f64(added_to("loss", {1}, {0}))},
          [c](Context& ctx, const std::vector<Tensor>& t) {
            cross_entropy_sums(ctx, t[0], c.range, t[2], t[3]);
            cross_entropy_rescale(ctx, t[0], t[1], c.range, t[2], t[3]);
            cross_entropy_loss(ctx, t[1], t[3], t[4]);
          }};
}

struct LossAndGradient {
  double loss = 0;
  std::vector<double> gradient;  // [M,V]
};

/// The textbook formulas: -sum log softmax, and softmax - one_hot.
LossAndGradient textbook(const std::vector<double>& logits, const std::vector<double>& tokens, int64_t vocabulary) {
  LossAndGradient result{0, std::vector<double>(logits.size(), 0.0)};
  for (size_t m = 0; m < tokens.size(); ++m) {
    if (tokens[m] < 0) continue;
    const double* row = logits.data() + m * static_cast<size_t>(vocabulary);
    const double highest = *std::max_element(row, row + vocabulary);
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(row[v] - highest);
    const auto target = static_cast<int64_t>(tokens[m]);
    result.loss -= row[target] - highest - std::log(sum);
    for (int64_t v = 0; v < vocabulary; ++v) {
      result.gradient[static_cast<int64_t>(m) * vocabulary + v] = std::exp(row[v] - highest) / sum - (v == target ? 1 : 0);
    }
  }
  return result;
}

/// The same from ranges of the vocabulary, each with `padding` more columns than tokens, reduced by max and sum as tensor ranks do.
LossAndGradient from_ranges(const std::vector<double>& logits, const std::vector<double>& tokens, int64_t vocabulary,
                            const std::vector<VocabRange>& ranges, int64_t padding, Device device, DType dtype) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const auto on_rank = [&](Operation operation, const VocabRange& range) {
    for (Operand& operand : operation.operands) {
      if (operand.name == "targets") operand.values = tokens;
      if (operand.name == "scale") operand.values = {1};
      if (operand.name != "logits") continue;
      const int64_t columns = range.valid + padding;
      operand.values.assign(static_cast<size_t>(rows * columns), 1e4);  // larger than any logit, so that use of the padding is detected
      for (int64_t m = 0; m < rows; ++m) {
        std::copy_n(logits.begin() + m * vocabulary + range.begin, range.valid, operand.values.begin() + m * columns);
      }
    }
    return operation;
  };
  const auto set = [](Operation operation, const std::string& name, const std::vector<double>& values) {
    for (Operand& operand : operation.operands) {
      if (operand.name == name) operand.values = values;
    }
    return operation;
  };
  std::vector<double> row_max(tokens.size(), -INFINITY), sums(2 * tokens.size(), 0.0);
  std::vector<std::vector<double>> of_ranks;
  for (const VocabRange& range : ranges) {
    const Values values = run(on_rank(own_sums({rows, range.valid + padding, range}), range), device, dtype);
    for (size_t m = 0; m < tokens.size(); ++m) row_max[m] = std::max(row_max[m], values[1][m]);
    of_ranks.push_back(values[2]);
  }
  for (size_t r = 0; r < ranges.size(); ++r) {
    const Operation rescaled = set(on_rank(rescaled_sums({rows, ranges[r].valid + padding, ranges[r]}), ranges[r]), "row_max", row_max);
    const Values values = run(set(rescaled, "sums", of_ranks[r]), device, dtype);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[3][i];
  }
  LossAndGradient result{0, std::vector<double>(logits.size(), 0.0)};
  result.loss = run(set(set(total_loss(rows), "sums", sums), "targets", tokens), device, dtype)[2][0] - 0.5;
  for (const VocabRange& range : ranges) {
    const int64_t columns = range.valid + padding;
    Operation last = set(set(on_rank(backward({rows, columns, range}), range), "row_max", row_max), "sums", sums);
    const std::vector<double> gradient = run(last, device, dtype)[4];
    for (int64_t m = 0; m < rows; ++m) {
      const auto row = gradient.begin() + m * columns;
      std::copy_n(row, range.valid, result.gradient.begin() + m * vocabulary + range.begin);
      for (int64_t c = range.valid; c < columns; ++c) CHECK(gradient[m * columns + c] == 0);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("cross-entropy: engines agree") {
  for (const Case& c : kCases) {
    const Operation own = own_sums(c);
    check_engines(own, kTolerance);
    Operation sums = following(rescaled_sums(c), own);
    sums.operands[2].values = maxima_of_ranks(sums.operands[2].values);
    check_engines(sums, kTolerance);
    check_engines(following(total_loss(c.rows), sums), kTolerance);
    check_engines(following(backward(c), sums), kTolerance);
  }
}

TEST_CASE("cross-entropy: gradients") {
  for (const Case& c : kCases) {
    if (c.range.begin != 0) continue;  // the loss needs the whole vocabulary
    check_gradients(whole_loss(c), "loss", backward(c), "scale", {{"logits", "logits"}});
  }
}

TEST_CASE("cross-entropy: ranges of the vocabulary give the loss and gradient of the whole vocabulary") {
  constexpr int64_t kRows = 13, kTokens = 23;
  const std::vector<double> tokens = targets(kRows, kTokens);
  std::vector<double> logits = input("logits", {kRows, kTokens}).values;
  for (int64_t v = 0; v < kTokens; ++v) {
    logits[v] *= 40;                                                        // a peaked row
    logits[kTokens + v] -= 500;                                             // a row far below zero
    if ((v < 12) != (tokens[3] < 12)) logits[3 * kTokens + v] = -INFINITY;  // on one of two ranks no token is possible
  }
  const LossAndGradient expected = textbook(logits, tokens, kTokens);
  const std::vector<std::vector<VocabRange>> splits = {{{0, 23}}, {{0, 12}, {12, 11}}, {{0, 8}, {8, 8}, {16, 7}}, {{0, 12}, {12, 11}, {23, 0}}};
  for (const auto& ranges : splits) {
    for (int64_t padding : {0, 3}) {
      const LossAndGradient exact = from_ranges(logits, tokens, kTokens, ranges, padding, Device::kReference, DType::kF64);
      CHECK(exact.loss == Approx(expected.loss).epsilon(1e-13));
      CHECK(normalised_error(exact.gradient, expected.gradient) < 1e-13);
      for (Device device : devices()) {
        const LossAndGradient fast = from_ranges(logits, tokens, kTokens, ranges, padding, device, DType::kF32);
        CHECK(fast.loss == Approx(expected.loss).epsilon(1e-6));
        CHECK(normalised_error(fast.gradient, expected.gradient) < 2e-5);  // logits near 500 have a rounding error of 3e-5
      }
    }
  }
}

TEST_CASE("cross-entropy: a range without tokens has maximum -infinity, and a batch without targets has loss 0") {
  for (Device device : devices()) {
    const Values empty = run(own_sums({3, 2, {23, 0}}), device, DType::kF32);
    CHECK(empty[1] == std::vector<double>(3, -INFINITY));
    CHECK(empty[2] == std::vector<double>{0, 0, 0, -INFINITY, -INFINITY, -INFINITY});
    const std::vector<double> logits = input("logits", {2, 5}).values;
    const LossAndGradient masked = from_ranges(logits, {-1, -100}, 5, {{0, 3}, {3, 2}}, 1, device, DType::kF32);
    CHECK(masked.loss == 0);
    CHECK(masked.gradient == std::vector<double>(10, 0.0));
  }
}

TEST_CASE("cross-entropy: the gradient of a likely target is rounded once") {
  const Case c{3, 64, {0, 64}};
  const auto likely = [&](Operation operation) {
    for (Operand& operand : operation.operands) {
      if (operand.name == "targets") operand.values = {5, 5, 5};
      if (operand.name != "logits") continue;
      for (int64_t m = 0; m < c.rows; ++m) operand.values[static_cast<size_t>(m * c.columns + 5)] = 12;  // a probability of 0.999
      operand.floor = 0.25;  // both terms of the difference are as large as the scale
    }
    return operation;
  };
  const Operation sums = following(likely(rescaled_sums(c)), likely(own_sums(c)));
  check_engines(following(likely(backward(c)), sums), kTolerance);
}

TEST_CASE("cross-entropy: a maximum that rises within its row, and logits of -infinity") {
  const Case c{5, 1001, {0, 999}};
  Operation operation = own_sums(c);
  std::vector<double>& logits = operation.operands[0].values;
  logits.assign(static_cast<size_t>(c.rows * c.columns), -INFINITY);  // the last row stays so
  for (int64_t v = 0; v < c.range.valid; ++v) {
    logits[v] = static_cast<double>(v - c.range.valid) / 8;
    logits[c.columns + v] = static_cast<double>(-v) / 8;
    if (v >= 600) logits[2 * c.columns + v] = logits[v];
    if (v == c.range.valid - 1) logits[3 * c.columns + v] = -2.5;
  }
  for (int64_t m = 0; m < c.rows; ++m)
    for (int64_t v = c.range.valid; v < c.columns; ++v) logits[m * c.columns + v] = 1e4;  // padding
  check_engines(operation, kTolerance);
}

TEST_CASE("cross-entropy: the sum of exponentials over 10^5 tokens is accurate") {
  constexpr int64_t kTokens = 150'001;
  Operation operation = own_sums({1, kTokens, {0, kTokens}});
  operation.operands[0].values.assign(kTokens, -0.3F);
  operation.operands[0].values.back() = 0;
  const double expected = 1 + (kTokens - 1) * std::exp(static_cast<double>(-0.3F));
  const auto check = [&](Device device, Isa isa) {
    INFO(static_cast<int>(device) << " on " << name_of(isa));
    const double sum = run(operation, device, DType::kF32, 1, Alignment::kElement, isa)[2][0];
    CHECK(std::abs(sum - expected) <= kTolerance * expected);
  };
  for (const Device device : devices()) check(device, best_isa());
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) check(Device::kCpu, static_cast<Isa>(level));
}
