#include "kernels/ops/aggregate.h"

#include "kernels/cpu/parallel.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/aggregate.h"

namespace trireme {
namespace {

/// Runs `kernel(T{}, first, last)` on ranges of [0, items), each of `width` elements, by the threads of Device::kCpu. The reference device has one range.
template <class Kernel>
void run_ranges(Operation& operation, const char* name, Context& ctx, DType dtype, int64_t items, int64_t width, const Kernel& kernel) {
  TRIREME_CHECK(dtype == DType::kF32 || dtype == DType::kF64, name, " needs F32 or F64, not ", name_of(dtype));
  const auto cuda = [&] { throw InternalError(concat(name, " has no CUDA kernel")); };
  const auto threads = [&] {
    cpu::parallel_for(ctx, items, cpu::grain_of(width), [&](int64_t first, int64_t last) { kernel(float{}, first, last); });
  };
  operation.run(dtype, cuda, FastCpu{threads}, [&]<class T>(T value) {
    if constexpr (sizeof(T) >= sizeof(float)) kernel(value, int64_t{0}, items);
  });
}

void check_rows(const char* operation, const Tensor& copies, std::span<const int> rows) {
  TRIREME_CHECK(!rows.empty() && rows.front() >= 0 && rows.back() < copies.dim(0), operation, ": rows outside ", copies.shape().str(), ", or none");
}

void check_columns(const char* operation, const Tensor& copies, int64_t begin, int64_t count) {
  TRIREME_CHECK(begin >= 0 && count >= 0 && begin <= copies.dim(1) - count, operation, ": ", count, " columns from column ", begin, " of ",
                copies.shape().str());
}

Operand operand_of(const Tensor& copies) { return {"copies", copies, {copies.dim(0), copies.dim(1)}, copies.dtype()}; }

}  // namespace

void trimmed_mean(Context& ctx, const Tensor& copies, std::span<const int> rows, int64_t trimmed, const Tensor& out) {
  Operation operation(ctx, "trimmed_mean", {operand_of(copies), {"out", out, {copies.dim(1)}, copies.dtype()}});
  check_rows("trimmed_mean", copies, rows);
  TRIREME_CHECK(trimmed >= 0 && 2 * trimmed < std::ssize(rows), "trimmed_mean: ", trimmed, " of ", rows.size(), " values trimmed on each side");
  run_ranges(operation, "trimmed_mean", ctx, copies.dtype(), copies.dim(1), std::ssize(rows), [&]<class T>(T, int64_t first, int64_t last) {
    reference::trimmed_mean(copies.data<T>(), copies.dim(1), rows, trimmed, first, last, out.data<T>());
  });
}

void median(Context& ctx, const Tensor& copies, std::span<const int> rows, const Tensor& out) {
  trimmed_mean(ctx, copies, rows, (std::ssize(rows) - 1) / 2, out);
}

void mean_near_median(Context& ctx, const Tensor& copies, std::span<const int> rows, int64_t nearest, const Tensor& out) {
  Operation operation(ctx, "mean_near_median", {operand_of(copies), {"out", out, {copies.dim(1)}, copies.dtype()}});
  check_rows("mean_near_median", copies, rows);
  TRIREME_CHECK(nearest >= 1 && nearest <= std::ssize(rows), "mean_near_median: ", nearest, " of ", rows.size(), " values");
  run_ranges(operation, "mean_near_median", ctx, copies.dtype(), copies.dim(1), std::ssize(rows), [&]<class T>(T, int64_t first, int64_t last) {
    reference::mean_near_median(copies.data<T>(), copies.dim(1), rows, nearest, first, last, out.data<T>());
  });
}

void weighted_mean(Context& ctx, const Tensor& copies, std::span<const int> rows, std::span<const double> weights, const Tensor& center,
                   const Tensor& out) {
  Operation operation(ctx, "weighted_mean",
                      {operand_of(copies), {"center", center, {copies.dim(1)}, copies.dtype()}, {"out", out, {copies.dim(1)}, copies.dtype()}});
  check_rows("weighted_mean", copies, rows);
  TRIREME_CHECK(weights.size() == rows.size(), "weighted_mean: ", weights.size(), " weights of ", rows.size(), " rows");
  run_ranges(operation, "weighted_mean", ctx, copies.dtype(), copies.dim(1), std::ssize(rows), [&]<class T>(T, int64_t first, int64_t last) {
    reference::weighted_mean(copies.data<T>(), copies.dim(1), rows, weights, center.data<T>(), first, last, out.data<T>());
  });
}

void add_row_squares(Context& ctx, const Tensor& copies, int64_t begin, int64_t count, const Tensor& sums) {
  const int64_t n = copies.dim(0), columns = copies.dim(1);
  Operation operation(ctx, "add_row_squares", {operand_of(copies), {"sums", sums, {n}, DType::kF64, Passes::kReadAndWritten}});
  check_columns("add_row_squares", copies, begin, count);
  operation.moves(n * count * size_of(copies.dtype()));
  run_ranges(operation, "add_row_squares", ctx, copies.dtype(), n, count, [&]<class T>(T, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) sums.data<double>()[r] += reference::squares(copies.data<T>() + r * columns + begin, count);
  });
}

void add_centered_products(Context& ctx, const Tensor& copies, std::span<const int> rows, const Tensor& center, int64_t begin, int64_t count,
                           const Tensor& products) {
  const int64_t columns = copies.dim(1), n = std::ssize(rows);
  const bool diagonal = products.shape().dims() == 1;
  Operation operation(ctx, "add_centered_products",
                      {operand_of(copies),
                       {"center", center, {columns}, copies.dtype()},
                       {"products", products, diagonal ? Shape{n} : Shape{n, n}, DType::kF64, Passes::kReadAndWritten}});
  check_rows("add_centered_products", copies, rows);
  check_columns("add_centered_products", copies, begin, count);
  operation.moves((n + 1) * count * size_of(copies.dtype()));
  // An item is a row of products; b <= a, and the other half is the same.
  run_ranges(operation, "add_centered_products", ctx, copies.dtype(), n, count * (diagonal ? 1 : n), [&]<class T>(T, int64_t first, int64_t last) {
    const auto row = [&](int64_t i) { return copies.data<T>() + rows[static_cast<size_t>(i)] * columns + begin; };
    double* const out = products.data<double>();
    for (int64_t a = first; a < last; ++a) {
      for (int64_t b = diagonal ? a : 0; b <= a; ++b) {
        const double product = reference::centered_product(row(a), row(b), center.data<T>() + begin, count);
        out[diagonal ? a : a * n + b] += product;
        if (b != a) out[b * n + a] += product;
      }
    }
  });
}

void blend(Context& ctx, double share, const Tensor& from, const Tensor& to) {
  Operation operation(ctx, "blend", {{"from", from, {to.numel()}, to.dtype()}, {"to", to, {to.numel()}, to.dtype(), Passes::kReadAndWritten}});
  run_ranges(operation, "blend", ctx, to.dtype(), to.numel(), 1,
             [&]<class T>(T, int64_t first, int64_t last) { reference::blend(share, from.data<T>() + first, to.data<T>() + first, last - first); });
}

}  // namespace trireme
