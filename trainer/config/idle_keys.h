#pragma once
// Keys that have no effect here and would have one with more ranks or on another device. They are noted and not refused, so that one file serves a laptop
// and a cluster. A key that another key of the same file leaves without effect is refused (Field::without_effect): no machine would change that.
#include <string>
#include <vector>

#include "trainer/config/load.h"

namespace trireme {

struct IdleKey {
  std::string key;    ///< dotted path
  std::string value;  ///< as a user writes it; not the default
  std::string why;    ///< "parallel.tensor is 1"
};

/// Those of the keys that `loaded` gives, in file order. `resolved`: the same configuration by resolve(). With run.device auto, keys of one kind of device are
/// left out, because the device is not known yet.
std::vector<IdleKey> idle_keys(const LoadedConfig& loaded, const Config& resolved);

/// A line for each of them, "note: run.yaml:3:7 parallel.sequence_parallel=true has no effect: parallel.tensor is 1".
std::string idle_notes(const LoadedConfig& loaded, const Config& resolved);

}  // namespace trireme
