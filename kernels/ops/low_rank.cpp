#include "kernels/ops/low_rank.h"

#include "kernels/ops/dispatch.h"
#include "kernels/reference/low_rank.h"

namespace trireme {
namespace {

template <class Reference>
void run_on_cpu(Operation& operation, DType dtype, const Reference& reference) {
  const auto no_cuda = [] { throw InternalError("low-rank compression has no CUDA kernels"); };
  const auto wide = [&]<class T>(T value) {
    if constexpr (sizeof(T) >= sizeof(float)) reference(value);
  };
  TRIREME_CHECK(dtype == DType::kF32 || dtype == DType::kF64, "low-rank products need F32 or F64, not ", name_of(dtype));
  operation.run(dtype, no_cuda, wide);
}

}  // namespace

void orthonormalise(Context& ctx, const Tensor& p) {
  Operation operation(ctx, "orthonormalise", {{"p", p, {p.dim(0), p.dim(1)}, p.dtype(), Passes::kReadAndWritten}});
  run_on_cpu(operation, p.dtype(), [&]<class T>(T) { reference::orthonormalise(p.data<T>(), p.dim(0), p.dim(1)); });
}

void add_product(Context& ctx, double scale, const Tensor& p, const Tensor& q, int64_t begin, const Tensor& out) {
  const int64_t rows = p.dim(0), rank = p.dim(1), columns = q.dim(1);
  Operation operation(ctx, "add_product",
                      {{"p", p, {rows, rank}, out.dtype()},
                       {"q", q, {rank, columns}, out.dtype()},
                       {"out", out, {out.numel()}, out.dtype(), Passes::kReadAndWritten}});
  TRIREME_CHECK(begin >= 0 && begin + out.numel() <= rows * columns, "add_product: elements ", begin, " to ", begin + out.numel(), " of a matrix of ",
                rows, " x ", columns);
  run_on_cpu(operation, out.dtype(),
             [&]<class T>(T) { reference::add_product(scale, p.data<T>(), q.data<T>(), rank, columns, begin, out.numel(), out.data<T>()); });
}

void copy_nonzero_rows(Context& ctx, const Tensor& from, const Tensor& to) {
  Operation operation(ctx, "copy_nonzero_rows", {{"from", from, {to.dim(0), to.dim(1)}, to.dtype()}, {"to", to, {to.dim(0), to.dim(1)}, to.dtype()}});
  run_on_cpu(operation, to.dtype(), [&]<class T>(T) { reference::copy_nonzero_rows(from.data<T>(), to.data<T>(), to.dim(0), to.dim(1)); });
}

}  // namespace trireme
