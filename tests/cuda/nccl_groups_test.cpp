// The communicators that the groups of a rank share, and their common end after an error.
#include <atomic>
#include <chrono>

#include <nccl.h>

#include <set>
#include <thread>

#include "kernels/core/gpu.h"
#include "kernels/ops/matmul.h"
#include "parallel/mesh.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda_sim/cublas_lt.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/nccl.h"
#include "tests/support/catch.h"

using namespace trireme;
using namespace trireme::test;

TEST_CASE("a failed rank aborts its communicators together, because the stream of one waits for another") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    cuda_sim::Options options;
    options.stuck_seconds = 2;
    cuda_sim::reset(seed, options);
    const auto errors = nccl_errors_of(3, [](Communicator& world, Context& ctx) {
      const auto ring = world.group({1, 2, 0}, "ring");
      const Tensor x = filled(ctx, 4, 1);
      world.barrier();
      const int all = cuda_sim::live_communicators();
      world.barrier();
      if (world.rank() != 0) {  // These ranks never join the operations of rank 0, and stay until it has aborted its two communicators.
        try {
          return world.barrier();
        } catch (...) {
          const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          while (cuda_sim::live_communicators() > all - 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
          throw;
        }
      }
      // Whichever communicator is aborted first, an operation of the other stands before one of its own.
      ring->all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
      world.all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
      const Work in_flight = ring->all_reduce(ctx, x, ReduceOp::kSum);
      throw DataError("a broken file");
    });
    CHECK(errors[0] == "a broken file");
    CHECK(cuda_sim::errors().empty());
    CHECK(cuda_sim::live_communicators() == 0);
  }
}

TEST_CASE("until the last group of a failed rank goes, nothing is aborted and nothing waits for the GPU") {
  cuda_sim::reset(1);
  const auto errors = nccl_errors_of(3, [](Communicator& world, Context& ctx) {
    std::unique_ptr<Communicator> ring = world.group({1, 2, 0}, "ring");
    const Tensor x = filled(ctx, 4, 1);
    world.barrier();
    const int live = cuda_sim::live_communicators();
    const int64_t waits = cuda_sim::statistics().waits;
    world.barrier();
    if (world.rank() != 0) return world.barrier();
    try {
      const std::unique_ptr<Communicator> own = std::move(ring);
      const Work first = own->all_reduce(ctx, x, ReduceOp::kSum), second = world.all_reduce(ctx, x, ReduceOp::kSum);
      throw DataError("a broken file");
    } catch (const DataError&) {  // where a rank reports the error
      TRIREME_CHECK(cuda_sim::live_communicators() == live, "aborted before the report");
      TRIREME_CHECK(cuda_sim::statistics().waits == waits, "waited for the GPU before the report");
      throw;
    }
  });
  CHECK(errors[0] == "a broken file");
  CHECK(cuda_sim::live_communicators() == 0);
}

TEST_CASE("groups of the same ranks share an NCCL communicator, and host groups have none") {
  cuda_sim::reset(1);
  run_gpu_ranks(3, kNccl, [](Communicator& world, Context& ctx) {
    const auto per_rank = [&] {
      world.barrier();
      const int all = cuda_sim::live_communicators();
      world.barrier();
      return all / 3.0;
    };
    TRIREME_CHECK(per_rank() == 1, "the world alone");
    auto same = world.group({0, 1, 2}, "same"), ring = world.group({1, 2, 0}, "ring");
    auto nested = ring->group({2, 0, 1}, "nested");  // of ranks 0, 1, 2 of the world
    TRIREME_CHECK(per_rank() == 2 && nested->rank() == world.rank(), per_rank(), " communicators a rank");
    const auto host = world.host_group({0, 1, 2}, "host");
    TRIREME_CHECK(per_rank() == 2, "a host group made a communicator");
    TRIREME_CHECK(all_reduce_count(*host, world.rank()) == 3, "host group");
    const Tensor x = filled(ctx, 4, 1);
    std::string told;
    try {
      host->all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
    } catch (const InternalError& error) {
      told = error.what();
    }
    TRIREME_CHECK(contains(told, "all_reduce of group 'host': this group carries tensors in host memory only"), told);
    Work works[] = {same->all_reduce(ctx, x, ReduceOp::kSum), nested->all_reduce(ctx, filled(ctx, 5, 1), ReduceOp::kMax)};
    for (Work& work : works) work.wait(ctx);
    TRIREME_CHECK(all_are(ctx, x, 3), "same");
    same.reset(), nested.reset();
    TRIREME_CHECK(per_rank() == 2, "a shared communicator ended with one of its groups");
    world.all_reduce(ctx, x, ReduceOp::kSum).wait(ctx);
    TRIREME_CHECK(all_are(ctx, x, 9), "world");
    ring.reset();
    TRIREME_CHECK(per_rank() == 1, "the communicator of no group lives on");
  });
  CHECK(cuda_sim::errors().empty());
  CHECK(cuda_sim::live_communicators() == 0);
}

TEST_CASE("matrix products leave multiprocessors free from the start of communication to its wait") {
  cuda_sim::reset(1);
  run_gpu_ranks(2, {true, 1, {.max_blocks = 3}, 3}, [](Communicator& world, Context& ctx) {
    const Tensor x = filled(ctx, 64, 1).view({8, 8}), y = filled(ctx, 64, 0).view({8, 8});
    const Tensor sums[] = {filled(ctx, 5, 1), filled(ctx, 5, 1)};
    // The number of products with a target, of all ranks, among `count` products of each.
    const auto limited = [&](int count) {
      world.barrier();
      const int64_t before = cuda_sim::cublas_lt_statistics().limited;
      world.barrier();
      for (int i = 0; i < count; ++i) linear_forward(ctx, x, x, {}, y);
      world.barrier();
      const int64_t after = cuda_sim::cublas_lt_statistics().limited;
      world.barrier();
      return after - before;
    };
    TRIREME_CHECK(limited(2) == 0, "before");
    Work first = world.all_reduce(ctx, sums[0], ReduceOp::kSum);
    TRIREME_CHECK(limited(3) == 6, "beside one operation");
    Work second = world.all_reduce(ctx, sums[1], ReduceOp::kSum);
    first.wait(ctx);
    TRIREME_CHECK(limited(1) == 2, "beside the second operation");
    second.wait(ctx);
    TRIREME_CHECK(limited(2) == 0, "after");
    TRIREME_CHECK(all_are(ctx, y, 8), "product");
    const auto group = world.group({1, 0}, "group");
    TRIREME_CHECK(cuda_sim::communicator_blocks() == std::set<int>{3}, "blocks of a communicator");
  });
  CHECK(cuda_sim::errors().empty());
  run_gpu_ranks(2, kNccl, [](Communicator& world, Context& ctx) {
    const Tensor x = filled(ctx, 64, 1).view({8, 8}), y = filled(ctx, 64, 0).view({8, 8}), sum = filled(ctx, 5, 1);
    const int64_t before = cuda_sim::cublas_lt_statistics().limited;
    Work work = world.all_reduce(ctx, sum, ReduceOp::kSum);
    linear_forward(ctx, x, x, {}, y);
    work.wait(ctx);
    TRIREME_CHECK(cuda_sim::cublas_lt_statistics().limited == before, "by default nothing is left free");
    TRIREME_CHECK(cuda_sim::communicator_blocks() == std::set<int>{NCCL_CONFIG_UNDEF_INT}, "blocks of a communicator");
  });
  CHECK(cuda_sim::errors().empty());
}

TEST_CASE("a mesh makes as many NCCL communicators as the memory forecast allows for") {
  const MeshShape shapes[] = {{1, 1, 4, 1}, {2, 1, 2, 1}, {1, 2, 2, 1}, {2, 1, 1, 2}, {2, 2, 2, 1}, {4, 1, 1, 1}};
  const int expected[] = {1, 3, 3, 3, 4, 2};  // of rank 0; with 4 stages, the group of the first and the last is one of its own
  for (size_t i = 0; i < std::size(shapes); ++i) {
    const MeshShape& shape = shapes[i];
    CAPTURE(i);
    cuda_sim::reset(1);
    std::atomic<int> forecast = 0;
    int made = 0;
    run_gpu_ranks(shape.world(), kNccl, [&](Communicator& world, Context&) {
      const Mesh mesh(world, shape, 1);
      forecast += device_groups(shape, world.rank(), 1);
      world.barrier();
      if (world.rank() == 0) made = cuda_sim::live_communicators();
      world.barrier();
    });
    CHECK(made == forecast);
    CHECK(device_groups(shape, 0, 1) == expected[i]);
  }
}
