#include "kernels/ops/low_rank.h"

#include "kernels/cuda/low_rank.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/optimizer.h"
#include "kernels/reference/low_rank.h"

namespace trireme {
namespace {

template <class Cuda, class Reference>
void run_wide(Operation& operation, DType dtype, const Cuda& cuda, const Reference& reference) {
  const auto wide = [&]<class T>(T value) {
    if constexpr (sizeof(T) >= sizeof(float)) reference(value);
  };
  TRIREME_CHECK(dtype == DType::kF32 || dtype == DType::kF64, "low-rank products need F32 or F64, not ", name_of(dtype));
  operation.run(dtype, cuda, wide);
}

}  // namespace

void orthonormalise(Context& ctx, const Tensor& p) {
  Operation operation(ctx, "orthonormalise", {{"p", p, {p.dim(0), p.dim(1)}, p.dtype(), Passes::kReadAndWritten}});
  run_wide(
      operation, p.dtype(), [&] { cuda::orthonormalise(ctx, p); }, [&]<class T>(T) { reference::orthonormalise(p.data<T>(), p.dim(0), p.dim(1)); });
}

void add_product(Context& ctx, double scale, const Tensor& p, const Tensor& q, int64_t begin, const Tensor& out) {
  const int64_t rows = p.dim(0), rank = p.dim(1), columns = q.dim(1);
  Operation operation(ctx, "add_product",
                      {{"p", p, {rows, rank}, out.dtype()},
                       {"q", q, {rank, columns}, out.dtype()},
                       {"out", out, {out.numel()}, out.dtype(), Passes::kReadAndWritten}});
  TRIREME_CHECK(begin >= 0 && begin + out.numel() <= rows * columns, "add_product: elements ", begin, " to ", begin + out.numel(), " of a matrix of ",
                rows, " x ", columns);
  run_wide(
      operation, out.dtype(), [&] { cuda::add_product(ctx, scale, p, q, begin, out); },
      [&]<class T>(T) { reference::add_product(scale, p.data<T>(), q.data<T>(), rank, columns, begin, out.numel(), out.data<T>()); });
}

void copy_nonzero_rows(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to) {
  Operation operation(ctx, "copy_nonzero_rows",
                      {{"scalars", scalars, {kStepScalars}, DType::kF64, Passes::kNotCounted},
                       {"from", from, {to.dim(0), to.dim(1)}, to.dtype()},
                       {"to", to, {to.dim(0), to.dim(1)}, to.dtype()}});
  run_wide(
      operation, to.dtype(), [&] { cuda::copy_nonzero_rows(ctx, scalars, from, to); },
      [&]<class T>(T) {
        if (scalars.data<double>()[kAccepted] != 0) reference::copy_nonzero_rows(from.data<T>(), to.data<T>(), to.dim(0), to.dim(1));
      });
}

}  // namespace trireme
