#pragma once
// The built-in device types, with the links of their machines.
#include <string>

#include "trainer/config/cluster.h"

namespace trireme {

/// Every figure of the type, for one node; nullptr if it is not one of device_types().
const ClusterConfig* built_in(const std::string& type);

}  // namespace trireme
