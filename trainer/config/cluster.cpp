#include "trainer/config/cluster.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"
#include "trainer/config/bind.h"
#include "trainer/config/check_fields.h"
#include "trainer/config/cluster_visit.h"
#include "trainer/config/device_table.h"
#include "trainer/config/tree.h"

namespace trireme {
namespace {

/// Every figure that may be `auto`, in the order of the visit.
class Figures {
 public:
  struct Figure {
    std::string path;
    bool required;
    Auto<double>* value;
  };

  explicit Figures(ClusterConfig& cluster) { visit(*this, cluster); }

  void operator()(const Field& field, Auto<double>& value) { all.push_back({prefix_ + field.key, field.auto_rule != nullptr, &value}); }
  template <class T>
  void operator()(const Field&, T&) {}
  template <class Section>
  void section(const char* key, const char*, Section& part) {
    const std::string outer = prefix_;
    prefix_ += std::string(key) + ".";
    visit(*this, part);
    prefix_ = outer;
  }

  std::vector<Figure> all;

 private:
  std::string prefix_;
};

/// Fills unset figures from the built-in type. Returns the keys of required figures that are still missing.
std::vector<std::string> complete(ClusterConfig& cluster) {
  ClusterConfig known;
  if (const ClusterConfig* base = built_in(cluster.device.type))
    known = *base;
  else
    known.nvls_bandwidth = 0;  // few switches sum
  const std::vector<Figures::Figure> figures = Figures(cluster).all, defaults = Figures(known).all;
  std::vector<std::string> missing;
  for (size_t i = 0; i < figures.size(); ++i) {
    if (!*figures[i].value) *figures[i].value = *defaults[i].value;
    if (figures[i].required && !*figures[i].value) missing.push_back(figures[i].path);
  }
  return missing;
}

std::string nearest_type(const std::string& type) {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
  };
  return nearest_word(type, device_types(), 2, [&](std::string_view a, std::string_view b) { return edit_distance(lower(a), lower(b)); });
}

void check_levels(const ClusterConfig& c, const auto& broken) {
  if (c.level_nodes.has_value() != c.level_oversubscription.has_value()) {
    const bool nodes = c.level_nodes.has_value();
    return broken(nodes ? "level_nodes" : "level_oversubscription",
                  concat(nodes ? "level_oversubscription" : "level_nodes", " is not given; the two lists describe the same levels"),
                  "both lists, or neither");
  }
  if (!c.level_nodes) return;
  const std::vector<int64_t>& nodes = *c.level_nodes;
  if (nodes.size() != c.level_oversubscription->size())
    return broken("level_oversubscription", concat(c.level_oversubscription->size(), " entries for ", nodes.size(), " levels"),
                  concat("a list of ", nodes.size()));
  if (const auto stop = std::adjacent_find(nodes.begin(), nodes.end(), std::greater_equal<>()); stop != nodes.end())
    broken("level_nodes", concat("not increasing: ", stop[1], " after ", stop[0]), "more nodes in each level than in the one below");
}

/// `path`: of the section.
void check_ranges(const std::string& path, const LinkRanges& ranges, const Violations& violations, const auto& broken) {
  if (violations.touch(path)) return;
  const bool from = ranges.from.has_value(), latency = ranges.latency.has_value(), bandwidth = ranges.bandwidth.has_value();
  if (!from && !latency && !bandwidth) return;
  if (!from || !latency || !bandwidth)
    return broken(path + (from      ? ".from"
                          : latency ? ".latency"
                                    : ".bandwidth"),
                  "one of from, latency and bandwidth is not given", "all three lists, or none");
  if (ranges.latency->size() != ranges.from->size() || ranges.bandwidth->size() != ranges.from->size())
    return broken(path + ".from",
                  concat(ranges.from->size(), " ranges, with ", ranges.latency->size(), " latencies and ", ranges.bandwidth->size(), " bandwidths"),
                  "three lists of equal length");
  if (const auto stop = std::adjacent_find(ranges.from->begin(), ranges.from->end(), std::greater_equal<>()); stop != ranges.from->end())
    broken(path + ".from", concat("not increasing: ", stop[1], " after ", stop[0]), "larger sizes in each range than in the one before");
}

void check_devices(const ClusterConfig& c, const Violations& violations, const auto& broken) {
  if (violations.touch("nodes") || violations.touch("devices_per_node") || c.devices() <= kMostDevices) return;
  broken("nodes", concat(c.devices(), " devices with devices_per_node=", c.devices_per_node), concat("nodes of at most ", kMostDevices, " devices"));
}

/// Checks the range of every key, the rules between keys, and that a custom type gives every figure.
void check(const ClusterConfig& cluster, const Sources& sources, Violations& violations) {
  const FieldTable table = table_of(cluster);
  check_fields(table, sources, violations);
  const auto broken = [&](const std::string& key, const std::string& rule, const std::string& allowed, const std::string& nearest = {}) {
    if (!violations.touch(key)) violations.add({sources.locate(key), key, shown_value(table.at(key)), rule, allowed, nearest});
  };
  check_devices(cluster, violations, broken);
  check_levels(cluster, broken);
  for (const auto& [name, link] : {std::pair("node_link.", &cluster.node_link), std::pair("network.", &cluster.network)}) {
    check_ranges(concat(name, "all_reduce"), link->all_reduce, violations, broken);
    check_ranges(concat(name, "all_gather"), link->all_gather, violations, broken);
    check_ranges(concat(name, "reduce_scatter"), link->reduce_scatter, violations, broken);
    check_ranges(concat(name, "send"), link->send, violations, broken);
  }
  if (const double nvls = cluster.nvls_bandwidth.value_or(0); nvls > 0 && nvls < kLeastBytes)
    broken("nvls_bandwidth", "slower than any link; the unit is bytes/s", concat("0, or from ", text_of(FieldValue(kLeastBytes))));
  if (const ClusterConfig* base = built_in(cluster.device.type); base != nullptr && !base->device.cores) {
    const std::string rule = concat("applies only to CPUs, and ", cluster.device.type, " is a GPU; remove the key"),
                      allowed = "only with device.type=cpu";
    if (cluster.device.cores) broken("device.cores", rule, allowed);
    if (cluster.device.core_scaling) broken("device.core_scaling", rule, allowed);
  }
  ClusterConfig whole = cluster;
  if (const std::vector<std::string> missing = complete(whole); !missing.empty())
    broken("device.type", concat("not a built-in type, and figures are missing: ", joined(missing)),
           concat(joined(device_types()), ", or a type with every figure given"), nearest_type(cluster.device.type));
}

}  // namespace

ClusterConfig parse_cluster(const std::string& text, const std::string& name, const std::vector<std::string>& sets) {
  ClusterConfig cluster;
  Violations violations;
  Sources sources{.file = name, .sets = {}, .included = {}, .option = "--cluster-set", .keys = {}};
  YamlNode root = parse_yaml(text, 0, sources, violations);
  apply_sets(root, sets, sources, violations);
  bind(root, cluster, sources, violations);
  check(cluster, sources, violations);
  violations.raise(sources);
  return cluster;
}

bool is_built_in(const std::string& name) {
  std::error_code error;
  return std::ranges::count(device_types(), name) > 0 && !std::filesystem::exists(name, error);
}

ClusterConfig load_cluster(const std::string& path, const std::vector<std::string>& sets) {
  if (is_built_in(path)) return parse_cluster("device: {type: " + path + "}", path, sets);
  if (std::error_code error; std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found) {
    const std::string nearest = nearest_type(path);
    throw MissingFileError(concat(path, ": no such cluster file or built-in type; ", nearest.empty() ? "" : "did you mean " + nearest + "? ",
                                  "built in: ", joined(device_types())));
  }
  return parse_cluster(read_yaml_file(path, "cluster file"), path, sets);
}

ClusterConfig resolve_cluster(const ClusterConfig& cluster) {
  Violations violations;
  check(cluster, {}, violations);
  violations.raise({});
  ClusterConfig resolved = cluster;
  complete(resolved);
  if (!resolved.level_nodes) {
    resolved.level_nodes.emplace();
    resolved.level_oversubscription.emplace();
  }
  return resolved;
}

ClusterConfig with_ranks_sharing_cores(const ClusterConfig& cluster, int64_t world) {
  ClusterConfig shared = cluster;
  if (!cluster.device.cores || world % cluster.nodes != 0) return shared;
  shared.devices_per_node = world / cluster.nodes;
  shared.device.memory = *cluster.device.memory * static_cast<double>(cluster.devices_per_node) / static_cast<double>(shared.devices_per_node);
  return shared;
}

}  // namespace trireme
