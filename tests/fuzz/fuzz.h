#pragma once
// Shared code of the fuzz targets. A target is one function that passes an input to a reader of the product as a file, and then uses everything that
// the reader returns. It is linked with libfuzzer.cpp (scripts/fuzz.sh) or with replay.cpp (the test suite).
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace trireme::fuzz {

/// Whether the reader accepted the input. Defined once in each fuzz_NAME.cpp.
/// Errors: any exception is a finding, as is a signal, a sanitizer report, or more than a second of CPU time.
bool accepts(std::string_view input);

/// Whether `body` succeeded. The documented errors of the readers count as rejection; other exceptions propagate.
template <class Body>
bool taken(Body&& body) {
  try {
    body();
    return true;
  } catch (const DataError&) {
  } catch (const IoError&) {
  } catch (const MissingFileError&) {
  }
  return false;
}

/// Checks a property of accepted input. Errors: InternalError, a finding.
inline void require(bool holds, const char* what) {
  if (!holds) throw InternalError(concat("accepted input violates: ", what));
}

/// A temporary directory, in memory unless TMPDIR is set; removed at a regular end of the program.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Creates or replaces a file with this name. Errors: InternalError.
  std::filesystem::path put(const char* name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::fuzz
