#pragma once
// Snapshot tests of what users are shown. A check of one figure says that this figure is right; a snapshot holds the text around it and every figure that no
// other check looks up, so a change of anything that a person sees is a line of a diff that a reviewer reads.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/scratch.h"

namespace CLI {
class App;
}

namespace trireme::test {

/// Checks that `text` is the content of tests/snapshots/`name`. Fractions of more than six significant digits are compared to six, because compilers differ
/// in the last ones; whole numbers are compared to the last digit. After an intended change, TRIREME_SNAPSHOTS=write and the test write the file anew; read
/// its diff as a user would read the text.
void check_snapshot(const std::string& name, const std::string& text);

/// JSON in lines: what fits into one is not broken.
std::string lines_of(const nlohmann::ordered_json& json, size_t indent = 0);

/// What a command prints on standard output in this process. `add` adds it to the program, as in "plan run.yaml" of `arguments`. The path of the scratch
/// directory, which differs from run to run, is taken out.
std::string printed(const Scratch& scratch, const std::function<void(CLI::App& app, int& exit_code)>& add, const std::string& arguments);

}  // namespace trireme::test
