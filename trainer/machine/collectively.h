#pragma once
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>

#include "kernels/core/check.h"
#include "parallel/comm/communicator.h"

namespace trireme {

/// An error that all ranks of the job throw together and only rank 0 reports; all ranks exit with the same code.
struct AgreedError : Error {
  AgreedError(ExitCode code, const std::string& message, bool reporter) : Error(code, message), is_reporter(reporter) {}
  bool is_reporter;
};

/// Runs `body` on every rank. If it fails on any, throws AgreedError on all ranks with code and message of the first failing rank; the message names
/// the failing ranks unless all failed. Collective. Use it during set-up only: a failure on one rank within a step ends the job through MPI.
void collectively(Communicator& world, const std::function<void()>& body);

/// Checks that `facts` are the same on every rank before a run starts. Keys: "binary", "configuration", "data". Collective.
/// Errors: AgreedError (usage) on all ranks, naming what differs and the ranks that differ from rank 0.
void check_same_everywhere(Communicator& world, const std::map<std::string, std::string>& facts);

/// The union of the names of all ranks; no name contains a newline. Collective.
std::set<std::string> union_of_names(Communicator& world, const std::set<std::string>& names);

/// Checks that `values`, of which every rank has a copy, have the same bits on each; not-a-number equals not-a-number. `what`: "step 40". One
/// all-reduce of 32 bytes a value if they are the same. Collective.
/// Errors: AgreedError (internal) on all ranks, naming the ranks whose copies differ from that of most ranks.
void check_same_result(Communicator& comm, const std::string& what, std::span<const double> values);

/// A digest of the running executable's file.
std::string binary_digest();

}  // namespace trireme
