#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_operations.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t room, position, rows, heads, kv_heads, head_size, window = 0;
  double scale = 0;
  AttentionShape shape() const { return {1, rows, heads, kv_heads, head_size, window, scale}; }
  AttentionShape text() const { return {1, position + rows, heads, kv_heads, head_size, window, scale}; }
};
// The first token, blocks of 64 keys and their edges, several new tokens, shared and separate kv heads, head sizes that are and are not multiples of
// vectors and warps, spare capacity.
constexpr Case kCases[] = {{1, 0, 1, 1, 1, 1},     {9, 6, 1, 4, 2, 5},      {9, 0, 9, 3, 1, 7},      {70, 63, 1, 2, 2, 16},
                           {70, 64, 3, 2, 1, 33},  {129, 128, 1, 6, 2, 64}, {200, 120, 7, 3, 3, 40}, {300, 299, 1, 2, 1, 96, 0, 0.05},
                           {80, 50, 2, 1, 1, 128}, {40, 33, 1, 2, 1, 256}};

// As in attention_operations.h: dot products of at most 256 terms, sums of at most 300.
constexpr double kDecodeTolerance = 4e-6;

Operation decode(const Case& c) {
  return {"attention_decode",
          {input("qkv", {c.rows, c.shape().columns()}), input("keys", {c.room, c.kv_heads * c.head_size}),
           input("values", {c.room, c.kv_heads * c.head_size}), assigned("out", {c.rows, c.heads * c.head_size})},
          [c](Context& ctx, const std::vector<Tensor>& t) { attention_decode(ctx, t[0], t[1], t[2], c.position, c.shape(), t[3]); }};
}

// Ring buffers with exactly the rows that are needed, with more, and with all; windows of one token, around the size of a block, and longer than the
// text; the ring buffer wraps before, within and after the rows.
constexpr Case kWindowCases[] = {{1, 5, 1, 2, 1, 8, 1},      {4, 9, 4, 2, 1, 8, 1},      {2, 7, 1, 4, 2, 5, 2},      {11, 20, 5, 2, 2, 33, 7},
                                 {64, 130, 1, 2, 1, 64, 64}, {66, 200, 2, 1, 1, 16, 65}, {70, 6, 3, 2, 1, 16, 65},   {150, 120, 7, 3, 1, 40, 20},
                                 {8, 5, 3, 2, 1, 7, 100},    {30, 29, 1, 2, 2, 96, 30},  {21, 400, 3, 2, 1, 128, 10}};

/// Writes the last keys and values of the text to their rows of a ring buffer, and NaN to rows without a token.
void fill_ring(const std::vector<double>& qkv, const AttentionShape& text, int64_t tokens, Operation& operation) {
  const int64_t columns = text.columns(), kv = text.kv_heads * text.head_size, room = operation.operands[1].shape[0];
  for (const size_t operand : {1, 2}) {
    std::vector<double>& cache = operation.operands[operand].values;
    std::fill(cache.begin(), cache.end(), std::nan(""));
    for (int64_t t = std::max<int64_t>(0, tokens - room); t < tokens; ++t) {
      const auto from = qkv.begin() + (t + 1) * columns - (operand == 1 ? 2 : 1) * kv;
      std::copy(from, from + kv, cache.begin() + t % room * kv);
    }
  }
}

/// The operation of a case on the last rows of `text`, with the ring buffer filled from `text`.
Operation rows_of_text(const Case& c, const Operation& text) {
  const std::vector<double>& qkv = text.operands[0].values;
  const int64_t columns = c.shape().columns();
  Operation operation = decode(c);
  operation.operands[0].values.assign(qkv.begin() + c.position * columns, qkv.begin() + (c.position + c.rows) * columns);
  fill_ring(qkv, c.shape(), c.position + c.rows, operation);
  return operation;
}

}  // namespace

TEST_CASE("attention over a cache: engines agree") {
  for (const Case& c : kCases) check_engines(decode(c), kDecodeTolerance);
  for (const Case& c : kWindowCases) check_engines(decode(c), kDecodeTolerance);
}

TEST_CASE("attention over a cache equals the last rows of attention over the text") {
  const auto check = [](const Case& c) {
    CAPTURE(c.room, c.position, c.rows, c.head_size, c.window);
    const Operation text = forward(c.text());
    const Operation rows = rows_of_text(c, text);  // rows without a token are NaN and must not be read
    const std::vector<double> whole = run(text, Device::kReference, DType::kF64)[1];
    const std::vector<double> last(whole.end() - c.rows * c.heads * c.head_size, whole.end());
    CHECK(run(rows, Device::kReference, DType::kF64)[3] == last);
    for (const Device device : devices()) CHECK(normalised_error(run(rows, device, DType::kF32)[3], last) < kDecodeTolerance);
  };
  for (const Case& c : kCases) check(c);
  for (const Case& c : kWindowCases) check(c);
}

// A text of 40 tokens, with one or several tokens at a time and only as many rows as the window and the new tokens require.
TEST_CASE("attention over a rolling cache: token by token, it equals attention over the text") {
  constexpr int64_t kTokens = 40;
  for (const int64_t window : {1, 7, 16}) {
    for (const int64_t chunk : {1, 3, 8}) {
      const AttentionShape shape{1, kTokens, 2, 1, 6, window};
      const Operation text = forward(shape);
      const int64_t columns = shape.heads * shape.head_size;
      const std::vector<double> whole = run(text, Device::kReference, DType::kF64)[1];
      for (int64_t position = 0; position < kTokens; position += chunk) {
        const Case c{window + chunk - 1, position, std::min(chunk, kTokens - position), 2, 1, 6, window};
        CAPTURE(window, chunk, position);
        const Operation rows = rows_of_text(c, text);
        const std::vector<double> expected(whole.begin() + position * columns, whole.begin() + (position + c.rows) * columns);
        CHECK(run(rows, Device::kReference, DType::kF64)[3] == expected);
        for (const Device device : devices()) CHECK(normalised_error(run(rows, device, DType::kF32)[3], expected) < kDecodeTolerance);
      }
    }
  }
}

TEST_CASE("attention over a rolling cache: bit-identical to a cache of the whole text") {
  for (const Case& c : kWindowCases) {
    const Operation text = forward(c.text());
    Case whole = c;
    whole.room = c.position + c.rows;
    for (const Device device : devices())
      for (const DType dtype : {DType::kF32, DType::kBF16})
        CHECK(run(rows_of_text(c, text), device, dtype)[3] == run(rows_of_text(whole, text), device, dtype)[3]);
  }
}

TEST_CASE("attention over a cache: rising and falling scores near 1000 neither overflow nor lose precision") {
  for (const bool rising : {false, true}) {
    constexpr Case kLong{200, 199, 1, 1, 1, 4};
    Operation operation = decode(kLong);
    operation.operands[0].values = {2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    std::vector<double>& keys = operation.operands[1].values;
    for (int64_t t = 0; t < 200; ++t) keys[static_cast<size_t>(4 * t)] = static_cast<double>(rising ? t : 200 - t) * 5;
    check_engines(operation, 2e-4);  // as for attention: the rounding error of scores near 1000 is the relative error of their exponentials
  }
}

TEST_CASE("attention over a cache propagates NaN") {
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

TEST_CASE("attention over a cache rejects positions beyond its capacity") {
  const auto refusal = [](const Case& c, const char* words) {
    Operation operation = decode(c);
    const auto run_it = operation.run;
    operation.run = [&](Context& ctx, const std::vector<Tensor>& t) { CHECK_THROWS_WITH(run_it(ctx, t), Catch::Contains(words)); };
    run(operation, Device::kReference, DType::kF32);
  };
  refusal({8, 6, 3, 1, 1, 2}, "3 rows at position 6 exceed a cache of 8");
  refusal({6, 4, 3, 1, 1, 2, 5}, "3 rows at position 4 exceed a cache of 6, with a window of 5");  // 7 rows are enough for any text
}
