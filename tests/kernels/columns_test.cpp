#include "kernels/ops/columns.h"

#include "tests/kernels/harness.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

struct Case {
  int64_t rows;
  int64_t from_columns, from_column, to_columns, to_column, columns;
};
constexpr Case kCases[] = {{1, 1, 0, 1, 0, 1}, {3, 7, 2, 5, 1, 4}, {9, 130, 3, 77, 5, 70}, {4, 6, 6, 5, 2, 0}, {5, 3, 0, 3, 0, 3}};
// Cases in which a GPU can use 16-byte accesses, and cases in which a stride, a column count or a first column prevents it.
constexpr Case kWide[] = {{5, 16, 8, 24, 16, 8},    {33, 256, 0, 640, 384, 256}, {4, 68, 32, 128, 64, 32}, {4, 64, 32, 132, 64, 32},
                          {4, 64, 32, 128, 64, 28}, {4, 64, 30, 128, 64, 32},    {4, 64, 32, 128, 61, 32}, {301, 200, 8, 264, 64, 120}};

/// Numbers that every dtype represents exactly, so that results must be equal; neighbours in rows and columns differ.
std::vector<double> numbers(int64_t count, int64_t first, int64_t modulus = 251) {
  std::vector<double> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(static_cast<double>((first + i) % modulus));
  return all;
}

Operation copied(const Case& c) {
  return {"copy_columns",
          {input("from", {c.rows, c.from_columns}, numbers(c.rows * c.from_columns, 1)),
           in_place("to", {c.rows, c.to_columns}, numbers(c.rows * c.to_columns, 100))},
          [c](Context& ctx, const std::vector<Tensor>& t) { copy_columns(ctx, t[0], c.from_column, t[1], c.to_column, c.columns); }};
}

/// Columns [to_column, to_column + columns) of `to` += a matrix of these columns. bf16 represents integers up to 256, so sums are exact too.
Operation added(const Case& c) {
  return {"add_columns",
          {input("x", {c.rows, c.columns}, numbers(c.rows * c.columns, 1, 113)),
           in_place("to", {c.rows, c.to_columns}, numbers(c.rows * c.to_columns, 100, 127))},
          [c](Context& ctx, const std::vector<Tensor>& t) { add_columns(ctx, t[0], t[1], c.to_column); }};
}

constexpr double kExact = 0;

}  // namespace

TEST_CASE("columns: engines agree") {
  for (const Case& c : kCases) {
    check_engines(copied(c), kExact);
    check_engines(added(c), kExact);
  }
  for (const Case& c : kWide) {
    check_engines(copied(c), kExact);
    check_engines(added(c), kExact);
  }
}

TEST_CASE("columns: operands of different alignment") {
  check_misaligned(copied(kWide[0]), kExact);
  check_misaligned(added(kWide[0]), kExact);
}

TEST_CASE("columns: columns outside the copied range are unchanged") {
  Operation operation = copied({2, 3, 1, 4, 2, 2});
  operation.operands[0].values = {1, 2, 3, 4, 5, 6};
  operation.operands[1].values = {10, 20, 30, 40, 50, 60, 70, 80};
  for (const Device device : devices()) CHECK(run(operation, device, DType::kF32)[1] == std::vector<double>{10, 20, 2, 3, 50, 60, 5, 6});
}

TEST_CASE("columns: sums of columns, and the others unchanged") {
  Operation operation = added({2, 2, 0, 4, 1, 2});
  operation.operands[0].values = {1, 2, 3, 4};
  operation.operands[1].values = {10, 20, 30, 40, 50, 60, 70, 80};
  for (const Device device : devices()) CHECK(run(operation, device, DType::kF32)[1] == std::vector<double>{10, 21, 32, 40, 50, 63, 74, 80});
}

TEST_CASE("columns: a range outside the matrix is rejected") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  const auto matrix = [&](int64_t columns, DType dtype) { return Tensor::zeros(ctx, {2, columns}, dtype, MemoryCategory::kWorkspace); };
  const Tensor from = matrix(5, DType::kF32), to = matrix(4, DType::kF32);
  CHECK_NOTHROW(copy_columns(ctx, from, 1, to, 0, 4));
  CHECK_THROWS_AS(copy_columns(ctx, from, 2, to, 0, 4), InternalError);
  CHECK_THROWS_AS(copy_columns(ctx, from, 0, to, 1, 4), InternalError);
  CHECK_THROWS_AS(copy_columns(ctx, from, -1, to, 0, 2), InternalError);
  CHECK_THROWS_AS(copy_columns(ctx, from, 0, to, 0, -1), InternalError);
  CHECK_THROWS_AS(copy_columns(ctx, from, 0, matrix(4, DType::kF64), 0, 2), InternalError);
  CHECK_NOTHROW(add_columns(ctx, to, from, 1));
  CHECK_THROWS_AS(add_columns(ctx, to, from, 2), InternalError);
  CHECK_THROWS_AS(add_columns(ctx, to, from, -1), InternalError);
  CHECK_THROWS_AS(add_columns(ctx, to, matrix(5, DType::kF64), 0), InternalError);
}
