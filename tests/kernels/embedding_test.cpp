#include "kernels/ops/embedding.h"

#include <numeric>

#include "kernels/core/rng.h"
#include "tests/kernels/documents.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows, columns;
  int64_t vocab_begin, vocab_rows;  // the tokens of this rank
  int64_t padding;                  // rows of w beyond them
};
constexpr Case kCases[] = {{1, 1, 0, 1, 0}, {7, 5, 0, 3, 2}, {33, 17, 11, 7, 1}, {129, 130, 4, 13, 0}, {301, 201, 0, 19, 3}};
// Several tiles of tokens, rows of several blocks, 16-byte accesses, and a range that contains none of the tokens.
constexpr Case kWidths[] = {{1, 3, 0, 23, 0},     {40, 8, 5, 9, 0},    {2100, 4, 0, 23, 0},  {4200, 12, 3, 1, 1}, {70, 264, 0, 23, 2},
                            {33, 1024, 2, 20, 0}, {20, 2056, 0, 5, 0}, {12, 4104, 0, 23, 0}, {30, 24, 23, 7, 0}};
constexpr Case kLargeVocabulary = {900, 1, 0, 2101, 2};  // more rows than blocks
constexpr int64_t kVocabulary = 23;                      // larger than every rank's range, so that other ranks own some tokens

struct PositionCase {
  int64_t rows, columns, first_row, sequence_length, table_rows;
};
constexpr PositionCase kPositionCases[] = {{1, 1, 0, 1, 1}, {7, 5, 3, 4, 6}, {33, 17, 11, 13, 13}, {30, 3, 45, 15, 16}};
constexpr PositionCase kPositionWidths[] = {{5, 8, 7, 9, 9},    {70, 24, 30, 16, 20}, {129, 31, 5, 1, 3},
                                            {7, 1024, 2, 3, 3}, {3, 4104, 1, 2, 2},   {6, 257, 4, 33, 33}};

// The forward copies and the backward adds the same few numbers in the same order; fp32 against fp64 differs by the rounding of those sums.
constexpr double kTolerance = 1e-6;

Operand tokens(const Case& c) {
  std::vector<double> values;
  for (int64_t m = 0; m < c.rows; ++m) values.push_back(static_cast<double>(random_bits(3, static_cast<uint64_t>(m)) % kVocabulary));
  return integers("tokens", {c.rows}, values);
}
Operation forward(const Case& c) {
  return {"embedding_forward",
          {tokens(c), free_rows(input("w", {c.vocab_rows + c.padding, c.columns})), assigned("y", {c.rows, c.columns})},
          [c](Context& ctx, const std::vector<Tensor>& t) { embedding_forward(ctx, t[0], t[1], c.vocab_begin, c.vocab_rows, t[2]); }};
}
Operation backward(const Case& c) {
  return {"embedding_backward",
          {tokens(c), input("dy", {c.rows, c.columns}), wide(free_rows(added_to("dw", {c.vocab_rows + c.padding, c.columns})))},
          [c](Context& ctx, const std::vector<Tensor>& t) { embedding_backward(ctx, t[0], t[1], c.vocab_begin, c.vocab_rows, t[2]); }};
}
/// `lengths`: of the documents that fill the sequences of all ranks; none: a sequence is one document.
Operation with_documents(Operation operation, const PositionCase& c, const std::vector<int64_t>& lengths) {
  if (lengths.empty()) return operation;
  for (Operand& bound : bounds_of(lengths, c.sequence_length, c.first_row, c.rows)) operation.operands.push_back(std::move(bound));
  operation.operands.back().free_rows = true;  // only the starts of documents are used
  return operation;
}
Operation position(const PositionCase& c, const std::vector<int64_t>& lengths = {}) {
  Operation operation{"position_forward",
                      {free_rows(input("w", {c.table_rows, c.columns})), free_rows(added_to("y", {c.rows, c.columns}))},
                      [c, packed = !lengths.empty()](Context& ctx, const std::vector<Tensor>& t) {
                        position_forward(ctx, t[0], c.first_row, c.sequence_length, t[1], documents_of(t, packed));
                      }};
  return with_documents(std::move(operation), c, lengths);
}
Operation position_gradient(const PositionCase& c, const std::vector<int64_t>& lengths = {}) {
  return with_documents({"position_backward",
                         {free_rows(input("dy", {c.rows, c.columns})), wide(free_rows(added_to("dw", {c.table_rows, c.columns})))},
                         [c, packed = !lengths.empty()](Context& ctx, const std::vector<Tensor>& t) {
                           position_backward(ctx, t[0], c.first_row, c.sequence_length, t[1], documents_of(t, packed));
                         }},
                        c, lengths);
}

}  // namespace

TEST_CASE("embeddings: engines agree") {
  for (const Case& c : kCases) {
    check_engines(forward(c), kTolerance);
    check_engines(backward(c), kTolerance);
  }
  for (const PositionCase& c : kPositionCases) {
    check_engines(position(c), kTolerance);
    check_engines(position_gradient(c), kTolerance);
  }
}

TEST_CASE("embeddings: engines agree at every width") {
  for (const Case& c : kWidths) {
    check_engines(forward(c), kTolerance);
    check_engines(backward(c), kTolerance);
  }
  for (const PositionCase& c : kPositionWidths) {
    check_engines(position(c), kTolerance);
    check_engines(position_gradient(c), kTolerance);
  }
}

TEST_CASE("embeddings: operands of different alignment") {
  constexpr Case kAligned = {40, 24, 5, 9, 0};
  check_misaligned(forward(kAligned), kTolerance);
  check_misaligned(backward(kAligned), kTolerance);
  constexpr PositionCase kAlignedPositions = {9, 24, 2, 4, 4};
  check_misaligned(position(kAlignedPositions), kTolerance);
  check_misaligned(position_gradient(kAlignedPositions), kTolerance);
}

TEST_CASE("embeddings: tokens repeated and spread over a large vocabulary") {
  Operation scattered = backward(kLargeVocabulary);
  for (size_t m = 0; m < scattered.operands[0].values.size(); ++m) {
    scattered.operands[0].values[m] = static_cast<double>(random_bits(5, m) % (m % 3 == 0 ? 5 : 2105));  // a few rows occur many times
    if (m < 8) scattered.operands[0].values[m] = static_cast<double>(2097 + m);                          // at the end of the range, and beyond it
  }
  check_engines(scattered, kTolerance);
}

TEST_CASE("embeddings: gradients") {
  for (const Case& c : kCases) check_gradients(forward(c), "y", backward(c), "dy", {{"w", "dw"}});
  for (const PositionCase& c : kPositionCases) check_gradients(position(c), "y", position_gradient(c), "dy", {{"w", "dw"}});
}

TEST_CASE("embeddings: ranges of a vocabulary sum to the whole") {
  constexpr int64_t kColumns = 3;
  const Case whole{40, kColumns, 0, kVocabulary, 0};
  const Operation lookup = forward(whole);
  const std::vector<double> y = run(lookup, Device::kReference, DType::kF64)[2];
  std::vector<double> sum(y.size(), 0.0);
  for (const auto& [begin, rows] : {std::pair<int64_t, int64_t>{0, 8}, {8, 9}, {17, 6}}) {
    Operation part = forward({40, kColumns, begin, rows, 0});
    const auto first = lookup.operands[1].values.begin() + begin * kColumns;
    part.operands[1].values.assign(first, first + rows * kColumns);
    const Values values = run(part, Device::kReference, DType::kF64);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[2][i];
  }
  CHECK(sum == y);
}

TEST_CASE("positions wrap at the sequence length, from the first row of this rank") {
  Operation operation = position({5, 1, 2, 3, 4});
  operation.operands[0].values = {10, 20, 30, 1000};
  operation.operands[1].values = {1, 2, 3, 4, 5};
  CHECK(run(operation, Device::kReference, DType::kF64)[1] == std::vector<double>{31, 12, 23, 34, 15});
}

// The rows of this rank may begin and end within a document.
TEST_CASE("positions restart in each document") {
  const PositionCase c{7, 1, 2, 5, 5};
  const std::vector<int64_t> lengths = {3, 2, 4, 1};  // rows 2 to 8: positions 2 | 0 1 | 0 1 2 3
  Operation operation = position(c, lengths);
  operation.operands[0].values = {10, 20, 30, 40, 1000};
  operation.operands[1].values = {1, 2, 3, 4, 5, 6, 7};
  CHECK(run(operation, Device::kReference, DType::kF64)[1] == std::vector<double>{31, 12, 23, 14, 25, 36, 47});
  Operation gradient = position_gradient(c, lengths);
  gradient.operands[0].values = {1, 2, 3, 4, 5, 6, 7};
  gradient.operands[1].values = {100, 200, 300, 400, 500};
  CHECK(run(gradient, Device::kReference, DType::kF64)[1] == std::vector<double>{106, 208, 307, 407, 500});
  for (const auto& [other, documents] : {std::pair{c, lengths},
                                         {PositionCase{30, 24, 0, 15, 16}, std::vector<int64_t>{15, 7, 8}},
                                         {PositionCase{12, 23, 0, 12, 13}, std::vector<int64_t>{1, 11}},
                                         {PositionCase{70, 8, 20, 30, 30}, std::vector<int64_t>{25, 5, 1, 1, 28, 17, 13}},
                                         {PositionCase{33, 5, 11, 11, 13}, std::vector<int64_t>{11, 4, 7, 11, 1, 1, 1, 8}}}) {
    check_engines(position(other, documents), kTolerance);
    check_engines(position_gradient(other, documents), kTolerance);
  }
  // More rows than a block of the GPU lists at a time, whose tiles of 2048 rows end within documents, and documents of one row each.
  std::vector<int64_t> many(300, 1);
  while (std::accumulate(many.begin(), many.end(), int64_t{0}) < 4500) many.insert(many.end(), {170, 130});
  const PositionCase large{4460, 8, 40, 300, 300};
  check_engines(position(large, many), kTolerance);
  check_engines(position_gradient(large, many), kTolerance);
}
