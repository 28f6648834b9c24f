#pragma once
// A run directory with an audit log, made without training.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "trainer/audit/run_audit.h"
#include "trainer/checkpoint/checkpoint.h"

namespace trireme::test {

/// security.audit with a log, signed by the key in `key_file`, if any.
SecurityConfig audited(const std::optional<std::string>& key_file = {});
audit::Job small_job(const std::string& checkpoint = "");

/// The part of a run that one job does: it opens the log, and saves checkpoints of one small matrix.
class AuditedJob {
 public:
  /// `observe`: called after the record of a checkpoint is written, before its manifest is.
  AuditedJob(const std::filesystem::path& directory, const std::optional<std::string>& key_file = {}, std::function<void()> observe = {});

  audit::RunAudit& log() { return log_; }
  void begin(const audit::Job& job);
  /// Ends the test if the checkpoint cannot be saved.
  void save(int64_t step);

 private:
  std::filesystem::path directory_;
  audit::RunAudit log_;
  Checkpointer checkpointer_;
};

/// A finished run of two jobs: the first saves steps 2 and 4 and is stopped, the second resumes it and saves step 6. Ten records and more.
void make_audited_run(const std::filesystem::path& directory, const std::optional<std::string>& key_file = {});
/// The directory of the checkpoint after `step`.
std::string checkpoint_of(const std::filesystem::path& directory, int64_t step);

}  // namespace trireme::test
