// The harness must detect errors: except in the first test, each operation is wrong, and its test passes only if a check fails.
#include "tests/kernels/harness.h"

#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::testing;

namespace {

constexpr int64_t kCount = 5;
constexpr double kTolerance = 1e-6;

/// y = x on the host, and then spoil(ctx, x, y).
template <class Spoil>
Operation copy_with(const Spoil& spoil) {
  return {"copy", {input("x", {kCount}), assigned("y", {kCount})}, [spoil](Context& ctx, const std::vector<Tensor>& t) {
            dispatch_float(t[0].dtype(), [&]<class T>(T) {
              T *x = t[0].data<T>(), *y = t[1].data<T>();
              for (int64_t i = 0; i < kCount; ++i) y[i] = x[i];
              spoil(ctx, x, y);
            });
          }};
}

/// The part of check_engines that needs no GPU kernel.
void check_on_host(const Operation& operation, DType dtype) {
  const Values exact = run(operation, Device::kReference, DType::kF64);
  CHECK(normalised_error(run(operation, Device::kCpu, dtype)[1], exact[1], 0, dtype == DType::kBF16 ? 0x1p-8 : 0) <= kTolerance);
}

}  // namespace

TEST_CASE("harness: a correct operation passes in fp32 and bf16") {
  const Operation right = copy_with([]<class T>(const Context&, T*, T*) {});
  check_on_host(right, DType::kF32);
  check_on_host(right, DType::kBF16);
}

TEST_CASE("harness: a read beyond an input is detected", "[!shouldfail]") {
  check_on_host(copy_with([]<class T>(const Context&, T* x, T* y) { y[0] = static_cast<T>(x[0] + 0 * x[kCount]); }), DType::kF32);
}

TEST_CASE("harness: a read before an input is detected", "[!shouldfail]") {
  check_on_host(copy_with([]<class T>(const Context&, T* x, T* y) { y[0] = static_cast<T>(x[0] + 0 * x[-1]); }), DType::kBF16);
}

TEST_CASE("harness: a write beyond an output is detected", "[!shouldfail]") {
  check_on_host(copy_with([]<class T>(const Context&, T* x, T* y) { y[kCount] = x[kCount]; }), DType::kF32);
}

TEST_CASE("harness: an unwritten element is detected", "[!shouldfail]") {
  Operation lazy = copy_with([]<class T>(const Context&, T*, T*) {});
  lazy.run = [](Context&, const std::vector<Tensor>&) {};
  check_on_host(lazy, DType::kF32);
}

TEST_CASE("harness: a changed input is detected", "[!shouldfail]") {
  check_on_host(copy_with([]<class T>(const Context&, T* x, T*) { x[2] = static_cast<T>(7.0F); }), DType::kBF16);
}

TEST_CASE("harness: a bf16 result that is rounded down a second time is detected", "[!shouldfail]") {
  Operation cut = copy_with([]<class T>(const Context& ctx, T*, T* y) {
    if (ctx.device != Device::kCpu) return;
    for (int64_t i = 0; i < kCount; ++i) y[i] = static_cast<T>(y[i] * (1 - 0x1p-8));
  });
  check_on_host(cut, DType::kBF16);
}
