// Memory that is registered with NCCL: the simulated NCCL checks that it covers the buffers of every operation, and its end.
#include "kernels/core/gpu.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/nccl.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::test;

namespace {

constexpr Carrier kRegistering{true, 1, {.register_buffers = true}};
constexpr int64_t kReserve = int64_t{1} << 16;

/// Restores the behaviour of registrations at the end of a test.
struct ScopedRegistration {
  explicit ScopedRegistration(cuda_sim::Registration behaviour, int device = -1) { cuda_sim::set_registration(behaviour, device); }
  ~ScopedRegistration() {
    cuda_sim::set_registration(cuda_sim::Registration::kWorks);
    cuda_sim::set_mem_alloc_fails(false);
  }
  ScopedRegistration(const ScopedRegistration&) = delete;
  ScopedRegistration& operator=(const ScopedRegistration&) = delete;
};

/// Sums over the world and over a pair, which must work with and without registration. Returns what register_memory() has returned.
std::string why_not_registered(int expected_registrations) {
  std::string told;
  run_gpu_ranks(2, kRegistering, [&](Communicator& world, Context& ctx) {
    world.reserve_memory(ctx, kReserve);
    const auto pair = world.group({1, 0}, "pair");
    const std::string why = world.register_memory();
    TRIREME_CHECK(all_gather_strings(world, why)[static_cast<size_t>(1 - world.rank())] == why, "ranks disagree");
    TRIREME_CHECK(cuda_sim::live_registrations() == expected_registrations, cuda_sim::live_registrations(), " registrations");
    const Tensor x = filled(ctx, 4, 1);
    TRIREME_CHECK(ctx.arena->system_allocations() == 1, "the reserve is not used");
    world.all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
    pair->all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
    TRIREME_CHECK(all_are(ctx, x, 4), "sum");
    world.barrier();
    if (world.rank() == 0) told = why;
    world.barrier();
  });
  CHECK(cuda_sim::errors().empty());
  CHECK(cuda_sim::live_registrations() == 0);
  CHECK(cuda_sim::live_communicators() == 0);
  CHECK(cuda_sim::statistics().allocations == 0);
  return told;
}

}  // namespace

TEST_CASE("the memory of a rank is registered with all its communicators, until each of them ends") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    cuda_sim::reset(seed);
    const cuda_sim::IssuedOperations before = cuda_sim::issued_operations();
    CHECK(why_not_registered(4) == "");  // of two ranks with two communicators each
    const cuda_sim::IssuedOperations after = cuda_sim::issued_operations();
    CHECK(after.registered - before.registered == 4);
    CHECK(after.others == before.others);
  }
}

TEST_CASE("a communicator that ends leaves the registrations of the others") {
  cuda_sim::reset(1);
  run_gpu_ranks(3, kRegistering, [](Communicator& world, Context& ctx) {
    world.reserve_memory(ctx, kReserve);
    std::unique_ptr<Communicator> ring = world.group({1, 2, 0}, "ring");
    TRIREME_CHECK(world.register_memory().empty(), "not registered");
    const Tensor x = filled(ctx, 4, 1);
    Work work = ring->all_reduce(ctx, x, ReduceOp::kSum);
    work.wait(ctx);
    ring.reset();  // the GPU may still be busy with the sum
    world.barrier();
    TRIREME_CHECK(cuda_sim::live_registrations() == 3, cuda_sim::live_registrations(), " registrations");
    world.barrier();
    const auto late = world.group({2, 1, 0}, "late");  // made after the registration: none of its ranks has registered memory with it
    for (Communicator* group : {&world, late.get()}) group->all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
    TRIREME_CHECK(all_are(ctx, x, 27), "sum");
  });
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("memory that is freed before the communicators end is deregistered first") {
  cuda_sim::reset(1);
  run_gpu_ranks(2, kRegistering, [](Communicator& world, Context& ctx) {
    auto arena = std::make_unique<Arena>(*ctx.gpu, true);
    Context own{Device::kCuda, arena.get(), 1, ctx.gpu};
    world.reserve_memory(own, kReserve);
    TRIREME_CHECK(world.register_memory().empty(), "not registered");
    {
      const Tensor x = filled(own, 4, 1);
      world.all_reduce(own, x, ReduceOp::kSum).wait(own);
    }
    arena.reset();
    world.barrier();
    TRIREME_CHECK(cuda_sim::live_registrations() == 0, "registrations of freed memory");
    world.barrier();
    const Tensor y = filled(ctx, 4, 1);
    world.all_reduce(ctx, y, ReduceOp::kSum).wait(ctx);
    TRIREME_CHECK(all_are(ctx, y, 2), "sum");
  });
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("if one rank cannot register its memory, no rank does, and all know why") {
  {
    cuda_sim::reset(1);
    const ScopedRegistration behaviour(cuda_sim::Registration::kFails, 1);
    CHECK_THAT(why_not_registered(0), Catch::Matchers::StartsWith("ncclCommRegister failed (group 'world', rank 1 of 2): unhandled system error"));
  }
  {
    cuda_sim::reset(1);
    const ScopedRegistration behaviour(cuda_sim::Registration::kSkipped);
    CHECK_THAT(why_not_registered(0), Catch::Matchers::Contains("registers nothing (group 'world', rank 0 of 2)"));
  }
  {
    cuda_sim::reset(1);
    const ScopedRegistration behaviour(cuda_sim::Registration::kWorks);
    cuda_sim::set_mem_alloc_fails(true);
    CHECK_THAT(why_not_registered(0), Catch::Matchers::StartsWith("ncclMemAlloc of 65536 bytes: unhandled cuda error"));
  }
}

TEST_CASE("a buffer outside the registered memory is refused before the operation") {
  cuda_sim::reset(1);
  run_gpu_ranks(2, kRegistering, [](Communicator& world, Context& ctx) {
    world.reserve_memory(ctx, kReserve);
    TRIREME_CHECK(world.register_memory().empty(), "not registered");
    const Tensor x = filled(ctx, 4, 1), large = filled(ctx, kReserve, 1);  // in F32: more than the reserve has left
    std::string told;
    try {
      world.all_reduce(ctx, large, ReduceOp::kSum).wait(ctx);
    } catch (const InternalError& error) {
      told = error.what();
    }
    TRIREME_CHECK(contains(told, "lies outside the registered memory"), told);
    world.all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
    TRIREME_CHECK(all_are(ctx, x, 2), "sum");
  });
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("a failed rank ends the registrations with its communicators") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    cuda_sim::reset(seed);
    std::vector<std::string> errors(2);
    CHECK_THROWS_AS(run_gpu_ranks(2, kRegistering,
                                  [&](Communicator& world, Context& ctx) {
                                    world.reserve_memory(ctx, kReserve);
                                    TRIREME_CHECK(world.register_memory().empty(), "not registered");
                                    const Tensor x = filled(ctx, 4, 1);
                                    const Work work = world.all_reduce(ctx, x, ReduceOp::kSum);
                                    throw DataError("a broken file");
                                  }),
                    Error);
    CHECK(cuda_sim::live_communicators() == 0);
    // One rank leaves first. What the other has in flight then ends with that error, if it begins before this rank leaves, too.
    for (const std::string& error : cuda_sim::errors()) CHECK_THAT(error, Catch::Matchers::EndsWith("aborted communicator 'world'"));
  }
}
