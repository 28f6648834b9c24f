#include "kernels/ops/rope.h"

#include <cmath>

#include "tests/kernels/documents.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t batch, sequence, heads, head_size;
  int64_t tail;         // columns after the rotated heads, which must be unchanged
  int64_t rotated = 0;  // elements of each head; 0: all
  int64_t turned() const { return rotated == 0 ? head_size : rotated; }
};
constexpr Case kCases[] = {{1, 1, 1, 2, 0},    {2, 3, 3, 6, 5},    {3, 7, 5, 10, 17},   {1, 33, 7, 34, 34},
                           {2, 70, 9, 26, 13}, {2, 3, 3, 6, 5, 2}, {3, 7, 5, 11, 17, 4}};
// Head sizes of models, which a GPU rotates in 16-byte accesses, some with a tail that prevents them; numbers of heads around the four of a thread.
constexpr Case kHeadSizes[] = {{2, 5, 4, 16, 16},    {2, 3, 5, 32, 32},    {1, 9, 12, 64, 8},   {2, 4, 8, 128, 256},
                               {1, 7, 6, 64, 3},     {3, 2, 1, 8, 0},      {1, 2, 3, 128, 128}, {2, 5, 4, 64, 64, 16},
                               {1, 9, 5, 96, 8, 24}, {1, 4, 5, 80, 0, 32}, {1, 4, 5, 20, 4, 16}};
constexpr double kTheta = 10000;

// A rotation is two products and a sum, each rounded once.
constexpr double kTolerance = 5e-7;

std::vector<double> frequencies(int64_t head_size) {
  std::vector<double> all;
  for (int64_t i = 0; i < head_size / 2; ++i) all.push_back(std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size)));
  return all;
}

Operation table(const Case& c) {
  return {"rope_table",
          {wide(free_rows(assigned("table", {c.sequence, c.turned()})))},
          [turns = frequencies(c.turned())](Context& ctx, const std::vector<Tensor>& t) { rope_table(ctx, turns, t[0]); }};
}
using Rotate = void (*)(Context&, const Tensor&, int64_t, int64_t, const Tensor&, const Documents&);
Operation rotation(const Case& c, const std::string& name, const std::string& values, Rotate rotate, const std::vector<int64_t>& lengths = {}) {
  Operand angles = wide(input("table", {c.sequence, c.turned()}));
  Operand rows = in_place(values, {c.batch * c.sequence, c.heads * c.head_size + c.tail});
  angles.free_rows = c.batch * c.sequence % (c.sequence + 1) == 0;  // then one more position is also valid
  rows.free_rows = c.sequence == 1;
  Operation operation{name, {angles, rows}, [=, packed = !lengths.empty()](Context& ctx, const std::vector<Tensor>& t) {
                        rotate(ctx, t[0], c.heads, c.head_size, t[1], documents_of(t, packed));
                      }};
  if (!lengths.empty()) {
    operation.operands[0].free_rows = operation.operands[1].free_rows = false;
    for (Operand& bound : bounds_of(lengths, c.sequence)) operation.operands.push_back(std::move(bound));
    operation.operands.back().free_rows = true;  // only the starts of documents are used
  }
  return following(operation, table(c));
}
Operation forward(const Case& c) { return rotation(c, "rope_forward", "qkv", rope_forward); }
Operation backward(const Case& c) { return rotation(c, "rope_backward", "dqkv", rope_backward); }

}  // namespace

TEST_CASE("rotary embedding: engines agree") {
  const auto check = [](const Case& c) {
    check_engines(table(c), kTolerance);
    check_engines(forward(c), kTolerance);
    check_engines(backward(c), kTolerance);
  };
  for (const Case& c : kCases) check(c);
  for (const Case& c : kHeadSizes) check(c);
}

TEST_CASE("rotary embedding: engines agree on documents, in which positions restart") {
  for (const auto& [c, lengths] : {std::pair{Case{2, 7, 5, 10, 3}, std::vector<int64_t>{3, 4, 1, 6}},
                                   {Case{1, 33, 4, 64, 128}, std::vector<int64_t>{16, 1, 16}},
                                   {Case{1, 9, 3, 24, 5, 8}, std::vector<int64_t>{4, 5}},
                                   {Case{3, 6, 9, 32, 0}, std::vector<int64_t>{6, 1, 1, 1, 1, 1, 1, 5, 1}}}) {
    const Operation turn = rotation(c, "rope_forward", "qkv", rope_forward, lengths),
                    back = rotation(c, "rope_backward", "dqkv", rope_backward, lengths);
    check_engines(turn, kTolerance);
    check_engines(back, kTolerance);
    // Each document as a sequence of its own.
    const int64_t columns = c.heads * c.head_size + c.tail;
    const std::vector<double> rotated = run(turn, Device::kReference, DType::kF64)[1];
    auto row = turn.operands[1].values.begin();
    std::vector<double> expected;
    for (const int64_t length : lengths) {
      Operation alone = rotation({1, length, c.heads, c.head_size, c.tail, c.rotated}, "rope_forward", "qkv", rope_forward);
      alone.operands[1].values.assign(row, row + length * columns);
      row += length * columns;
      const std::vector<double> one = run(alone, Device::kReference, DType::kF64)[1];
      expected.insert(expected.end(), one.begin(), one.end());
    }
    CHECK(rotated == expected);
  }
}

TEST_CASE("rotary embedding: table and heads of different alignment") {
  constexpr Case kAligned = {2, 3, 3, 32, 32};
  check_misaligned(table(kAligned), kTolerance);
  check_misaligned(forward(kAligned), kTolerance);
  check_misaligned(backward(kAligned), kTolerance);
}

TEST_CASE("rotary embedding: gradients") {
  for (const Case& c : kCases) check_gradients(forward(c), "qkv", backward(c), "dqkv", {{"qkv", "dqkv"}});
}

TEST_CASE("the backward rotation is the adjoint and the inverse of the rotation") {
  for (const Case& c : kCases) {
    const Operation rotate = forward(c), back = backward(c);
    const std::vector<double>&x = rotate.operands[1].values, &y = back.operands[1].values;
    const std::vector<double> rotated = run(rotate, Device::kReference, DType::kF64)[1];
    const std::vector<double> back_of_y = run(back, Device::kReference, DType::kF64)[1];
    double left = 0, right = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      left += rotated[i] * y[i];
      right += x[i] * back_of_y[i];
    }
    CHECK(left == Approx(right).epsilon(1e-12));
    Operation return_trip = back;
    return_trip.operands[1].values = rotated;
    CHECK(normalised_error(run(return_trip, Device::kReference, DType::kF64)[1], x) < 1e-14);
  }
}

TEST_CASE("element i pairs with element i + H/2, at the angle of its position") {
  Operation rotate = forward({1, 3, 1, 4, 0});
  rotate.operands[1].values = {9, 9, 9, 9, 9, 9, 9, 9, 1, 0, 0, 2};  // position 2
  const std::vector<double> after = run(rotate, Device::kReference, DType::kF64)[1];
  const double slow = 2 * std::pow(kTheta, -0.5);
  CHECK(after[0] == 9);  // position 0 is not rotated
  CHECK(normalised_error({after.begin() + 8, after.end()}, {std::cos(2.0), -2 * std::sin(slow), std::sin(2.0), 2 * std::cos(slow)}) < 1e-15);
}
