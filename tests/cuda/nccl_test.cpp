// Errors that must be detected on ranks with NCCL: the simulated NCCL reports each, and an exception names it.
#include "tests/cuda_sim/nccl.h"
#include "kernels/core/gpu.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::test;

namespace {

bool some_contains(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts)
    if (contains(text, part)) return true;
  return false;
}

}  // namespace

TEST_CASE("writing to a buffer in flight is reported") {
  const auto told = [](const std::function<Work(Communicator&, Context&, const Tensor& part, const Tensor& whole)>& start, bool to_whole) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      cuda_sim::reset(seed);
      try {
        run_gpu_ranks(2, kNccl, [&](Communicator& world, Context& ctx) {
          const Tensor part = filled(ctx, 50, 1), whole = filled(ctx, 100, 1);
          Work work = start(world, ctx, part, whole);
          const Tensor& victim = to_whole ? whole : part;
          ctx.gpu->fill_bytes(victim.raw(), 0, victim.bytes());
          work.wait(ctx);
          ctx.gpu->synchronize();
        });
      } catch (const Error&) {
        if (some_contains(cuda_sim::errors(), "written while it was in flight")) return true;
      }
    }
    return false;
  };
  const auto reduce = [](auto& w, auto& ctx, const Tensor& part, const Tensor&) { return w.all_reduce(ctx, part, ReduceOp::kSum); };
  const auto gather = [](auto& w, auto& ctx, const Tensor& part, const Tensor& whole) { return w.all_gather(ctx, part, whole); };
  const auto scatter = [](auto& w, auto& ctx, const Tensor& part, const Tensor& whole) { return w.reduce_scatter(ctx, whole, part, ReduceOp::kSum); };
  const auto message = [](auto& w, auto& ctx, const Tensor& part, const Tensor&) {
    const auto kind = w.rank() == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
    return w.exchange(ctx, std::vector<PointToPoint>{{kind, part, 1 - w.rank()}});
  };
  const auto transpose = [](auto& w, auto& ctx, const Tensor& part, const Tensor& whole) { return w.all_to_all(ctx, part, whole.flat(0, 50)); };
  const auto parts = [](auto& w, auto& ctx, const Tensor& part, const Tensor& whole) {
    const std::vector<int64_t> counts = w.rank() == 0 ? std::vector<int64_t>{10, 40} : std::vector<int64_t>{40, 10};
    return w.all_to_all_v(ctx, part, counts, whole.flat(0, 50), counts);
  };
  CHECK(told(transpose, false));
  CHECK(told(transpose, true));
  CHECK(told(parts, false));
  CHECK(told(parts, true));
  CHECK(told(reduce, false));
  CHECK_FALSE(told(reduce, true));
  CHECK(told(gather, false));
  CHECK(told(gather, true));
  CHECK(told(scatter, false));
  CHECK(told(scatter, true));
  CHECK(told(message, false));
}

TEST_CASE("operations of two groups in different order on two ranks are reported as a deadlock") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = nccl_errors_of(2, [](Communicator& world, Context& ctx) {
      const auto a = world.group({1, 0}, "a");
      Communicator& b = world;
      const Tensor x = filled(ctx, 4, 1), y = filled(ctx, 6, 1);
      Communicator &first = world.rank() == 0 ? *a : b, &second = world.rank() == 0 ? b : *a;
      Work one = first.all_reduce(ctx, x, ReduceOp::kSum);
      Work two = second.all_reduce(ctx, world.rank() == 0 ? y : x, ReduceOp::kSum);
      one.wait(ctx);
      two.wait(ctx);
      ctx.gpu->synchronize();
    });
    // The second rank to issue sees both orders.
    CHECK(some_contains(errors, "ranks disagree"));
  }
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = nccl_errors_of(2, [](Communicator& world, Context& ctx) {
      const auto a = world.group({1, 0}, "a");
      Communicator& b = world;
      const Tensor x = filled(ctx, 4, 1), y = filled(ctx, 6, 1);
      Work one = world.rank() == 0 ? a->all_reduce(ctx, x, ReduceOp::kSum) : b.all_reduce(ctx, y, ReduceOp::kMax);
      Work two = world.rank() == 0 ? b.all_reduce(ctx, y, ReduceOp::kMax) : a->all_reduce(ctx, x, ReduceOp::kSum);
      one.wait(ctx);
      two.wait(ctx);
      ctx.gpu->synchronize();
    });
    CHECK(some_contains(errors, "deadlock"));
    CHECK(some_contains(errors, "all_reduce(sum) of 4 F32 of communicator 'a' on rank 1 of 2"));
    CHECK(some_contains(errors, "all_reduce(max) of 6 F32 of communicator 'world' on rank 1 of 2"));
    CHECK(some_contains(errors, "all_reduce failed (group '"));
  }
}

TEST_CASE("a different order is reported even if the first operation has completed") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = nccl_errors_of(2, [](Communicator& world, Context& ctx) {
      const auto a = world.group({1, 0}, "a");
      Communicator& b = world;
      const Tensor x = filled(ctx, 4, 1), y = filled(ctx, 6, 1);
      Work on_a, on_b;
      if (world.rank() == 0) on_a = a->all_reduce(ctx, x, ReduceOp::kSum);
      on_b = b.all_reduce(ctx, y, ReduceOp::kSum);
      on_b.wait(ctx);
      if (world.rank() == 1) ctx.gpu->synchronize();  // the real NCCL would never return: b's part on rank 0 is behind a's
      if (world.rank() == 1) on_a = a->all_reduce(ctx, x, ReduceOp::kSum);
      on_a.wait(ctx);
      ctx.gpu->synchronize();
    });
    CHECK(some_contains(errors, "deadlock"));
  }
}

TEST_CASE("two ranks that both send before they receive are reported") {
  cuda_sim::reset(1);
  const auto errors = nccl_errors_of(2, [](Communicator& world, Context& ctx) {
    using enum PointToPoint::Kind;
    const Tensor out = filled(ctx, 3, 1), in = filled(ctx, 3, 0);
    Work one = world.exchange(ctx, std::vector<PointToPoint>{{kSend, out, 1 - world.rank()}});
    Work two = world.exchange(ctx, std::vector<PointToPoint>{{kRecv, in, 1 - world.rank()}});
    one.wait(ctx);
    two.wait(ctx);
    ctx.gpu->synchronize();
  });
  CHECK(some_contains(errors, "deadlock"));
  CHECK(some_contains(errors, "send to 1 of 3 F32 of communicator 'world' on rank 0 of 2"));
}

TEST_CASE("mismatched calls on GPU ranks are reported with the ranks") {
  using Call = std::function<Work(Communicator&, Context&)>;
  const auto disagree = [](const Call& zero, const Call& other) {
    cuda_sim::reset(1);
    return nccl_errors_of(2, [&](Communicator& world, Context& ctx) {
      (world.rank() == 0 ? zero : other)(world, ctx).wait(ctx);
      ctx.gpu->synchronize();
    });
  };
  const auto sum_of = [](int64_t count, DType dtype, ReduceOp op = ReduceOp::kSum) {
    return [=](Communicator& w, Context& ctx) { return w.all_reduce(ctx, Tensor::empty(ctx, {count}, dtype, MemoryCategory::kCommunication), op); };
  };
  const auto from = [](int root) { return [=](Communicator& w, Context& ctx) { return w.broadcast(ctx, filled(ctx, 3, 0), root); }; };
  const auto counts = disagree(sum_of(3, DType::kF32), sum_of(4, DType::kF32));
  CHECK(some_contains(counts, "ranks disagree in communicator 'world'"));
  CHECK(some_contains(counts, "rank 0 called all_reduce(sum) of 3 F32"));
  CHECK(some_contains(counts, "rank 1 called all_reduce(sum) of 4 F32"));
  CHECK(some_contains(disagree(sum_of(3, DType::kF32), sum_of(3, DType::kBF16)), "of 3 BF16"));
  CHECK(some_contains(disagree(sum_of(3, DType::kF32), sum_of(3, DType::kF32, ReduceOp::kMax)), "(max)"));
  CHECK(some_contains(disagree(sum_of(3, DType::kF32), from(0)), "broadcast from 0"));
  CHECK(some_contains(disagree(from(0), from(1)), "broadcast from 1"));
  const auto message = [](int64_t count) {
    return [=](Communicator& w, Context& ctx) {
      const auto kind = w.rank() == 0 ? PointToPoint::Kind::kSend : PointToPoint::Kind::kRecv;
      return w.exchange(ctx, std::vector<PointToPoint>{{kind, filled(ctx, count, 0), 1 - w.rank()}});
    };
  };
  CHECK(some_contains(disagree(message(3), message(4)), "a message of 4 F32"));
  const auto parts = [](int64_t to_one, int64_t from_zero) {
    return [=](Communicator& w, Context& ctx) {
      const bool zero = w.rank() == 0;
      const std::vector<int64_t> send{2, zero ? to_one : 2}, receive{zero ? 2 : from_zero, 2};
      return w.all_to_all_v(ctx, filled(ctx, send[0] + send[1], 0), send, filled(ctx, receive[0] + receive[1], 0), receive);
    };
  };
  CHECK(some_contains(disagree(parts(3, 4), parts(3, 4)), "a message of 4 F32"));
}

TEST_CASE("an asynchronous error throws with operation, group and rank, and ends the rank's other groups") {
  for (const bool at_wait : {false, true}) {
    cuda_sim::reset(1);
    const auto errors = nccl_errors_of(2, [&](Communicator& world, Context& ctx) {
      const auto pair = world.group({1, 0}, "pair");
      const Tensor buffer = filled(ctx, 3, 1);
      Work before;
      if (at_wait) before = pair->all_reduce(ctx, buffer, ReduceOp::kSum);
      world.barrier();
      if (world.rank() == 0) cuda_sim::break_communicators("pair");
      world.barrier();
      std::string told;
      try {
        if (!at_wait) before = pair->all_reduce(ctx, buffer, ReduceOp::kSum);
        before.wait(ctx);
      } catch (const InternalError& error) {
        told = error.what();
      }
      TRIREME_CHECK(contains(told, concat("all_reduce failed (group 'pair', rank ", pair->rank(), " of 2)")), told);
      TRIREME_CHECK(contains(told, "unhandled system error"), told);
      world.broadcast(ctx, buffer, 0).wait(ctx);
    });
    for (const std::string& error : errors) {
      CHECK(contains(error, "broadcast failed (group 'world'"));
      CHECK(contains(error, "ended with an earlier error"));
    }
  }
}

TEST_CASE("NCCL rejects two ranks on one GPU") {
  cuda_sim::reset(1);
  std::string told;
  try {
    run_gpu_ranks(2, {true, 2}, [](Communicator&, Context&) {});
  } catch (const InternalError& error) {
    told = error.what();
  }
  CHECK(contains(told, "ncclCommInitRankConfig failed (group 'world', rank"));
  CHECK(contains(told, "Duplicate GPU"));
}

TEST_CASE("a failing rank on a GPU stops the other ranks") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = nccl_errors_of(3, [](Communicator& world, Context& ctx) {
      const auto pair = world.group({1, 2, 0}, "pair");
      const Tensor x = filled(ctx, 4, 1);
      Work work = pair->all_reduce(ctx, x, ReduceOp::kSum);
      if (world.rank() == 1) throw DataError("a broken file");
      work.wait(ctx);
      world.all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
      ctx.gpu->synchronize();
    });
    CHECK(errors[1] == "a broken file");
    CHECK(cuda_sim::live_communicators() == 0);
  }
}
