#pragma once
#include <functional>
#include <string>

#include "trainer/config/cluster.h"
#include "trainer/config/load.h"

namespace trireme {

/// The configuration as YAML that loads as an equal configuration. Contains every value that has an effect; doubles in shortest round-trip digits.
std::string to_yaml(const Config& config);
/// Only the keys whose path (e.g. "model.layers") satisfies `wanted`; empty if there are none.
std::string to_yaml(const Config& config, const std::function<bool(const std::string& path)>& wanted);

/// The same for a cluster.
std::string to_yaml(const ClusterConfig& cluster);

/// JSON Schema (draft 2020-12) of the configuration file: every key with type, default, range or choices, and documentation.
std::string json_schema();
/// The same for a cluster file.
std::string cluster_schema();

/// The same for a sweep file.
std::string sweep_schema();

/// Text of `config diff`: one line `key: a -> b` for each key whose value differs, in file order; empty if there is none. Values are those of
/// to_yaml; "not set" stands for a key that it leaves out.
std::string config_diff(const Config& a, const Config& b);

/// Text of `config explain`: every key of `resolved` with its value, source (file:line:col, --set or default), the rule of an `auto` value, meaning
/// and allowed values.
std::string explain(const LoadedConfig& loaded, const Config& resolved);

}  // namespace trireme
