#include "parallel/comm/null.h"

#include "parallel/comm/arguments.h"

namespace trireme {
namespace {

/// Completes at its wait and not before, so that buffers are held as long as in a real run.
Work in_flight(const Communicator& group) {
  struct Operation final : Work::Operation {
    void wait(Context& /*ctx*/) override {}
  };
  return group.size() == 1 ? Work() : Work(std::make_unique<Operation>());
}

}  // namespace

NullCommunicator::NullCommunicator(int rank, int size, const std::string& name) : Communicator(rank, size, name) {
  TRIREME_CHECK(rank >= 0 && rank < size, "invalid rank ", rank, " of ", size, " in group '", name, "'");
}

Work NullCommunicator::all_reduce(Context& /*ctx*/, const Tensor& /*buffer*/, ReduceOp /*op*/) { return in_flight(*this); }

Work NullCommunicator::all_gather(Context& /*ctx*/, const Tensor& in, const Tensor& out) {
  is_own_part(*this, "all_gather", in, out);
  return in_flight(*this);
}

Work NullCommunicator::reduce_scatter(Context& /*ctx*/, const Tensor& in, const Tensor& out, ReduceOp /*op*/) {
  is_own_part(*this, "reduce_scatter", out, in);
  return in_flight(*this);
}

Work NullCommunicator::all_to_all(Context& /*ctx*/, const Tensor& in, const Tensor& out) {
  check_all_to_all(*this, in, out);
  return in_flight(*this);
}

Work NullCommunicator::all_to_all_v(Context& /*ctx*/, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                    std::span<const int64_t> receive_counts) {
  check_all_to_all_v(*this, in, send_counts, out, receive_counts);
  return in_flight(*this);
}

Work NullCommunicator::broadcast(Context& /*ctx*/, const Tensor& /*buffer*/, int root) {
  check_root(*this, root);
  return in_flight(*this);
}

Work NullCommunicator::exchange(Context& /*ctx*/, std::span<const PointToPoint> messages) {
  check_peers(*this, messages);
  return in_flight(*this);
}

std::unique_ptr<Communicator> NullCommunicator::group(const std::vector<int>& ranks, const std::string& name) {
  return std::make_unique<NullCommunicator>(position_in_group(*this, ranks, name), static_cast<int>(ranks.size()), name);
}

}  // namespace trireme
