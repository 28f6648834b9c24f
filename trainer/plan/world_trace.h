#pragma once
// Ranks of a simulated world to look at.
#include <string>
#include <vector>

#include "parallel/pipeline/world.h"

namespace trireme {

/// The ranks that a list names, ascending: ranks ("7"), ranges ("0-15") and groups ("pipeline:7", the ranks of the pipeline that rank 7 is in; of any
/// axis), separated by commas.   Errors: ConfigError naming the word.
std::vector<int> ranks_named(const std::string& list, const MeshShape& mesh);

/// Refuses, before anything is simulated, a trace of more events than programs open. `lists`: by world rank. Errors: ConfigError.
void check_trace_size(const std::vector<const ActionList*>& lists, const std::vector<int>& ranks);

/// The simulated step of the ranks whose timelines were asked for, as a Chrome trace (trainer/loop/trace.h).
std::string chrome_trace(const WorldSimulation& simulation, const MeshShape& mesh);

}  // namespace trireme
