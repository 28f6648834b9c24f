// Sliding-window attention. A query at token i attends to the keys j with i - window < j <= i.
#include <algorithm>
#include <cmath>

#include "tests/kernels/attention_operations.h"
#include "tests/support/catch.h"
#ifdef TRIREME_CUDA
#include "tests/support/gpu.h"
#endif

using namespace trireme;
using namespace trireme::testing;

namespace {

AttentionShape with_window(AttentionShape shape, int64_t window) {
  shape.window = window;
  return shape;
}

/// Softmax over the whole row of scores with an explicit mask, summed in double.
Values masked_softmax(const std::vector<double>& qkv, const AttentionShape& s) {
  Values result(3);  // qkv, out, lse
  result[1].resize(static_cast<size_t>(s.batch * s.sequence * s.heads * s.head_size));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t n = 0; n < s.heads; ++n) {
      const auto at = [&](int64_t t, int64_t head, int64_t h) { return qkv[(b * s.sequence + t) * s.columns() + head * s.head_size + h]; };
      const int64_t kv = n / (s.heads / s.kv_heads), key_head = s.heads + kv, value_head = s.heads + s.kv_heads + kv;
      for (int64_t i = 0; i < s.sequence; ++i) {
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = 0; j < s.sequence; ++j) {
          double score = 0;
          for (int64_t h = 0; h < s.head_size; ++h) score += at(i, n, h) * at(j, key_head, h);
          const bool seen = j <= i && (s.window == 0 || j > i - s.window);
          weights.push_back(seen ? std::exp(score / std::sqrt(static_cast<double>(s.head_size))) : 0);
          sum += weights.back();
        }
        result[2].push_back(std::log(sum));
        for (int64_t h = 0; h < s.head_size; ++h) {
          double mean = 0;
          for (int64_t j = 0; j < s.sequence; ++j) mean += weights[j] / sum * at(j, value_head, h);
          result[1][((b * s.sequence + i) * s.heads + n) * s.head_size + h] = mean;
        }
      }
    }
  }
  return result;
}

/// Calls body(function that runs an operation) for every device and dtype, and on the CPU for every instruction-set level.
template <class Body>
void on_each_engine(Body&& body) {
  for (const Device device : devices()) {
    const int levels = device == Device::kCpu ? static_cast<int>(best_isa()) : 0;
    for (int level = 0; level <= levels; ++level) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        INFO("device " << static_cast<int>(device) << ", " << name_of(dtype) << ", level " << level);
        body([&](const Operation& operation) { return run(operation, device, dtype, 1, Alignment::kVector, static_cast<Isa>(level)); });
      }
    }
  }
}

/// Columns [begin, end) of the rows [first, last) of a matrix.
std::vector<double> part(const std::vector<double>& values, int64_t columns, int64_t first, int64_t last, int64_t begin, int64_t end) {
  std::vector<double> result;
  for (int64_t t = first; t < last; ++t) result.insert(result.end(), values.begin() + t * columns + begin, values.begin() + t * columns + end);
  return result;
}
std::vector<double> rows_of(const std::vector<double>& values, int64_t columns, int64_t first, int64_t last) {
  return part(values, columns, first, last, 0, columns);
}

}  // namespace

TEST_CASE("attention window: the band is the set of pairs that the mask keeps") {
  for (const int64_t window : {0, 1, 2, 5, 8, 9, 20}) {
    constexpr int64_t kTokens = 9;
    const AttentionBand<int64_t> band{window};
    CAPTURE(window);
    for (int64_t i = 0; i < kTokens; ++i) {
      int64_t first_key = i, last_query = i;
      for (int64_t j = 0; j < kTokens; ++j) {
        if (j <= i && (window == 0 || j > i - window)) first_key = std::min(first_key, j);
        if (i <= j && (window == 0 || i > j - window)) last_query = std::max(last_query, j);
        if (j <= i) CHECK(band.beyond(i - j) == (window != 0 && j <= i - window));
        if (j > i) CHECK_FALSE(band.beyond(i - j));
      }
      CHECK(band.first_key(i) == first_key);
      CHECK(band.last_query(i, kTokens) == last_query);
    }
  }
}

TEST_CASE("attention window: the reference is a masked softmax") {
  for (const AttentionShape& shape : {AttentionShape{2, 11, 4, 2, 3}, AttentionShape{1, 20, 3, 1, 6}}) {
    for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{7}, shape.sequence - 1, shape.sequence, shape.sequence + 5}) {
      const AttentionShape windowed = with_window(shape, window);
      const Values expected = masked_softmax(forward(windowed).operands[0].values, windowed);
      const Values values = run(forward(windowed), Device::kReference, DType::kF64);
      CAPTURE(window);
      CHECK(normalised_error(values[1], expected[1]) < 1e-14);
      CHECK(normalised_error(values[2], expected[2]) < 1e-14);
    }
  }
}

TEST_CASE("attention window: gradients") {
  for (const AttentionShape& shape : {AttentionShape{2, 9, 4, 2, 3}, AttentionShape{1, 33, 3, 1, 5}}) {
    for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{7}, shape.sequence - 1}) {
      CAPTURE(window);
      const AttentionShape windowed = with_window(shape, window);
      check_gradients(forward(windowed), "out", backward(windowed), "dout", {{"qkv", "dqkv"}});
    }
  }
}

static void check(const AttentionShape& shape, const DTypes& dtypes = kAllDTypes) {
  CAPTURE(shape.sequence, shape.head_size, shape.window);
  check_on_each_gpu(forward(shape), shape.head_size, dtypes);
  check_on_each_gpu(following(backward(shape), forward(shape)), shape.head_size, dtypes);
}

// Tiles have 16, 32, 64 and 128 tokens. The sequences are longer than a window plus two tiles, so that some tiles are completely outside the band.
static const std::vector<AttentionShape>& windows() {
  static const std::vector<AttentionShape> shapes = [] {
    std::vector<AttentionShape> all;
    for (const int64_t window : {1, 64, 65, 149}) all.push_back({1, 150, 2, 1, 32, window});
    for (const int64_t window : {17, 31}) all.push_back({1, 97, 2, 2, 5, window});
    for (const int64_t window : {33, 127}) all.push_back({1, 200, 1, 1, 64, window});
    all.push_back({2, 130, 3, 1, 96, 40});
    all.push_back({1, 161, 2, 1, 128, 64});
    all.push_back({1, 40, 1, 1, 160, 9});
    return all;
  }();
  return shapes;
}

TEST_CASE("attention window: engines agree") {
  for (size_t i = 0; i < windows().size(); ++i) check(windows()[i], dtypes_in_turn(i));
}

TEST_CASE("attention window: engines agree at every window around the edges of tiles", "[slow]") {
  for (const AttentionShape& shape : windows()) check(shape);
  for (const int64_t window : {2, 7, 63, 150, 155}) check({1, 150, 2, 1, 32, window});
  for (const int64_t window : {1, 15, 33, 64}) check({1, 97, 2, 2, 5, window});
  for (const int64_t window : {31, 64, 129}) check({1, 200, 1, 1, 64, window});
  check({1, 300, 1, 1, 32, 3});
  check({1, 280, 1, 1, 64, 100});
  check({1, 70, 4, 2, 40, 20});
}

TEST_CASE("attention window: a window not shorter than the sequence is bit-identical to none") {
  for (const AttentionShape& shape : {AttentionShape{2, 70, 2, 1, 32}, AttentionShape{1, 65, 3, 1, 5}}) {
    on_each_engine([&](const auto& run_it) {
      const Values out = run_it(forward(shape)), gradients = run_it(following(backward(shape), forward(shape)));
      for (const int64_t window : {shape.sequence, shape.sequence + 1, int64_t{1} << 40}) {
        CAPTURE(window);
        const AttentionShape windowed = with_window(shape, window);
        CHECK(run_it(forward(windowed)) == out);
        CHECK(run_it(following(backward(windowed), forward(shape))) == gradients);
      }
    });
  }
}

TEST_CASE("attention window: with a window of one token, each query returns its own value") {
  for (const AttentionShape& shape : {AttentionShape{1, 70, 4, 2, 32, 1}, AttentionShape{2, 20, 3, 1, 5, 1}}) {
    const int64_t size = shape.head_size, group = shape.heads / shape.kv_heads, rows = shape.batch * shape.sequence;
    const int64_t columns = shape.columns(), out_columns = shape.heads * size, to_values = (shape.heads + shape.kv_heads) * size;
    const auto expected_out = [&](const std::vector<double>& qkv) {
      std::vector<double> out;
      for (int64_t t = 0; t < rows; ++t)
        for (int64_t n = 0; n < shape.heads; ++n)
          for (int64_t h = 0; h < size; ++h) out.push_back(qkv[t * columns + to_values + n / group * size + h]);
      return out;
    };
    const auto expected_gradient = [&](const std::vector<double>& dout) {  // zero for queries and keys
      std::vector<double> dqkv(static_cast<size_t>(rows * columns));
      for (int64_t t = 0; t < rows; ++t)
        for (int64_t n = 0; n < shape.heads; ++n)
          for (int64_t h = 0; h < size; ++h) dqkv[t * columns + to_values + n / group * size + h] += dout[t * out_columns + n * size + h];
      return dqkv;
    };
    const Operation out = forward(shape), gradient = following(backward(shape), out);
    const Values exact = run(out, Device::kReference, DType::kF64);
    CHECK(exact[1] == expected_out(exact[0]));
    const Values exact_gradient = run(gradient, Device::kReference, DType::kF64);
    CHECK(exact_gradient[4] == expected_gradient(exact_gradient[0]));
    on_each_engine([&](const auto& run_it) {
      const Values values = run_it(out), gradients = run_it(gradient);
      CHECK(normalised_error(values[1], expected_out(values[0])) < 2e-2);
      CHECK(normalised_error(gradients[4], expected_gradient(gradients[0])) < 2e-2);
    });
  }
}

// The weight of a key outside the window would overflow: the log-sum-exp in its exponent does not include the key.
TEST_CASE("attention window: keys outside the window change no bit, however large their scores") {
  for (const int64_t head_size : {32, 64, 5}) {
    const AttentionShape shape{1, 140, 2, 1, head_size, 20};
    constexpr int64_t kLoud = 30;  // queries 30 to 49 attend to it
    const int64_t columns = shape.columns(), out_columns = 2 * head_size, key = out_columns;
    const Operation quiet = forward(shape);
    Operation loud = quiet;
    for (int64_t h = 0; h < head_size; ++h) {
      double& element = loud.operands[0].values[kLoud * columns + key + h];
      element *= 400;
    }
    const Operation quiet_gradient = following(backward(shape), quiet), loud_gradient = following(backward(shape), loud);
    on_each_engine([&](const auto& run_it) {
      CAPTURE(head_size);
      const std::vector<double> before = run_it(quiet)[1], after = run_it(loud)[1];
      CHECK(rows_of(before, out_columns, 0, kLoud) == rows_of(after, out_columns, 0, kLoud));
      CHECK(rows_of(before, out_columns, kLoud + 20, 140) == rows_of(after, out_columns, kLoud + 20, 140));
      CHECK(rows_of(before, out_columns, kLoud, kLoud + 20) != rows_of(after, out_columns, kLoud, kLoud + 20));
      const std::vector<double> gradient = run_it(quiet_gradient)[4], other = run_it(loud_gradient)[4];
      CHECK(part(gradient, columns, kLoud + 20, 140, 0, out_columns) == part(other, columns, kLoud + 20, 140, 0, out_columns));
      CHECK(rows_of(gradient, columns, kLoud + 20 + 19, 140) == rows_of(other, columns, kLoud + 20 + 19, 140));  // no such query attends to them
      CHECK(std::all_of(other.begin(), other.end(), [](double x) { return std::isfinite(x); }));
    });
  }
}

// 0 * NaN is NaN, which reveals a tile that is computed and then masked. Tiles have at most 128 tokens.
TEST_CASE("attention window: tiles outside the window are not computed") {
  for (const int64_t head_size : {32, 96, 5}) {
    const AttentionShape shape{1, 400, 2, 1, head_size, 10};
    const int64_t columns = shape.columns(), out_columns = 2 * head_size;
    const auto finite = [](const std::vector<double>& values) {
      return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
    };
    const Operation out = forward(shape), gradient = following(backward(shape), out);
    Operation early = out, early_gradient = gradient, late_gradient = gradient;
    std::fill(early.operands[0].values.begin(), early.operands[0].values.begin() + 100 * columns, std::nan(""));
    std::fill(early_gradient.operands[1].values.begin(), early_gradient.operands[1].values.begin() + 100 * columns, std::nan(""));
    std::fill(late_gradient.operands[0].values.begin() + 300 * out_columns, late_gradient.operands[0].values.end(), std::nan(""));
    on_each_engine([&](const auto& run_it) {
      CAPTURE(head_size);
      const std::vector<double> values = run_it(early)[1];
      CHECK(finite(rows_of(values, out_columns, 256, 400)));
      CHECK_FALSE(finite(rows_of(values, out_columns, 0, 128)));
      CHECK(finite(rows_of(run_it(early_gradient)[4], columns, 256, 400)));
      const std::vector<double> gradients = run_it(late_gradient)[4];
      CHECK(finite(rows_of(gradients, columns, 0, 128)));  // the keys before 256 share a tile with some that queries from 256 on attend to
      CHECK_FALSE(finite(rows_of(gradients, columns, 256, 400)));
    });
  }
}

TEST_CASE("attention window: a negative window is rejected") {
  Operation operation = forward({1, 4, 1, 1, 2, -1});
  const auto run_it = operation.run;
  operation.run = [&](Context& ctx, const std::vector<Tensor>& t) {
    CHECK_THROWS_WITH(run_it(ctx, t), Catch::Contains("invalid window of -1 tokens"));
  };
  run(operation, Device::kReference, DType::kF32);
}

#if defined(TRIREME_CUDA) && !defined(TRIREME_REAL_GPU)
// Twice the tokens need twice the tiles, and a few more, because the first queries attend to fewer keys than the others.
TEST_CASE("attention window: a GPU loads only the tiles of the band") {
  const auto copies_of = [](const Operation& operation) {
    const int64_t before = cuda_sim::statistics().copies;
    run(operation, Device::kCuda, DType::kBF16, 1, Alignment::kVector);
    return static_cast<double>(cuda_sim::statistics().copies - before);
  };
  const AttentionShape half{1, 512, 1, 1, 32, 64}, whole{1, 1024, 1, 1, 32, 64};
  CHECK(copies_of(forward(whole)) < 2.2 * copies_of(forward(half)));
  CHECK(copies_of(backward(whole)) < 2.2 * copies_of(backward(half)));
}
#endif
