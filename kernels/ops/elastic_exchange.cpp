#include "kernels/ops/elastic_exchange.h"

#include "kernels/cpu/parallel.h"
#include "kernels/ops/dispatch.h"

namespace trireme {
namespace {

template <class T>
void exchange_on_host(const Context& ctx, double rate, const Tensor& x, const Tensor& centre) {
  const auto range = [rate, own = x.data<T>(), shared = centre.data<T>()](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto x_i = static_cast<double>(own[i]), centre_i = static_cast<double>(shared[i]);
      const auto d = static_cast<double>(static_cast<T>(rate * (x_i - centre_i)));
      own[i] = static_cast<T>(x_i - d);
      shared[i] = static_cast<T>(centre_i + d);
    }
  };
  cpu::for_elements(ctx, x.numel(), range);
}

}  // namespace

void elastic_exchange(Context& ctx, double rate, const Tensor& x, const Tensor& centre) {
  Operation operation(ctx, "elastic_exchange",
                      {{"x", x, centre.shape(), centre.dtype(), Passes::kReadAndWritten},
                       {"centre", centre, centre.shape(), centre.dtype(), Passes::kReadAndWritten}});
  operation.run(
      centre.dtype(), [] { throw InternalError("elastic averaging has no CUDA kernels"); },
      FastCpu{[&] { exchange_on_host<float>(ctx, rate, x, centre); }}, [&]<class T>(T) { exchange_on_host<T>(ctx, rate, x, centre); });
}

}  // namespace trireme
