#include "parallel/comm/null.h"

#include "parallel/comm/arguments.h"

namespace trireme {

NullCommunicator::NullCommunicator(int rank, int size, const std::string& name) : Communicator(rank, size, name) {
  TRIREME_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size, " in group '", name, "'");
}

Work NullCommunicator::all_reduce(Context& /*ctx*/, const Tensor& /*buffer*/, ReduceOp /*op*/) { return Work(); }

Work NullCommunicator::all_gather(Context& /*ctx*/, const Tensor& in, const Tensor& out) {
  is_own_part(*this, "all_gather", in, out);
  return Work();
}

Work NullCommunicator::reduce_scatter(Context& /*ctx*/, const Tensor& in, const Tensor& out, ReduceOp /*op*/) {
  is_own_part(*this, "reduce_scatter", out, in);
  return Work();
}

Work NullCommunicator::broadcast(Context& /*ctx*/, const Tensor& /*buffer*/, int root) {
  check_root(*this, root);
  return Work();
}

Work NullCommunicator::exchange(Context& /*ctx*/, std::span<const PointToPoint> messages) {
  check_peers(*this, messages);
  return Work();
}

std::unique_ptr<Communicator> NullCommunicator::group(const std::vector<int>& ranks, const std::string& name) {
  return std::make_unique<NullCommunicator>(position_in_group(*this, ranks, name), static_cast<int>(ranks.size()), name);
}

}  // namespace trireme
