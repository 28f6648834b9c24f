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

Operation maximum(const Case& c) {
  return {"cross_entropy_max",
          {input("logits", {c.rows, c.columns}), wide(assigned("row_max", {c.rows}))},
          [c](Context& ctx, const std::vector<Tensor>& t) { cross_entropy_max(ctx, t[0], c.range, t[1]); }};
}
Operation partial_sums(const Case& c) {
  return {"cross_entropy_sums",
          {input("logits", {c.rows, c.columns}), integers("targets", {c.rows}, targets(c.rows, kVocabulary)), wide(input("row_max", {c.rows})),
           wide(assigned("sums", {2, c.rows}))},
          [c](Context& ctx, const std::vector<Tensor>& t) { cross_entropy_sums(ctx, t[0], t[1], c.range, t[2], t[3]); }};
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
/// The three passes for a vocabulary on one rank.
Operation whole_loss(const Case& c) {
  return {"cross_entropy",
          {input("logits", {c.rows, c.columns}), integers("targets", {c.rows}, targets(c.rows, c.range.valid)), wide(assigned("row_max", {c.rows})),
           wide(assigned("sums", {2, c.rows})), always_f64(added_to("loss", {1}, {0}))},
          [c](Context& ctx, const std::vector<Tensor>& t) {
            cross_entropy_max(ctx, t[0], c.range, t[2]);
            cross_entropy_sums(ctx, t[0], t[1], c.range, t[2], t[3]);
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
  for (const VocabRange& range : ranges) {
    const Values values = run(on_rank(maximum({rows, range.valid + padding, range}), range), device, dtype);
    for (size_t m = 0; m < tokens.size(); ++m) row_max[m] = std::max(row_max[m], values[1][m]);
  }
  for (const VocabRange& range : ranges) {
    const Values values = run(set(on_rank(partial_sums({rows, range.valid + padding, range}), range), "row_max", row_max), device, dtype);
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
    check_engines(maximum(c), kTolerance);
    const Operation sums = following(partial_sums(c), maximum(c));
    check_engines(sums, kTolerance);
    check_engines(following(total_loss(c.rows), sums), kTolerance);
    check_engines(following(following(backward(c), maximum(c)), sums), kTolerance);
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
    logits[v] *= 40;             // a peaked row
    logits[kTokens + v] -= 500;  // a row far below zero
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
    const Values empty = run(maximum({3, 2, {23, 0}}), device, DType::kF32);
    CHECK(empty[1] == std::vector<double>(3, -INFINITY));
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
  const Operation highest = likely(maximum(c)), sums = following(likely(partial_sums(c)), highest);
  check_engines(following(following(likely(backward(c)), highest), sums), kTolerance);
}

TEST_CASE("cross-entropy: the sum of exponentials over 10^5 tokens is accurate") {
  constexpr int64_t kTokens = 150'001;
  Operation operation = partial_sums({1, kTokens, {0, kTokens}});
  operation.operands[0].values.assign(kTokens, -0.3F);
  operation.operands[1].values = {-100};
  operation.operands[2].values = {0};
  const double expected = kTokens * std::exp(static_cast<double>(-0.3F));
  for (int level = 0; level <= static_cast<int>(best_isa()); ++level) {
    INFO(name_of(static_cast<Isa>(level)));
    const double sum = run(operation, Device::kCpu, DType::kF32, 1, Alignment::kElement, static_cast<Isa>(level))[3][0];
    CHECK(std::abs(sum - expected) <= kTolerance * expected);
  }
}
