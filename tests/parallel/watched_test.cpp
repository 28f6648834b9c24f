#include "parallel/comm/watched.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "parallel/comm/forwarding.h"
#include "parallel/comm/self.h"
#include "parallel/pipeline/executor.h"
#include "tests/support/catch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/resilience/black_box_file.h"
#include "trainer/resilience/waits.h"

using namespace trireme;

namespace {

struct WatchedHost {
  Arena arena{Device::kReference};
  Context ctx{Device::kReference, &arena, 1};
  Tensor zeros(int64_t count) { return Tensor::zeros(ctx, {count}, DType::kF32, MemoryCategory::kCommunication); }
};

/// The states that the hub would have.
std::vector<RankState> states_of(const std::vector<Progress>& progress) {
  std::vector<RankState> ranks(progress.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].life = RankState::Life::kAlive;
    ranks[r].host = "here";
    ranks[r].last = progress[r].snapshot();
  }
  return ranks;
}

/// Runs `body`, from which one rank returns early, until all others wait for an operation that some rank never enters. Returns the text of the
/// verdict.
std::string verdict_of(int n, const std::function<void(Communicator&, Progress&)>& body) {
  std::vector<Progress> progress(static_cast<size_t>(n));
  for (Progress& each : progress) each.set_timeout(10);
  std::string text;
  const auto judge_when_stuck = [&](int self) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::vector<RankState> ranks;
    const auto stuck = [&] {
      ranks = states_of(progress);
      for (int rank = 0; rank < n; ++rank)
        if (rank != self && ranks_not_entered(ranks, rank).empty()) return false;
      return true;
    };
    while (!stuck()) {
      TRIREME_CHECK(std::chrono::steady_clock::now() < deadline, "the other ranks do not wait");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (RankState& rank : ranks) rank.heard = 11;
    const auto verdict = judge(ranks, 11, {});
    text = verdict ? verdict->text : "";
  };
  try {
    run_ranks(n, [&](Communicator& inner) {
      const auto world = watched(inner, progress[static_cast<size_t>(inner.rank())]);
      body(*world, progress[static_cast<size_t>(inner.rank())]);
      judge_when_stuck(inner.rank());  // before this rank exits, upon which the world detects the deadlock
    });
  } catch (const InternalError&) {  // the deadlock
  }
  return text;
}

/// Operations that are over only when they are waited for.
class InFlightCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  Work perform(Context& /*ctx*/, const char* /*verb*/, int64_t /*bytes*/, const Call& call) override {
    struct Later final : Work::Operation {
      explicit Later(Work started) : work(std::move(started)) {}
      void wait(Context& ctx) override { work.wait(ctx); }
      Work work;
    };
    return Work(std::make_unique<Later>(call()));
  }
  std::unique_ptr<Communicator> wrap_group(std::unique_ptr<Communicator> made, const std::vector<int>& /*ranks*/) override {
    return std::make_unique<InFlightCommunicator>(std::move(made));
  }
};

/// Records what a watcher would see while each method runs.
class SeenStage final : public Stage {
 public:
  explicit SeenStage(const Progress& progress) : progress_(progress) {}
  std::vector<std::string> seen;
  std::vector<int64_t> microbatches;

  int parts() const override { return 2; }
  std::string part_name(int part) const override { return part == 0 ? "embedding" : "head"; }
  void forward(Context&, int, int) override { see(); }
  void backward_input(Context&, int, int) override { see(); }
  void backward_weight(Context&, int, int) override { see(); }
  Tensor recv_forward_buffer(Context& ctx, int) override { return buffer(ctx); }
  Tensor take_forward_output(int) override { return buffer_; }
  Tensor recv_backward_buffer(Context& ctx, int) override { return buffer(ctx); }
  Tensor take_backward_output(int) override { return buffer_; }
  void put_forward_input(int, Tensor) override {}
  void put_backward_input(int, Tensor) override {}
  void unshard(Context&, int) override { see(); }
  void reshard(Context&, int) override { see(); }
  void reduce_grads(Context&, int) override { see(); }
  void reduce_replicas(Context&, int) override { see(); }
  void reduce_tied(Context&, int) override { see(); }
  void wait_grads(Context&, int) override { see(); }
  void sum_partial(Context&) override { see(); }
  void update(Context&, int) override { see(); }

 private:
  void see() {
    const Progress::Snapshot now = progress_.snapshot();
    seen.push_back(now.action);
    microbatches.push_back(now.microbatch);
  }
  Tensor buffer(Context& ctx) {
    see();
    return buffer_ = Tensor::zeros(ctx, {1}, DType::kF32, MemoryCategory::kCommunication);
  }
  const Progress& progress_;
  Tensor buffer_;
};

}  // namespace

TEST_CASE("a watched communicator satisfies the contract") {
  for (const int n : {1, 2, 3, 4, 8}) {
    run_ranks(n, [](Communicator& inner) {
      Progress progress;
      check_communicator(*watched(inner, progress));
      TRIREME_CHECK(!progress.snapshot().wait, "a wait is still recorded");
    });
  }
  run_ranks(8, [](Communicator& inner) {
    Progress progress;
    check_mesh(*watched(inner, progress), {2, 1, 2, 2}, 2);
  });
  RankOptions poison;
  poison.poison = true;
  run_ranks(
      3,
      [](Communicator& inner) {
        Progress progress;
        check_communicator(*watched(inner, progress));
      },
      poison);
}

TEST_CASE("operations and messages have the same numbers on all ranks") {
  std::vector<Progress> progress(4);
  run_ranks(4, [&](Communicator& inner) {
    using enum PointToPoint::Kind;
    WatchedHost host;
    const auto world = watched(inner, progress[static_cast<size_t>(inner.rank())]);
    const bool low = world->rank() < 2;
    const auto half = world->group(low ? std::vector{0, 1} : std::vector{2, 3}, "half");
    const auto again = world->group(low ? std::vector{0, 1} : std::vector{2, 3}, "half");
    const auto reversed = half->group({1, 0}, "reversed");
    for (int i = 0; i < (low ? 5 : 2); ++i) half->all_reduce(host.ctx, host.zeros(2), ReduceOp::kSum).wait(host.ctx);
    again->barrier();
    const Tensor whole = host.zeros(4), part = host.zeros(1);
    world->all_gather(host.ctx, part, whole).wait(host.ctx);
    world->reduce_scatter(host.ctx, whole, part, ReduceOp::kSum).wait(host.ctx);
    world->broadcast(host.ctx, whole, 2).wait(host.ctx);
    world->all_to_all(host.ctx, whole, host.zeros(4)).wait(host.ctx);
    const std::vector<int64_t> ones(4, 1);
    world->all_to_all_v(host.ctx, whole, ones, host.zeros(4), ones).wait(host.ctx);
    reversed->broadcast(host.ctx, whole, 0).wait(host.ctx);
    // A chain, as in a pipeline: the ranks in the middle have more messages than those at the ends.
    for (int k = 0; k < 3; ++k) {
      std::vector<PointToPoint> messages;
      if (world->rank() > 0) messages.push_back({kRecv, host.zeros(1), world->rank() - 1});
      if (world->rank() < 3) messages.push_back({kSend, host.zeros(1), world->rank() + 1});
      world->exchange(host.ctx, messages).wait(host.ctx);
    }
  });
  for (size_t r = 0; r < 4; ++r) {
    const Progress::Snapshot now = progress[r].snapshot();
    REQUIRE(now.groups.size() == 4);
    CHECK(now.groups[0].name == "world");
    CHECK(now.groups[0].started == 5);
    CHECK(now.groups[1].ranks == (r < 2 ? std::vector{0, 1} : std::vector{2, 3}));
    CHECK(now.groups[1].started == (r < 2 ? 5U : 2U));
    CHECK(now.groups[2].started == 1);
    CHECK(now.groups[3].ranks == (r < 2 ? std::vector{1, 0} : std::vector{3, 2}));
    CHECK(now.groups[3].started == 1);
    for (size_t peer = 0; peer < 4; ++peer) {
      CHECK(now.groups[0].sent[peer] == (peer == r + 1 ? 3U : 0U));
      CHECK(now.groups[0].received[peer] == (peer + 1 == r ? 3U : 0U));
    }
  }
}

TEST_CASE("begin and end of every operation are recorded, with group, number, peer and bytes") {
  // A communicator whose operations are over at once, and one whose operations are in flight until they are waited for.
  for (const bool in_flight : {false, true}) {
    CAPTURE(in_flight);
    std::vector<std::vector<std::string>> seen(2);
    run_ranks(2, [&](Communicator& inner) {
      using enum PointToPoint::Kind;
      WatchedHost host;
      const test::Scratch scratch;
      MappedBlackBox mapped(scratch / "box", {inner.rank(), 2, "", "", ""});
      Progress progress;
      InFlightCommunicator slow(inner);
      const auto world = watched(in_flight ? slow : inner, progress);
      progress.record(&mapped.box());
      const Tensor whole = host.zeros(4), part = host.zeros(2);
      world->all_gather(host.ctx, part, whole).wait(host.ctx);
      world->reduce_scatter(host.ctx, whole, part, ReduceOp::kSum).wait(host.ctx);
      world->all_reduce(host.ctx, part, ReduceOp::kSum).wait(host.ctx);
      world->broadcast(host.ctx, part, 0).wait(host.ctx);
      world->all_to_all(host.ctx, whole, host.zeros(4)).wait(host.ctx);
      world->barrier();
      const int other = 1 - world->rank();
      world->exchange(host.ctx, std::vector<PointToPoint>{{kSend, part, other}, {kRecv, host.zeros(2), other}}).wait(host.ctx);
      for (const auto& record : read_black_box(scratch / "box").records)
        seen[static_cast<size_t>(inner.rank())].push_back(concat(record.kind == BlackBoxRecord::kBegun ? "+" : "-", record.words, " ", record.number,
                                                                 " ", record.payload, record.peer < 0 ? "" : concat(" ", record.peer)));
      progress.record(nullptr);
    });
    for (int rank = 0; rank < 2; ++rank) {
      const std::string other = concat(" ", 1 - rank);
      CHECK(seen[static_cast<size_t>(rank)] ==
            std::vector<std::string>{"+all_gather 1 16", "-all_gather 1 0", "+reduce_scatter 2 16", "-reduce_scatter 2 0", "+all_reduce 3 8",
                                     "-all_reduce 3 0", "+broadcast 4 8", "-broadcast 4 0", "+all_to_all 5 16", "-all_to_all 5 0", "+barrier 6 0",
                                     "-barrier 6 0", "+send 1 8" + other, "+receive 1 8" + other, "-send 1 0" + other, "-receive 1 0" + other});
    }
  }
}

TEST_CASE("the verdict names the rank that leaves out a collective") {
  const std::string text = verdict_of(4, [](Communicator& world, Progress& progress) {
    WatchedHost host;
    progress.begin_step(3);
    const auto tensor = world.group(world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "tensor");
    for (int i = 0; i < 6; ++i) {
      progress.act(concat("forward of micro-batch ", i, ", blocks.0"));
      if (world.rank() == 2 && i == 4) continue;
      tensor->all_reduce(host.ctx, host.zeros(2), ReduceOp::kSum).wait(host.ctx);
    }
    if (world.rank() != 2) world.barrier();
  });
  INFO(text);
  CHECK(text.find("rank 2 (host here") == 0);
  CHECK(text.find("in step 3, after: forward of micro-batch 5, blocks.0") != std::string::npos);
  CHECK(text.find("rank 3 waits for it in all_reduce 6 of group tensor (forward of micro-batch 5, blocks.0), which it never entered") !=
        std::string::npos);
  CHECK(text.find("ranks 0, 1 wait for it in barrier 1 of group world") != std::string::npos);
}

TEST_CASE("the verdict names the rank that never sends") {
  const std::string text = verdict_of(3, [](Communicator& world, Progress&) {
    using enum PointToPoint::Kind;
    WatchedHost host;
    for (int k = 0; k < 3; ++k) {
      std::vector<PointToPoint> messages;
      if (world.rank() == 1) messages.push_back({kRecv, host.zeros(1), 0});
      if (world.rank() == 2) messages.push_back({kRecv, host.zeros(1), 1});
      if (world.rank() == 0) messages.push_back({kSend, host.zeros(1), 1});
      if (world.rank() == 0 && k == 2) return;
      world.exchange(host.ctx, messages).wait(host.ctx);
      if (world.rank() == 1) world.exchange(host.ctx, std::vector<PointToPoint>{{kSend, host.zeros(1), 2}}).wait(host.ctx);
    }
  });
  INFO(text);
  CHECK(text.find("rank 0 (host here") == 0);
  CHECK(text.find("rank 1 waits for it in exchange in group world (message 3 from rank 0), which it never entered") != std::string::npos);
}

TEST_CASE("the executor reports every action before it begins") {
  using enum ActionType;
  Progress progress;
  WatchedHost host;
  SelfCommunicator self("pipeline");
  SeenStage stage(progress);
  Executor executor(self, {{0, &stage}, {1, &stage}}, {0, 0});
  executor.run(host.ctx, ActionList{{kUnshard, 0, -1, 4}, {kForward, 0, 3, -1, 1}});
  CHECK(stage.seen == std::vector<std::string>{"", ""});  // without a watcher
  stage.seen.clear();
  stage.microbatches.clear();
  executor.watch(progress);
  executor.on(ActionType::kNorm, [&](Context&, const Action&) { stage.seen.push_back(progress.snapshot().action); });
  executor.run(host.ctx, ActionList{{kUnshard, 0, -1, 4},
                                    {kForward, 0, 3, -1, 1},
                                    {kBackwardInput, 0, 3, -1, 0},
                                    {kBackwardWeight, 0, 3},
                                    {.type = kRecvForward, .stage = 1, .microbatch = 5, .group = 0},
                                    {.type = kSendForward, .stage = 0, .microbatch = 5, .group = 0},
                                    {kReshard, 0, -1, 1},
                                    {kReduceGrads, 0, -1, 1},
                                    {kReduceReplicas, 0, -1, 1},
                                    {kReduceTied, 0, -1, 0},
                                    {kWaitGrads, 0, -1, 1},
                                    {kSumPartial, 0},
                                    {kNorm},
                                    {kUpdate, 0, -1, 1}});
  CHECK(stage.seen == std::vector<std::string>{"gathering unit 4", "forward of micro-batch 3, head", "input gradient of micro-batch 3, embedding",
                                               "weight gradient of micro-batch 3, head", "weight gradient of micro-batch 3, embedding",
                                               "receiving the input of micro-batch 5", "releasing unit 1", "reducing the gradient of unit 1",
                                               "reducing the gradient of unit 1 over its replicas", "reducing the gradient of the tied unit 0",
                                               "waiting for the reduced gradient of unit 1", "summing partial gradients over tensor ranks",
                                               "gradient norm", "updating unit 1"});
  CHECK(stage.microbatches == std::vector<int64_t>{-1, 3, 3, 3, 3, 5, -1, -1, -1, -1, -1, -1, -1});
}

TEST_CASE("watched: seconds of waiting are counted for each group, and only for the rank that waits") {
  std::vector<Progress> progress(4);
  std::vector<std::vector<double>> waited(4);
  run_ranks(4, [&](Communicator& inner) {
    Progress& own = progress[static_cast<size_t>(inner.rank())];
    const auto world = watched(inner, own);
    const auto pair = world->group(inner.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, "pair");
    WatchedHost host;
    const Tensor value = host.zeros(1);
    if (inner.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    pair->all_reduce(host.ctx, value, ReduceOp::kSum).wait(host.ctx);
    if (inner.rank() == 3) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    world->all_reduce(host.ctx, value, ReduceOp::kSum).wait(host.ctx);
    {
      const ScopedWait device(own, {"the device", {}, 0, {}});
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    waited[static_cast<size_t>(inner.rank())] = own.waited();
  });
  const auto is_near = [](double seconds, double expected) { return seconds > expected - 0.05 && seconds < expected + 0.15; };
  for (size_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank, waited[rank]);
    REQUIRE(waited[rank].size() == 2);  // the world, then the pair
    CHECK(is_near(waited[rank][1], rank == 0 ? 0.2 : 0));
    CHECK(is_near(waited[rank][0], rank == 3 ? 0 : rank < 2 ? 0.2 : 0.4));
  }
}
