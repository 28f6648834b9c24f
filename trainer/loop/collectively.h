#pragma once
#include <functional>
#include <map>
#include <string>

#include "kernels/core/check.h"
#include "parallel/comm/communicator.h"

namespace trireme {

/// An error every rank of the job knows of and that rank 0 alone reports: the ranks leave in step, with the same exit code.
struct AgreedError : Error {
  AgreedError(ExitCode code, const std::string& message, bool reporter) : Error(code, message), is_reporter(reporter) {}
  bool is_reporter;
};

/// Runs `body` on every rank; if it failed on any, throws AgreedError on all of them with the first rank's code and message (and which ranks it was, where
/// others were well). Collective, so it belongs to set-up: what fails on one rank in the middle of a step ends the job through MPI.
void collectively(Communicator& world, const std::function<void()>& body);

/// What must be the same on every rank before a run starts, by name: "binary", "configuration", "data".
/// Errors: ConfigError on all ranks naming what differs and the ranks that differ from rank 0.
void check_same_everywhere(Communicator& world, const std::map<std::string, std::string>& facts);

/// A digest of the running executable's file.
std::string binary_digest();

}  // namespace trireme
