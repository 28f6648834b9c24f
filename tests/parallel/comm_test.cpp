#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>

#include "parallel/comm/blocking.h"
#include "parallel/comm/null.h"
#include "parallel/comm/poison.h"
#include "parallel/comm/self.h"
#include "parallel/comm/thread.h"
#include "parallel/comm/timed.h"
#include "tests/support/catch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

const int kRanks[] = {1, 2, 3, 4, 8};

struct Host {
  Arena arena{Device::kReference};
  Context ctx{Device::kReference, &arena, 1};
  Tensor zeros(int64_t count, DType dtype = DType::kF32) { return Tensor::zeros(ctx, {count}, dtype, MemoryCategory::kCommunication); }
};

/// The message of the InternalError that `body` throws on some rank; "" if it succeeds.
std::string error_of(int ranks, const std::function<void(Communicator&)>& body, const RankOptions& options = {}) {
  try {
    run_ranks(ranks, body, options);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const RankOptions kPoison{.poison = true, .records = nullptr};

struct CountingOperation final : Work::Operation {
  explicit CountingOperation(int& waits_) : waits(waits_) {}
  void wait(Context& /*ctx*/) override { ++waits; }
  int& waits;
};

}  // namespace

TEST_CASE("work is waited for exactly once, also after a move") {
  Host host;
  int waits = 0;
  Work none;
  none.wait(host.ctx);
  CHECK_FALSE(none.pending());
  Work first(std::make_unique<CountingOperation>(waits));
  Work second = std::move(first);
  none = std::move(second);
  CHECK(none.pending());
  none.wait(host.ctx);
  CHECK_FALSE(none.pending());
  none.wait(host.ctx);
  CHECK(waits == 1);
}

TEST_CASE("dropping unwaited work aborts in debug builds, but not while an exception unwinds") {
  int waits = 0;
  const auto drop_while_unwinding = [&] {
    const Work work(std::make_unique<CountingOperation>(waits));
    throw DataError("first error");
  };
  CHECK_THROWS_AS(drop_while_unwinding(), DataError);

  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    { const Work work(std::make_unique<CountingOperation>(waits)); }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
#ifdef NDEBUG
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
#else
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
#endif
}

TEST_CASE("self communicator satisfies the contract") {
  SelfCommunicator self("world");
  check_communicator(self);
  PoisonCommunicator poison(std::make_unique<SelfCommunicator>("world"));
  check_communicator(poison);
}

TEST_CASE("self communicator leaves nothing in flight") {
  SelfCommunicator self("tensor");
  Host host;
  const Tensor x = host.zeros(6);
  CHECK_FALSE(self.all_reduce(host.ctx, x, ReduceOp::kSum).pending());
  CHECK_FALSE(self.all_gather(host.ctx, x, x).pending());
  CHECK_FALSE(self.reduce_scatter(host.ctx, x, x, ReduceOp::kSum).pending());
  CHECK_FALSE(self.broadcast(host.ctx, x, 0).pending());
  CHECK_FALSE(self.all_to_all(host.ctx, x, host.zeros(6)).pending());
  CHECK_FALSE(self.all_to_all_v(host.ctx, x, std::vector<int64_t>{6}, host.zeros(6), std::vector<int64_t>{6}).pending());
  CHECK_THROWS_AS((void)self.broadcast(host.ctx, x, 1), InternalError);
}

TEST_CASE("thread communicator satisfies the contract") {
  for (const int n : kRanks) {
    run_ranks(n, check_communicator);
    run_ranks(n, check_communicator, kPoison);
    std::vector<CommunicationRecord> records;
    run_ranks(n, check_communicator, {.poison = true, .records = &records});
  }
}

TEST_CASE("thread sums are taken in rank order") {
  run_ranks(4, [](Communicator& world) {
    Host host;
    const float values[] = {1e8F, 1.0F, -1e8F, 1.0F};
    const Tensor x = host.zeros(1);
    x.data<float>()[0] = values[world.rank()];
    world.all_reduce(host.ctx, x, ReduceOp::kSum).wait(host.ctx);
    TRIREME_CHECK(x.data<float>()[0] == 1.0F, x.data<float>()[0]);  // ((1e8 + 1) - 1e8) + 1, where 1e8 + 1 rounds to 1e8
  });
}

TEST_CASE("null communicator checks shapes on the meta device and moves nothing") {
  for (const int n : kRanks) {
    NullCommunicator world(n - 1, n, "world");
    Arena arena(Device::kMeta);
    Context ctx{Device::kMeta, &arena, 1};
    const Tensor part = Tensor::empty(ctx, {5}, DType::kF32, MemoryCategory::kParameters);
    const Tensor whole = Tensor::empty(ctx, {5 * n}, DType::kF32, MemoryCategory::kParameters);
    // As in a run, an operation of several ranks owns its buffers until it is waited for; an operation of one rank is never in flight.
    const auto check_ends = [&](Work work) {
      CHECK(work.pending() == (n > 1));
      work.wait(ctx);
      CHECK_FALSE(work.pending());
    };
    check_ends(world.all_reduce(ctx, part, ReduceOp::kSum));
    check_ends(world.all_gather(ctx, part, whole));
    check_ends(world.reduce_scatter(ctx, whole, part, ReduceOp::kSum));
    check_ends(world.broadcast(ctx, whole, n - 1));
    check_ends(world.exchange(ctx, std::vector<PointToPoint>{{PointToPoint::Kind::kSend, part, 0}}));
    check_ends(world.all_to_all(ctx, whole, whole));
    const std::vector<int64_t> fives(static_cast<size_t>(n), 5), wrong(static_cast<size_t>(n), 4);
    check_ends(world.all_to_all_v(ctx, whole, fives, whole, fives));
    CHECK_THROWS_AS((void)world.all_to_all(ctx, whole, part.flat(0, 4)), InternalError);
    CHECK_THROWS_AS((void)world.all_to_all_v(ctx, whole, wrong, whole, fives), InternalError);
    CHECK_THROWS_AS((void)world.all_gather(ctx, part, part.flat(0, 4)), InternalError);
    CHECK_THROWS_AS((void)world.reduce_scatter(ctx, whole, whole.flat(0, 1), ReduceOp::kSum), InternalError);
    CHECK_THROWS_AS((void)world.broadcast(ctx, whole, n), InternalError);
    CHECK_THROWS_AS((void)world.exchange(ctx, std::vector<PointToPoint>{{PointToPoint::Kind::kSend, part, n}}), InternalError);

    const auto group = world.group({n - 1}, "tensor");
    CHECK(dynamic_cast<NullCommunicator*>(group.get()) != nullptr);
    CHECK((group->rank() == 0 && group->size() == 1));
    CHECK(all_gather_strings(world, "mine").back() == "mine");
    CHECK(all_reduce_scalar(world, 2.5, ReduceOp::kSum) == 2.5);
    CHECK(all_reduce_count(world, (int64_t{1} << 53) + 1) == (int64_t{1} << 53) + 1);
  }
}

TEST_CASE("all communicators check arguments in the same way") {
  const auto body = [](const std::function<void(Communicator&, Host&)>& call) {
    return error_of(2, [&](Communicator& world) {
      Host host;
      call(world, host);
    });
  };
  CHECK(contains(body([](auto& w, auto& h) { w.all_gather(h.ctx, h.zeros(2), h.zeros(5)).wait(h.ctx); }),
                 "all_gather: 2 elements per rank do not match 5"));
  CHECK(contains(body([](auto& w, auto& h) { w.all_gather(h.ctx, h.zeros(2), h.zeros(4, DType::kI32)).wait(h.ctx); }), "mixes F32 and I32"));
  CHECK(contains(body([](auto& w, auto& h) {
                   const Tensor whole = h.zeros(4);
                   w.all_gather(h.ctx, whole.flat(1, 2), whole).wait(h.ctx);
                 }),
                 "overlap"));
  CHECK(contains(body([](auto& w, auto& h) { w.broadcast(h.ctx, h.zeros(1), 2).wait(h.ctx); }), "broadcast: invalid root rank 2"));
  CHECK(contains(body([](auto& w, auto& h) { w.all_to_all(h.ctx, h.zeros(3), h.zeros(3)).wait(h.ctx); }), "all_to_all of 3 elements into 3"));
  CHECK(contains(body([](auto& w, auto& h) { w.all_to_all(h.ctx, h.zeros(2), h.zeros(4)).wait(h.ctx); }), "all_to_all of 2 elements into 4"));
  CHECK(contains(body([](auto& w, auto& h) {
                   const Tensor whole = h.zeros(3);
                   w.all_to_all(h.ctx, whole.flat(0, 2), whole.flat(1, 2)).wait(h.ctx);
                 }),
                 "all_to_all: input and output overlap"));
  const auto parts = [&](const std::vector<int64_t>& send, const std::vector<int64_t>& receive, const Shape& shape = {4}) {
    return body([&](auto& w, auto& h) {
      const Tensor in = Tensor::zeros(h.ctx, shape, DType::kF32, MemoryCategory::kCommunication);
      w.all_to_all_v(h.ctx, in, send, h.zeros(4), receive).wait(h.ctx);
    });
  };
  CHECK(parts({2, 2}, {2, 2}).empty());
  CHECK(contains(parts({4}, {2, 2}), "all_to_all_v with 1 send counts"));
  CHECK(contains(parts({2, 2}, {2, 2, 0}), "all_to_all_v with 3 receive counts"));
  CHECK(contains(parts({-1, 5}, {2, 2}), "negative send count"));
  CHECK(contains(parts({2, 2}, {2, 1}), "the receive counts add up to 3, but the tensor has 4 elements"));
  CHECK(contains(parts({2, 2}, {2, 2}, {2, 2}), "shape [2, 2], which is not 1-D"));
  CHECK(contains(parts({3, 1}, {1, 3}), ", which expects "));  // of itself
  CHECK(contains(body([](auto& w, auto&) { w.group({1 - w.rank()}, "other"); }), "by a rank that is not a member"));
  CHECK(contains(body([](auto& w, auto&) { w.group({0, 1, 1}, "twice"); }), "distinct ranks"));
}

TEST_CASE("ranks whose calls differ are named, in an error on all ranks") {
  const auto disagree = [](const std::function<void(Communicator&, Host&)>& zero, const std::function<void(Communicator&, Host&)>& other) {
    std::vector<std::string> errors(3);
    CHECK_THROWS_AS(run_ranks(3,
                              [&](Communicator& world) {
                                Host host;
                                try {
                                  (world.rank() == 0 ? zero : other)(world, host);
                                } catch (const InternalError& error) {
                                  errors[static_cast<size_t>(world.rank())] = error.what();
                                  throw;
                                }
                              }),
                    InternalError);
    CHECK(errors[0] == errors[1]);
    CHECK(errors[1] == errors[2]);
    return errors[0];
  };
  const auto sum_of = [](int64_t count, DType dtype) {
    return [=](Communicator& w, Host& h) { w.all_reduce(h.ctx, h.zeros(count, dtype), ReduceOp::kSum).wait(h.ctx); };
  };
  const std::string counts = disagree(sum_of(3, DType::kF32), sum_of(4, DType::kF32));
  CHECK(contains(counts, "group 'world'"));
  CHECK(contains(counts, "rank 0 called all_reduce(sum) of 3 F32"));
  CHECK(contains(counts, "called all_reduce(sum) of 4 F32"));
  CHECK(contains(disagree(sum_of(3, DType::kF32), sum_of(3, DType::kI32)), "of 3 I32"));
  CHECK(contains(disagree(sum_of(3, DType::kF32), [](auto& w, auto& h) { w.all_reduce(h.ctx, h.zeros(3), ReduceOp::kMax).wait(h.ctx); }), "(max)"));
  CHECK(contains(disagree(sum_of(3, DType::kF32), [](auto& w, auto& h) { w.broadcast(h.ctx, h.zeros(3), 1).wait(h.ctx); }), "broadcast from 1"));
  CHECK(contains(disagree([](auto& w, auto& h) { w.broadcast(h.ctx, h.zeros(3), 0).wait(h.ctx); },
                          [](auto& w, auto& h) { w.broadcast(h.ctx, h.zeros(3), 1).wait(h.ctx); }),
                 "broadcast from 0"));
  CHECK(contains(disagree(sum_of(3, DType::kF32), [](auto& w, auto&) { w.barrier(); }), "barrier"));
  const auto parts = [](Communicator& w, Host& h) { w.all_to_all(h.ctx, h.zeros(6), h.zeros(6)).wait(h.ctx); };
  const std::string kinds = disagree(parts, [](auto& w, auto& h) {
    const std::vector<int64_t> twos{2, 2, 2};
    w.all_to_all_v(h.ctx, h.zeros(6), twos, h.zeros(6), twos).wait(h.ctx);
  });
  CHECK(contains(kinds, "all_to_all of 2 F32 per part"));
  CHECK(contains(kinds, "all_to_all_v of F32"));
}

TEST_CASE("counts of an all_to_all_v that differ between sender and receiver are refused on all ranks, naming both ranks and counts") {
  for (const RankOptions& options : {RankOptions{}, kPoison}) {
    std::vector<std::string> errors(3);
    const auto body = [&](Communicator& world) {
      Host host;
      const auto group = world.group({2, 1, 0}, "expert");
      const int rank = group->rank();
      std::vector<int64_t> send{1, 1, 1}, receive{1, 1, 1};
      if (rank == 0) send[2] = 3;
      if (rank == 2) receive[0] = 4;
      const int64_t sent = rank == 0 ? 5 : 3, received = rank == 2 ? 6 : 3;
      try {
        group->all_to_all_v(host.ctx, host.zeros(sent), send, host.zeros(received), receive).wait(host.ctx);
      } catch (const InternalError& error) {
        errors[static_cast<size_t>(world.rank())] = error.what();
        throw;
      }
    };
    CHECK_THROWS_AS(run_ranks(3, body, options), InternalError);
    for (const std::string& error : errors)  // ranks are those of the world
      CHECK(error == "ranks disagree in group 'expert': all_to_all_v: rank 2 sends 3 elements to rank 0, which expects 4");
  }
}

TEST_CASE("ranks whose messages do not match are named") {
  const std::string error = error_of(2, [](Communicator& world) {
    Host host;
    const auto kind = world.rank() == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
    const Tensor buffer = host.zeros(3 + world.rank());
    world.exchange(host.ctx, std::vector<PointToPoint>{{kind, buffer, 1 - world.rank()}}).wait(host.ctx);
  });
  CHECK(contains(error, "rank 0 called a message of 3 F32"));
  CHECK(contains(error, "rank 1 called a message of 4 F32"));
}

TEST_CASE("a deadlocked world is aborted and reports what each rank waits for") {
  const auto skip = [](Communicator& world) {
    Host host;
    if (world.rank() != 1) world.all_reduce(host.ctx, host.zeros(2), ReduceOp::kSum).wait(host.ctx);
  };
  const std::string skipped = error_of(3, skip);
  CHECK(contains(skipped, "deadlock"));
  CHECK(contains(skipped, "rank 0 waits in all_reduce of group 'world'"));
  CHECK(contains(skipped, "rank 1 has exited"));

  const std::string crossed = error_of(2, [](Communicator& world) {  // both send, and wait for it, before they receive
    using enum PointToPoint::Kind;
    Host host;
    const Tensor out = host.zeros(1), in = host.zeros(1);
    world.exchange(host.ctx, std::vector<PointToPoint>{{kSend, out, 1 - world.rank()}}).wait(host.ctx);
    world.exchange(host.ctx, std::vector<PointToPoint>{{kRecv, in, 1 - world.rank()}}).wait(host.ctx);
  });
  CHECK(contains(crossed, "rank 0 waits in exchange"));
  CHECK(contains(crossed, "rank 1 waits in exchange"));
}

TEST_CASE("a failing rank aborts the others, and its own error is reported") {
  for (const RankOptions& options : {RankOptions{}, kPoison}) {
    std::string told;
    try {
      run_ranks(
          4,
          [](Communicator& world) {
            Host host;
            const auto half = world.group(world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}, "half");
            Work work = half->all_reduce(host.ctx, host.zeros(3), ReduceOp::kSum);
            if (world.rank() == 2) throw DataError("a broken file");
            work.wait(host.ctx);
            world.barrier();
          },
          options);
    } catch (const DataError& error) {
      told = error.what();
    }
    CHECK(told == "a broken file");
  }
}

TEST_CASE("blocking and timed communicators satisfy the contract, leave nothing in flight and record each verb") {
  for (const int n : {1, 2, 4}) {
    run_ranks(n, [](Communicator& world) {
      CommunicationLog log;
      check_communicator(*blocking(world));
      check_communicator(*timed(world, log));
    });
  }
  run_ranks(2, [](Communicator& world) {
    Host host;
    CommunicationLog log;
    const auto stopped = blocking(world);
    const auto noted = timed(*stopped, log);
    const Tensor in = host.zeros(2), out = host.zeros(2), part = host.zeros(1);
    const std::vector<int64_t> ones{1, 1};
    const PointToPoint::Kind kind = world.rank() == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
    DeviceClock clock(host.ctx, DeviceClock::Host::now());
    log.start(clock);
    std::vector<Work> works;
    works.push_back(noted->all_reduce(host.ctx, in, ReduceOp::kSum));
    works.push_back(noted->all_gather(host.ctx, part, out));
    works.push_back(noted->reduce_scatter(host.ctx, in, part, ReduceOp::kSum));
    works.push_back(noted->all_to_all(host.ctx, in, out));
    works.push_back(noted->all_to_all_v(host.ctx, in, ones, out, ones));
    works.push_back(noted->broadcast(host.ctx, in, 0));
    works.push_back(noted->exchange(host.ctx, std::vector<PointToPoint>{{kind, part, 1 - world.rank()}}));
    for (const Work& work : works) TRIREME_CHECK(!work.pending(), "an operation is in flight");
    noted->barrier();
    std::string verbs;
    for (const TimedOperation& operation : log.stop()) verbs += operation.group + " " + operation.verb + "; ";
    TRIREME_CHECK(verbs ==
                      "world all_reduce; world all_gather; world reduce_scatter; world all_to_all; world all_to_all_v; world broadcast; "
                      "world exchange; world barrier; ",
                  verbs);
  });
}

TEST_CASE("poison hides results until the wait") {
  run_ranks(
      2,
      [](Communicator& world) {
        Host host;
        const Tensor sum = host.zeros(3), part = host.zeros(2), whole = host.zeros(4), message = host.zeros(1, DType::kF64);
        const auto all_nan = [](const Tensor& x) {
          for (int64_t i = 0; i < x.numel(); ++i)
            if (!std::isnan(x.data<float>()[i])) return false;
          return true;
        };
        const auto kind = world.rank() == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
        Work works[] = {world.all_reduce(host.ctx, sum, ReduceOp::kSum), world.all_gather(host.ctx, part, whole),
                        world.exchange(host.ctx, std::vector<PointToPoint>{{kind, message, 1 - world.rank()}})};
        TRIREME_CHECK(all_nan(sum) && all_nan(whole), "a result is visible before its wait");
        TRIREME_CHECK(part.data<float>()[0] == 0, "an input is hidden");
        TRIREME_CHECK(std::isnan(message.data<double>()[0]) == (world.rank() == 1), "only what is received is hidden");
        for (Work& work : works) work.wait(host.ctx);
        TRIREME_CHECK(!all_nan(sum) && !all_nan(whole) && message.data<double>()[0] == 0, "a result is hidden after its wait");

        Work broadcast = world.broadcast(host.ctx, sum, 1);
        TRIREME_CHECK(all_nan(sum) == (world.rank() == 0), "a broadcast hides what is received");
        broadcast.wait(host.ctx);
        const Tensor transposed = host.zeros(4);
        const std::vector<int64_t> counts = world.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{2, 1};
        Work equal = world.all_to_all(host.ctx, whole, transposed);
        const Tensor uneven = host.zeros(3), to = host.zeros(3);
        Work counted = world.all_to_all_v(host.ctx, uneven, counts, to, counts);
        TRIREME_CHECK(all_nan(transposed) && all_nan(to), "an all_to_all hides what is received");
        TRIREME_CHECK(whole.data<float>()[0] == 0 && uneven.data<float>()[0] == 0, "an all_to_all does not hide what is sent");
        equal.wait(host.ctx);
        counted.wait(host.ctx);
        TRIREME_CHECK(!all_nan(transposed) && !all_nan(to), "a result is hidden after its wait");
        Work scatter = world.reduce_scatter(host.ctx, whole, whole.flat(world.rank() * 2, 2), ReduceOp::kSum);
        TRIREME_CHECK(all_nan(whole), "a reduce_scatter in place hides all of its input");
        scatter.wait(host.ctx);
        TRIREME_CHECK(!all_nan(whole.flat(world.rank() * 2, 2)) && all_nan(whole.flat(2 - world.rank() * 2, 2)), "the other part stays unspecified");
      },
      kPoison);
}

TEST_CASE("poison names the verb whose buffer was written in flight") {
  const auto write = [](const std::function<Work(Communicator&, Host&, const Tensor&, const Tensor&)>& start, bool to_whole) {
    return error_of(
        2,
        [&](Communicator& world) {
          Host host;
          const Tensor part = host.zeros(2), whole = host.zeros(4);
          Work work = start(world, host, part, whole);
          if (world.rank() == 1) (to_whole ? whole : part).data<float>()[1] = 3;
          work.wait(host.ctx);
        },
        kPoison);
  };
  const auto reduce = [](auto& w, auto& h, const Tensor& part, const Tensor&) { return w.all_reduce(h.ctx, part, ReduceOp::kSum); };
  const auto gather = [](auto& w, auto& h, const Tensor& part, const Tensor& whole) { return w.all_gather(h.ctx, part, whole); };
  const auto scatter = [](auto& w, auto& h, const Tensor& part, const Tensor& whole) { return w.reduce_scatter(h.ctx, whole, part, ReduceOp::kSum); };
  const auto broadcast = [](auto& w, auto& h, const Tensor& part, const Tensor&) { return w.broadcast(h.ctx, part, 1); };
  const auto send = [](auto& w, auto& h, const Tensor& part, const Tensor&) {
    const auto kind = w.rank() == 1 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
    return w.exchange(h.ctx, std::vector<PointToPoint>{{kind, part, 1 - w.rank()}});
  };
  const auto transpose = [](auto& w, auto& h, const Tensor& part, const Tensor&) { return w.all_to_all(h.ctx, part, h.zeros(2)); };
  const auto parts = [](auto& w, auto& h, const Tensor&, const Tensor& whole) {
    const std::vector<int64_t> counts{2, 2};
    return w.all_to_all_v(h.ctx, h.zeros(4), counts, whole, counts);
  };
  CHECK(contains(write(transpose, false), "in flight in all_to_all of group"));
  CHECK(contains(write(parts, true), "in flight in all_to_all_v"));
  CHECK(contains(write(reduce, false), "in flight in all_reduce of group 'world', rank 1"));
  CHECK(contains(write(gather, false), "in flight in all_gather"));
  CHECK(contains(write(gather, true), "in flight in all_gather"));
  CHECK(contains(write(scatter, false), "in flight in reduce_scatter"));
  CHECK(contains(write(scatter, true), "in flight in reduce_scatter"));
  CHECK(contains(write(broadcast, false), "in flight in broadcast"));
  CHECK(contains(write(send, false), "in flight in exchange"));
  CHECK(write(reduce, true).empty());
}

TEST_CASE("recording counts the bytes of the formulas") {
  std::vector<CommunicationRecord> records;
  run_ranks(4,
            [](Communicator& world) {
              using enum PointToPoint::Kind;
              Host host;
              const auto group = world.group(world.rank() < 3 ? std::vector{0, 1, 2} : std::vector{3}, "shard");
              const Tensor x = host.zeros(5), whole = host.zeros(5 * group->size()), received = host.zeros(5);
              for (int repeat = 0; repeat < 2; ++repeat) group->all_reduce(host.ctx, x, ReduceOp::kSum).wait(host.ctx);
              group->all_gather(host.ctx, x, whole).wait(host.ctx);
              group->reduce_scatter(host.ctx, whole, x, ReduceOp::kSum).wait(host.ctx);
              group->broadcast(host.ctx, x, 0).wait(host.ctx);
              world.exchange(host.ctx, std::vector<PointToPoint>{{kSend, x, (world.rank() + 1) % 4}, {kRecv, received, (world.rank() + 3) % 4}})
                  .wait(host.ctx);
              group->all_to_all(host.ctx, whole, host.zeros(whole.numel())).wait(host.ctx);
              const int n = group->size(), me = group->rank();
              std::vector<int64_t> send, receive;  // rank s sends 10 s + r elements to rank r
              for (int peer = 0; peer < n; ++peer) send.push_back(10 * me + peer), receive.push_back(10 * peer + me);
              const Tensor sent = host.zeros(10 * me * n + n * (n - 1) / 2), got = host.zeros(10 * n * (n - 1) / 2 + me * n);
              group->all_to_all_v(host.ctx, sent, send, got, receive).wait(host.ctx);
              world.barrier();
            },
            {.poison = false, .records = &records});
  REQUIRE(records.size() == 4);
  const CommunicationRecord& one = records[1];
  CHECK(one.entry("shard", "all_reduce").calls == 2);
  CHECK(one.entry("shard", "all_reduce").wire_bytes == Approx(2 * 2 * 2.0 / 3 * 20).epsilon(1e-15));
  CHECK(one.entry("shard", "all_gather").wire_bytes == 40);
  CHECK(one.entry("shard", "reduce_scatter").wire_bytes == 40);
  CHECK(one.entry("shard", "all_to_all").wire_bytes == 40);
  CHECK(one.entry("shard", "all_to_all_v").wire_bytes == 4 * (10 + 12));
  CHECK(one.entry("shard", "broadcast").wire_bytes == 20);
  CHECK(one.entry("world", "exchange").wire_bytes == 20);
  CHECK(one.entry("world", "barrier").calls == 1);
  CHECK(one.entry("world", "all_reduce").calls == 0);
  CHECK(one.wire_bytes("shard") == Approx(160.0 / 3 + 100 + 40 + 88).epsilon(1e-15));
  CHECK(records[3].entry("shard", "all_reduce").calls == 2);
  CHECK(records[3].wire_bytes("shard") == 0);
}

TEST_CASE("the recorded hash differs between different sequences of calls") {
  const auto hash_of = [](const std::function<void(Communicator&, Host&)>& body) {
    std::vector<CommunicationRecord> records;
    run_ranks(2,
              [&](Communicator& world) {
                Host host;
                body(world, host);
              },
              {.poison = false, .records = &records});
    CHECK(records[0].sequence_hash == records[1].sequence_hash);
    return records[0].sequence_hash;
  };
  const auto reduce = [](Communicator& w, Host& h, int64_t count, DType dtype) {
    w.all_reduce(h.ctx, h.zeros(count, dtype), ReduceOp::kSum).wait(h.ctx);
  };
  const uint64_t two = hash_of([&](auto& w, auto& h) { reduce(w, h, 2, DType::kF32), reduce(w, h, 3, DType::kF32); });
  CHECK(two == hash_of([&](auto& w, auto& h) { reduce(w, h, 2, DType::kF32), reduce(w, h, 3, DType::kF32); }));
  CHECK(two != hash_of([&](auto& w, auto& h) { reduce(w, h, 3, DType::kF32), reduce(w, h, 2, DType::kF32); }));
  CHECK(two != hash_of([&](auto& w, auto& h) { reduce(w, h, 2, DType::kF32), reduce(w, h, 3, DType::kI32); }));
  CHECK(two != hash_of([&](auto& w, auto& h) { reduce(w, h, 2, DType::kF32), w.broadcast(h.ctx, h.zeros(3), 0).wait(h.ctx); }));
  CHECK(two != hash_of([&](auto& w, auto& h) { reduce(*w.group({0, 1}, "pair"), h, 2, DType::kF32), reduce(w, h, 3, DType::kF32); }));
}
