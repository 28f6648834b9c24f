#pragma once
// Errors that reach a user, each with the exit code of the process, and the check macro for broken invariants.
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace trireme {

/// Exit codes of the binary (sysexits.h values, so that shell scripts and Slurm can tell them apart).
enum class ExitCode : int {
  kOk = 0,
  kFindings = 1,      ///< the command has done its work: it found a difference, as diff(1), or something bad
  kUsage = 64,        ///< bad usage or configuration; nothing was started or written
  kData = 65,         ///< bad data or checkpoint
  kMissingFile = 66,  ///< a file is missing
  kInternal = 70,     ///< anything else
  kIo = 74,           ///< reading or writing failed
  kRequeue = 75,      ///< stopped on request, checkpoint saved: run the same command again
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}
};
struct MissingFileError : Error {
  explicit MissingFileError(const std::string& message) : Error(ExitCode::kMissingFile, message) {}
};
struct IoError : Error {
  explicit IoError(const std::string& message) : Error(ExitCode::kIo, message) {}
};
struct InternalError : Error {
  explicit InternalError(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

/// A part of a text: a zero has no sign.
template <class Part>
decltype(auto) text_part(const Part& part) {
  if constexpr (std::is_floating_point_v<Part>)
    return part + Part{0};
  else
    return (part);
}

/// "a", 3, "b" -> "a3b"; any streamable parts.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << text_part(parts));
  return out.str();
}

}  // namespace trireme

/// Checks an invariant of the program, never its input: throws InternalError with file and line if the condition is false.
#define TRIREME_CHECK(condition, ...)                                                                                        \
  do {                                                                                                                       \
    if (!(condition))                                                                                                        \
      throw ::trireme::InternalError(                                                                                        \
          ::trireme::concat(__FILE__, ":", __LINE__, ": ", #condition, " does not hold: ", ::trireme::concat(__VA_ARGS__))); \
  } while (false)
