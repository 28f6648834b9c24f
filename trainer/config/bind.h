#pragma once
#include "trainer/config/cluster.h"
#include "trainer/config/yaml.h"

namespace trireme {

/// Puts every value of the tree into its field. Unknown keys (with the known key that was probably meant), missing required keys and values of
/// another type are added to `violations`; their fields keep the default. What was given is noted in `sources`. Ranges are check.h's business.
void bind(const YamlNode& root, Config& config, Sources& sources, Violations& violations);
void bind(const YamlNode& root, ClusterConfig& cluster, Sources& sources, Violations& violations);

/// Puts `value` where the dotted `path` points, making sections on the way and replacing what stood there. False: the path leads through a value.
[[nodiscard]] bool put(YamlNode& root, const std::string& path, YamlNode value);

}  // namespace trireme
