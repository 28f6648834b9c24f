#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `plan CONFIG [--cluster FILE|TYPE] [--nodes N|auto] [--search] [--json] [--tokens N] [--output FILE] ...`: memory, time and cost of a run before
/// it starts. Without a cluster: run.device cuda means nodes of eight H100, cpu this machine. Exit code 0 where the layout does not fit too: the
/// answer says so. JSON: plan_json of the configuration's layout (of the best where --search finds others for a cluster of another size), with
/// "cluster" and "layouts", best first; with --search also "too_large" and "advice".
void add_plan_command(CLI::App& app, int& exit_code);

}  // namespace trireme
