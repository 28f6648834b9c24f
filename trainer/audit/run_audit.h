#pragma once
// Writing the audit log of a run, on rank 0.
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "trainer/audit/chain.h"
#include "trainer/config/config.h"
#include "trainer/files/append_file.h"

namespace trireme::audit {

/// Checks before anything is started that a run can have an audit log as it is configured. Errors: ConfigError in a build without libsodium; those of
/// crypto::read_signing_key.
void check_audit(const SecurityConfig& config);

/// What a job records about itself at its start.
struct Job {
  std::string version;            ///< version of the program, with its revision
  std::string build;              ///< version_text()
  std::string binary;             ///< SHA-256 of the program's file, in hexadecimal
  nlohmann::ordered_json layout;  ///< degree of each axis
  int64_t world_size = 1;
  int64_t hosts = 1;
  std::string configuration;  ///< text of config.yaml
  std::string data;           ///< TokenDataset::identity of the training data
  int64_t seed = 0;
  std::string checkpoint = {};          ///< the one it resumes from; empty: none
  bool own_checkpoint = true;           ///< the checkpoint lies in the run directory
  nlohmann::ordered_json changes = {};  ///< made by this resume: ConfigChange::changes
};

/// What the receipt says besides the results, which the log knows.
struct RunSummary {
  std::string name;
  nlohmann::json model;
  int64_t parameters = 0;
  int64_t planned_steps = 0;  ///< those of the complete run: a job with --max-steps ends before
};

/// The log of a run, opened by a job that holds the lock on the run directory. Thread-safe, because checkpoints are saved from a thread.
class RunAudit {
 public:
  /// Reads the key and the log, if there is one, and changes nothing. `may_write` throws if this job has lost the run directory.
  /// Errors: those of check_audit and read_log.
  RunAudit(std::filesystem::path run_directory, const SecurityConfig& config, std::function<void()> may_write);

  /// Records the start of a job, durably. A record that a crash cut off at the end of the log is removed first, which is recorded too.
  /// Errors: DataError, before anything is written, if the log does not have what the checkpoint or a receipt names in it; IoError.
  void begin(const Job& job);
  /// CheckpointOptions::anchor. Errors: IoError.
  AuditAnchor anchor(const CheckpointDescription& about, const std::string& manifest);
  void evaluated(int64_t step, const nlohmann::ordered_json& fields);
  /// A round of a federation: its number, members, result, and the epsilon of members.
  void took_round(int64_t step, const nlohmann::ordered_json& fields);
  /// `suspects`: data ranks that stood out, with their distances; a step without any is not recorded.
  void stepped(int64_t step, const nlohmann::ordered_json& loss, const nlohmann::ordered_json& suspects);
  /// What the run says about its privacy at the end of a job.
  void stated(int64_t step, const nlohmann::ordered_json& statement);
  /// Records the end of a job: done, stopped or failed, with the reason. If it is done, writes the receipt. Errors: IoError.
  void end(const std::string& status, int64_t step, const std::string& reason = "");
  /// Needed by end() with status done.
  void set_summary(RunSummary summary) { summary_ = std::move(summary); }
  /// For a run that was killed at its very end: records a job that writes the end record and the receipt, made from the checkpoint and from what the
  /// log has before it. Also writes config.yaml if it differs from that of the checkpoint. Errors: those of begin() and end().
  void complete(Job job);
  /// True if complete() has something to do.
  bool is_incomplete() const;
  /// Why the last records could not be written; empty if all have been.
  std::string write_error() const;

 private:
  void check_anchor(const std::string& checkpoint) const;
  void check_unaudited(int64_t step, const std::string& manifest, const std::string& refusal) const;
  bool is_unsigned() const;
  void restore(const Job& job);
  nlohmann::ordered_json unaudited_checkpoints() const;
  std::optional<std::pair<AuditAnchor, int64_t>> receipt_anchor() const;
  void check_receipt() const;
  bool ends_with_receipt() const;
  std::string public_key() const;
  void open();
  Head append(nlohmann::ordered_json record);
  void write_receipt(const nlohmann::ordered_json& end_record);
  nlohmann::ordered_json receipt(const std::string& status, int64_t step) const;
  std::filesystem::path path() const { return directory_ / kLogName; }

  const std::filesystem::path directory_;
  const std::function<void()> may_write_;
  std::optional<crypto::SigningKey> key_;
  const PrivacyConfig privacy_;
  Log before_;  ///< as the job has found it
  bool existed_ = false;

  mutable std::mutex mutex_;
  std::optional<AppendFile> file_;
  Head head_;
  nlohmann::ordered_json torn_;  ///< what was removed from the end of the log, until a record says so
  RunSummary summary_;
  nlohmann::json start_;          ///< the start record of this job, or of the last one
  nlohmann::json trained_by_;     ///< the start record of the job that trained the last step; null: unknown
  std::string configuration_;     ///< digest in the last configuration record
  std::string data_;              ///< in the last data record
  nlohmann::ordered_json saved_;  ///< step, tokens and digest of the last checkpoint saved or resumed from; null: none
  nlohmann::ordered_json loss_;   ///< loss of the last step; null: unknown
  nlohmann::ordered_json validation_loss_;
};

}  // namespace trireme::audit
