#include "kernels/ops/rope.h"

#include "kernels/cpu/rope.h"
#include "kernels/cuda/rope.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/transfer.h"
#include "kernels/reference/rope.h"

namespace trireme {
namespace {

/// Checks the operands of an in-place rotation of the first `heads` heads in each row of qkv.
void check(Operation& operation, const char* name, const Tensor& table, int64_t heads, int64_t head_size, const Tensor& qkv,
           const Documents& documents) {
  const int64_t positions = table.dim(0), rotated = table.dim(1);
  TRIREME_CHECK(rotated % 2 == 0 && rotated <= head_size && heads * head_size <= qkv.dim(1) &&
                    (qkv.dim(0) == 0 || (positions > 0 && qkv.dim(0) % positions == 0)),
                name, ": cannot rotate ", heads, " heads of ", head_size, " elements in qkv ", qkv.shape().str(), " with table ",
                table.shape().str());
  operation.optional({"starts", documents.starts, {qkv.dim(0)}, DType::kI32});
  const int64_t moved = 2 * qkv.dim(0) * heads * rotated * size_of(qkv.dtype());
  operation.moves(table.bytes() + moved + (documents.defined() ? documents.starts.bytes() : 0));
}

template <class T>
void rotate(const Tensor& table, int64_t heads, int64_t head_size, double direction, const Documents& documents, const Tensor& qkv) {
  reference::rope_rotate(table.data<Accumulator<T>>(), table.dim(0), table.dim(1), heads, head_size, direction, documents.starts_or_null(),
                         qkv.data<T>(), qkv.dim(0), qkv.dim(1));
}

}  // namespace

void rope_table(Context& ctx, const std::vector<double>& frequencies, const Tensor& table) {
  expect("rope_table", {{"table", table, {table.dim(0), 2 * static_cast<int64_t>(frequencies.size())}, table.dtype()}});
  if (ctx.device == Device::kMeta) return;
  const Tensor host = ctx.device == Device::kCuda ? host_tensor(table.shape(), table.dtype()) : table;
  dispatch_float(table.dtype(), [&]<class T>(T) { reference::rope_table(frequencies, host.data<T>(), table.dim(0)); });
  from_host(ctx, host, table);
}

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const Tensor& qkv, const Documents& documents) {
  Operation operation(
      ctx, "rope_forward",
      {{"table", table, {table.dim(0), table.dim(1)}, accumulator_of(qkv.dtype())}, {"qkv", qkv, {qkv.dim(0), qkv.dim(1)}, qkv.dtype()}});
  check(operation, "rope_forward", table, heads, head_size, qkv, documents);
  operation.run(
      qkv.dtype(), [&] { cuda::rope_forward(ctx, table, heads, head_size, documents.starts_or_null(), qkv); },
      FastCpu{[&] { cpu::rope_forward(ctx, table, heads, head_size, documents.starts_or_null(), qkv); }, true},
      [&]<class T>(T) { rotate<T>(table, heads, head_size, 1, documents, qkv); });
}

void rope_backward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const Tensor& dqkv, const Documents& documents) {
  Operation operation(
      ctx, "rope_backward",
      {{"table", table, {table.dim(0), table.dim(1)}, accumulator_of(dqkv.dtype())}, {"dqkv", dqkv, {dqkv.dim(0), dqkv.dim(1)}, dqkv.dtype()}});
  check(operation, "rope_backward", table, heads, head_size, dqkv, documents);
  operation.run(
      dqkv.dtype(), [&] { cuda::rope_backward(ctx, table, heads, head_size, documents.starts_or_null(), dqkv); },
      FastCpu{[&] { cpu::rope_backward(ctx, table, heads, head_size, documents.starts_or_null(), dqkv); }, true},
      [&]<class T>(T) { rotate<T>(table, heads, head_size, -1, documents, dqkv); });
}

}  // namespace trireme
