#include "kernels/ops/low_rank.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/optimizer.h"
#include "tests/kernels/harness.h"
#include "tests/kernels/misaligned.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

/// Power iteration on one matrix [m,n] from a basis [r,n].
template <class T>
struct Iteration {
  Iteration(const std::vector<double>& m, int64_t m_rows, const std::vector<double>& q, int64_t of_rank, Device device = Device::kReference)
      : rows(m_rows), columns(std::ssize(m) / m_rows), rank(of_rank), arena(device), ctx{device, &arena, 1} {
    matrix = tensor(m, {rows, columns});
    basis = tensor(q, {rank, columns});
    p = Tensor::zeros(ctx, {rows, rank}, dtype_of<T>(), MemoryCategory::kWorkspace);
  }
  Tensor tensor(const std::vector<double>& values, const Shape& shape) {
    const Tensor made = Tensor::empty(ctx, shape, dtype_of<T>(), MemoryCategory::kWorkspace);
    for (size_t i = 0; i < values.size(); ++i) made.template data<T>()[i] = static_cast<T>(values[i]);
    return made;
  }
  /// One iteration. Returns the squared norm of what P Q' lacks of the matrix.
  double step() {
    linear_forward(ctx, matrix, basis, Tensor(), p);
    orthonormalise(ctx, p);
    linear_backward_weight(ctx, p, matrix, basis, false);
    const Tensor lacks = Tensor::empty(ctx, {rows * columns}, dtype_of<T>(), MemoryCategory::kWorkspace);
    copy(ctx, matrix.view({rows * columns}), lacks);
    add_product(ctx, -1, p, basis, 0, lacks);
    double squares = 0;
    for (int64_t i = 0; i < rows * columns; ++i) squares += std::pow(static_cast<double>(lacks.template data<T>()[i]), 2);
    return squares;
  }
  /// The largest difference between P^T P and the identity.
  double skew() const {
    double worst = 0;
    for (int64_t a = 0; a < rank; ++a)
      for (int64_t b = 0; b < rank; ++b) {
        double dot = 0;
        for (int64_t m = 0; m < rows; ++m) dot += static_cast<double>(at(m, a)) * static_cast<double>(at(m, b));
        worst = std::max(worst, std::abs(dot - (a == b ? 1 : 0)));
      }
    return worst;
  }
  T at(int64_t m, int64_t k) const { return p.template data<T>()[m * rank + k]; }

  int64_t rows, columns, rank;
  Arena arena;
  Context ctx;
  Tensor matrix, basis, p;
};

std::vector<double> normals(int64_t count, uint64_t key) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = random_normal(key, static_cast<uint64_t>(i));
  return values;
}

/// A matrix of `rank`: the product of two random ones.
std::vector<double> of_rank(int64_t rank, int64_t rows, int64_t columns) {
  const std::vector<double> a = normals(rows * rank, 3), b = normals(rank * columns, 4);
  std::vector<double> product(static_cast<size_t>(rows * columns));
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t k = 0; k < rank; ++k)
      for (int64_t n = 0; n < columns; ++n)
        product[static_cast<size_t>(m * columns + n)] += a[static_cast<size_t>(m * rank + k)] * b[static_cast<size_t>(k * columns + n)];
  return product;
}

double squares_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return sum;
}

}  // namespace

TEST_CASE("low rank: power iteration on a known matrix") {
  // Singular values 9.525518091565104 and 0.514300580658644: the best approximation of rank 1 lacks the square of the second.
  Iteration<double> known({1, 2, 3, 4, 5, 6}, 3, {1, 0}, 1);
  CHECK(std::abs(known.step() - 0.685714286) < 5e-10);
  CHECK(std::abs(known.step() - 0.264508683) < 5e-10);
  CHECK(std::abs(known.step() - 0.264505087) < 5e-10);
  CHECK(std::abs(known.step() - std::pow(0.514300580658644, 2)) < 1e-12);
}

TEST_CASE("low rank: exact up to the rank, and closer with every iteration beyond") {
  for (const int64_t rank : {1, 2, 3, 5}) {
    const std::vector<double> matrix = of_rank(rank, 23, 17);
    for (const int64_t wider : {int64_t{0}, int64_t{2}}) {
      CAPTURE(rank, wider);
      Iteration<double> exact(matrix, 23, normals((rank + wider) * 17, 5), rank + wider);
      CHECK(exact.step() < 1e-24 * squares_of(matrix));
      Iteration<float> narrow(matrix, 23, normals((rank + wider) * 17, 5), rank + wider, Device::kCpu);
      CHECK(narrow.step() < 1e-11 * squares_of(matrix));
    }
    Iteration<double> lossy(normals(23 * 17, 6), 23, normals(rank * 17, 5), rank);
    double last = lossy.step();
    for (int i = 0; i < 10; ++i) {
      const double next = lossy.step();
      CHECK(next < last);
      last = next;
    }
    CHECK(lossy.skew() < 1e-14);
  }
}

TEST_CASE("low rank: columns that depend on others are zero, whatever their size") {
  for (const double size : {1e-150, 1.0, 1e150}) {
    CAPTURE(size);
    Iteration<double> three({size, 0, 0, 0}, 2, {1, 0, 1, 0}, 2);
    CHECK(three.step() == 0);
    CHECK(three.at(0, 0) == 1);
    CHECK(three.at(0, 1) == 0);
    CHECK(three.at(1, 1) == 0);
  }
  // Nearly dependent columns become orthogonal all the same.
  Iteration<float> near({1, 1, 1, 1, 1e-4, 0, 1, 0, 1e-4}, 3, {1, 0, 0, 0, 1, 0, 0, 0, 1}, 3, Device::kCpu);
  near.step();
  CHECK(near.skew() < 1e-6);
}

TEST_CASE("low rank: a matrix of zeros leaves the basis for the next iteration") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena, 1};
  const auto rows = [&](const std::vector<double>& values) {
    const Tensor made = Tensor::empty(ctx, {3, 2}, DType::kF64, MemoryCategory::kWorkspace);
    std::ranges::copy(values, made.data<double>());
    return made;
  };
  const Tensor from = rows({0, 0, 0, 5, 7, 0}), to = rows({1, 2, 3, 4, 5, 6});
  const Tensor scalars = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  copy_nonzero_rows(ctx, scalars, from, to);  // of a rejected step
  CHECK(std::vector<double>(to.data<double>(), to.data<double>() + 6) == std::vector<double>{1, 2, 3, 4, 5, 6});
  scalars.data<double>()[kAccepted] = 1;
  copy_nonzero_rows(ctx, scalars, from, to);
  CHECK(std::vector<double>(to.data<double>(), to.data<double>() + 6) == std::vector<double>{1, 2, 0, 5, 7, 0});
}

TEST_CASE("low rank: parts of a product are those of the whole") {
  constexpr int64_t kRows = 5, kColumns = 7;
  Iteration<double> of(normals(kRows * kColumns, 8), kRows, normals(2 * kColumns, 9), 2);
  of.step();
  const Tensor whole = Tensor::zeros(of.ctx, {kRows * kColumns}, DType::kF64, MemoryCategory::kWorkspace);
  add_product(of.ctx, 2, of.p, of.basis, 0, whole);
  for (int64_t begin = 0; begin <= kRows * kColumns; ++begin)
    for (int64_t end = begin; end <= kRows * kColumns; ++end) {
      const Tensor part = Tensor::zeros(of.ctx, {end - begin}, DType::kF64, MemoryCategory::kWorkspace);
      add_product(of.ctx, 2, of.p, of.basis, begin, part);
      for (int64_t i = begin; i < end; ++i) REQUIRE(part.data<double>()[i - begin] == whole.data<double>()[i]);
    }
  CHECK_THROWS_AS(add_product(of.ctx, 1, of.p, of.basis, 1, whole), InternalError);
}

TEST_CASE("low rank: what is not finite stays visible") {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const int64_t place : {0, 3, 5}) {
      CAPTURE(bad, place);
      std::vector<double> values = {1, 2, 3, 4, 5, 6};
      values[static_cast<size_t>(place)] = bad;
      Iteration<double> poisoned(values, 3, {1, 0, 0, 1}, 2);
      CHECK(std::isnan(poisoned.step()));
      const Tensor sum = Tensor::zeros(poisoned.ctx, {6}, DType::kF64, MemoryCategory::kWorkspace);
      add_product(poisoned.ctx, 1, poisoned.p, poisoned.basis, 0, sum);
      bool finite = true;
      for (int64_t i = 0; i < 6; ++i) finite = finite && std::isfinite(sum.data<double>()[i]);
      CHECK(!finite);
    }
  }
}

namespace {

Operand single(Operand operand) {
  operand.dtype = DType::kF32;
  return operand;
}

Operation orthonormal(int64_t rows, int64_t rank, const std::vector<double>& values = {}) {
  return {"orthonormalise", {free_rows(single(in_place("p", {rows, rank}, values)))}, [](Context& ctx, const std::vector<Tensor>& t) {
            orthonormalise(ctx, t[0]);
          }};
}

Operation added_product(int64_t rows, int64_t rank, int64_t columns, int64_t begin) {
  return {"add_product",
          {free_rows(single(input("p", {rows, rank}))), single(input("q", {rank, columns})), single(added_to("out", {rows * columns - begin}))},
          [begin](Context& ctx, const std::vector<Tensor>& t) { add_product(ctx, -0.5, t[0], t[1], begin, t[2]); }};
}

Operation copied_rows(int64_t rows, int64_t columns, bool accepted) {
  std::vector<double> scalars(kStepScalars), values = normals(rows * columns, 12);
  scalars[kAccepted] = accepted ? 1 : 0;
  std::fill_n(values.begin() + (rows - 1) * columns, columns, 0.0);
  return {"copy_nonzero_rows",
          {always_f64(input("scalars", {kStepScalars}, scalars)), single(input("from", {rows, columns}, values)),
           single(in_place("to", {rows, columns}))},
          [](Context& ctx, const std::vector<Tensor>& t) { copy_nonzero_rows(ctx, t[0], t[1], t[2]); }};
}

}  // namespace

TEST_CASE("low rank: engines agree") {
  constexpr double kTolerance = 1e-6;
  for (const int64_t rows : {1, 7, 600}) check_engines(orthonormal(rows, std::min<int64_t>(rows, 4)), kTolerance);
  check_engines(orthonormal(3, 3, {2, 4, 1, 0, 0, 2, 2, 4, 5}), kTolerance);  // the second column is twice the first
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {9, 130}, {16, 64}})
    for (const int64_t begin : {int64_t{0}, rows * columns / 2, rows * columns - 1})
      check_engines(added_product(rows, 3, columns, begin), kTolerance);
  check_misaligned(added_product(16, 2, 32, 0), kTolerance);
  for (const bool accepted : {true, false})
    for (const int64_t columns : {1, 5, 700}) check_engines(copied_rows(3, columns, accepted), 0);
}
