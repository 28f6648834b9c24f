#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_operations.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t room, position, rows, heads, kv_heads, head_size;
  AttentionShape shape() const { return {1, rows, heads, kv_heads, head_size}; }
};
// The first token of all, blocks of 64 keys and their edges, several new tokens, kv heads shared and not, head sizes on and off vectors and warps,
// room to spare.
constexpr Case kCases[] = {{1, 0, 1, 1, 1, 1},      {9, 6, 1, 4, 2, 5},      {9, 0, 9, 3, 1, 7},      {70, 63, 1, 2, 2, 16},  {70, 64, 3, 2, 1, 33},
                           {129, 128, 1, 6, 2, 64}, {200, 120, 7, 3, 3, 40}, {300, 299, 1, 2, 1, 96}, {80, 50, 2, 1, 1, 128}, {40, 33, 1, 2, 1, 256}};

// As attention_operations.h has it: dot products of at most 256 terms, sums of at most 300.
constexpr double kDecodeTolerance = 4e-6;

Operation decode(const Case& c) {
  return {"attention_decode",
          {input("qkv", {c.rows, c.shape().columns()}), input("keys", {c.room, c.kv_heads * c.head_size}),
           input("values", {c.room, c.kv_heads * c.head_size}), assigned("out", {c.rows, c.heads * c.head_size})},
          [c](Context& ctx, const std::vector<Tensor>& t) { attention_decode(ctx, t[0], t[1], t[2], c.position, c.shape(), t[3]); }};
}

}  // namespace

TEST_CASE("attention over a cache: engines agree") {
  for (const Case& c : kCases) check_engines(decode(c), kDecodeTolerance);
}

TEST_CASE("attention over a cache is the last rows of the attention of the text") {
  for (const Case& c : kCases) {
    const int64_t tokens = c.position + c.rows, columns = c.shape().columns(), kv = c.kv_heads * c.head_size;
    const Operation text = forward({1, tokens, c.heads, c.kv_heads, c.head_size});
    const std::vector<double>& qkv = text.operands[0].values;
    Operation rows = decode(c);
    rows.operands[0].values.assign(qkv.begin() + c.position * columns, qkv.end());
    for (const size_t operand : {1, 2}) {
      std::vector<double>& cache = rows.operands[operand].values;
      std::fill(cache.begin(), cache.end(), std::nan(""));  // what is not of the text is not read
      for (int64_t t = 0; t < tokens; ++t) {
        const auto from = qkv.begin() + (t + 1) * columns - (operand == 1 ? 2 : 1) * kv;
        std::copy(from, from + kv, cache.begin() + t * kv);
      }
    }
    const std::vector<double> whole = run(text, Device::kReference, DType::kF64)[1];
    const std::vector<double> last(whole.end() - c.rows * c.heads * c.head_size, whole.end());
    CHECK(run(rows, Device::kReference, DType::kF64)[3] == last);
    for (const Device device : devices()) CHECK(normalised_error(run(rows, device, DType::kF32)[3], last) < kDecodeTolerance);
  }
}

TEST_CASE("attention over a cache: scores of a thousand, rising and falling, neither overflow nor lose the sum") {
  for (const bool rising : {false, true}) {
    constexpr Case kLong{200, 199, 1, 1, 1, 4};
    Operation operation = decode(kLong);
    operation.operands[0].values = {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    std::vector<double>& keys = operation.operands[1].values;
    for (int64_t t = 0; t < 200; ++t) keys[static_cast<size_t>(4 * t)] = static_cast<double>(rising ? t : 200 - t) * 5;
    check_engines(operation, 2e-4);  // as in attention: the rounding of scores near 1000 is the relative error of their exponentials
  }
}

TEST_CASE("attention over a cache hides no NaN") {
  constexpr Case kTwoRows{150, 100, 2, 2, 1, 20};
  for (const Device device : devices()) {
    for (const size_t operand : {0, 1, 2}) {
      Operation operation = decode(kTwoRows);
      const int64_t place = operand == 0 ? 3 : 101 * 20 + 3;  // the query of row 0 and head 0; key and value of the token of row 1
      operation.operands[operand].values[static_cast<size_t>(place)] = std::nan("");
      const std::vector<double> out = run(operation, device, DType::kF32)[3];
      for (int64_t i = 0; i < 80; ++i) {
        const bool affected = operand == 0 ? i < 20 : operand == 1 ? i >= 40 : i >= 40 && i % 20 == 3;
        CAPTURE(operand, i);
        CHECK(std::isnan(out[static_cast<size_t>(i)]) == affected);
      }
    }
  }
}

TEST_CASE("attention over a cache refuses what lies beyond its room") {
  Operation operation = decode({8, 6, 3, 1, 1, 2});
  const auto run_it = operation.run;
  operation.run = [&](Context& ctx, const std::vector<Tensor>& t) {
    CHECK_THROWS_WITH(run_it(ctx, t), Catch::Contains("3 rows at position 6 of 8"));
  };
  run(operation, Device::kReference, DType::kF32);
}
