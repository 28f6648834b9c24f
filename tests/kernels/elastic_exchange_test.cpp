#include "kernels/ops/elastic_exchange.h"

#include <cmath>
#include <numeric>

#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

Operation exchanged(int64_t count, double rate) {
  return {"elastic_exchange", {in_place("x", {count}), in_place("centre", {count})}, [rate](Context& ctx, const std::vector<Tensor>& t) {
            elastic_exchange(ctx, rate, t[0], t[1]);
          }};
}

/// Two islands descend on (x - target)^2 / 2 by the operation, and one after the other exchanges with the centre after each step.
struct TwoIslands {
  std::vector<double> x = {1, 1};
  double centre = 1;
  void round(double learning_rate, double rate) {
    const std::vector<double> target = {0, 4};
    for (size_t island = 0; island < 2; ++island) {
      x[island] -= learning_rate * (x[island] - target[island]);
      Operation operation = exchanged(1, rate);
      operation.operands = {in_place("x", {1}, {x[island]}), in_place("centre", {1}, {centre})};
      const Values after = run(operation, Device::kReference, DType::kF64);
      x[island] = after[0][0];
      centre = after[1][0];
    }
  }
};

}  // namespace

TEST_CASE("elastic exchange: x - a (x - c) and c + a (x - c), by hand") {
  Operation operation = exchanged(3, 0.25);
  operation.operands = {in_place("x", {3}, {5, 2, -3}), in_place("centre", {3}, {1, 2, 1})};
  const Values values = run(operation, Device::kReference, DType::kF64);
  CHECK(values[0] == std::vector<double>{4, 2, -2});
  CHECK(values[1] == std::vector<double>{2, 2, 0});
}

TEST_CASE("elastic exchange: two islands on a quadratic have worked numbers") {
  TwoIslands islands;
  // Island 0: 1 -> .5, d = (.5 - 1) / 4. Island 1: 1 -> 2.5, d = (2.5 - .875) / 4.
  islands.round(0.5, 0.25);
  CHECK(islands.x == std::vector<double>{0.625, 2.09375});
  CHECK(islands.centre == 1.28125);
  // Island 0: .625 -> .3125, d = -.96875 / 4. Island 1: 2.09375 -> 3.046875, d = (3.046875 - 1.0390625) / 4.
  islands.round(0.5, 0.25);
  CHECK(islands.x == std::vector<double>{0.5546875, 2.544921875});
  CHECK(islands.centre == 1.541015625);
  // The same from an independent loop, over many rounds.
  double a = 1, b = 1, c = 1;
  TwoIslands more;
  for (int round = 0; round < 200; ++round) {
    a -= 0.3 * a;
    double d = 0.45 * (a - c);
    a -= d, c += d;
    b -= 0.3 * (b - 4);
    d = 0.45 * (b - c);
    b -= d, c += d;
    more.round(0.3, 0.45);
    CHECK((more.x[0] == a && more.x[1] == b && more.centre == c));
  }
  CHECK(more.centre == Approx(164.0 / 73));  // above the mean of the optima, as island 1 exchanges last
  TwoIslands apart;                          // a moving rate of 0: each reaches its own optimum, and the centre stays
  for (int round = 0; round < 100; ++round) apart.round(0.5, 0);
  CHECK(apart.x == std::vector<double>{std::pow(0.5, 100), 4});
  CHECK(apart.centre == 1);
}

TEST_CASE("elastic exchange: the sum of the centre and of all islands is conserved, exactly on whole numbers") {
  std::vector<double> islands = {40, -96, 1024}, values = islands;
  double centre = -8;
  const double sum = std::accumulate(islands.begin(), islands.end(), centre);
  for (const size_t island : {0U, 2U, 1U, 2U, 0U, 1U}) {
    Operation operation = exchanged(1, 0.5);
    operation.operands = {in_place("x", {1}, {values[island]}), in_place("centre", {1}, {centre})};
    const Values after = run(operation, Device::kReference, DType::kF64);
    values[island] = after[0][0];
    centre = after[1][0];
    CHECK(std::accumulate(values.begin(), values.end(), centre) == sum);
  }
  CHECK(values != islands);
}

TEST_CASE("elastic exchange: the engines of CPUs agree, with any number of threads, and a moving rate of 0 changes no bit") {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Values expected = run(exchanged(70001, 0.3), Device::kReference, dtype);
    for (const int threads : {1, 2, 3}) CHECK(run(exchanged(70001, 0.3), Device::kCpu, dtype, threads) == expected);
  }
  Operation still = exchanged(3, 0);
  still.operands = {in_place("x", {3}, {0.1, -1e30, 0}), in_place("centre", {3}, {7, 0.3, 1e30})};
  const Values values = run(still, Device::kReference, DType::kF32);
  CHECK(values[0] == std::vector<double>{0.1F, -1e30F, 0});
  CHECK(values[1] == std::vector<double>{7, 0.3F, 1e30F});
}

TEST_CASE("elastic exchange: tensors of another shape or dtype are rejected") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  const Tensor three = Tensor::zeros(ctx, {3}, DType::kF32, MemoryCategory::kWorkspace), two = three.flat(0, 2);
  const Tensor wide = Tensor::zeros(ctx, {3}, DType::kF64, MemoryCategory::kWorkspace);
  CHECK_THROWS_AS(elastic_exchange(ctx, 1, two, three), InternalError);
  CHECK_THROWS_AS(elastic_exchange(ctx, 1, three, wide), InternalError);
}
