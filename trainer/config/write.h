#pragma once
#include <functional>
#include <string>

#include "trainer/config/cluster.h"
#include "trainer/config/load.h"

namespace trireme {

/// The configuration as YAML that loads again and is then equal: every value that has an effect, doubles in shortest round-trip digits.
std::string to_yaml(const Config& config);
/// Only those whose path, "model.layers", `wanted` holds for; empty where there are none.
std::string to_yaml(const Config& config, const std::function<bool(const std::string& path)>& wanted);

/// The same of a cluster.
std::string to_yaml(const ClusterConfig& cluster);

/// JSON Schema (draft 2020-12) of the configuration file: every key with type, default, range or choices, and its line of documentation.
std::string json_schema();
/// The same of a cluster file.
std::string cluster_schema();

/// For people: every key of `resolved` with its value, where it came from (file:line:col, --set or default), for an `auto` the rule that gave the
/// value, what is allowed, and what it means.
std::string explain(const LoadedConfig& loaded, const Config& resolved);

}  // namespace trireme
