#pragma once
// What a job writes to the audit log of its run, RunContext::audit, with security.audit. On rank 0.
#include <string>

#include "trainer/run/resume.h"
#include "trainer/run/run_context.h"

namespace trireme {

/// Opens the log. This job holds the lock, and has written nothing yet.
void open_audit(RunContext& run, const Resumed& resumed);
/// Writes what a job that was killed at its very end has left out; no effect on other ranks.
void complete_audit(const RunContext& run, const Resumed& resumed);
/// Has no effect without an audit log.
void end_audit(RunContext& run, const char* status, const std::string& reason = "");

}  // namespace trireme
