#include "parallel/comm/thread.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "parallel/comm/arguments.h"
#include "parallel/comm/self.h"
#include "parallel/comm/transfer.h"

namespace trireme {
namespace {

struct Group {
  std::string name;
  std::vector<int> world_ranks;
  std::map<int64_t, std::shared_ptr<Transfer>> collectives;            ///< still posting, by sequence number
  using Ends = std::tuple<int, int, int>;                              ///< source, destination, channel
  std::map<Ends, std::deque<std::shared_ptr<Transfer>>> sends, recvs;  ///< unmatched
};

/// What one rank waits for.
struct Pending {
  const char* what;
  std::shared_ptr<Group> group;
  std::vector<std::shared_ptr<Transfer>> transfers;

  bool all(Transfer::Phase phase) const {
    return std::all_of(transfers.begin(), transfers.end(), [&](const auto& transfer) { return transfer->phase == phase; });
  }
  bool any(Transfer::Phase phase) const {
    return std::any_of(transfers.begin(), transfers.end(), [&](const auto& transfer) { return transfer->phase == phase; });
  }
};

}  // namespace

/// All members are guarded by `mutex`, and so are groups and the phases of transfers; the data itself is moved outside it.
struct ThreadWorld::State {
  explicit State(int size) : wake(static_cast<size_t>(size)), waiting(static_cast<size_t>(size)), left(static_cast<size_t>(size), false) {}

  std::mutex mutex;
  std::vector<std::condition_variable> wake;             ///< by world rank
  std::vector<std::span<const Pending* const>> waiting;  ///< for any of these; empty: the rank is running
  std::vector<bool> left;
  bool aborted = false;
  std::string reason;
  using GroupKey = std::tuple<const Group*, std::vector<int>, std::string>;
  std::map<GroupKey, std::vector<std::shared_ptr<Group>>> groups;  ///< in order of creation

  void abort(const std::string& why) {
    if (aborted) return;
    aborted = true;
    reason = why;
    for (std::condition_variable& rank : wake) rank.notify_all();
  }

  void check_alive() const {
    if (aborted) throw AbortedError(reason);
  }

  [[noreturn]] void fail(const std::string& why) {
    abort(why);
    throw InternalError(why);
  }

  void match(const Group& group, const Transfer& transfer, const Call& call, int world_rank) {
    if (transfer.call == call) return;
    fail(concat("ranks disagree in group '", group.name, "': rank ", transfer.first_rank, " called ", transfer.call.str(), ", rank ", world_rank,
                " called ", call.str()));
  }

  /// The caller was the last to post. `lock` is released while data moves.
  void complete(std::unique_lock<std::mutex>& lock, const Group& group, Transfer& transfer) {
    transfer.phase = Transfer::Phase::kMoving;
    lock.unlock();
    move_data(transfer);
    lock.lock();
    transfer.phase = Transfer::Phase::kDone;
    for (const int rank : group.world_ranks) wake[static_cast<size_t>(rank)].notify_all();
  }

  static bool any_done(std::span<const Pending* const> operations) {
    return std::ranges::any_of(operations, [](const Pending* one) { return one->all(Transfer::Phase::kDone); });
  }

  void wait_any(std::span<const Pending* const> operations, int world_rank) {
    std::unique_lock lock(mutex);
    const auto self = static_cast<size_t>(world_rank);
    if (any_done(operations)) return;
    waiting[self] = operations;
    abort_if_stuck();
    wake[self].wait(lock, [&] { return aborted || any_done(operations); });
    waiting[self] = {};
    if (!any_done(operations)) throw AbortedError(reason);
  }

  void wait(const Pending& pending, int world_rank) {
    const Pending* const one = &pending;
    wait_any({&one, 1}, world_rank);
  }

  /// True after an abort too, because a wait then throws.
  bool ready(const Pending& pending) {
    const std::lock_guard lock(mutex);
    return aborted || pending.all(Transfer::Phase::kDone);
  }

  /// Only a running rank can complete an operation, so a world without a running rank is deadlocked.
  void abort_if_stuck() {
    std::string who;
    for (size_t rank = 0; rank < waiting.size(); ++rank) {
      if (left[rank]) continue;
      if (waiting[rank].empty() || any_done(waiting[rank])) return;
      who += concat("; rank ", rank, " waits in ");
      for (size_t i = 0; i < waiting[rank].size(); ++i)
        who += concat(i == 0 ? "" : " or ", waiting[rank][i]->what, " of group '", waiting[rank][i]->group->name, "'");
    }
    if (who.empty()) return;
    for (size_t rank = 0; rank < left.size(); ++rank)
      if (left[rank]) who += concat("; rank ", rank, " has exited");
    abort("deadlock" + who);
  }

  /// Called for a Work that an exception drops before it completed: afterwards no rank may access its buffers.
  void drop(const Pending& pending, int world_rank) {
    std::unique_lock lock(mutex);
    if (pending.all(Transfer::Phase::kDone)) return;
    abort(concat("rank ", world_rank, " dropped ", pending.what, " of group '", pending.group->name, "'"));
    wake[static_cast<size_t>(world_rank)].wait(lock, [&] { return !pending.any(Transfer::Phase::kMoving); });
  }

  void leave(int world_rank) {
    const std::lock_guard lock(mutex);
    left[static_cast<size_t>(world_rank)] = true;
    abort_if_stuck();
  }
};

namespace {

/// Created before its transfers are posted, so that even after an exception the buffers outlive every copy that another rank has begun.
class ThreadOperation final : public Work::Operation {
 public:
  ThreadOperation(std::shared_ptr<ThreadWorld::State> state, Pending pending, int world_rank, std::vector<Tensor> buffers)
      : state_(std::move(state)), pending_(std::move(pending)), world_rank_(world_rank), buffers_(std::move(buffers)) {}
  ~ThreadOperation() override { state_->drop(pending_, world_rank_); }
  void wait(Context& /*ctx*/) override { state_->wait(pending_, world_rank_); }
  bool ready() override { return state_->ready(pending_); }
  const Pending& pending() const { return pending_; }
  void add(std::shared_ptr<Transfer> transfer) { pending_.transfers.push_back(std::move(transfer)); }

 private:
  std::shared_ptr<ThreadWorld::State> state_;
  Pending pending_;
  int world_rank_;
  std::vector<Tensor> buffers_;  ///< returned to this rank's arena by this rank's thread
};

/// The counts of an all_to_all_v; other verbs have none.
struct Counts {
  std::span<const int64_t> send, receive;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld::State> state, std::shared_ptr<Group> group, int rank, bool is_world)
      : Communicator(rank, static_cast<int>(group->world_ranks.size()), group->name),
        state_(std::move(state)),
        group_(std::move(group)),
        is_world_(is_world) {}
  ~ThreadCommunicator() override {
    if (is_world_) state_->leave(world_rank());
  }

  Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) override {
    return collective(ctx, "all_reduce", {Verb::kAllReduce, buffer.dtype(), buffer.numel(), op}, buffer, buffer);
  }
  Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) override {
    is_own_part(*this, "all_gather", in, out);
    return collective(ctx, "all_gather", {Verb::kAllGather, in.dtype(), in.numel()}, in, out);
  }
  Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) override {
    is_own_part(*this, "reduce_scatter", out, in);
    return collective(ctx, "reduce_scatter", {Verb::kReduceScatter, out.dtype(), out.numel(), op}, in, out);
  }
  Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) override {
    const int64_t count = check_all_to_all(*this, in, out);
    return collective(ctx, "all_to_all", {Verb::kAllToAll, in.dtype(), count}, in, out);
  }
  Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                    std::span<const int64_t> receive_counts) override {
    check_all_to_all_v(*this, in, send_counts, out, receive_counts);
    return collective(ctx, "all_to_all_v", {Verb::kAllToAllV, in.dtype()}, in, out, {send_counts, receive_counts});
  }
  Work broadcast(Context& ctx, const Tensor& buffer, int root) override {
    check_root(*this, root);
    return collective(ctx, "broadcast", {Verb::kBroadcast, buffer.dtype(), buffer.numel(), ReduceOp::kSum, root}, buffer, buffer);
  }
  void barrier() override { state_->wait({"barrier", group_, {post({Verb::kBarrier}, nullptr, nullptr, {})}}, world_rank()); }

  Work exchange(Context& ctx, std::span<const PointToPoint> messages) override {
    check_peers(*this, messages);
    TRIREME_CHECK(ctx.device != Device::kMeta, "thread communicators do not support the meta device");
    std::vector<Tensor> buffers;
    for (const PointToPoint& message : messages) buffers.push_back(message.buffer);
    auto operation = start("exchange", std::move(buffers));
    for (const PointToPoint& message : messages) operation->add(post_message(message));
    return Work(std::move(operation));
  }

  void wait_any(std::span<Work* const> works) override {
    std::vector<const Pending*> operations;
    for (const Work* work : works) {
      const auto* const operation = dynamic_cast<const ThreadOperation*>(work->operation());
      if (operation == nullptr) return;  // nothing is in flight
      operations.push_back(&operation->pending());
    }
    if (!operations.empty()) state_->wait_any(operations, world_rank());
  }

  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) override {
    const int position = position_in_group(*this, ranks, name);
    if (ranks.size() == 1) return std::make_unique<SelfCommunicator>(name);
    ThreadWorld::State::GroupKey key{group_.get(), ranks, name};
    const std::lock_guard lock(state_->mutex);
    state_->check_alive();
    const size_t made = groups_made_[key]++;
    auto& groups = state_->groups[std::move(key)];
    if (made == groups.size()) {
      std::vector<int> world_ranks;
      for (const int rank : ranks) world_ranks.push_back(group_->world_ranks[static_cast<size_t>(rank)]);
      groups.push_back(std::make_shared<Group>(Group{name, std::move(world_ranks), {}, {}, {}}));
    }
    return std::make_unique<ThreadCommunicator>(state_, groups[made], position, false);
  }

 private:
  int world_rank() const { return group_->world_ranks[static_cast<size_t>(rank())]; }

  Work collective(Context& ctx, const char* verb, const Call& call, const Tensor& in, const Tensor& out, const Counts& counts = {}) {
    TRIREME_CHECK(ctx.device != Device::kMeta, "thread communicators do not support the meta device");
    auto operation = start(verb, {in, out});
    operation->add(post(call, in.raw(), out.raw(), counts));
    return Work(std::move(operation));
  }

  std::unique_ptr<ThreadOperation> start(const char* verb, std::vector<Tensor> buffers) const {
    return std::make_unique<ThreadOperation>(state_, Pending{verb, group_, {}}, world_rank(), std::move(buffers));
  }

  std::shared_ptr<Transfer> post(const Call& call, const void* in, void* out, const Counts& counts) {
    std::unique_lock lock(state_->mutex);
    state_->check_alive();
    const int64_t sequence = sequence_++;
    std::shared_ptr<Transfer>& slot = group_->collectives[sequence];
    const auto ranks = static_cast<size_t>(size());
    if (!slot) slot = std::make_shared<Transfer>(Transfer{call, world_rank(), {}, {}});
    const std::shared_ptr<Transfer> transfer = slot;
    state_->match(*group_, *transfer, call, world_rank());
    transfer->in.resize(ranks);
    transfer->out.resize(ranks);
    transfer->in[static_cast<size_t>(rank())] = static_cast<const std::byte*>(in);
    transfer->out[static_cast<size_t>(rank())] = static_cast<std::byte*>(out);
    transfer->send_counts.resize(ranks);
    transfer->receive_counts.resize(ranks);
    transfer->send_counts[static_cast<size_t>(rank())].assign(counts.send.begin(), counts.send.end());
    transfer->receive_counts[static_cast<size_t>(rank())].assign(counts.receive.begin(), counts.receive.end());
    if (++transfer->posted == ranks) {
      group_->collectives.erase(sequence);
      const std::string mismatch = find_count_mismatch(*transfer, group_->world_ranks);
      if (!mismatch.empty()) state_->fail(concat("ranks disagree in group '", name(), "': ", mismatch));
      state_->complete(lock, *group_, *transfer);
    }
    return transfer;
  }

  std::shared_ptr<Transfer> post_message(const PointToPoint& message) {
    const bool send = message.kind == PointToPoint::Kind::kSend;
    const Group::Ends ends = send ? Group::Ends(rank(), message.peer, message.channel) : Group::Ends(message.peer, rank(), message.channel);
    const Call call{Verb::kMessage, message.buffer.dtype(), message.buffer.numel()};
    std::unique_lock lock(state_->mutex);
    state_->check_alive();
    auto& counterparts = (send ? group_->recvs : group_->sends)[ends];
    std::shared_ptr<Transfer> transfer;
    if (counterparts.empty()) {
      transfer = std::make_shared<Transfer>(Transfer{call, world_rank(), {nullptr}, {nullptr}});
      (send ? group_->sends : group_->recvs)[ends].push_back(transfer);
    } else {
      transfer = counterparts.front();
      counterparts.pop_front();
      state_->match(*group_, *transfer, call, world_rank());
    }
    auto* bytes = static_cast<std::byte*>(message.buffer.raw());
    if (send)
      transfer->in[0] = bytes;
    else
      transfer->out[0] = bytes;
    if (++transfer->posted == 2) state_->complete(lock, *group_, *transfer);
    return transfer;
  }

  std::shared_ptr<ThreadWorld::State> state_;
  std::shared_ptr<Group> group_;
  bool is_world_;
  int64_t sequence_ = 0;
  std::map<ThreadWorld::State::GroupKey, size_t> groups_made_;
};

}  // namespace

ThreadWorld::ThreadWorld(int size) : state_(std::make_shared<State>(size)) { TRIREME_CHECK(size >= 1, "invalid world of ", size, " ranks"); }

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank) {
  const std::lock_guard lock(state_->mutex);
  auto& worlds = state_->groups[{nullptr, {}, "world"}];
  if (worlds.empty()) {
    Group group{"world", {}, {}, {}, {}};
    for (int world_rank = 0; world_rank < static_cast<int>(state_->left.size()); ++world_rank) group.world_ranks.push_back(world_rank);
    worlds.push_back(std::make_shared<Group>(std::move(group)));
  }
  return std::make_unique<ThreadCommunicator>(state_, worlds.front(), rank, true);
}

void ThreadWorld::abort(const std::string& reason) {
  const std::lock_guard lock(state_->mutex);
  state_->abort(reason);
}

}  // namespace trireme
