#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `verify CONFIG [--layouts "SPEC SPEC ..."] [--set key.path=value]... [--steps N] [--seed S] [--json]`: trains a small clone of the model in each layout
/// and compares it with one rank. Exit code 70 where any of them, or one rank itself, computes something else, hangs or fails; 64 where a layout is refused.
/// JSON: {"baseline": VERDICT, "layouts": [VERDICT...]}, VERDICT = {"layout", "verdict": same | differs | hangs | fails, "max_difference", "tensor", "layer",
/// "stage", "ranks", "axis", "layer_kind", "trap", "step", "what", "expected", "actual", "smallest"}, null where a field does not apply.
void add_verify_command(CLI::App& app, int& exit_code);

}  // namespace trireme
