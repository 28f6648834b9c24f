// Attention of documents packed into sequences: a token attends to those of its own document only.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/attention_operations.h"
#include "tests/support/catch.h"
#ifdef TRIREME_CUDA
#include "tests/support/gpu.h"
#endif

using namespace trireme;
using namespace trireme::testing;

namespace {

using Lengths = std::vector<int64_t>;

struct Case {
  AttentionShape shape;
  Lengths lengths;
};

/// `count` documents of the same length.
Lengths equal(int64_t count, int64_t length) { return Lengths(static_cast<size_t>(count), length); }
Lengths operator+(Lengths a, const Lengths& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Columns [begin, end) of the rows [first, first + count) of a matrix.
std::vector<double> part(const std::vector<double>& values, int64_t columns, int64_t first, int64_t count, int64_t begin, int64_t end) {
  std::vector<double> result;
  for (int64_t t = first; t < first + count; ++t)
    result.insert(result.end(), values.begin() + t * columns + begin, values.begin() + t * columns + end);
  return result;
}
std::vector<double> rows_of(const std::vector<double>& values, int64_t columns, int64_t first, int64_t count) {
  return part(values, columns, first, count, 0, columns);
}
bool finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

/// Calls body(name, function that runs an operation) for the engines of a device in each of its dtypes, and on the CPU for every level.
template <class Body>
void on_engines(Device device, Body&& body) {
  const int levels = device == Device::kCpu ? static_cast<int>(best_isa()) : 0;
  for (int level = 0; level <= levels; ++level) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO("device " << static_cast<int>(device) << ", " << name_of(dtype) << ", level " << level);
      body([&](const Operation& operation) { return run(operation, device, dtype, 1, Alignment::kVector, static_cast<Isa>(level)); });
    }
  }
}

/// out, lse and dqkv of each document as a sequence of its own, at its place.
struct Results {
  std::vector<double> out, lse, dqkv;
  bool operator==(const Results&) const = default;
};
template <class Run>
Results packed(const Run& run_it, const Case& c) {
  const Operation gradient = following(backward(c.shape, c.lengths), forward(c.shape, c.lengths));
  const Values values = run_it(forward(c.shape, c.lengths));
  return {values[1], values[2], run_it(gradient)[4]};
}
template <class Run>
Results apart(const Run& run_it, const Case& c) {
  const AttentionShape& s = c.shape;
  const int64_t columns = s.columns(), out_columns = s.heads * s.head_size, rows = s.batch * s.sequence;
  const Operation all = forward(s, c.lengths), all_gradients = following(backward(s, c.lengths), all);
  Results results;
  results.lse.resize(static_cast<size_t>(rows * s.heads));
  int64_t row = 0;
  for (const int64_t length : c.lengths) {
    AttentionShape alone = s;
    alone.batch = 1;
    alone.sequence = length;
    Operation one = forward(alone);
    one.operands[0].values = rows_of(all.operands[0].values, columns, row, length);
    Operation gradient = following(backward(alone), one);
    gradient.operands[0].values = rows_of(all_gradients.operands[0].values, out_columns, row, length);
    const Values values = run_it(one), gradients = run_it(gradient);
    results.out.insert(results.out.end(), values[1].begin(), values[1].end());
    results.dqkv.insert(results.dqkv.end(), gradients[4].begin(), gradients[4].end());
    for (int64_t n = 0; n < s.heads; ++n)
      for (int64_t t = 0; t < length; ++t)
        results.lse[((row / s.sequence) * s.heads + n) * s.sequence + row % s.sequence + t] = values[2][n * length + t];
    row += length;
  }
  return results;
}

}  // namespace

TEST_CASE("attention documents: gradients") {
  for (const Case& c : {Case{{2, 9, 4, 2, 3}, {4, 1, 4, 9}}, Case{{1, 33, 3, 1, 5}, {17, 3, 13}}, Case{{1, 20, 2, 1, 3, 4}, {11, 9}}}) {
    CAPTURE(c.lengths);
    check_gradients(forward(c.shape, c.lengths), "out", backward(c.shape, c.lengths), "dout", {{"qkv", "dqkv"}});
  }
}

// The reference sums the same numbers in the same order, and the CPU calls the kernels of a sequence for each run of documents of equal length.
TEST_CASE("attention documents: on CPUs a document has the bits of the document alone") {
  for (const Case& c :
       {Case{{2, 12, 4, 2, 3}, {5, 4, 3, 6, 6}}, Case{{2, 100, 2, 1, 16}, {50, 50, 50, 50}}, Case{{2, 150, 3, 3, 32}, {1, 1, 64, 84, 149, 1}},
        Case{{1, 200, 2, 1, 8, 20}, {70, 130}}, Case{{3, 40, 1, 1, 5}, Lengths{40} + equal(40, 1) + Lengths{39, 1}}}) {
    CAPTURE(c.lengths);
    const auto exact = [](const Operation& operation) { return run(operation, Device::kReference, DType::kF64); };
    CHECK(packed(exact, c) == apart(exact, c));
    on_engines(Device::kCpu, [&](const auto& run_it) { CHECK((packed(run_it, c) == apart(run_it, c))); });
  }
}

static void check(const AttentionShape& shape, const Lengths& lengths, const DTypes& dtypes = kAllDTypes) {
  CAPTURE(shape.sequence, shape.head_size, shape.window, lengths);
  check_on_each_gpu(forward(shape, lengths), shape.head_size, dtypes);
  check_on_each_gpu(following(backward(shape, lengths), forward(shape, lengths)), shape.head_size, dtypes);
}

// Tiles have 16, 32, 64 and 128 tokens.
static const std::vector<Case>& lengths_at_tiles() {
  static const std::vector<Case> cases = {
      {{1, 150, 2, 1, 32}, {1, 149}},
      {{1, 150, 2, 1, 32}, {64, 64, 22}},
      {{1, 150, 2, 1, 32}, equal(150, 1)},
      {{1, 300, 2, 1, 64}, {127, 2, 171}},
      // A document begins in rows 8 to 15 of 16, behind a whole tile of keys of the other one.
      {{1, 300, 1, 1, 64}, {140, 160}},
      {{1, 300, 1, 1, 128}, {140, 160}},
      {{2, 97, 2, 2, 5}, {15, 1, 17, 64, 31, 33, 33}},
      {{1, 40, 1, 1, 160}, {8, 17, 15}},
      // with windows that are shorter or longer than documents
      {{1, 280, 2, 1, 64, 64}, {90, 10, 180}},
  };
  return cases;
}

TEST_CASE("attention documents: engines agree") {
  for (size_t i = 0; i < lengths_at_tiles().size(); ++i) check(lengths_at_tiles()[i].shape, lengths_at_tiles()[i].lengths, dtypes_in_turn(i));
}

TEST_CASE("attention documents: engines agree on other lengths and wide heads", "[slow]") {
  for (const auto& [shape, lengths] : lengths_at_tiles()) check(shape, lengths);
  for (const Lengths& lengths : {Lengths{150}, {149, 1}}) check({1, 150, 2, 1, 32}, lengths);
  check({1, 65, 2, 1, 40}, {32, 16, 16, 1});
  check({1, 70, 4, 2, 40, 20}, {3, 30, 37});
  check({1, 300, 2, 1, 128}, {63, 66, 1, 170});
  check({2, 260, 2, 1, 96}, {130, 130, 7, 121, 129, 3});
  check({1, 385, 4, 2, 32}, equal(7, 55));
  for (const int64_t window : {1, 20, 130}) check({1, 280, 2, 1, 64, window}, {90, 10, 180});
  check({2, 150, 2, 1, 128, 70}, {20, 130, 150});
}

void check_one_document_each(const AttentionShape& shape) {
  const Lengths whole = equal(shape.batch, shape.sequence);
  for (const Device device : devices())
    on_engines(device, [&](const auto& run_it) {
      CAPTURE(shape.sequence, shape.head_size);
      const Values out = run_it(forward(shape)), documents = run_it(forward(shape, whole));
      CHECK((documents[1] == out[1] && documents[2] == out[2]));
      const Operation gradient = following(backward(shape), forward(shape)), of_documents = following(backward(shape, whole), forward(shape));
      CHECK((run_it(of_documents)[4] == run_it(gradient)[4]));
    });
}

TEST_CASE("attention documents: sequences of one document each are bit-identical to sequences without documents") {
  for (const AttentionShape& shape :
       {AttentionShape{2, 70, 2, 1, 32}, AttentionShape{2, 65, 3, 1, 5}, AttentionShape{2, 200, 1, 1, 96, 30}, AttentionShape{1, 50, 2, 1, 24, 7}})
    check_one_document_each(shape);
}
TEST_CASE("attention documents: long sequences of one document each are bit-identical to sequences without documents", "[slow]") {
  for (const AttentionShape& shape : {AttentionShape{1, 300, 4, 2, 64}, AttentionShape{1, 300, 2, 1, 128}}) check_one_document_each(shape);
}

// The weight of a key of another document would overflow: the log-sum-exp in its exponent does not include the key.
TEST_CASE("attention documents: other documents change no bit, however large their scores") {
  for (const int64_t head_size : {32, 64, 128, 5}) {
    const Lengths lengths = {30, 15, 105};
    const AttentionShape shape{1, 150, 2, 1, head_size};
    constexpr int64_t kLoud = 33;  // in the second document
    const int64_t columns = shape.columns(), out_columns = 2 * head_size, key = out_columns;
    const Operation quiet = forward(shape, lengths);
    Operation loud = quiet;
    for (int64_t h = 0; h < head_size; ++h) loud.operands[0].values[static_cast<size_t>(kLoud * columns + key + h)] *= 400;
    const Operation quiet_gradient = following(backward(shape, lengths), quiet), loud_gradient = following(backward(shape, lengths), loud);
    for (const Device device : devices())
      on_engines(device, [&](const auto& run_it) {
        CAPTURE(head_size);
        const std::vector<double> before = run_it(quiet)[1], after = run_it(loud)[1];
        CHECK((rows_of(before, out_columns, 0, 30) == rows_of(after, out_columns, 0, 30)));
        CHECK((rows_of(before, out_columns, 45, 105) == rows_of(after, out_columns, 45, 105)));
        CHECK((rows_of(before, out_columns, 33, 12) != rows_of(after, out_columns, 33, 12)));
        const std::vector<double> gradient = run_it(quiet_gradient)[4], other = run_it(loud_gradient)[4];
        CHECK((rows_of(gradient, columns, 0, 30) == rows_of(other, columns, 0, 30)));
        CHECK((rows_of(gradient, columns, 45, 105) == rows_of(other, columns, 45, 105)));
        CHECK(finite(other));
      });
  }
}

// 0 * NaN is NaN, which reveals a tile that is computed and then masked. Tiles have at most 128 tokens.
TEST_CASE("attention documents: tiles outside of a document are not computed") {
  for (const int64_t head_size : {32, 96, 5}) {
    const Lengths lengths = {100, 156, 144};
    const AttentionShape shape{1, 400, 2, 1, head_size};
    const int64_t columns = shape.columns(), out_columns = 2 * head_size;
    const Operation out = forward(shape, lengths), gradient = following(backward(shape, lengths), out);
    Operation early = out, early_gradient = gradient, late_gradient = gradient;
    std::fill_n(early.operands[0].values.begin(), 80 * columns, std::nan(""));
    std::fill_n(early_gradient.operands[1].values.begin(), 80 * columns, std::nan(""));
    std::fill(late_gradient.operands[0].values.begin() + 256 * out_columns, late_gradient.operands[0].values.end(), std::nan(""));
    for (const Device device : devices())
      on_engines(device, [&](const auto& run_it) {
        CAPTURE(head_size);
        const std::vector<double> values = run_it(early)[1];
        CHECK(finite(rows_of(values, out_columns, 128, 272)));  // the tiles of queries before also have rows of the first document
        CHECK_FALSE(finite(rows_of(values, out_columns, 0, 100)));
        CHECK(finite(rows_of(run_it(early_gradient)[4], columns, 256, 144)));
        const std::vector<double> gradients = run_it(late_gradient)[4];
        CHECK(finite(rows_of(gradients, columns, 0, 224)));  // tiles of the keys after them may have queries of the last document
        CHECK_FALSE(finite(rows_of(gradients, columns, 256, 144)));
      });
  }
}

TEST_CASE("attention documents: bounds of another number of rows are rejected") {
  Operation operation = forward({1, 12, 1, 1, 2}, {5, 7});
  operation.operands.back().shape = {11};
  operation.operands.back().values.pop_back();
  const auto run_it = operation.run;
  operation.run = [&](Context& ctx, const std::vector<Tensor>& t) { CHECK_THROWS_WITH(run_it(ctx, t), Catch::Contains("ends is I32 [11]")); };
  run(operation, Device::kReference, DType::kF32);
}

#ifdef TRIREME_CUDA
// At the boundaries of all tiles the tiles of a document are those of the document alone.
void check_whole_tiles(int64_t head_size, int64_t window) {
  const Case c{{1, 640, 2, 1, head_size, window}, {128, 256, 128, 128}};
  CAPTURE(head_size, window);
  on_engines(Device::kCuda, [&](const auto& run_it) { CHECK((packed(run_it, c) == apart(run_it, c))); });
}

TEST_CASE("attention documents: on a GPU, documents of whole tiles have the bits of the documents alone") {
  check_whole_tiles(128, 0);
  check_whole_tiles(32, 70);
  check_whole_tiles(40, 70);
}
TEST_CASE("attention documents: on a GPU, documents of whole tiles of every head size have the bits of the documents alone", "[slow]") {
  for (const int64_t head_size : {32, 64, 96, 128, 40})
    for (const int64_t window : {0, 70}) check_whole_tiles(head_size, window);
}
#endif

#if defined(TRIREME_CUDA) && !defined(TRIREME_REAL_GPU)
// 4 documents of 256 tokens have a quarter of the pairs of one of 1024.
TEST_CASE("attention documents: a GPU loads only the tiles of documents") {
  const auto copies_of = [](const Operation& operation) {
    const int64_t before = cuda_sim::statistics().copies;
    run(operation, Device::kCuda, DType::kBF16, 1, Alignment::kVector);
    return static_cast<double>(cuda_sim::statistics().copies - before);
  };
  const AttentionShape quarter{1, 256, 1, 1, 32}, whole{1, 1024, 1, 1, 32};
  for (const auto& [lengths, most] : {std::pair{equal(4, 256), 4.0}, std::pair{Lengths{200, 256, 256, 256, 56}, 6.0}}) {
    CAPTURE(lengths);
    CHECK(copies_of(forward(whole, lengths)) <= most * copies_of(forward(quarter)));
    CHECK(copies_of(backward(whole, lengths)) <= most * copies_of(backward(quarter)));
  }
  CHECK(copies_of(forward(whole)) > 8 * copies_of(forward(quarter)));
  CHECK(copies_of(backward(whole)) > 8 * copies_of(backward(quarter)));
}
#endif
