// Ranks of a CPU machine share its cores: the cores do the work of all ranks, and ranks fill each other's waits.
#include <cmath>

#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/cgroup.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/analysis/analysis.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/run_forecast.h"

namespace trireme {
namespace {

Config model(const std::string& parallel, int world) {
  const std::string text = "model: {layers: 8, hidden_size: 256, heads: 8, vocab_size: 4096, tied_embeddings: false}\nparallel: {" + parallel +
                           "}\ntraining: {steps: 1, sequence_length: 256, micro_batch_size: 1, global_batch_size: 8}\ndata: {train: [none]}\n";
  return resolve(parse_config(text, "a test"), world);
}

ClusterConfig machine(double cores, int64_t ranks) {
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.device.cores = cores;
  cluster.device.core_scaling = 1;
  cluster = with_ranks_sharing_cores(resolve_cluster(cluster), ranks);
  cluster.node_link = {.bandwidth = 1e15, .latency = 0, .ramp = 0};
  return cluster;
}

TEST_CASE("forecast: more ranks than cores share the cores") {
  const Config data = model("data: 8", 8);
  const double own = forecast_time(data, machine(8, 8)).step_seconds;
  CHECK(forecast_time(data, machine(2, 8)).step_seconds == Approx(4 * own).epsilon(1e-6));
  CHECK(forecast_time(data, machine(16, 8)).step_seconds < 0.7 * own);  // two threads each
}

TEST_CASE("forecast: unused cores have no effect, and ranks that share a core are charged for one core") {
  const Config data = model("data: 8", 8);
  const auto cluster = [](double cores) {
    ClusterConfig c = machine(cores, 8);
    c.device.core_scaling = 0.85;
    c.device.price_per_hour = 1;
    return c;
  };
  CHECK(forecast_time(data, cluster(15)).step_seconds == Approx(forecast_time(data, cluster(8)).step_seconds));
  const TrainingCost two = training_bill(data, cluster(2), 1, 3600.0 * 8 * 64), eight = training_bill(data, cluster(8), 1, 3600.0 * 8 * 64);
  CHECK(two.seconds == eight.seconds);
  CHECK(two.cost.value() == Approx(2 * two.seconds / 3600));
  CHECK(eight.cost.value() == Approx(8 * eight.seconds / 3600));
}

TEST_CASE("forecast: TF32 speeds up fp32 on a GPU") {
  Config config = model("tensor: 1", 1);
  config.training.precision = Arithmetic::kFp32;
  ClusterConfig gpu;
  gpu.devices_per_node = 1;
  gpu = resolve_cluster(gpu);
  const double exact = forecast_time(config, gpu).step_seconds, peak = peak_flops(config, gpu);
  config.kernels.tf32 = true;
  CHECK(peak_flops(config, gpu) == *gpu.device.peak_flops / 2);
  CHECK(peak_flops(config, gpu) > 7 * peak);
  CHECK(forecast_time(config, gpu).step_seconds < exact);
}

TEST_CASE("forecast: a pipeline on one core has no bubble and takes as long as one rank there") {
  const Config whole = model("tensor: 1", 1), pipeline = model("pipeline: 4, schedule: gpipe", 4);
  const Forecast alone = forecast_time(whole, machine(1, 1)), turns = forecast_time(pipeline, machine(1, 4));
  const Forecast apart = forecast_time(pipeline, machine(4, 4));
  CHECK(turns.step_seconds == Approx(alone.step_seconds).epsilon(0.01));
  CHECK(turns.bubble < 0.01);
  CHECK(apart.bubble > 0.15);
  CHECK(apart.step_seconds < turns.step_seconds);
}

TEST_CASE("forecast: on a CPU no communication is hidden") {
  const Config sharded = model("data: 4, zero_stage: 3", 4);
  ClusterConfig slow = machine(4, 4);
  slow.node_link.bandwidth = 1e9;
  const Forecast forecast = forecast_time(sharded, slow);
  const double moved = forecast.step_seconds - forecast_time(sharded, machine(4, 4)).step_seconds;
  CHECK(moved == Approx(forecast.parts.gather + forecast.parts.reduce).epsilon(0.01));
  CHECK(moved > 0);
}

TEST_CASE("forecast: Trireme's attention has the rate measured on a GPU, and that of the cluster file on a CPU") {
  const auto seconds = [](const char* stack, const ClusterConfig& cluster, double head_size = 128) {
    return attention_seconds(8, 8192, 32, head_size, 2, stack_of(stack), cluster);
  };
  for (const auto& [type, head_size, rate] : {std::tuple{"A100", 128, 1.06}, {"H100", 128, 1.46}, {"H200", 64, 1.46}, {"H100", 96, 1.06}}) {
    ClusterConfig cluster;
    cluster.device.type = type;
    const ClusterConfig gpu = resolve_cluster(cluster);
    const AttentionSeconds own = seconds("trireme", gpu, head_size), flash = seconds("torchtitan", gpu, head_size);
    CAPTURE(type, head_size);
    CHECK(own.forward == Approx(flash.forward / rate));
    CHECK(own.backward == Approx(flash.backward / rate));
  }
  CHECK(seconds("trireme", machine(2, 2)).forward == Approx(seconds("torchtitan", machine(2, 2)).forward));
}

TEST_CASE("forecast: host memory is checked for all ranks together") {
  SelfCommunicator world("world");
  CHECK_NOTHROW(check_host_memory(world, "a", 2e9, 2e9));
  CHECK_THROWS_AS(check_host_memory(world, "a", 2.1e9, 2e9), Error);
  // Two hosts of two ranks: each host has to hold its own.
  run_ranks(4, [](Communicator& ranks) {
    const std::string host = ranks.rank() < 2 ? "a" : "b";
    CHECK_NOTHROW(check_host_memory(ranks, host, 1e9, 2e9));
    CHECK_THROWS_WITH(check_host_memory(ranks, host, 1.5e9, 2e9), Catch::Matchers::Contains("the 2 ranks on "));
  });
}

TEST_CASE("forecast: a GPU has the figures of the type with its driver's name, and no other") {
  const auto name = [](const char* gpu) { return device_type_of(gpu); };
  CHECK(name("NVIDIA H100 80GB HBM3") == "H100");
  CHECK(name("NVIDIA H200") == "H200");
  CHECK(name("NVIDIA B200") == "B200");
  CHECK(name("NVIDIA A100-SXM4-40GB") == "A100-40GB");
  CHECK(name("NVIDIA A100-SXM4-80GB") == "A100");
  for (const char* other : {"NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A100-PCIE-40GB",
                            "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090", ""})
    CHECK(name(other) == "");
}

TEST_CASE("forecast: a run on GPUs is forecast for its own hosts") {
  Config config = model("tensor: 4, data: 4", 16);
  const auto seconds = [&](int ranks_per_host, const char* gpu) { return forecast_run(config, 16, ranks_per_host, gpu)->time.step_seconds; };
  const double eights = seconds(8, "NVIDIA H100 80GB HBM3");
  CHECK(seconds(2, "NVIDIA H100 80GB HBM3") > eights);  // tensor ranks on two hosts
  CHECK_FALSE(forecast_run(config, 16, 8, "NVIDIA H100 PCIe"));
  config.plan.cluster = "H100";  // a type of any size, as for `plan --cluster`
  CHECK(seconds(8, "NVIDIA H100 PCIe") == eights);
  const test::Scratch files;
  config.plan.cluster = files.write("small.yaml", "device: {type: H100}\nnodes: 1\n");
  CHECK_THROWS_WITH(forecast_run(config, 16, 8, ""), Catch::Contains("has 8 devices, but the run has 16 ranks"));
  config.plan.cluster = files.write("large.yaml", "device: {type: H100}\nnodes: 4\n");
  CHECK(seconds(8, "") == eights);
}

TEST_CASE("forecast: a control group limits the host memory") {
  const test::Scratch files;
  const auto limit = [&] { return memory_limit(files / "groups", files / "mount"); };
  CHECK(std::isinf(limit()));
  files.write("groups", "0::/job/step/task\n");
  files.write("mount/job/step/task/memory.max", "max\n");
  CHECK(std::isinf(limit()));
  files.write("mount/job/memory.max", "8589934592\n");
  files.write("mount/job/step/memory.max", "17179869184\n");
  CHECK(limit() == 8589934592.0);
  // Version 1; in a container, the path is the host's.
  files.write("groups", "12:cpu,cpuacct:/\n9:memory:/docker/4711\n0::/\n");
  files.write("mount/cpu,cpuacct/memory.limit_in_bytes", "1\n");
  files.write("mount/memory/memory.limit_in_bytes", "4294967296\n");
  CHECK(limit() == 4294967296.0);
  CHECK(host_memory() > 0);
}

TEST_CASE("forecast: the lowest limit of memory of a control group and of those around it, in both versions") {
  const test::Scratch files;
  const auto limit = [&] { return memory_limit(files / "groups", files / "mount"); };
  CHECK(std::isinf(limit()));  // no such files
  files.write("groups", "0::/job/task/step\n");
  CHECK(std::isinf(limit()));
  files.write("mount/job/task/step/memory.max", "max\n");
  files.write("mount/other/memory.max", "1\n");
  CHECK(std::isinf(limit()));
  files.write("mount/job/task/memory.max", "7000\n");
  files.write("mount/job/memory.max", "9000\n");
  CHECK(limit() == 7000);
  files.write("mount/job/task/step/memory.max", "8000\n");
  CHECK(limit() == 7000);
  files.write("mount/job/memory.max", "6000\n");
  CHECK(limit() == 6000);
  files.write("mount/memory.max", "5000\n");
  CHECK(limit() == 5000);
  // In version 1 only the lines of the controller count, each with a tree of its own, and an unlimited one has a large number, or -1.
  files.write("groups", "12:cpu,cpuacct:/a\n11:hugetlb,memory:/docker/1\n10:pids:/b\nnonsense\n");
  for (const char* other : {"mount/memory/a/memory.limit_in_bytes", "mount/memory/b/memory.limit_in_bytes", "mount/cpu/a/memory.limit_in_bytes"})
    files.write(other, "1\n");
  files.write("mount/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(limit() == 9223372036854771712.0);
  files.write("mount/memory/docker/memory.limit_in_bytes", "3000\n");
  CHECK(limit() == 3000);
  files.write("mount/memory/memory.limit_in_bytes", "-1\n");
  CHECK(limit() == 3000);
  files.write("groups", "11:memory:/docker/1\n0::/job\n");  // both at once
  CHECK(limit() == 3000);
  files.write("mount/memory.max", "2000\n");
  CHECK(limit() == 2000);
}

}  // namespace
}  // namespace trireme
