// Fits recover the figures from which timings were generated.
#include "trainer/plan/fit.h"

#include <cmath>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/plan/kernel_time.h"

namespace trireme {
namespace {

/// A machine with two cores and one rank.
ClusterConfig planted() {
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster = resolve_cluster(cluster);
  cluster.device.cores = 2;
  cluster.device.memory = 24e9;
  cluster.device.memory_bandwidth = 9e9;
  cluster.device.elementwise_bandwidth = 14e9;
  cluster.device.core_scaling = 0.8;
  cluster.device.peak_flops = 300e9;
  cluster.device.peak_flops_fp32 = 90e9;
  cluster.device.gemm_efficiency = 0.8;
  cluster.device.gemm_half_depth = 57;
  cluster.device.attention_efficiency = 0.31;
  cluster.device.attention_half_length = 140;
  cluster.device.kernel_seconds = 2e-6;
  cluster.node_link = {.bandwidth = 3e9, .latency = 7e-6, .ramp = 0};
  cluster.devices_per_node = 1;
  return cluster;
}

MachineSamples samples_of(const ClusterConfig& machine) {
  MachineSamples samples{.name = "planted", .cores = *machine.device.cores, .memory = *machine.device.memory, .kernel_seconds = 2e-6};
  ClusterConfig one = machine;
  one.device.cores = 1;
  for (const int64_t bytes : {2, 4})
    for (const double depth : {128, 256, 512, 1024, 2048})
      for (const bool accumulates : {false, true}) {
        ProductSample sample{512, 768, depth, bytes, accumulates, 0};
        sample.seconds = model_seconds(sample, one);
        samples.products.push_back(sample);
        sample.seconds = model_seconds(sample, machine);
        samples.shared_products.push_back(sample);
      }
  for (const double length : {128, 256, 1024}) samples.attention.push_back(model_seconds(AttentionSample{4, length, 8, 64, 4, 0, 0}, one));
  for (const double bytes : {1e6, 2e7}) {
    samples.elementwise.push_back({"works", bytes, elementwise_seconds(bytes, 1, one)});
    samples.memory_traffic.push_back({"moves", bytes, traffic_seconds(bytes, 1, one)});
  }
  for (const LinkOperation operation : {LinkOperation::kAllReduce, LinkOperation::kAllGather, LinkOperation::kSend})
    for (const int64_t ranks : {2, 4})
      for (const double bytes : {4096.0, 1048576.0}) {
        LinkSample sample{operation, ranks, bytes, 0};
        sample.seconds = model_seconds(sample, machine);
        samples.links.push_back(sample);
      }
  return samples;
}

TEST_CASE("fit: recovers a machine's figures from its timings") {
  const ClusterConfig machine = planted();
  const FittedMachine fitted = fit_machine(samples_of(machine));
  const DeviceConfig &device = fitted.cluster.device, &truth = machine.device;
  const auto near = [](double value) { return Approx(value).epsilon(1e-6); };
  CHECK(*device.peak_flops * *device.gemm_efficiency == near(*truth.peak_flops * *truth.gemm_efficiency));
  CHECK(*device.peak_flops_fp32 * *device.gemm_efficiency == near(*truth.peak_flops_fp32 * *truth.gemm_efficiency));
  CHECK(*device.gemm_half_depth == near(*truth.gemm_half_depth));
  CHECK(*device.attention_efficiency * *device.peak_flops == near(*truth.attention_efficiency * *truth.peak_flops));
  CHECK(*device.attention_half_length == near(*truth.attention_half_length));
  CHECK(*device.memory_bandwidth == near(*truth.memory_bandwidth));
  CHECK(*device.elementwise_bandwidth == near(*truth.elementwise_bandwidth));
  CHECK(*device.core_scaling == near(*truth.core_scaling));
  CHECK(*fitted.cluster.node_link.bandwidth == near(3e9));
  CHECK(*fitted.cluster.node_link.latency == near(7e-6));
  CHECK(fitted.cluster.devices_per_node == 2);
  CHECK(*device.memory == near(12e9));
  for (const Residual& residual : fitted.residuals) {
    INFO(residual.sample);
    CHECK(residual.model == near(residual.measured));
  }
  CHECK(fitted.residuals.back().sample == "send of 1048576 bytes, 4 ranks");
}

TEST_CASE("fit: core_scaling is 0 if cores gain nothing, and 1 for a single core") {
  MachineSamples samples = samples_of(planted());
  samples.shared_products.front().seconds *= 100;  // another program took a core
  CHECK(*fit_machine(samples).cluster.device.core_scaling > 0.7);
  CHECK(*fit_machine(samples).cluster.device.core_scaling < 0.8);
  samples.shared_products = samples.products;
  CHECK(*fit_machine(samples).cluster.device.core_scaling == Approx(0).margin(1e-9));
  samples.cores = 1;
  CHECK(fit_machine(samples).cluster.device.core_scaling == 1);
}

TEST_CASE("fit: noise on one product shifts the rate by its share only, and figures stay in the range of a cluster file") {
  MachineSamples samples = samples_of(planted());
  samples.products.front().seconds *= 3;
  for (AttentionSample& sample : samples.attention) sample.forward = sample.backward = 1e-9;  // faster than any peak
  const FittedMachine fitted = fit_machine(samples);
  CHECK_NOTHROW(resolve_cluster(fitted.cluster));
  CHECK(*fitted.cluster.device.peak_flops * *fitted.cluster.device.gemm_efficiency ==
        Approx(240e9 / 1.2).epsilon(0.1));  // one of ten takes three times as long
}

TEST_CASE("fit: samples without bandwidth limit or latency yield valid link figures") {
  MachineSamples samples = samples_of(planted());
  ClusterConfig no_limit = planted();
  no_limit.node_link.bandwidth = 1e30;
  for (LinkSample& sample : samples.links)
    sample.seconds = model_seconds(sample, no_limit) * (sample.bytes > 1e5 ? 0.9 : 1);  // the large ones are even faster
  ClusterConfig fitted = fit_machine(samples).cluster;
  CHECK_NOTHROW(resolve_cluster(fitted));
  const ClusterConfig best = fitted;
  const auto error = [&](double latency) {  // the latency minimises the relative error for that bandwidth
    fitted.node_link.latency = latency;
    double sum = 0;
    for (const LinkSample& sample : samples.links) sum += std::pow((model_seconds(sample, fitted) - sample.seconds) / model_seconds(sample, best), 2);
    return sum;
  };
  const double latency = *fitted.node_link.latency;
  CHECK(error(latency) < error(1.01 * latency));
  CHECK(error(latency) < error(0.99 * latency));

  for (LinkSample& sample : samples.links) sample.seconds = sample.bytes * 1e-3;  // 1 kB/s
  CHECK_NOTHROW(resolve_cluster(fit_machine(samples).cluster));
  for (LinkSample& sample : samples.links) sample.seconds = std::pow(sample.bytes, 2) * 1e-16;  // small messages faster than any linear model
  CHECK_NOTHROW(resolve_cluster(fit_machine(samples).cluster));
}

TEST_CASE("fit: missing samples are an error") {
  MachineSamples samples = samples_of(planted());
  std::erase_if(samples.products, [](const ProductSample& sample) { return sample.element_bytes == 2; });
  CHECK_THROWS_AS(fit_machine(samples), ConfigError);
}

TEST_CASE("cluster: ranks share the cores and the memory of a CPU node, and no GPU") {
  const ClusterConfig two = with_ranks_sharing_cores(planted(), 2), eight = with_ranks_sharing_cores(two, 8);
  CHECK(planted().cores_per_rank() == 2);
  CHECK(two.cores_per_rank() == 1);
  CHECK(eight.cores_per_rank() == 0.25);
  CHECK(*two.device.memory == 12e9);
  CHECK(*eight.device.memory == 3e9);
  CHECK(with_ranks_sharing_cores(eight, 8) == eight);
  const ClusterConfig gpus = resolve_cluster({});
  CHECK(with_ranks_sharing_cores(gpus, 3) == gpus);
  CHECK(gpus.cores_per_rank() == 1);
  // An operation uses whole cores, or one core that ranks share; threads and ranks slow each other down.
  const auto seconds = [](const ClusterConfig& cluster) { return traffic_seconds(9e9, 1, cluster); };
  CHECK(seconds(planted()) == Approx(std::pow(2, -0.8)));
  CHECK(seconds(two) == Approx(std::pow(2, 0.2)));
  CHECK(seconds(eight) == Approx(std::pow(8, 0.2)));
}

}  // namespace
}  // namespace trireme
