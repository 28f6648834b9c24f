#pragma once
// What the fuzz targets share. A target is one function that hands an input to a reader of the product as if it were the file, and then uses
// everything that the reader gives out. It is linked with libfuzzer.cpp (scripts/fuzz.sh) or with replay.cpp (the suite).
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "kernels/core/check.h"

namespace trireme::fuzz {

/// Whether the reader took the input. Defined once in each fuzz_NAME.cpp.
/// Errors: any exception is a finding, as are a signal, a sanitizer's report and more than a second of work.
bool accepts(std::string_view input);

/// Whether `body` went through; what the readers promise to throw is a refusal, all else leaves.
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

/// What must hold of anything a reader has accepted. Errors: InternalError, a finding.
inline void require(bool holds, const char* what) {
  if (!holds) throw InternalError(concat("accepted, but not so: ", what));
}

/// A directory, in memory unless TMPDIR says otherwise, that goes when the program ends in order.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Makes or replaces a file of this name. Errors: InternalError.
  std::filesystem::path put(const char* name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::fuzz
