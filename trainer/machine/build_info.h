#pragma once
#include <string>

namespace trireme {

/// Version and git revision, as environment.json records it: "0.1.0 (c25057b1f)"; without the revision where the sources were not a git repository.
std::string version();

/// The text of `trireme --version`: version and build type, then the libraries and instruction levels of this build, one a line.
std::string version_text();

}  // namespace trireme
