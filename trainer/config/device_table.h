#pragma once
// The built-in device types and the links of machines that are built of them.
#include <string>

#include "trainer/config/cluster.h"

namespace trireme {

/// Every figure of the type, on one node; nullptr where it is none of device_types().
const ClusterConfig* built_in(const std::string& type);

}  // namespace trireme
