#include "kernels/ops/rope.h"

#include "kernels/cpu/rope.h"
#include "kernels/cuda/rope.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/transfer.h"
#include "kernels/reference/rope.h"

namespace trireme {
namespace {

void check(const char* operation, const Tensor& table, int64_t heads, const Tensor& qkv) {
  const int64_t positions = table.dim(0), head_size = table.dim(1);
  expect(operation, {{"table", table, {positions, head_size}, accumulator_of(qkv.dtype())}, {"qkv", qkv, {qkv.dim(0), qkv.dim(1)}, qkv.dtype()}});
  TRIREME_CHECK(head_size % 2 == 0 && heads * head_size <= qkv.dim(1) && (qkv.dim(0) == 0 || (positions > 0 && qkv.dim(0) % positions == 0)),
                operation, ": ", heads, " heads of qkv ", qkv.shape().str(), " with table ", table.shape().str());
}

template <class T>
void rotate(const Tensor& table, int64_t heads, double direction, const Tensor& qkv) {
  reference::rope_rotate(table.data<Accumulator<T>>(), table.dim(0), table.dim(1), heads, direction, qkv.data<T>(), qkv.dim(0), qkv.dim(1));
}

}  // namespace

void rope_table(Context& ctx, const std::vector<double>& frequencies, const Tensor& table) {
  expect("rope_table", {{"table", table, {table.dim(0), 2 * static_cast<int64_t>(frequencies.size())}, table.dtype()}});
  if (ctx.device == Device::kMeta) return;
  const Tensor host = ctx.device == Device::kCuda ? host_tensor(table.shape(), table.dtype()) : table;
  dispatch_float(table.dtype(), [&]<class T>(T) { reference::rope_table(frequencies, host.data<T>(), table.dim(0)); });
  from_host(ctx, host, table);
}

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& qkv) {
  check("rope_forward", table, heads, qkv);
  on_device(
      ctx, qkv.dtype(), [&] { cuda::rope_forward(ctx, table, heads, qkv); }, FastCpu{[&] { cpu::rope_forward(ctx, table, heads, qkv); }, true},
      [&]<class T>(T) { rotate<T>(table, heads, 1, qkv); });
}

void rope_backward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& dqkv) {
  check("rope_backward", table, heads, dqkv);
  on_device(
      ctx, dqkv.dtype(), [&] { cuda::rope_backward(ctx, table, heads, dqkv); }, FastCpu{[&] { cpu::rope_backward(ctx, table, heads, dqkv); }, true},
      [&]<class T>(T) { rotate<T>(table, heads, -1, dqkv); });
}

}  // namespace trireme
