// Cluster files: figures are taken over as given, and invalid keys and values are all reported by name in one message.
#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/cluster.h"
#include "trainer/config/fields.h"
#include "trainer/config/write.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

ClusterConfig read(const std::string& text, const std::vector<std::string>& sets = {}) {
  return resolve_cluster(parse_cluster(text, "c.yaml", sets));
}

/// Error message of an invalid cluster; "" if it is valid.
std::string refusal(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    read(text, sets);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

const char* const kOwnType = R"(
name: own machine
nodes: 3
devices_per_node: 4
device: {type: X1, memory: 64.0e9, memory_bandwidth: 1.0e12, peak_flops: 200.0e12, peak_flops_fp32: 20.0e12, gemm_efficiency: 0.75,
         gemm_half_depth: 150, multiprocessors: 100, attention_efficiency: 0.5, attention_half_length: 400, kernel_seconds: 4.0e-6}
node_link: {bandwidth: 100.0e9, latency: 3.0e-6, ramp: 1.0e-4}
network: {bandwidth: 12.5e9, latency: 6.0e-6, ramp: 2.0e-4}
)";

struct BadFile {
  const char* name;
  std::string text;
  std::vector<std::string> words;  ///< fragments that the message must contain
};

const std::vector<BadFile> kBadFiles = {
    {"zero bandwidth", "network: {bandwidth: 0}", {"c.yaml:1:22 network.bandwidth=0: out of range", "allowed number from 1e+06"}},
    {"negative bandwidth", "node_link: {bandwidth: -3.0e9}", {"node_link.bandwidth=-3e+09: out of range"}},
    {"gigabytes for bytes", "device: {memory: 80}", {"c.yaml:1:18 device.memory=80: out of range", "nearest valid 1e+06"}},
    {"a unit", "device: {memory: 80GB}", {"device.memory=80GB: not a decimal number"}},
    {"no nodes", "nodes: 0", {"nodes=0: out of range", "from 1", "nearest valid 1"}},
    {"half a node", "nodes: 1.5", {"nodes=1.5: not an integer"}},
    {"no devices", "devices_per_node: 0", {"devices_per_node=0: out of range"}},
    {"latency in microseconds", "network: {latency: 5}", {"network.latency=5: out of range", "from 0 to 1"}},
    {"negative latency", "network: {latency: -1.0e-6}", {"network.latency=-1e-06: out of range"}},
    {"efficiency in percent", "device: {gemm_efficiency: 70}", {"device.gemm_efficiency=70: out of range", "above 0 to 1"}},
    {"no efficiency", "device: {attention_efficiency: 0}", {"device.attention_efficiency=0: out of range"}},
    {"days for seconds", "node_mtbf: 264", {"node_mtbf=264: out of range", "from 3600"}},
    {"gigabytes a second for bytes", "storage: {write: 2}", {"storage.write=2: out of range"}},
    {"negative restart time", "restart: -1", {"restart=-1: out of range"}},
    {"switch bandwidth in GB/s", "nvls_bandwidth: 480", {"nvls_bandwidth=480", "bytes/s"}},
    {"a faster straggler", "software: {straggler: 0.9}", {"software.straggler=0.9: out of range", "from 1"}},
    {"unknown key", "device: {memroy: 80.0e9}", {"device.memroy=80.0e9: unknown key; did you mean device.memory?"}},
    {"unknown section", "netwrk: {bandwidth: 5.0e10}", {"netwrk: unknown key; did you mean network?"}},
    {"a key of a configuration", "parallel: {tensor: 8}", {"parallel: unknown key"}},
    {"levels not rising", "level_nodes: [16, 16]\nlevel_oversubscription: [1, 2]", {"c.yaml:1:14 level_nodes=[16, 16]: not increasing: 16 after 16"}},
    {"a level without its oversubscription", "level_nodes: [16]", {"level_nodes=[16]: level_oversubscription is not given"}},
    {"oversubscription without its level", "level_oversubscription: [2]", {"level_oversubscription=[2]: level_nodes is not given"}},
    {"levels of two lengths",
     "level_nodes: [16, 64]\nlevel_oversubscription: [1]",
     {"level_oversubscription=[1]: 1 entries for 2 levels", "a list of 2"}},
    {"more bandwidth out than in", "level_nodes: [16]\nlevel_oversubscription: [0.5]", {"level_oversubscription=0.5: out of range"}},
    {"duplicate key", "nodes: 1\nnodes: 2", {"c.yaml:2:1", "nodes"}},
    {"not a mapping", "[1, 2]", {"a cluster file is a mapping of sections, not a list"}},
    {"unknown stack", "software:\n  stack: foo", {"c.yaml:2:10 software.stack=foo: not one of the choices; allowed trireme | megatron-2021"}},
    {"cores of a GPU", "device: {type: H100, cores: 4}", {"c.yaml:1:29 device.cores=4: applies only to CPUs, and H100 is a GPU"}},
    {"core scaling of a GPU", "device: {core_scaling: 0.9}", {"device.core_scaling=0.9: applies only to CPUs, and H100 is a GPU"}},
    {"misspelled device type", "device: {type: H10O}", {"device.type=H10O: not a built-in type, and figures are missing: ", "nearest valid H100"}},
};

}  // namespace

TEST_CASE("an invalid cluster file is rejected with position and key") {
  for (const BadFile& bad : kBadFiles) {
    INFO(bad.name);
    const std::string message = refusal(bad.text);
    for (const std::string& word : bad.words) {
      INFO(message << " | " << word);
      CHECK(message.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("every known stack is accepted, and no other") {
  for (const Stack& stack : stacks()) CHECK(refusal(concat("software: {stack: ", stack.name, "}")) == "");
  const std::string message = refusal("software: {stack: none}");
  CHECK(static_cast<size_t>(std::ranges::count(message, '|')) == stacks().size() - 1);
}

TEST_CASE("all errors of a cluster file are reported in one message") {
  const std::string message =
      refusal("nodes: 0\ndevice: {memory: 80, gemm_efficiency: 70}\nlevel_nodes: [4, 2]\nlevel_oversubscription: [1, 1]\nspeed: fast\n");
  for (const char* key : {"nodes=0", "device.memory=80", "device.gemm_efficiency=70", "level_nodes=[4, 2]", "speed=fast"}) {
    INFO(message << " | " << key);
    CHECK(message.find(key) != std::string::npos);
  }
}

TEST_CASE("a custom device type requires every figure, and one message names all missing ones") {
  CHECK(refusal(kOwnType) == "");
  std::string all = refusal("device: {type: X1}");
  size_t figures = 0;
  for (const FieldRow& row : table_of(read("{}")).fields) {
    const std::set<std::string> optional = {"device.watts", "device.price_per_hour",        "nvls_bandwidth",
                                            "device.cores", "device.elementwise_bandwidth", "device.core_scaling"};
    const bool of_operation = row.path.starts_with("storage.") || row.path == "node_mtbf" || row.path == "restart";
    if (row.type != FieldType::kNumber || row.path == "software.straggler" || of_operation || optional.contains(row.path)) continue;
    ++figures;
    INFO(all << " | " << row.path);
    CHECK(all.find(" " + row.path) != std::string::npos);
    // The same if only this figure is missing.
    const std::string one = refusal(kOwnType, {row.path + "=auto"});
    INFO(one);
    CHECK(one.find("device.type=X1: not a built-in type, and figures are missing: " + row.path + ";") != std::string::npos);
  }
  CHECK(figures >= 16);
  CHECK(all.find('\n') == std::string::npos);
}

TEST_CASE("figures of a cluster file override those of the built-in type") {
  const ClusterConfig own = read(kOwnType);
  CHECK(own.devices() == 12);
  CHECK(own.device.memory == 64e9);
  CHECK(own.network.bandwidth == 12.5e9);
  CHECK(own.nvls_bandwidth == 0.0);
  CHECK(own.level_nodes->empty());
  const ClusterConfig plain = read("device: {type: A100}");
  const ClusterConfig changed =
      read("device: {type: A100, gemm_efficiency: 0.5}\nnetwork: {bandwidth: 12.0e9}\nlevel_nodes: [2, 8]\nlevel_oversubscription: [1, 3]");
  CHECK(changed.device.gemm_efficiency == 0.5);
  CHECK(changed.network.bandwidth == 12e9);
  CHECK(*changed.level_nodes == std::vector<int64_t>{2, 8});
  CHECK(*changed.level_oversubscription == std::vector<double>{1, 3});
  ClusterConfig restored = changed;
  restored.device.gemm_efficiency = plain.device.gemm_efficiency;
  restored.network.bandwidth = plain.network.bandwidth;
  restored.level_nodes = plain.level_nodes;
  restored.level_oversubscription = plain.level_oversubscription;
  CHECK(restored == plain);
}

TEST_CASE("every built-in device type is complete and within physical limits and data sheets") {
  CHECK(device_types() == std::vector<std::string>{"A100-40GB", "A100", "H100", "H200", "B200", "cpu"});
  for (const std::string& type : device_types()) {
    INFO(type);
    const ClusterConfig c = read("device: {type: " + type + "}");
    CHECK(c.device.type == type);
    CHECK(*c.device.peak_flops >= *c.device.peak_flops_fp32);
    CHECK(*c.device.memory_bandwidth > *c.node_link.bandwidth);
    CHECK(*c.node_link.bandwidth > *c.network.bandwidth);
    CHECK(*c.node_link.latency <= *c.network.latency);
    CHECK((*c.nvls_bandwidth == 0 || *c.nvls_bandwidth > *c.node_link.bandwidth));
    CHECK(refusal(to_yaml(c)) == "");
  }
  const auto of = [](const char* type) { return read(std::string("device: {type: ") + type + "}").device; };
  CHECK(of("A100").peak_flops == 312e12);
  CHECK(of("H100").peak_flops == 989e12);
  CHECK(of("H200").peak_flops == 989e12);
  CHECK(of("B200").peak_flops == 2250e12);
  // Between the data sheet's size in GB and the nominal size in GiB: the driver reserves a part.
  for (const auto& [type, low, high] :
       {std::tuple{"A100-40GB", 40e9, 40.0}, {"A100", 80e9, 80.0}, {"H100", 80e9, 80.0}, {"H200", 141e9, 144.0}, {"B200", 180e9, 192.0}}) {
    INFO(type);
    CHECK(*of(type).memory > low);
    CHECK(*of(type).memory < high * 1024 * 1024 * 1024);
  }
}

TEST_CASE("a cluster written as YAML reads back unchanged") {
  for (const std::string& type : device_types()) {
    ClusterConfig c = read("nodes: 7\ndevice: {type: " + type +
                           "}\nlevel_nodes: [2, 4]\nlevel_oversubscription: [1.5, 2]\nsoftware: {straggler: 1.1}"
                           "\nstorage: {write: 1.5e9, read: 3.0e9}\nnode_mtbf: 1.0e6\nrestart: 60");
    c.name = "a name: with #, quotes \" and spaces";
    c.device.price_per_hour = 2.5;
    CHECK(read(to_yaml(c)) == c);
    CHECK(parse_cluster(to_yaml(c), "again.yaml") == c);
  }
  const ClusterConfig open = parse_cluster("device: {type: H100}", "c.yaml");
  CHECK(parse_cluster(to_yaml(open), "again.yaml") == open);  // `auto` values stay `auto`
}

TEST_CASE("a cluster built in code is checked like a file") {
  ClusterConfig c;
  c.node_link.bandwidth = -1;
  CHECK_THROWS_AS(resolve_cluster(c), ConfigError);
  c = {};
  c.level_nodes = {8, 4};
  c.level_oversubscription = {1, 1};
  CHECK_THROWS_AS(resolve_cluster(c), ConfigError);
}

TEST_CASE("settings override a cluster file, and their errors name the option") {
  const ClusterConfig c = read("nodes: 2", {"nodes=4", "device.type=B200"});
  CHECK(c.devices() == 32);
  CHECK(c.device.peak_flops == 2250e12);
  CHECK(refusal("nodes: 2", {"nodes=none"}).find("--cluster-set:nodes nodes=none: not an integer") != std::string::npos);
  CHECK(refusal("nodes: 2", {"nodes"}).find("--cluster-set nodes: not of the form key.path=value") != std::string::npos);
}

TEST_CASE("an unreadable cluster file is named") {
  CHECK_THROWS_AS(load_cluster("/nowhere/c.yaml"), MissingFileError);
  CHECK_THROWS_AS(load_cluster("/"), IoError);
}

}  // namespace trireme
