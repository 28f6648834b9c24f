#pragma once
// The configurations of runs side by side, key by key, and against the defaults.
#include <span>
#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace trireme::report {

struct ConfigRow {
  std::string key;
  std::vector<std::string> values;  ///< by run, as texts; empty: not set, or without effect
  std::string default_text;         ///< "auto" with the value that it has in the first run; empty: no default, or an unknown key
  std::vector<bool> differs;        ///< by run: from the default; false where the default depends on the machine
  bool same = true;                 ///< all runs have the same value
};

/// A row for each key of any of the runs, in the order of the configuration file; unknown keys, as of another version, come last.
std::vector<ConfigRow> config_rows(std::span<const RunRecord* const> runs);

/// True for the keys that name a run or its place and not what it does: run.name and run.directory.
bool is_label(const std::string& key);

}  // namespace trireme::report
