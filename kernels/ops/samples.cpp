#include "kernels/ops/samples.h"

#include "kernels/cpu/parallel.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/samples.h"

namespace trireme {
namespace {

[[noreturn]] void refuse_cuda(const char* name) { throw InternalError(concat(name, " has no CUDA kernel")); }

/// Runs `kernel(T{}, columns, first, last)` on ranges of the rows of x.
template <class Kernel>
void run_on_rows(Context& ctx, const char* name, const Tensor& x, int64_t rows_per_sample, int64_t first_row, const Tensor& factors,
                 const Kernel& kernel) {
  const int64_t rows = x.dim(0), columns = x.numel() / std::max<int64_t>(1, rows);
  Operation operation(ctx, name, {{"x", x, x.shape(), x.dtype(), Passes::kReadAndWritten}, {"factors", factors, {factors.dim(0)}, DType::kF64}});
  TRIREME_CHECK(rows_per_sample > 0 && first_row >= 0 && first_row + rows <= factors.dim(0) * rows_per_sample, name, ": rows ", first_row, " to ",
                first_row + rows, " of ", factors.dim(0), " samples of ", rows_per_sample, " rows");
  operation.run(
      x.dtype(), [&] { refuse_cuda(name); },
      [&]<class T>(T value) {
        cpu::for_ranges(ctx, rows, cpu::grain_of(columns), [&](int64_t first, int64_t last) { kernel(value, columns, first, last); });
      });
}

}  // namespace

void add_inner_product(Context& ctx, const Tensor& a, const Tensor& b, double factor, const Tensor& sum) {
  constexpr int64_t kBlock = int64_t{1} << 16;  // each is summed by one thread, and then the blocks in order: the same sum for any number of threads
  Operation operation(ctx, "add_inner_product",
                      {{"a", a, a.shape(), a.dtype()}, {"b", b, a.shape(), a.dtype()}, {"sum", sum, {1}, DType::kF64, Passes::kReadAndWritten}});
  TRIREME_CHECK(a.dtype() == DType::kF32 || a.dtype() == DType::kF64, "add_inner_product needs F32 or F64, not ", name_of(a.dtype()));
  const int64_t count = a.numel(), blocks = (count + kBlock - 1) / kBlock;
  const auto product = [&]<class T>(T) {
    std::vector<double> sums(static_cast<size_t>(blocks));
    const auto add_blocks = [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block)
        sums[static_cast<size_t>(block)] = reference::inner_product(a.data<T>(), b.data<T>(), block * kBlock, std::min(count, (block + 1) * kBlock));
    };
    cpu::for_ranges(ctx, blocks, 1, add_blocks);
    for (const double value : sums) sum.data<double>()[0] += factor * value;
  };
  operation.run(
      a.dtype(), [] { refuse_cuda("add_inner_product"); },
      [&]<class T>(T value) {
        if constexpr (sizeof(T) >= sizeof(float)) product(value);
      });
}

void embedding_sample_squares(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& squares) {
  const int64_t samples = squares.dim(0), rows = tokens.numel() / samples, columns = dy.dim(1);
  Operation operation(ctx, "embedding_sample_squares",
                      {{"tokens", tokens, {samples * rows}, DType::kI32},
                       {"dy", dy, {samples * rows, columns}, dy.dtype()},
                       {"squares", squares, {samples}, DType::kF64, Passes::kReadAndWritten}});
  operation.run(
      dy.dtype(), [] { refuse_cuda("embedding_sample_squares"); },
      [&]<class T>(T) {
        const auto add_samples = [&](int64_t first, int64_t last) {
          for (int64_t s = first; s < last; ++s)
            squares.data<double>()[s] += reference::embedding_squares(tokens.data<int32_t>() + s * rows, dy.data<T>() + s * rows * columns, rows,
                                                                      columns, vocab_begin, vocab_rows);
        };
        cpu::for_ranges(ctx, samples, cpu::grain_of(rows * columns), add_samples);
      });
}

void clip_factors(Context& ctx, const Tensor& squares, double limit, bool powers_of_two, const Tensor& factors) {
  const int64_t samples = squares.dim(0);
  Operation operation(ctx, "clip_factors", {{"squares", squares, {samples}, DType::kF64}, {"factors", factors, {samples}, DType::kF64}});
  operation.run(
      DType::kF64, [] { refuse_cuda("clip_factors"); },
      [&]<class T>(T) { reference::clip_factors(squares.data<double>(), samples, limit, powers_of_two, factors.data<double>()); });
}

void scale_sample_rows(Context& ctx, const Tensor& x, int64_t rows_per_sample, int64_t first_row, const Tensor& factors) {
  run_on_rows(ctx, "scale_sample_rows", x, rows_per_sample, first_row, factors, [&]<class T>(T, int64_t columns, int64_t first, int64_t last) {
    reference::scale_sample_rows(x.data<T>(), columns, rows_per_sample, first_row, factors.data<double>(), first, last);
  });
}

void clear_sample_rows(Context& ctx, const Tensor& x, int64_t rows_per_sample, int64_t first_row, const Tensor& factors) {
  run_on_rows(ctx, "clear_sample_rows", x, rows_per_sample, first_row, factors, [&]<class T>(T, int64_t columns, int64_t first, int64_t last) {
    reference::clear_sample_rows(x.data<T>(), columns, rows_per_sample, first_row, factors.data<double>(), first, last);
  });
}

}  // namespace trireme
