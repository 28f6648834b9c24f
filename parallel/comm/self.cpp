#include "parallel/comm/self.h"

#include "parallel/comm/arguments.h"

namespace trireme {

Work SelfCommunicator::all_reduce(Context& /*ctx*/, const Tensor& /*buffer*/, ReduceOp /*op*/) { return Work(); }

Work SelfCommunicator::all_gather(Context& ctx, const Tensor& in, const Tensor& out) {
  if (!is_own_part(*this, "all_gather", in, out)) copy_elements(ctx, in, out);
  return Work();
}

Work SelfCommunicator::reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp /*op*/) {
  if (!is_own_part(*this, "reduce_scatter", out, in)) copy_elements(ctx, in, out);
  return Work();
}

Work SelfCommunicator::all_to_all(Context& ctx, const Tensor& in, const Tensor& out) {
  check_all_to_all(*this, in, out);
  copy_elements(ctx, in, out);
  return Work();
}

Work SelfCommunicator::all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                    std::span<const int64_t> receive_counts) {
  check_all_to_all_v(*this, in, send_counts, out, receive_counts);
  copy_elements(ctx, in, out);
  return Work();
}

Work SelfCommunicator::broadcast(Context& /*ctx*/, const Tensor& /*buffer*/, int root) {
  check_root(*this, root);
  return Work();
}

Work SelfCommunicator::exchange(Context& ctx, std::span<const PointToPoint> messages) {
  check_peers(*this, messages);
  std::vector<const Tensor*> sends, recvs;
  for (const PointToPoint& message : messages) (message.kind == PointToPoint::Kind::kSend ? sends : recvs).push_back(&message.buffer);
  TRIREME_CHECK(sends.size() == recvs.size(), "an exchange of group '", name(), "' with itself has ", sends.size(), " sends and ", recvs.size(),
                " receives");
  for (size_t i = 0; i < sends.size(); ++i) {
    TRIREME_CHECK(sends[i]->dtype() == recvs[i]->dtype() && sends[i]->numel() == recvs[i]->numel(), "message ", i, " of group '", name(),
                  "' differs in dtype or size between send and receive");
    copy_elements(ctx, *sends[i], *recvs[i]);
  }
  return Work();
}

std::unique_ptr<Communicator> SelfCommunicator::group(const std::vector<int>& ranks, const std::string& name) {
  position_in_group(*this, ranks, name);
  return std::make_unique<SelfCommunicator>(name);
}

}  // namespace trireme
