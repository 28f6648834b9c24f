#include "kernels/ops/aggregate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// Rows of numbers on a device.
template <class T>
struct Matrix {
  Matrix(const std::vector<std::vector<double>>& rows, Device device, int threads = 1)
      : arena(device), ctx{device, &arena, threads}, n(std::ssize(rows)), m(std::ssize(rows.front())) {
    copies = Tensor::empty(ctx, {n, m}, dtype_of<T>(), MemoryCategory::kWorkspace);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t k = 0; k < m; ++k) copies.template data<T>()[r * m + k] = static_cast<T>(rows[static_cast<size_t>(r)][static_cast<size_t>(k)]);
  }
  Tensor vector(const std::vector<double>& values) {
    const Tensor made = Tensor::empty(ctx, {std::ssize(values)}, dtype_of<T>(), MemoryCategory::kWorkspace);
    for (size_t i = 0; i < values.size(); ++i) made.template data<T>()[i] = static_cast<T>(values[i]);
    return made;
  }
  /// What `operation` writes to a vector that contains NaN.
  template <class Operation>
  std::vector<double> result(const Operation& operation) {
    const Tensor out = vector(std::vector<double>(static_cast<size_t>(m), std::nan("")));
    operation(out);
    return {out.template data<T>(), out.template data<T>() + m};
  }

  Arena arena;
  Context ctx;
  int64_t n, m;
  Tensor copies;
};

const std::vector<std::vector<double>> kSeven = {{1, 2, 3},     {1.1, 1.9, 3.1}, {.9, 2.1, 2.9}, {1.2, 2, 3},
                                                 {1, 1.8, 3.2}, {.8, 2.2, 3},    {100, -50, 1e6}};
const std::vector<int> kAll = {0, 1, 2, 3, 4, 5, 6};

void check_near(const std::vector<double>& values, const std::vector<double>& expected, double tolerance) {
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    INFO("element " << i << ": " << values[i] << ", expected " << expected[i]);
    CHECK(std::abs(values[i] - expected[i]) <= tolerance);
  }
}

std::vector<std::vector<double>> random_rows(int64_t n, int64_t m, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> rows(static_cast<size_t>(n), std::vector<double>(static_cast<size_t>(m)));
  for (std::vector<double>& row : rows)
    for (double& value : row) value = static_cast<float>(normal(random));
  return rows;
}

}  // namespace

TEST_CASE("aggregate: known answers of the coordinate-wise rules") {
  Matrix<double> seven(kSeven, Device::kReference);
  check_near(seven.result([&](const Tensor& out) { trimmed_mean(seven.ctx, seven.copies, kAll, 0, out); }), {15.142857, -5.428571, 142859.742857},
             5e-7);
  check_near(seven.result([&](const Tensor& out) { median(seven.ctx, seven.copies, kAll, out); }), {1, 2, 3}, 0);
  check_near(seven.result([&](const Tensor& out) { trimmed_mean(seven.ctx, seven.copies, kAll, 1, out); }), {1.04, 1.96, 3.06}, 1e-14);
  const std::vector<int> chosen = {0, 1, 2, 3, 4};
  check_near(seven.result([&](const Tensor& out) { mean_near_median(seven.ctx, seven.copies, chosen, 3, out); }), {0.966667, 1.966667, 2.966667},
             5e-7);
}

TEST_CASE("aggregate: the median of an even number of values is the mean of the middle two") {
  Matrix<double> four({{1}, {10}, {2}, {4}}, Device::kReference);
  const std::vector<int> all = {0, 1, 2, 3}, two = {0, 3};
  CHECK(four.result([&](const Tensor& out) { median(four.ctx, four.copies, all, out); }) == std::vector<double>{3});
  CHECK(four.result([&](const Tensor& out) { median(four.ctx, four.copies, two, out); }) == std::vector<double>{2.5});
  CHECK(four.result([&](const Tensor& out) { trimmed_mean(four.ctx, four.copies, all, 1, out); }) == std::vector<double>{3});
  CHECK(four.result([&](const Tensor& out) { mean_near_median(four.ctx, four.copies, all, 3, out); })[0] == Approx(7.0 / 3));
  CHECK(four.result([&](const Tensor& out) { mean_near_median(four.ctx, four.copies, all, 1, out); }) == std::vector<double>{2});  // as near as 4
}

TEST_CASE("aggregate: rows that do not take part are not read") {
  std::vector<std::vector<double>> rows = kSeven;
  rows[6] = {std::nan(""), INFINITY, -INFINITY};
  Matrix<double> six(rows, Device::kReference);
  const std::vector<int> finite = {0, 1, 2, 3, 4, 5};
  check_near(six.result([&](const Tensor& out) { median(six.ctx, six.copies, finite, out); }), {1, 2, 3}, 1e-14);
  const Tensor center = six.vector({1, 2, 3});
  const std::vector<double> weights(6, 1.0 / 6);
  check_near(six.result([&](const Tensor& out) { weighted_mean(six.ctx, six.copies, finite, weights, center, out); }), {1, 2, 18.2 / 6}, 1e-14);
  const Tensor products = Tensor::zeros(six.ctx, {6, 6}, DType::kF64, MemoryCategory::kWorkspace);
  add_centered_products(six.ctx, six.copies, finite, center, 0, 3, products);
  CHECK(products.data<double>()[1 * 6 + 1] == Approx(0.03));   // 0.1^2 + 0.1^2 + 0.1^2
  CHECK(products.data<double>()[1 * 6 + 2] == Approx(-0.03));  // the opposite difference
  CHECK(products.data<double>()[2 * 6 + 1] == Approx(-0.03));
  const Tensor sums = Tensor::zeros(six.ctx, {7}, DType::kF64, MemoryCategory::kWorkspace);
  add_row_squares(six.ctx, six.copies, 0, 3, sums);
  CHECK(sums.data<double>()[0] == 14);
  CHECK_FALSE(std::isfinite(sums.data<double>()[6]));
}

TEST_CASE("aggregate: sums are over the columns asked for, and are added") {
  Matrix<double> seven(kSeven, Device::kReference);
  const Tensor sums = seven.vector({100, 0, 0, 0, 0, 0, 0}), center = seven.vector({0, 1, 2});
  add_row_squares(seven.ctx, seven.copies, 1, 2, sums);
  CHECK(sums.data<double>()[0] == 113);
  CHECK(sums.data<double>()[3] == 13);
  const std::vector<int> rows = {0, 6};
  const Tensor diagonal = seven.vector({1, 0}), products = Tensor::zeros(seven.ctx, {2, 2}, DType::kF64, MemoryCategory::kWorkspace);
  add_centered_products(seven.ctx, seven.copies, rows, center, 0, 2, diagonal);
  add_centered_products(seven.ctx, seven.copies, rows, center, 0, 2, products);
  CHECK(diagonal.data<double>()[0] == 3);
  CHECK(diagonal.data<double>()[1] == 100.0 * 100 + 51 * 51);
  CHECK(products.data<double>()[0] == 2);
  CHECK(products.data<double>()[1] == 100 - 51);
  CHECK(products.data<double>()[2] == 100 - 51);
  CHECK(products.data<double>()[3] == diagonal.data<double>()[1]);
  const Tensor to = seven.vector({1, 2}), from = seven.vector({5, 0});
  blend(seven.ctx, 0.25, from, to);
  CHECK(to.data<double>()[0] == 2);
  CHECK(to.data<double>()[1] == 1.5);
}

TEST_CASE("aggregate: fp32 on the CPU equals the reference bit for bit, with any number of threads") {
  const int64_t n = 9, m = 40'000;
  const std::vector<std::vector<double>> rows = random_rows(n, m, 3);
  const std::vector<int> some = {0, 2, 3, 4, 6, 7, 8};
  const std::vector<double> weights = {0.5, -0.25, 0, 0.125, 0.125, 0.25, 0.25};
  const auto all = [&](Device device, int threads) {
    Matrix<float> matrix(rows, device, threads);
    std::vector<std::vector<double>> results;
    const auto add = [&](const auto& operation) { results.push_back(matrix.result(operation)); };
    add([&](const Tensor& out) { median(matrix.ctx, matrix.copies, some, out); });
    add([&](const Tensor& out) { trimmed_mean(matrix.ctx, matrix.copies, some, 2, out); });
    add([&](const Tensor& out) { mean_near_median(matrix.ctx, matrix.copies, some, 4, out); });
    const Tensor center = matrix.vector(results.front());
    add([&](const Tensor& out) { weighted_mean(matrix.ctx, matrix.copies, some, weights, center, out); });
    const Tensor sums = Tensor::zeros(matrix.ctx, {n}, DType::kF64, MemoryCategory::kWorkspace);
    add_row_squares(matrix.ctx, matrix.copies, 5, m - 9, sums);
    results.emplace_back(sums.data<double>(), sums.data<double>() + n);
    const Tensor products = Tensor::zeros(matrix.ctx, {7, 7}, DType::kF64, MemoryCategory::kWorkspace);
    add_centered_products(matrix.ctx, matrix.copies, some, center, 5, m - 9, products);
    results.emplace_back(products.data<double>(), products.data<double>() + 49);
    const Tensor to = matrix.vector(rows[1]);
    blend(matrix.ctx, 0.9, center, to);
    results.emplace_back(to.data<float>(), to.data<float>() + m);
    return results;
  };
  const std::vector<std::vector<double>> expected = all(Device::kReference, 1);
  for (const int threads : {1, 3}) CHECK((all(Device::kCpu, threads) == expected));
  for (int64_t k = 0; k < m; k += 997) {  // against the definition
    std::vector<double> column;
    for (const int r : some) column.push_back(rows[static_cast<size_t>(r)][static_cast<size_t>(k)]);
    std::ranges::sort(column);
    const auto place = static_cast<size_t>(k);
    CHECK(expected[0][place] == column[3]);
    CHECK(expected[1][place] == Approx(std::accumulate(column.begin() + 2, column.begin() + 5, 0.0) / 3).margin(1e-7));
    std::ranges::sort(column, {}, [&](double value) { return std::abs(value - expected[0][place]); });
    CHECK(expected[2][place] == Approx(std::accumulate(column.begin(), column.begin() + 4, 0.0) / 4).margin(1e-7));
  }
}

TEST_CASE("aggregate: numbers of values that no rule has are refused") {
  Matrix<double> seven(kSeven, Device::kReference);
  const Tensor out = seven.vector({0, 0, 0});
  const std::vector<int> none;
  CHECK_THROWS_AS(trimmed_mean(seven.ctx, seven.copies, kAll, 4, out), InternalError);
  CHECK_THROWS_AS(trimmed_mean(seven.ctx, seven.copies, none, 0, out), InternalError);
  CHECK_THROWS_AS(mean_near_median(seven.ctx, seven.copies, kAll, 8, out), InternalError);
  CHECK_THROWS_AS(mean_near_median(seven.ctx, seven.copies, kAll, 0, out), InternalError);
  const std::vector<int> beyond = {0, 7};
  CHECK_THROWS_AS(median(seven.ctx, seven.copies, beyond, out), InternalError);
}
