#include "tests/support/slow_network.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/core/check.h"
#include "parallel/comm/forwarding.h"

namespace trireme::test {

void SlowNetwork::start(const std::string& link, int64_t place, int participants, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Operation& operation = operations_[{link, place}];
  if (++operation.started < participants) return;
  const double seconds = seconds_ + (bytes_per_second_ > 0 ? static_cast<double>(bytes) / bytes_per_second_ : 0);
  Clock::time_point& free = free_[link];
  free = operation.end = std::max(free, Clock::now()) + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void SlowNetwork::wait(const std::string& link, int64_t place) {
  Clock::time_point end;
  {
    const std::lock_guard lock(mutex_);
    end = operations_.at({link, place}).end;
    TRIREME_CHECK(end != Clock::time_point(), "an operation has ended before all ranks started it");
  }
  std::this_thread::sleep_until(end);
}

namespace {

using Place = std::pair<std::string, int64_t>;

class SlowWork final : public Work::Operation {
 public:
  SlowWork(Work work, SlowNetwork& network, std::vector<Place> places) : work_(std::move(work)), network_(network), places_(std::move(places)) {}
  void wait(Context& ctx) override {
    work_.wait(ctx);
    for (const auto& [link, place] : places_) network_.wait(link, place);
  }

 private:
  Work work_;
  SlowNetwork& network_;
  std::vector<Place> places_;
};

class SlowCommunicator final : public ForwardingCommunicator {
 public:
  template <class Inner>
  SlowCommunicator(Inner&& inner, SlowNetwork& network, std::vector<int> ranks)
      : ForwardingCommunicator(std::forward<Inner>(inner)), network_(network), ranks_(std::move(ranks)) {
    for (const int rank : ranks_) link_ += concat(rank, " ");
  }

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    return slowed(buffer, [&] { return inner().all_reduce(ctx, buffer, op); });
  }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    return slowed(out, [&] { return inner().all_gather(ctx, in, out); });
  }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    return slowed(in, [&] { return inner().reduce_scatter(ctx, in, out, op); });
  }
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    return slowed(in, [&] { return inner().all_to_all(ctx, in, out); });
  }
  /// Takes the time of the bytes of the rank that starts last.
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    return slowed(in, [&] { return inner().all_to_all_v(ctx, in, send_counts, out, receive_counts); });
  }
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    return slowed(buffer, [&] { return inner().broadcast(ctx, buffer, root); });
  }
  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    std::vector<Place> places;
    for (const PointToPoint& message : messages) {
      const bool sends = message.kind == PointToPoint::Kind::kSend;
      const int from = sends ? rank() : message.peer, to = sends ? message.peer : rank();
      places.push_back(begin(concat(" from ", from, " to ", to), 2, message.buffer.bytes()));
    }
    return wrap(inner().exchange(ctx, messages), std::move(places));
  }

 protected:
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& ranks) override {
    if (made->size() == 1) return made;
    std::vector<int> of_world;
    for (const int rank : ranks) of_world.push_back(ranks_[static_cast<size_t>(rank)]);
    return std::make_unique<SlowCommunicator>(std::move(made), network_, std::move(of_world));
  }

 private:
  Place begin(const std::string& direction, int participants, int64_t bytes) {
    const std::string link = name() + " " + link_ + direction;
    const int64_t place = count_[link]++;
    if (network_.slows(name())) network_.start(link, place, participants, bytes);
    return {link, place};
  }
  template <class Call>
  Work slowed(const Tensor& buffer, const Call& call) {
    const Place place = begin("", size(), buffer.bytes());
    return wrap(call(), {place});
  }
  Work wrap(Work work, std::vector<Place> places) {
    return network_.slows(name()) ? Work(std::make_unique<SlowWork>(std::move(work), network_, std::move(places))) : std::move(work);
  }

  SlowNetwork& network_;
  std::vector<int> ranks_;
  std::string link_;
  std::map<std::string, int64_t> count_;
};

}  // namespace

std::unique_ptr<Communicator> SlowNetwork::attach(Communicator& inner) {
  std::vector<int> ranks(static_cast<size_t>(inner.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<SlowCommunicator>(inner, *this, std::move(ranks));
}

}  // namespace trireme::test
