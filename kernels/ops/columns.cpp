#include "kernels/ops/columns.h"

#include "kernels/cpu/columns.h"
#include "kernels/cuda/columns.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/columns.h"

namespace trireme {
namespace {

/// Whether the matrix has columns [first, first + count).
bool has_columns(const Tensor& matrix, int64_t first, int64_t count) { return first >= 0 && count >= 0 && first <= matrix.dim(1) - count; }

}  // namespace

void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns) {
  Operation operation(ctx, "copy_columns",
                      {{"from", from, {from.dim(0), from.dim(1)}, from.dtype()}, {"to", to, {from.dim(0), to.dim(1)}, from.dtype()}});
  TRIREME_CHECK(has_columns(from, from_column, columns) && has_columns(to, to_column, columns), "copy_columns: invalid range: ", columns,
                " columns from column ", from_column, " of ", from.shape().str(), " to column ", to_column, " of ", to.shape().str());
  operation.moves(2 * from.dim(0) * columns * size_of(from.dtype()));
  operation.run(
      from.dtype(), [&] { cuda::copy_columns(ctx, from, from_column, to, to_column, columns); },
      FastCpu{[&] { cpu::copy_columns(ctx, from, from_column, to, to_column, columns); }, true},
      [&]<class T>(T) {
        reference::copy_columns(from.data<T>() + from_column, from.dim(1), to.data<T>() + to_column, to.dim(1), from.dim(0), columns);
      });
}

void add_columns(Context& ctx, const Tensor& x, const Tensor& to, int64_t first) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  Operation operation(ctx, "add_columns", {{"x", x, {rows, columns}, x.dtype()}, {"to", to, {rows, to.dim(1)}, x.dtype()}});
  TRIREME_CHECK(has_columns(to, first, columns), "add_columns: invalid range: ", columns, " columns from column ", first, " of ", to.shape().str());
  operation.moves(3 * x.bytes());
  operation.run(
      x.dtype(), [&] { cuda::add_columns(ctx, x, to, first); }, FastCpu{[&] { cpu::add_columns(ctx, x, to, first); }, true},
      [&]<class T>(T) { reference::add_columns(x.data<T>(), to.data<T>() + first, to.dim(1), rows, columns); });
}

}  // namespace trireme
