#pragma once
// Probes of the directories, data and key files of a run.
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/doctor/facts.h"

namespace trireme::doctor {

/// The run directory, or its nearest existing parent, as the run would find it. `measure`: also write a file there, whose name is gone before the first
/// byte, so that nothing is left even if the process is killed. Takes at most `seconds`. Never throws.
DirectoryFacts probe_directory(const std::string& path, bool measure, double seconds);

/// Makes an empty file in `directory` with a name that no other process can guess, and returns its name; empty if that fails. remove_mark() removes it.
std::string make_mark(const std::string& directory);
bool has_mark(const std::string& directory, const std::string& mark);
void remove_mark(const std::string& directory, const std::string& mark);

/// The data sets of a resolved configuration, opened as a run opens them. Never throws.
DataFacts probe_data(const Config& config);

/// The key files that a run with a resolved configuration opens on rank `rank`, opened as the run does: one that others may read is refused. Never throws.
std::vector<KeyFileFacts> probe_keys(const Config& config, int rank);

}  // namespace trireme::doctor
