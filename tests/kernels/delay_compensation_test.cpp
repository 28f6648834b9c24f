#include "kernels/ops/delay_compensation.h"

#include "tests/kernels/harness.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

Operation compensated(int64_t count, double lambda) {
  return {"compensate_delay",
          {input("w", {count}), input("then", {count}), in_place("g", {count})},
          [lambda](Context& ctx, const std::vector<Tensor>& t) { compensate_delay(ctx, lambda, t[0], t[1], t[2]); }};
}

Operation scaled(int64_t count, double factor) {
  return {"add_scaled", {input("x", {count}), in_place("sum", {count})}, [factor](Context& ctx, const std::vector<Tensor>& t) {
            add_scaled(ctx, factor, t[0], t[1]);
          }};
}

}  // namespace

TEST_CASE("delay compensation: g + lambda g g (w - then), by hand") {
  Operation operation = compensated(3, 0.5);
  operation.operands = {input("w", {3}, {3, 1, 2}), input("then", {3}, {1, 1, 4}), in_place("g", {3}, {2, 7, -3})};
  CHECK(run(operation, Device::kReference, DType::kF64)[2] == std::vector<double>{2 + 0.5 * 4 * 2, 7, -3 + 0.5 * 9 * -2});
}

TEST_CASE("delay compensation: the gradient of a quadratic with g g for its curvature becomes that of the newer weights") {
  // g = c w with c = lambda g g at the old weight: then g + lambda g g (w - then) = c w exactly.
  const double then = 2, now = 1.5, curvature = 0.25, gradient = curvature * then;
  Operation operation = compensated(1, curvature / (gradient * gradient));
  operation.operands = {input("w", {1}, {now}), input("then", {1}, {then}), in_place("g", {1}, {gradient})};
  CHECK(run(operation, Device::kReference, DType::kF64)[2][0] == Approx(curvature * now).epsilon(1e-15));
}

TEST_CASE("delay compensation: the engines of CPUs agree, with any number of threads, and weights that are equal change no bit") {
  for (const Operation& operation : {compensated(70001, 0.3), scaled(70001, -0.7)}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const Values expected = run(operation, Device::kReference, dtype);
      for (const int threads : {1, 2, 3}) CHECK(run(operation, Device::kCpu, dtype, threads) == expected);
    }
  }
  Operation equal = compensated(4, 0.3);
  equal.operands = {input("w", {4}, {1, 2, 3, 4}), input("then", {4}, {1, 2, 3, 4}), in_place("g", {4}, {0.1, -0.2, 1e30, 0})};
  const Values values = run(equal, Device::kReference, DType::kF32);
  CHECK(values[2] == std::vector<double>{0.1F, -0.2F, 1e30F, 0});
}

TEST_CASE("delay compensation: tensors of another shape or dtype are rejected") {
  Arena arena(Device::kReference);
  Context ctx{Device::kReference, &arena};
  const Tensor three = Tensor::zeros(ctx, {3}, DType::kF32, MemoryCategory::kWorkspace), two = three.flat(0, 2);
  const Tensor wide = Tensor::zeros(ctx, {3}, DType::kF64, MemoryCategory::kWorkspace);
  CHECK_NOTHROW(compensate_delay(ctx, 1, three, three, three));
  CHECK_THROWS_AS(compensate_delay(ctx, 1, two, three, three), InternalError);
  CHECK_THROWS_AS(compensate_delay(ctx, 1, three, wide, three), InternalError);
  CHECK_THROWS_AS(add_scaled(ctx, 1, two, three), InternalError);
}
