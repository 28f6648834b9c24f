// Fits of latency and bandwidth by ranges of sizes.
#include "trainer/plan/link_fit.h"

#include <cmath>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "trainer/bench/measure.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/forecast.h"

namespace trireme {
namespace {

/// Below 16 KiB 2 us + x / 4 GB/s, above 20 us + x / 1 GB/s.
double bent(double bytes) { return bytes < 16384 ? 2e-6 + bytes / 4e9 : 20e-6 + bytes / 1e9; }

std::vector<SizeSample> sampled(double (*seconds)(double), double noise = 0) {
  std::vector<SizeSample> samples;
  uint64_t draw = 0;
  for (double bytes = 256; bytes <= (64 << 20); bytes *= 2) {
    const double uniform = static_cast<double>(random_bits(17, draw++) >> 11) / static_cast<double>(uint64_t{1} << 53);
    samples.push_back({bytes, seconds(bytes) * (1 + noise * (2 * uniform - 1))});
  }
  return samples;
}

}  // namespace

TEST_CASE("link fit: a straight line is one range with its latency and bandwidth") {
  const std::vector<SizeRange> ranges = fit_ranges(sampled([](double bytes) { return 5e-6 + bytes / 3e9; }));
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].alpha == Approx(5e-6));
  CHECK(1 / ranges[0].beta == Approx(3e9));
  CHECK(ranges[0].first == 256);
  CHECK(ranges[0].last == (64 << 20));
  CHECK(ranges[0].samples == 19);
  CHECK(ranges[0].worst < 1e-9);
}

TEST_CASE("link fit: a change of protocol is found at its size, also beside noise") {
  for (const double noise : {0.0, 0.04}) {
    const std::vector<SizeRange> ranges = fit_ranges(sampled(bent, noise));
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[0].last == 8192);
    CHECK(ranges[1].first == 16384);
    CHECK(ranges[0].alpha == Approx(2e-6).epsilon(2 * noise + 1e-9));
    CHECK(1 / ranges[1].beta == Approx(1e9).epsilon(2 * noise + 1e-9));
    for (const SizeSample& sample : sampled(bent)) CHECK(range_seconds(ranges, sample.bytes) == Approx(sample.seconds).epsilon(0.1));
    CHECK(range_seconds(ranges, 1) == Approx(2e-6).epsilon(0.1));
    CHECK(range_seconds(ranges, 1e9) == Approx(1).epsilon(0.1));
  }
}

TEST_CASE("link fit: neither latency nor the cost of a byte is negative, and ranges have three samples") {
  const std::vector<SizeRange> constant = fit_ranges({{1, 1e-5}, {1000, 1e-5}, {1e6, 0.99e-5}});
  CHECK(constant[0].beta == 0);
  CHECK(constant[0].alpha == Approx(1e-5).epsilon(0.01));
  const std::vector<SizeRange> steep = fit_ranges({{1000, 1e-6}, {2000, 3e-6}, {4000, 10e-6}});
  CHECK(steep.size() == 1);
  CHECK(steep[0].alpha == 0);
  CHECK(steep[0].worst > 0.1);
  CHECK_THROWS_AS(fit_ranges({{1, 1}, {2, 2}}), ConfigError);
  for (const SizeRange& range : fit_ranges(sampled(bent, 0.5))) CHECK(range.samples >= 3);
}

TEST_CASE("link fit: rows of bench comm become ranges with which the planner returns the measured times") {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SizeSample& sample : sampled(bent))
    for (const auto& [operation, times] :
         {std::pair("all_reduce", 2.0), {"all_gather", 1.0}, {"reduce_scatter", 1.5}, {"send_receive", 0.5}, {"all_to_all", 1.0}})
      rows.push_back(
          {{"operation", operation}, {"bytes", sample.bytes}, {"microseconds", 3e6 * times * sample.seconds}, {"low", 1e6 * times * sample.seconds}});
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.device.cores = 4;
  cluster.devices_per_node = 4;
  const nlohmann::ordered_json table = fit_comm(rows, 4, cluster.node_link);
  CHECK(table.size() == 8);
  for (const auto& range : table) CHECK(range["worst_error"].get<double>() < 1e-6);
  for (const auto& row : rows) CHECK(row["error"].is_null() == (row["operation"] == "all_to_all"));
  const ClusterConfig read = resolve_cluster(parse_cluster(to_yaml(cluster), "cluster.yaml"));  // through the file
  CHECK(read.node_link.all_reduce == cluster.node_link.all_reduce);
  const GroupPlacement group = place_of(4, 1, read);
  for (const SizeSample& sample : sampled(bent)) {
    CAPTURE(sample.bytes);
    const auto near = [&](double times) { return Approx(times * sample.seconds).epsilon(1e-3); };
    CHECK(all_reduce_seconds(group, sample.bytes, read) == near(2));
    CHECK(all_gather_seconds(group, sample.bytes, read) == near(1));
    CHECK(reduce_scatter_seconds(group, sample.bytes, read) == near(1.5));
    CHECK(transfer_seconds(0, 1, 1, sample.bytes, read) == near(0.5));
  }
  CHECK(all_reduce_seconds(place_of(1, 1, read), 1e6, read) == 0);
}

TEST_CASE("bench: of two rounds the faster one counts, with the spread of both") {
  const bench::Timing fast{.median = 1, .low = 0.9, .high = 1.5, .least = 0.7, .most = 2};
  const bench::Timing slow{.median = 3, .low = 0.8, .high = 9, .least = 0.6, .most = 12};
  for (const bench::Timing& timing : {bench::fastest_of(fast, slow), bench::fastest_of(slow, fast)}) {
    CHECK(timing.median == 1);
    CHECK(timing.low == 0.8);
    CHECK(timing.high == 9);
    CHECK(timing.least == 0.6);
    CHECK(timing.most == 12);
  }
}

TEST_CASE("forecast: gradients are reduced unit by unit, with the figures of a unit's size") {
  const Config config =
      resolve(parse_config("model: {layers: 4, hidden_size: 64, heads: 4, vocab_size: 256, tied_embeddings: false}\nparallel: {data: 2}\n"
                           "training: {steps: 1, sequence_length: 64, global_batch_size: 2}\nrun: {device: cpu}\ndata: {train: [none]}\n",
                           "run.yaml"));
  const auto reduce = [&](const std::string& latency) {
    const std::string link = "node_link: {all_reduce: {from: [1, 1000000], latency: [" + latency + "], bandwidth: [1.0e14, 1.0e14]}}\n";
    const ClusterConfig cluster = resolve_cluster(parse_cluster("devices_per_node: 2\ndevice: {type: cpu, cores: 2}\n" + link, "c.yaml"));
    return forecast_time(config, cluster).parts.reduce;
  };
  // Embedding, four blocks and head have less than 10^6 bytes each, and more together. An all-reduce of two ranks has two steps.
  CHECK(reduce("1.0e-3, 1.0e-1") == Approx(6 * 2 * 1e-3).epsilon(0.01));
}

TEST_CASE("cluster: ranges of a link are three lists of equal length, of growing sizes") {
  const auto refused = [](const std::string& ranges) {
    try {
      parse_cluster("device: {type: cpu}\nnetwork: {all_reduce: " + ranges + "}\n", "c.yaml");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused("{from: [1, 1000], latency: [1.0e-6, 2.0e-6], bandwidth: [1.0e9, 2.0e9]}") == "");
  CHECK(refused("{from: [1], latency: [1.0e-6]}").find("network.all_reduce.from") != std::string::npos);
  CHECK(refused("{from: [1, 2], latency: [1.0e-6, 1.0e-6], bandwidth: [1.0e9]}").find("three lists of equal length") != std::string::npos);
  CHECK(refused("{from: [2, 1], latency: [1.0e-6, 1.0e-6], bandwidth: [1.0e9, 1.0e9]}").find("not increasing: 1 after 2") != std::string::npos);
  CHECK(refused("{from: [0], latency: [1.0e-6], bandwidth: [1.0e9]}").find("from 1") != std::string::npos);
}

}  // namespace trireme
