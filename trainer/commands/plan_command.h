#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `plan CONFIG [--cluster FILE|TYPE] [--nodes N|auto] [--search] [--json] [--tokens N] [--output FILE] ...`: forecasts memory, time and cost of a
/// run. Default cluster: nodes of eight H100 for run.device cuda, this machine for cpu. The exit code is 0 even if the layout does not fit; the
/// output reports that. JSON: plan_json of the configuration's layout (of the best one found by --search if the cluster has another size), with
/// "cluster" and "layouts", best first; with --search also "too_large" and "advice".
void add_plan_command(CLI::App& app, int& exit_code);

}  // namespace trireme
