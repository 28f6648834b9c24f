#include "tests/support/wire_tap.h"

#include <map>
#include <numeric>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/comm/arguments.h"
#include "parallel/comm/forwarding.h"

namespace trireme::test {
namespace {

constexpr int kParts = -1;

struct Arriving {
  WireMessage message;
  Tensor buffer;
};

std::span<std::byte> bytes_of(const Tensor& tensor) { return {static_cast<std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())}; }

class TappedWork final : public Work::Operation {
 public:
  TappedWork(Work work, const Wire& wire, std::vector<Arriving> arriving) : work_(std::move(work)), wire_(wire), arriving_(std::move(arriving)) {}
  bool ready() override { return work_.ready(); }
  void wait(Context& ctx) override {
    work_.wait(ctx);
    for (const Arriving& one : arriving_) wire_(one.message);
  }

 private:
  Work work_;
  Wire wire_;
  std::vector<Arriving> arriving_;
};

class TappedCommunicator final : public ForwardingCommunicator {
 public:
  TappedCommunicator(std::unique_ptr<Communicator> inner, std::vector<int> ranks, std::vector<int> hosts, Wire wire)
      : ForwardingCommunicator(std::move(inner)), ranks_(std::move(ranks)), hosts_(std::move(hosts)), wire_(std::move(wire)) {}

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    std::vector<Arriving> arriving;
    for (const PointToPoint& message : messages) see(message, message.channel, arriving);
    return tap(inner().exchange(ctx, messages), std::move(arriving));
  }
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    std::vector<Arriving> arriving;
    const std::vector<Tensor> send = split_parts(in, send_counts), receive = split_parts(out, receive_counts);
    for (int rank = 0; rank < size(); ++rank) {
      see({PointToPoint::Kind::kSend, send[static_cast<size_t>(rank)], rank}, kParts, arriving);
      see({PointToPoint::Kind::kRecv, receive[static_cast<size_t>(rank)], rank}, kParts, arriving);
    }
    return tap(inner().all_to_all_v(ctx, in, send_counts, out, receive_counts), std::move(arriving));
  }

 protected:
  Work perform(Context& ctx, const char* verb, int64_t /*bytes*/, const Call& call) override {
    for (int rank = 0; rank < size(); ++rank)
      TRIREME_CHECK(!is_remote(rank) || ctx.device == Device::kMeta, verb, " of group '", name(), "' bypasses the seal");
    return call();
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override {
    if (made->size() == 1) return made;
    std::vector<int> of_world;
    for (const int rank : ranks) of_world.push_back(ranks_[static_cast<size_t>(rank)]);
    return std::make_unique<TappedCommunicator>(std::move(made), std::move(of_world), hosts_, wire_);
  }

 private:
  int world_rank(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  bool is_remote(int other) const { return hosts_[static_cast<size_t>(world_rank(other))] != hosts_[static_cast<size_t>(world_rank(rank()))]; }
  void see(const PointToPoint& message, int channel, std::vector<Arriving>& arriving) {
    if (!is_remote(message.peer)) return;
    const bool sends = message.kind == PointToPoint::Kind::kSend;
    const int own = world_rank(rank()), other = world_rank(message.peer);
    const int64_t number = (sends ? sent_ : received_)[{message.peer, channel}]++;
    const WireMessage seen{name(), sends ? own : other, sends ? other : own, channel, number, sends, bytes_of(message.buffer)};
    if (sends)
      wire_(seen);
    else
      arriving.push_back({seen, message.buffer});
  }
  Work tap(Work work, std::vector<Arriving> arriving) const {
    return Work(std::make_unique<TappedWork>(std::move(work), wire_, std::move(arriving)));
  }

  std::vector<int> ranks_;  ///< world ranks
  std::vector<int> hosts_;  ///< by world rank
  Wire wire_;
  std::map<std::pair<int, int>, int64_t> sent_, received_;
};

}  // namespace

std::unique_ptr<Communicator> tapped(std::unique_ptr<Communicator> inner, std::vector<int> hosts, Wire wire) {
  std::vector<int> all(static_cast<size_t>(inner->size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<TappedCommunicator>(std::move(inner), std::move(all), std::move(hosts), std::move(wire));
}

}  // namespace trireme::test
