#pragma once
// Chrome traces of selected ranks of a simulated world.
#include <string>
#include <vector>

#include "parallel/pipeline/world.h"

namespace trireme {

/// Parses a comma-separated list of ranks ("7"), ranges ("0-15") and groups ("pipeline:7": the pipeline group of rank 7; any axis). Returns the ranks
/// in ascending order. Errors: ConfigError naming the invalid item.
std::vector<int> ranks_named(const std::string& list, const MeshShape& mesh);

/// Rejects, before the simulation, a trace with more events than trace viewers can open. `lists`: by world rank. Errors: ConfigError.
void check_trace_size(const std::vector<const ActionList*>& lists, const std::vector<int>& ranks);

/// Chrome trace (trainer/loop/trace.h) of the simulated step of the ranks whose timelines were recorded.
std::string chrome_trace(const WorldSimulation& simulation, const MeshShape& mesh);

}  // namespace trireme
