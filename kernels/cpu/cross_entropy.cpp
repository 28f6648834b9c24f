#include "kernels/cpu/cross_entropy.h"

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

void cross_entropy_sums(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max, const Tensor& sums) {
  const int64_t rows = logits.dim(0), columns = logits.dim(1);
  dispatch_type(logits.dtype(), [&]<class T>(T) {
    const CrossEntropySums<T> arguments{.logits = logits.data<T>(),
                                        .rows = rows,
                                        .columns = columns,
                                        .valid = range.valid,
                                        .row_max = row_max.data<float>(),
                                        .sums = sums.data<float>()};
    run_kernel(ctx, typed_kernels<T>(ctx).cross_entropy_sums, arguments, rows, grain_of(columns));
  });
}

void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits) {
  const int64_t columns = logits.dim(1);
  dispatch_type(logits.dtype(), [&]<class T>(T) {
    const CrossEntropyBackward<T> arguments{.targets = targets.data<int32_t>(),
                                            .row_max = row_max.data<float>(),
                                            .sums = sums.data<float>(),
                                            .scale = scale.data<double>()[0],
                                            .columns = columns,
                                            .first = range.begin,
                                            .valid = range.valid,
                                            .logits = logits.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).cross_entropy_backward, arguments, logits.dim(0), grain_of(columns));
  });
}

}  // namespace trireme::cpu
