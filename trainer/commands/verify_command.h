#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `verify CONFIG [--layouts "SPEC SPEC ..."] [--set key.path=value]... [--steps N] [--seed S] [--json]`: trains a small clone of the model in each
/// layout and compares it with one rank. Exit code 70 if a layout, or the run on one rank, differs, hangs or fails; 64 if a layout is invalid.
/// JSON: {"baseline": VERDICT, "layouts": [VERDICT...]}, VERDICT = {"layout", "verdict": same | differs | hangs | fails, "max_difference", "tensor",
/// "layer", "stage", "ranks", "axis", "layer_kind", "trap", "step", "what", "expected", "actual", "smallest"}, null if a field does not apply.
void add_verify_command(CLI::App& app, int& exit_code);

}  // namespace trireme
