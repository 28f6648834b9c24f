#include "parallel/comm/forwarding.h"

namespace trireme {

Work ForwardingCommunicator::all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) {
  return perform(ctx, "all_reduce", buffer.bytes(), [&] { return inner_.all_reduce(ctx, buffer, op); });
}

Work ForwardingCommunicator::all_gather(Context& ctx, const Tensor& in, const Tensor& out) {
  return perform(ctx, "all_gather", out.bytes(), [&] { return inner_.all_gather(ctx, in, out); });
}

Work ForwardingCommunicator::reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) {
  return perform(ctx, "reduce_scatter", in.bytes(), [&] { return inner_.reduce_scatter(ctx, in, out, op); });
}

Work ForwardingCommunicator::all_to_all(Context& ctx, const Tensor& in, const Tensor& out) {
  return perform(ctx, "all_to_all", in.bytes(), [&] { return inner_.all_to_all(ctx, in, out); });
}

Work ForwardingCommunicator::all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                          std::span<const int64_t> receive_counts) {
  return perform(ctx, "all_to_all_v", in.bytes(), [&] { return inner_.all_to_all_v(ctx, in, send_counts, out, receive_counts); });
}

Work ForwardingCommunicator::broadcast(Context& ctx, const Tensor& buffer, int root) {
  return perform(ctx, "broadcast", buffer.bytes(), [&] { return inner_.broadcast(ctx, buffer, root); });
}

Work ForwardingCommunicator::exchange(Context& ctx, std::span<const PointToPoint> messages) {
  int64_t bytes = 0;
  for (const PointToPoint& message : messages) bytes += message.buffer.bytes();
  return perform(ctx, "exchange", bytes, [&] { return inner_.exchange(ctx, messages); });
}

std::unique_ptr<Communicator> ForwardingCommunicator::group(const std::vector<int>& ranks, const std::string& name) {
  return wrap_group(inner_.group(ranks, name), ranks);
}

std::unique_ptr<Communicator> ForwardingCommunicator::host_group(const std::vector<int>& ranks, const std::string& name) {
  return wrap_group(inner_.host_group(ranks, name), ranks);
}

}  // namespace trireme
