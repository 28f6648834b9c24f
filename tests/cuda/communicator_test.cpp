// Ranks on simulated GPUs: the contract of Communicator for device tensors, through NCCL and through host memory, and what the simulated NCCL must catch.
#include <atomic>
#include <cstdlib>
#include <numeric>

#include "kernels/cuda/gpu.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/staged.h"
#include "parallel/mesh.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/nccl.h"
#include "tests/support/catch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/thread_ranks.h"

using namespace trireme;

namespace {

struct Carrier {
  bool nccl;
  int ranks_per_gpu;
};
constexpr Carrier kNccl{true, 1}, kStaged{false, 1}, kStagedOnOneGpu{false, 4}, kCarriers[] = {kNccl, kStaged, kStagedOnOneGpu};

/// run_ranks, each rank with a GPU, whose arena poisons.
void run_gpu_ranks(int n, Carrier carrier, const std::function<void(Communicator& world, Context& ctx)>& body) {
  run_ranks(n, [&](Communicator& threads) {
    cuda::Gpu gpu(threads.rank() / carrier.ranks_per_gpu, {});
    Arena arena(gpu, true);
    Context ctx{Device::kCuda, &arena, 1, &gpu};
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    auto host = threads.group(all, "world");
    const auto world = carrier.nccl ? make_nccl_world(std::move(host), gpu) : make_staged_world(std::move(host), gpu);
    body(*world, ctx);
    gpu.synchronize();
  });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// [count] F32, all `value`, on the device.
Tensor filled(Context& ctx, int64_t count, float value) {
  const Tensor host = host_tensor({count}, DType::kF32), device = Tensor::empty(ctx, {count}, DType::kF32, MemoryCategory::kCommunication);
  for (int64_t i = 0; i < count; ++i) host.data<float>()[i] = value;
  from_host(ctx, host, device);
  return device;
}

/// Whether all elements are `value`; waits for the compute stream, and for nothing else.
bool all_are(Context& ctx, const Tensor& tensor, float value) {
  const Tensor host = to_host(ctx, tensor);
  for (int64_t i = 0; i < host.numel(); ++i)
    if (host.data<float>()[i] != value) return false;
  return true;
}

/// Runs `body` on ranks with NCCL until it fails on some; what each was told, of which none may be missing.
std::vector<std::string> errors_of(int n, const std::function<void(Communicator& world, Context& ctx)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(n));
  CHECK_THROWS_AS(run_gpu_ranks(n, kNccl,
                                [&](Communicator& world, Context& ctx) {
                                  try {
                                    body(world, ctx);
                                  } catch (const Error& error) {
                                    errors[static_cast<size_t>(world.rank())] = error.what();
                                    throw;
                                  }
                                }),
                  Error);
  for (const std::string& error : errors) CHECK_FALSE(error.empty());
  return errors;
}

bool some_contains(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts)
    if (contains(text, part)) return true;
  return false;
}

}  // namespace

TEST_CASE("communicators of GPUs keep the contract") {
  for (const Carrier carrier : kCarriers) {
    for (const int n : {1, 2, 3, 4}) {
      for (const uint64_t seed : {1, 2, 3}) {
        CAPTURE(carrier.nccl, carrier.ranks_per_gpu, n, seed);
        cuda_sim::reset(seed);
        run_gpu_ranks(n, carrier, [](Communicator& world, Context& ctx) { check_communicator_on(ctx, world); });
        CHECK(cuda_sim::errors().empty());
        CHECK(cuda_sim::live_communicators() == 0);
      }
    }
  }
}

TEST_CASE("NCCL is available and ordered by issue") {
  std::string why;
  CHECK(nccl_available(&why));
  CHECK(why.empty());
  cuda_sim::reset();
  run_gpu_ranks(2, kNccl, [](Communicator&, Context&) {});
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  CHECK((order != nullptr && std::string(order) == "1"));
}

TEST_CASE("the axes of a mesh work side by side on GPUs") {
  for (const Carrier carrier : kCarriers) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      cuda_sim::reset(seed);
      run_gpu_ranks(4, carrier, [](Communicator& world, Context& ctx) {
        const MeshShape shape{2, 1, 1, 2};
        check_mesh(world, shape, 1);
        const Mesh mesh(world, shape, 1);
        const auto one = static_cast<float>(world.rank() + 1);
        const Tensor all = filled(ctx, 33, one), pipeline = filled(ctx, 1025, one), tensor = filled(ctx, 7, one), alone = filled(ctx, 5, one);
        Work works[] = {world.all_reduce(ctx, all, ReduceOp::kSum), mesh.pipeline->all_reduce(ctx, pipeline, ReduceOp::kSum),
                        mesh.tensor->all_reduce(ctx, tensor, ReduceOp::kMax), mesh.shard->all_reduce(ctx, alone, ReduceOp::kSum)};
        for (Work& work : works) work.wait(ctx);
        TRIREME_CHECK(all_are(ctx, all, 10), "world");
        TRIREME_CHECK(all_are(ctx, pipeline, static_cast<float>(world.rank() % 2 == 0 ? 1 + 3 : 2 + 4)), "pipeline");
        TRIREME_CHECK(all_are(ctx, tensor, static_cast<float>(world.rank() < 2 ? 2 : 4)), "tensor");
        TRIREME_CHECK(all_are(ctx, alone, one), "shard");
      });
      CHECK(cuda_sim::errors().empty());
    }
  }
}

TEST_CASE("an operation holds its buffers until its wait") {
  cuda_sim::reset(1);
  run_gpu_ranks(2, kNccl, [](Communicator& world, Context& ctx) {
    Tensor buffer = filled(ctx, 100, 1);
    const void* const memory = buffer.raw();
    Work work = world.all_reduce(ctx, buffer, ReduceOp::kSum);
    buffer.reset();
    TRIREME_CHECK(filled(ctx, 100, 2).raw() != memory, "given away in flight");
    work.wait(ctx);
    std::vector<Tensor> later;
    bool again = false;
    for (int i = 0; i < 2; ++i) again |= later.emplace_back(filled(ctx, 100, 3)).raw() == memory;
    TRIREME_CHECK(again, "not given back");
  });
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("a missing wait gives wrong numbers") {
  const auto wrong_runs = [](Carrier carrier, bool wait_first) {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      cuda_sim::reset(seed);
      std::atomic<bool> right = true;
      run_gpu_ranks(2, carrier, [&](Communicator& world, Context& ctx) {
        const Tensor part = filled(ctx, 50, 1), whole = filled(ctx, 100, 0), sum = filled(ctx, 10, 1);
        Work works[] = {world.all_gather(ctx, part, whole), world.all_reduce(ctx, sum, ReduceOp::kSum)};
        if (wait_first)
          for (Work& work : works) work.wait(ctx);
        if (!all_are(ctx, whole, 1) || !all_are(ctx, sum, 2)) right = false;
        for (Work& work : works) work.wait(ctx);
      });
      if (!right) ++wrong;
      CHECK(cuda_sim::errors().empty());
    }
    return wrong;
  };
  CHECK(wrong_runs(kNccl, true) == 0);
  CHECK(wrong_runs(kNccl, false) > 5);
  CHECK(wrong_runs(kStaged, true) == 0);
  CHECK(wrong_runs(kStaged, false) == 20);
}

TEST_CASE("a buffer written in flight is told") {
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
  CHECK(told(reduce, false));
  CHECK_FALSE(told(reduce, true));
  CHECK(told(gather, false));
  CHECK(told(gather, true));
  CHECK(told(scatter, false));
  CHECK(told(scatter, true));
  CHECK(told(message, false));
}

TEST_CASE("operations of two groups in different order on two ranks are told as the deadlock they may be") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = errors_of(2, [](Communicator& world, Context& ctx) {
      const auto a = world.group({0, 1}, "a"), b = world.group({0, 1}, "b");
      const Tensor x = filled(ctx, 4, 1), y = filled(ctx, 6, 1);
      Communicator &first = world.rank() == 0 ? *a : *b, &second = world.rank() == 0 ? *b : *a;
      Work one = first.all_reduce(ctx, x, ReduceOp::kSum);
      Work two = second.all_reduce(ctx, world.rank() == 0 ? y : x, ReduceOp::kSum);
      one.wait(ctx);
      two.wait(ctx);
      ctx.gpu->synchronize();
    });
    // The second rank to come sees both orders.
    CHECK(some_contains(errors, "ranks disagree"));
  }
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = errors_of(2, [](Communicator& world, Context& ctx) {
      const auto a = world.group({0, 1}, "a"), b = world.group({0, 1}, "b");
      const Tensor x = filled(ctx, 4, 1), y = filled(ctx, 6, 1);
      Work one = world.rank() == 0 ? a->all_reduce(ctx, x, ReduceOp::kSum) : b->all_reduce(ctx, y, ReduceOp::kMax);
      Work two = world.rank() == 0 ? b->all_reduce(ctx, y, ReduceOp::kMax) : a->all_reduce(ctx, x, ReduceOp::kSum);
      one.wait(ctx);
      two.wait(ctx);
      ctx.gpu->synchronize();
    });
    CHECK(some_contains(errors, "deadlock"));
    CHECK(some_contains(errors, "all_reduce(sum) of 4 F32 of communicator 'a' on rank 0 of 2"));
    CHECK(some_contains(errors, "all_reduce(max) of 6 F32 of communicator 'b' on rank 1 of 2"));
    CHECK(some_contains(errors, "all_reduce failed (group '"));
  }
}

TEST_CASE("two ranks that both send before they receive are told") {
  cuda_sim::reset(1);
  const auto errors = errors_of(2, [](Communicator& world, Context& ctx) {
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

TEST_CASE("ranks on GPUs that disagree are named") {
  using Call = std::function<Work(Communicator&, Context&)>;
  const auto disagree = [](const Call& zero, const Call& other) {
    cuda_sim::reset(1);
    return errors_of(2, [&](Communicator& world, Context& ctx) {
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
}

TEST_CASE("an asynchronous error is an exception with verb, group and rank, and ends the rank's other groups") {
  for (const bool at_wait : {false, true}) {
    cuda_sim::reset(1);
    const auto errors = errors_of(2, [&](Communicator& world, Context& ctx) {
      const auto pair = world.group({0, 1}, "pair");
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
      TRIREME_CHECK(contains(told, concat("all_reduce failed (group 'pair', rank ", world.rank(), " of 2)")), told);
      TRIREME_CHECK(contains(told, "unhandled system error"), told);
      world.broadcast(ctx, buffer, 0).wait(ctx);
    });
    for (const std::string& error : errors) {
      CHECK(contains(error, "broadcast failed (group 'world'"));
      CHECK(contains(error, "were aborted"));
    }
  }
}

TEST_CASE("two ranks on one GPU are refused by NCCL") {
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

TEST_CASE("a failing rank on a GPU ends the others") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::reset(seed);
    const auto errors = errors_of(3, [](Communicator& world, Context& ctx) {
      const auto pair = world.group({0, 1, 2}, "pair");
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
