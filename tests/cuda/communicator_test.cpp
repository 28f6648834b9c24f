// The contract of Communicator for device tensors, through NCCL and through host memory: on simulated GPUs, and in test_cuda_gpu on real ones.
// A tag [gpusN] says how many GPUs a test needs.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <functional>

#include "kernels/core/gpu.h"
#include "parallel/comm/nccl.h"
#include "parallel/mesh.h"
#include "tests/cuda/gpu_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/comm_cases.h"
#include "tests/support/gpu.h"
#ifndef TRIREME_REAL_GPU
#include "tests/cuda_sim/nccl.h"
#endif

using namespace trireme;
using namespace trireme::test;

namespace {

constexpr Carrier kCarriers[] = {kNccl, kStaged, kStagedOnOneGpu};

/// Calls body for each carrier whose GPUs this machine has. The last carrier needs one GPU, so that there always is one.
void for_each_carrier(int ranks, const std::function<void(Carrier)>& body) {
  for (const Carrier carrier : kCarriers) {
    const int gpus = (ranks + carrier.ranks_per_gpu - 1) / carrier.ranks_per_gpu;
    if (testing::has_gpus(gpus, concat(ranks, carrier.nccl ? " ranks over NCCL" : " ranks through host memory"))) body(carrier);
  }
}

/// Calls body with the seeds 1 to n, each on an empty machine; on a real machine once.
void for_each_seed(int n, const std::function<void()>& body) {
  for (int seed = 1; seed <= (testing::kSimulatedGpu ? n : 1); ++seed) {
    INFO("seed " << seed);
    testing::reset_gpus(static_cast<uint64_t>(seed));
    body();
    CHECK(testing::gpu_errors() == "");
  }
}

}  // namespace

TEST_CASE("GPU communicators satisfy the Communicator contract") {
  for (const int n : {1, 2, 3, 4}) {
    for_each_carrier(n, [&](Carrier carrier) {
      CAPTURE(carrier.nccl, carrier.ranks_per_gpu, n);
      for_each_seed(carrier.nccl ? 4 : 1, [&] {
        run_gpu_ranks(n, carrier, [](Communicator& world, Context& ctx) { check_communicator_on(ctx, world); });
#ifndef TRIREME_REAL_GPU
        CHECK(cuda_sim::live_communicators() == 0);
#endif
      });
    });
  }
}

TEST_CASE("NCCL is available and uses implicit launch order", "[gpus2]") {
  if (!testing::has_gpus(2, "the launch order of NCCL")) return;
  std::string why;
  CHECK(nccl_available(&why));
  CHECK(why.empty());
  testing::reset_gpus(0);
  run_gpu_ranks(2, kNccl, [](Communicator&, Context&) {});
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  CHECK((order != nullptr && std::string(order) == "1"));
}

TEST_CASE("mesh axes communicate concurrently on GPUs") {
  for_each_carrier(4, [](Carrier carrier) {
    for_each_seed(6, [&] {
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
    });
  });
}

TEST_CASE("an operation keeps its buffers allocated until its wait", "[gpus2]") {
  if (!testing::has_gpus(2, "buffers of operations in flight")) return;
  using Start = std::function<Work(Communicator&, Context&, const Tensor&)>;
  const std::pair<const char*, Start> verbs[] = {
      {"all_reduce", [](auto& world, auto& ctx, const Tensor& buffer) { return world.all_reduce(ctx, buffer, ReduceOp::kSum); }},
      {"all_gather", [](auto& world, auto& ctx, const Tensor& buffer) { return world.all_gather(ctx, buffer, filled(ctx, 200, 0)); }},
      {"reduce_scatter",
       [](auto& world, auto& ctx, const Tensor& buffer) { return world.reduce_scatter(ctx, buffer, filled(ctx, 50, 0), ReduceOp::kSum); }},
      {"all_to_all", [](auto& world, auto& ctx, const Tensor& buffer) { return world.all_to_all(ctx, buffer, filled(ctx, 100, 0)); }},
      {"broadcast", [](auto& world, auto& ctx, const Tensor& buffer) { return world.broadcast(ctx, buffer, 0); }}};
  for (const auto& [verb, start] : verbs) {
    INFO(verb);
    testing::reset_gpus(1);
    run_gpu_ranks(2, kNccl, [&start = start](Communicator& world, Context& ctx) {
      Tensor buffer = filled(ctx, 100, 1);
      const void* const memory = buffer.raw();
      Work work = start(world, ctx, buffer);
      buffer.reset();
      TRIREME_CHECK(filled(ctx, 100, 2).raw() != memory, "buffer reused in flight");
      work.wait(ctx);
      std::vector<Tensor> later;
      bool again = false;
      for (int i = 0; i < 3; ++i) again |= later.emplace_back(filled(ctx, 100, 3)).raw() == memory;
      TRIREME_CHECK(again, "buffer not returned");
    });
    CHECK(testing::gpu_errors() == "");
  }
}

TEST_CASE("collectives can be captured into a graph and launched repeatedly", "[gpus2]") {
  if (!testing::has_gpus(2, "captured collectives")) return;
  for_each_seed(6, [] {
    run_gpu_ranks(2, kNccl, [](Communicator& world, Context& ctx) {
      const auto pair = world.group({1, 0}, "pair");
      const Tensor sum = filled(ctx, 9, 1), part = filled(ctx, 5, static_cast<float>(world.rank())), whole = filled(ctx, 10, 9);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t step = nullptr;
      const auto check = [](cudaError_t error) { TRIREME_CHECK(error == cudaSuccess, cudaGetErrorString(error)); };
      check(cudaStreamBeginCapture(ctx.gpu->compute(), cudaStreamCaptureModeThreadLocal));
      Work gather = pair->all_gather(ctx, part, whole);
      world.all_reduce(ctx, sum, ReduceOp::kSum).wait(ctx);
      gather.wait(ctx);
      check(cudaStreamEndCapture(ctx.gpu->compute(), &graph));
      check(cudaGraphInstantiate(&step, graph, 0));
      TRIREME_CHECK(all_are(ctx, sum, 1), "ran during capture");
      for (int launch = 0; launch < 3; ++launch) check(cudaGraphLaunch(step, ctx.gpu->compute()));
      TRIREME_CHECK(all_are(ctx, sum, 8), "all_reduce");
      TRIREME_CHECK(all_are(ctx, whole.flat(0, 5), 1) && all_are(ctx, whole.flat(5, 5), 0), "all_gather");
      check(cudaGraphExecDestroy(step));
      check(cudaGraphDestroy(graph));
    });
  });
}

#ifndef TRIREME_REAL_GPU  // a real machine may happen to be in time
TEST_CASE("a missing wait produces wrong values") {
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
#endif
