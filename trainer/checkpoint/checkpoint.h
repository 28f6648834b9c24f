#pragma once
// Saving: every rank writes its own boxes of the global tensors, rank 0 publishes. A step's directory appears under its name only when it is whole:
//
//   checkpoints/step-00000100.<session>-<n>.partial/   while it is written; rank-00003.safetensors and rank-00003.json from each rank
//   checkpoints/step-00000100/                         renamed to this after manifest.json, the last file, is synced
//   checkpoints/latest -> step-00000100                replaced by rename
//
// so a crash at any moment leaves the older checkpoints as they were. The directory must be shared by all ranks: their files are how rank 0 learns that
// the others are done, and no communicator is used.
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

namespace trireme {

/// A box of a global tensor that this rank saves. Over all ranks the boxes of a name tile the tensor exactly once: replicas are not passed.
struct StateTensor {
  std::string name;  ///< "weight/blocks.0.mlp.up.weight", "exp_avg/...", "exp_avg_sq/..."
  DType dtype = DType::kF32;
  std::array<int64_t, 2> global_shape{0, 1};
  int dims = 2;
  Box box;
  const void* data = nullptr;  ///< in host memory: box.numel() elements, row-major
  Tensor storage = {};         ///< what `data` points into, where that is a copy of the state made for this save (a GPU's)
};

struct CheckpointOptions {
  std::filesystem::path directory;  ///< <run.directory>/checkpoints
  std::string session;              ///< letters and digits; the same on every rank, another at every start, so leftovers are never taken for ours
  int rank = 0;
  int world_size = 1;
  int64_t keep = 3;  ///< newest whole checkpoints that stay; 0 = all
  bool asynchronous = true;
  std::chrono::seconds timeout{600};  ///< how long rank 0 waits for the other ranks' files after its own
  std::function<void()> may_publish = [] {
  };  ///< rank 0, right before a checkpoint gets its name: throws if this job has lost its right to the directory
  std::map<std::string, std::string> tokenizer = {};  ///< rank 0: what the files of CheckpointDescription::tokenizer hold
};

/// A save that is over.
struct SaveReport {
  int64_t step = 0;
  int64_t bytes = 0;                 ///< this rank's; on rank 0 the whole checkpoint's
  double stall_seconds = 0;          ///< in which save() kept its caller: the save before, and the copy
  double write_seconds = 0;          ///< until this rank's part, on rank 0 the whole checkpoint, stood
  std::optional<std::string> error;  ///< why it failed; older checkpoints stand
};

/// Removes what saves of dead jobs have left unpublished in <run.directory>/checkpoints, and gives back its name to a checkpoint that was just being replaced; to
/// be called by the job that has just locked the run directory, so that a late writer of a dead one finds nothing left to publish.
void remove_unpublished(const std::filesystem::path& directory);

/// Whether there is anything for it to remove.
bool has_unpublished(const std::filesystem::path& directory);

/// Lets `latest` in <run.directory>/checkpoints name `checkpoint` ("step-00000100"), durably and in one step. Errors: IoError.
void point_latest(const std::filesystem::path& directory, const std::string& checkpoint, const std::string& session);

/// Why `bytes` cannot be saved there now (free space); nothing where they can.
std::optional<std::string> cannot_save(const std::filesystem::path& directory, int64_t bytes);

/// "step-00000100".
std::string checkpoint_name(int64_t step);
/// Whether a checkpoint could be called so: "step-" and eight digits or more.
bool is_checkpoint_name(const std::string& name);

class Checkpointer {
 public:
  explicit Checkpointer(CheckpointOptions options);
  /// Abandons a save in flight where rank 0 still waits for other ranks: call finish() first.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Called by every rank at the same step. Waits for the previous save; then, asynchronous: copies the boxes to host memory (as many bytes as they
  /// hold) and returns while a thread writes them; otherwise, or where there is no memory for the copy, returns when this rank's part (on rank 0: the whole
  /// checkpoint) stands.
  /// A failure leaves the older checkpoints untouched and is told by take_report() or finish().
  void save(const CheckpointDescription& description, std::span<const StateTensor> tensors);
  /// Waits for the save in flight; then as take_report(). On rank 0 the last checkpoint is then published, so a barrier tells the other ranks.
  std::optional<SaveReport> finish();
  /// Removes what failed saves have left, which ranks may have added to since; not while a save is under way.
  void discard_failed();
  /// Another rank has failed to write its part of the save under way, and perhaps cannot say so on the disk: rank 0 need not wait for it.
  void give_up(const std::string& reason);
  /// A save that has ended, the oldest first, each once.
  std::optional<SaveReport> take_report();

 private:
  struct Part;
  bool copy_state(Part& part);
  void write(const Part& part, bool caller_waits) noexcept;
  int64_t write_part(const Part& part) const;
  int64_t publish(const Part& part) const;
  std::string given_up(int64_t number) const;
  void tidy_up(const Part& published) const;
  Contents gather_parts(const Part& part) const;
  void clean_up(const Part& part, const std::string& reason);
  void wait();

  CheckpointOptions options_;
  int64_t saves_ = 0;
  int64_t failed_ = 0;                     ///< the last save that did, whose leftovers may have to be removed once more
  std::unique_ptr<std::byte[]> snapshot_;  ///< kept between saves: fresh memory costs more than the copy
  size_t snapshot_bytes_ = 0;
  double waited_ = 0;  ///< seconds for the save before, until the next one reports them
  std::thread thread_;
  std::atomic<bool> abandoned_ = false;
  mutable std::mutex mutex_;
  std::pair<int64_t, std::string> given_up_;  ///< number of the last save that is not to be waited for, and why
  std::vector<SaveReport> reports_;           ///< not yet taken
};

}  // namespace trireme
