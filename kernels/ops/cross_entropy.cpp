#include "kernels/ops/cross_entropy.h"

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/cross_entropy.h"

namespace trireme {
namespace {

void check(const char* operation, const VocabRange& range, const Tensor& logits) {
  TRIREME_CHECK(range.begin >= 0 && range.valid >= 0 && range.valid <= logits.dim(1), operation, ": invalid vocabulary range: begin ", range.begin,
                ", tokens ", range.valid, ", logits ", logits.shape().str());
}

}  // namespace

void cross_entropy_sums(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max, const Tensor& sums) {
  const int64_t rows = logits.dim(0), columns = logits.dim(1);
  const DType dtype = logits.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "cross_entropy_sums",
                      {{"logits", logits, {rows, columns}, dtype}, {"row_max", row_max, {rows}, wide}, {"sums", sums, {2, rows}, wide}});
  check("cross_entropy_sums", range, logits);
  operation.run(
      dtype, [&] { cuda::cross_entropy_sums(ctx, logits, range, row_max, sums); },
      FastCpu{[&] { cpu::cross_entropy_sums(ctx, logits, range, row_max, sums); }, true},
      [&]<class T>(T) {
        reference::cross_entropy_sums(logits.data<T>(), range, row_max.data<Accumulator<T>>(), sums.data<Accumulator<T>>(), rows, columns);
      });
}

void cross_entropy_rescale(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                           const Tensor& sums) {
  const int64_t rows = logits.dim(0), columns = logits.dim(1);
  const DType dtype = logits.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "cross_entropy_rescale",
                      {{"logits", logits, {rows, columns}, dtype, Passes::kNotCounted},
                       {"targets", targets, {rows}, DType::kI32},
                       {"row_max", row_max, {rows}, wide},
                       {"sums", sums, {2, rows}, wide, Passes::kReadAndWritten}});
  check("cross_entropy_rescale", range, logits);
  operation.run(
      dtype, [&] { cuda::cross_entropy_rescale(ctx, logits, targets, range, row_max, sums); },
      [&]<class T>(T) {
        reference::cross_entropy_rescale(logits.data<T>(), targets.data<int32_t>(), range, row_max.data<Accumulator<T>>(),
                                         sums.data<Accumulator<T>>(), rows, columns);
      });
}

void cross_entropy_loss(Context& ctx, const Tensor& targets, const Tensor& sums, const Tensor& loss_sum) {
  const int64_t rows = targets.dim(0);
  Operation operation(ctx, "cross_entropy_loss",
                      {{"targets", targets, {rows}, DType::kI32}, {"sums", sums, {2, rows}, sums.dtype()}, {"loss_sum", loss_sum, {1}, DType::kF64}});
  operation.run(
      sums.dtype(), [&] { cuda::cross_entropy_loss(ctx, targets, sums, loss_sum); },
      [&]<class T>(T) { loss_sum.data<double>()[0] += reference::cross_entropy_loss(targets.data<int32_t>(), sums.data<T>(), rows); });
}

void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits) {
  const int64_t rows = logits.dim(0), columns = logits.dim(1);
  const DType dtype = logits.dtype();
  Operation operation(ctx, "cross_entropy_backward",
                      {{"targets", targets, {rows}, DType::kI32},
                       {"row_max", row_max, {rows}, accumulator_of(dtype)},
                       {"sums", sums, {2, rows}, accumulator_of(dtype)},
                       {"scale", scale, {1}, DType::kF64},
                       {"logits", logits, {rows, columns}, dtype, Passes::kReadAndWritten}});
  check("cross_entropy_backward", range, logits);
  operation.run(
      dtype, [&] { cuda::cross_entropy_backward(ctx, targets, range, row_max, sums, scale, logits); },
      FastCpu{[&] { cpu::cross_entropy_backward(ctx, targets, range, row_max, sums, scale, logits); }, true},
      [&]<class T>(T) {
        reference::cross_entropy_backward(targets.data<int32_t>(), range, row_max.data<Accumulator<T>>(), sums.data<Accumulator<T>>(),
                                          scale.data<double>()[0], logits.data<T>(), rows, columns);
      });
}

}  // namespace trireme
