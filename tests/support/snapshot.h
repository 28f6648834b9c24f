#pragma once
// Snapshot tests of what users are shown. A check of one figure says that this figure is right; a snapshot holds the text around it and every figure that no
// other check looks up, so a change of anything that a person sees is a line of a diff that a reviewer reads.
#include <string>

namespace trireme::test {

/// Checks that `text` is the content of tests/snapshots/`name`. Fractions of more than six digits are compared to six, because compilers differ in the last
/// ones. After an intended change, TRIREME_SNAPSHOTS=write and the test write the file anew; read its diff as a user would read the text.
void check_snapshot(const std::string& name, const std::string& text);

}  // namespace trireme::test
