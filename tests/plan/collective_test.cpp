// Placement of groups of ranks on nodes: the worst-placed group of an axis determines the time.
#include "trainer/plan/collective.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "trainer/config/load.h"
#include "trainer/plan/place.h"
#include "trainer/plan/step_costs.h"

namespace trireme {
namespace {

ClusterConfig nodes_of(int64_t devices, int64_t nodes) {
  ClusterConfig cluster;
  cluster.devices_per_node = devices;
  cluster.nodes = nodes;
  return resolve_cluster(cluster);
}

/// Reference: inspects every group of a world that uses all devices of the cluster.
GroupPlacement counted(int64_t size, int64_t stride, const ClusterConfig& cluster) {
  GroupPlacement worst{static_cast<double>(size), 1, static_cast<double>(size), 1};
  for (int64_t first = 0; first < cluster.devices(); ++first) {
    if (first % (size * stride) >= stride) continue;
    std::vector<int64_t> members(static_cast<size_t>(cluster.nodes), 0);
    for (int64_t i = 0; i < size; ++i) ++members[static_cast<size_t>((first + i * stride) / cluster.devices_per_node)];
    std::erase(members, 0);
    worst.nodes = std::max(worst.nodes, static_cast<double>(members.size()));
    worst.per_node = std::min(worst.per_node, static_cast<double>(std::ranges::min(members)));
  }
  return worst;
}

TEST_CASE("collective: a placement has the node count of the worst-placed group of its axis") {
  int straddle = 0;
  for (const int64_t devices : {1, 2, 3, 4, 6, 8, 9, 12})
    for (const int64_t size : {1, 2, 3, 4, 6, 8, 16})
      for (const int64_t stride : {1, 2, 3, 4, 6, 8, 12, 16, 24}) {
        const ClusterConfig cluster = nodes_of(devices, size * stride * 2);  // a common multiple of nodes and groups
        const GroupPlacement place = place_of(size, stride, cluster), truth = counted(size, stride, cluster);
        CAPTURE(devices, size, stride);
        CHECK(place.nodes == truth.nodes);
        CHECK(place.per_node == truth.per_node);
        straddle += devices % (size * stride) != 0 && size * stride % devices != 0;
      }
  CHECK(straddle > 100);
}

TEST_CASE("collective: tensor ranks that straddle nodes wait for the network") {
  const auto seconds = [](int64_t size, int64_t devices, int64_t nodes) {
    const ClusterConfig cluster = nodes_of(devices, nodes);
    return all_reduce_seconds(place_of(size, 1, cluster), 1e9, cluster);
  };
  CHECK(seconds(8, 12, 2) > 1.5 * seconds(8, 8, 3));  // ranks 8 to 15 straddle two nodes of 12
  CHECK(seconds(3, 8, 3) > 3 * seconds(3, 6, 4));
}

TEST_CASE("collective: a transfer leaves a node or switch if any of its pairs does") {
  int within = 0, between = 0;
  for (const int64_t devices : {1, 2, 3, 4, 6, 8})
    for (const int64_t ranks : {1, 2, 3, 4, 6, 8, 12})
      for (int64_t from = 0; from < 8; ++from)
        for (int64_t to = 0; to < 8; ++to) {
          if (from == to) continue;
          ClusterConfig cluster = nodes_of(devices, 8 * ranks);
          cluster.level_nodes = {2};
          cluster.level_oversubscription = {5};
          bool node = false, level = false;
          for (int64_t i = 0; i < ranks; ++i) {
            node |= (from * ranks + i) / devices != (to * ranks + i) / devices;
            level |= (from * ranks + i) / devices / 2 != (to * ranks + i) / devices / 2;
          }
          const LinkConfig& link = node ? cluster.network : cluster.node_link;
          CAPTURE(devices, ranks, from, to);
          CHECK(transfer_seconds(from, to, ranks, 1e9, cluster) == Approx(*link.latency + (level ? 5 : 1) * 1e9 / *link.bandwidth));
          within += !node;
          between += node && !level;
        }
  CHECK(within > 100);
  CHECK(between > 100);
}

TEST_CASE("collective: a ring has a hop per rank, an all-reduce over many nodes uses a tree") {
  const ClusterConfig cluster = nodes_of(8, 64);
  const double node = *cluster.node_link.latency, network = *cluster.network.latency;
  const GroupPlacement all = place_of(512, 1, cluster);
  CHECK(all_gather_seconds(all, 1, cluster) == Approx(448 * node + 63 * network).epsilon(1e-3));
  CHECK(all_reduce_seconds(all, 1, cluster) == Approx(2 * (7 * node + 6 * network)).epsilon(1e-3));
  const double bytes = 1e12;  // bandwidth-bound: a ring
  CHECK(all_reduce_seconds(all, bytes, cluster) == Approx(2 * 511.0 / 512 * bytes / ring_bandwidth(all, cluster)).epsilon(1e-3));
}

TEST_CASE("collective: an all_to_all sends (n-1)/n of its bytes, within the node and between nodes at the same time") {
  const ClusterConfig cluster = nodes_of(8, 4);
  const double node = *cluster.node_link.bandwidth, network = *cluster.network.bandwidth, bytes = 1e12;
  const auto seconds = [&](int64_t size, int64_t stride) { return all_to_all_seconds(place_of(size, stride, cluster), bytes, cluster); };
  CHECK(seconds(1, 1) == 0);
  CHECK(seconds(8, 1) == Approx(7.0 / 8 * bytes / node).epsilon(1e-3));
  CHECK(seconds(4, 8) == Approx(3.0 / 4 * bytes / network).epsilon(1e-3));                                        // one rank per node
  CHECK(seconds(32, 1) == Approx(std::max(7.0 / 32 * bytes / node, 24.0 / 32 * bytes / network)).epsilon(1e-3));  // 7 peers on the node, 24 off it
  CHECK(all_to_all_seconds(place_of(32, 1, cluster), 1, cluster) ==
        Approx(7 * *cluster.node_link.latency + 24 * *cluster.network.latency).epsilon(1e-3));
}

TEST_CASE("collective: all members of an all_to_all leave a switch at once") {
  ClusterConfig cluster = nodes_of(8, 12);
  cluster.level_nodes = {4};
  cluster.level_oversubscription = {3};
  const auto factor = [&](int64_t size, int64_t stride) { return place_of(size, stride, cluster).spread_oversubscription; };
  CHECK(factor(32, 1) == 1);
  CHECK(factor(12, 8) == 3);
  CHECK(all_to_all_seconds(place_of(12, 8, cluster), 1e12, cluster) == Approx(3 * 11.0 / 12 * 1e12 / *cluster.network.bandwidth).epsilon(1e-3));
}

TEST_CASE("collective: algorithms of our own take the time of their messages over the limiting link") {
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.devices_per_node = 4;
  cluster.nodes = 2;
  cluster.network.latency = 20e-6;
  cluster.network.bandwidth = 1.25e9;
  cluster.device.memory_bandwidth = 3e12;  // sums cost almost nothing
  cluster = resolve_cluster(cluster);
  const auto seconds = [&](Collectives collectives, int64_t size, double bytes) {
    return all_reduce_seconds(place_of(size, 1, cluster, collectives), bytes, cluster);
  };
  for (const double bytes : {1e3, 1e6}) {
    CHECK(seconds(Collectives::kRing, 8, bytes) == Approx(14 * (20e-6 + bytes / 8 / 1.25e9)).epsilon(1e-2));
    CHECK(seconds(Collectives::kRecursiveDoubling, 8, bytes) == Approx(3 * (20e-6 + bytes / 1.25e9)).epsilon(1e-2));
    CHECK(seconds(Collectives::kRabenseifner, 8, bytes) == Approx(6 * 20e-6 + 14.0 / 8 * bytes / 1.25e9).epsilon(1e-2));
    // Within a node the node's link counts.
    CHECK(seconds(Collectives::kRing, 4, bytes) == Approx(6 * (*cluster.node_link.latency + bytes / 4 / *cluster.node_link.bandwidth)).epsilon(1e-2));
  }
  CHECK(seconds(Collectives::kAuto, 8, 59e3) == seconds(Collectives::kRecursiveDoubling, 8, 59e3));
  CHECK(seconds(Collectives::kAuto, 8, 61e3) == seconds(Collectives::kRabenseifner, 8, 61e3));
  CHECK(seconds(Collectives::kRing, 1, 1e6) == 0);
  const GroupPlacement ring = place_of(8, 1, cluster, Collectives::kRing);
  CHECK(all_gather_seconds(ring, 1e6, cluster) == Approx(7 * (20e-6 + 1e6 / 8 / 1.25e9)));
  CHECK(all_gather_seconds(ring, 1e6, cluster) + reduce_scatter_seconds(ring, 1e6, cluster) == Approx(seconds(Collectives::kRing, 8, 1e6)));
  CHECK(depends_on_size(ring, cluster));
  // Measured ranges of a send take the place of the link's one latency and bandwidth.
  cluster.network.send = {.from = std::vector<int64_t>{1, 1000}, .latency = std::vector{1e-3, 2e-3}, .bandwidth = std::vector{1e14, 1e14}};
  CHECK(seconds(Collectives::kRing, 8, 8 * 999) == Approx(14e-3).epsilon(1e-2));
  CHECK(seconds(Collectives::kRing, 8, 8 * 1000) == Approx(28e-3).epsilon(1e-2));
}

TEST_CASE("collective: forecasts for GPUs refuse algorithms of our own") {
  const std::string text = "parallel: {data: 2, collectives: ring}\ntraining: {steps: 1, precision: bf16}\ndata: {train: [a]}\n";
  const Config config = parse_config(text, "c.yaml").config;
  test::check_throws<ConfigError>([&] { check_against_cluster(config, nodes_of(8, 1)); },
                                  {"parallel.collectives=ring: GPUs such as device type H100 communicate through NCCL", "allowed library"});
  ClusterConfig cpu;
  cpu.device.type = "cpu";
  CHECK_NOTHROW(check_against_cluster(config, resolve_cluster(cpu)));
}

TEST_CASE("collective: a group that straddles the boundary of a level crosses it") {
  ClusterConfig cluster = nodes_of(8, 12);
  cluster.level_nodes = {4};
  cluster.level_oversubscription = {3};
  CHECK(place_of(16, 2, cluster).oversubscription == 1);  // 4 nodes, the size of the level
  CHECK(place_of(24, 1, cluster).oversubscription == 3);  // nodes 3 to 5
  CHECK(place_of(2, 32, cluster).oversubscription == 3);
  CHECK(place_of(12, 8, cluster).oversubscription == 1);  // one rank per node: the ring can use the uplinks of four nodes, more than it needs
  cluster.level_oversubscription = {7};
  CHECK(place_of(96, 1, cluster).oversubscription == 7.0 / 4);
  cluster.nodes = 3;
  CHECK(place_of(24, 1, cluster).oversubscription == 1);  // the whole world is under one switch
}

}  // namespace

TEST_CASE("collective: encryption takes auto between nodes, where every byte costs time at both ends, and changes nothing on a node") {
  Config config;
  const CollectiveChoice plain(config);
  config.security.encryption = Encryption::kRequired;
  const CollectiveChoice encrypted(config);
  CHECK(encrypted.within == Collectives::kLibrary);
  CHECK(encrypted.between == Collectives::kAuto);
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.nodes = 2;
  cluster.devices_per_node = 2;
  cluster = resolve_cluster(cluster);
  const auto seconds = [&](int64_t size, const CollectiveChoice& choice) {
    return all_gather_seconds(place_of(size, 1, cluster, choice), 1e9, cluster);
  };
  CHECK(seconds(2, encrypted) == seconds(2, plain));
  CHECK(seconds(4, encrypted) > seconds(4, Collectives::kAuto) + 0.75 * 1e9 * 2 / 2e9);
}

}  // namespace trireme
