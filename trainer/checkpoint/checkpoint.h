#pragma once
// Saving: every rank writes its own boxes of the global tensors, rank 0 publishes. A step's directory gets its final name only when it is complete:
//
//   checkpoints/step-00000100.<session>-<n>.partial/   while being written; rank-00003.safetensors and rank-00003.json from each rank
//   checkpoints/step-00000100/                         final name, given after manifest.json, the last file, is synced
//   checkpoints/latest -> step-00000100                replaced by rename
//
// so a crash at any moment leaves the older checkpoints intact. All ranks must share the directory: rank 0 detects from the other ranks' files that
// they have finished, and no communicator is used.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/rank_part.h"

namespace trireme {

/// Which checkpoints stay.
struct Retention {
  int64_t keep = 3;                   ///< the newest complete ones; 0 = all
  int64_t best = 0;                   ///< besides, the complete ones with the lowest loss of record_loss()
  std::optional<int64_t> every = {};  ///< besides, those whose step is a multiple
};

struct CheckpointOptions {
  std::filesystem::path directory;  ///< <run.directory>/checkpoints
  std::string session;              ///< letters and digits; equal on every rank, new at every start, so that leftovers of other jobs are recognised
  int rank = 0;
  int world_size = 1;
  int64_t keep = 3;  ///< Retention::keep, best and every
  bool asynchronous = true;
  std::chrono::seconds timeout{600};  ///< how long rank 0 waits for the other ranks' files after its own
  std::function<void()> may_publish = [] {
  };  ///< called on rank 0 right before a checkpoint is published: throws if this job has lost the lock on the directory
  std::map<std::string, std::string> tokenizer = {};  ///< rank 0: contents of the files of CheckpointDescription::tokenizer, by name
  int64_t keep_best = 0;
  std::optional<int64_t> keep_every = {};
  bool only_finite = false;  ///< a state with an infinite or NaN element is not published: nothing could be trained from it
  /// With security.audit: the manifest has the SHA-256 of every file. The same on all ranks.
  bool audited = false;
  /// With security.audit, called on rank 0 with the manifest's text before the checkpoint is published: makes the record of the checkpoint durable and
  /// returns what the manifest is to contain of it.
  std::function<AuditAnchor(const CheckpointDescription& about, const std::string& manifest)> anchor = {};

  Retention retention() const { return {keep, keep_best, keep_every}; }
};

/// The outcome of a save.
struct SaveReport {
  int64_t step = 0;
  int64_t bytes = 0;                 ///< written by this rank; on rank 0, of the complete checkpoint
  double stall_seconds = 0;          ///< time that save() blocked its caller: waiting for the previous save, and copying
  double write_seconds = 0;          ///< until this rank's part was on disk; on rank 0, until the checkpoint was published
  std::optional<std::string> error;  ///< why it failed; older checkpoints remain valid
  bool not_finite = false;           ///< it failed because the state is not finite; known on rank 0
};

/// Removes unpublished leftovers of dead jobs in <run.directory>/checkpoints, and restores a checkpoint whose replacement was interrupted. Call after
/// locking the run directory, so that a late writer of a dead job finds nothing left to publish.
void remove_unpublished(const std::filesystem::path& directory);

/// True if remove_unpublished() would change anything.
bool has_unpublished(const std::filesystem::path& directory);

/// Points the link `latest` in <run.directory>/checkpoints to `checkpoint` ("step-00000100"), durably and atomically. Errors: IoError.
void point_latest(const std::filesystem::path& directory, const std::string& checkpoint, const std::string& session);

constexpr const char* kLossName = "validation.json";
/// Writes the validation loss of a published checkpoint into its directory, durably, as kLossName: a checkpoint is saved before its evaluation.
/// Errors: IoError.
void record_loss(const std::filesystem::path& checkpoint, int64_t step, double loss);
/// The loss that record_loss() wrote; nullopt if there is none, or it is not finite or damaged.
std::optional<double> recorded_loss(const std::filesystem::path& checkpoint);

/// The reason why `bytes` cannot be saved there now (free space), or nullopt.
std::optional<std::string> free_space_error(const std::filesystem::path& directory, int64_t bytes);

/// "step-00000100".
std::string checkpoint_name(int64_t step);
/// True for "step-" followed by eight or more digits.
bool is_checkpoint_name(const std::string& name);

class Checkpointer {
 public:
  explicit Checkpointer(CheckpointOptions options);
  /// Abandons a save in flight if rank 0 still waits for other ranks: call finish() first.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Called by every rank at the same step. Waits for the previous save. If asynchronous, copies the boxes to host memory (box.numel() elements each)
  /// and returns while a thread writes them. Otherwise, or if there is no memory for the copy, returns when this rank's part is written (on rank 0:
  /// when the checkpoint is published). A failure leaves the older checkpoints untouched and is reported by take_report() or finish().
  void save(const CheckpointDescription& description, std::span<const StateTensor> tensors);
  /// Waits for the save in flight, then returns take_report(). On rank 0 the last checkpoint is published by then; other ranks know that after a
  /// barrier.
  std::optional<SaveReport> finish();
  /// Removes leftovers of failed saves, including files that other ranks wrote since. Must not be called during a save.
  void discard_failed();
  /// Ends the wait of rank 0 for the current save: another rank failed to write its part, and may be unable to record that on disk.
  void give_up(const std::string& reason);
  /// Removes the checkpoints that the retention does not keep, as after a save. `newest`: step of the last one saved. Must not be called during a save.
  void remove_old(int64_t newest) const;
  /// Returns the outcome of a finished save, oldest first, each once.
  std::optional<SaveReport> take_report();

 private:
  struct Part;
  void write(const Part& part, bool caller_waits) noexcept;
  int64_t publish(const Part& part) const;
  std::string given_up(int64_t number) const;
  void tidy_up(const Part& published) const;
  Contents gather_parts(const Part& part) const;
  void clean_up(const Part& part, const std::string& reason);
  void wait();

  CheckpointOptions options_;
  int64_t saves_ = 0;
  int64_t failed_ = 0;  ///< number of the last failed save, whose leftovers may have to be removed again
  StateSnapshot snapshot_;
  double waited_ = 0;  ///< seconds spent waiting for the previous save, not yet reported
  std::thread thread_;
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex mutex_;
  std::pair<int64_t, std::string> given_up_;  ///< number of the last save that rank 0 gave up waiting for, and the reason
  std::vector<SaveReport> reports_;           ///< not yet taken
};

}  // namespace trireme
