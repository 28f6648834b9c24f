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
  std::chrono::seconds patience{600};  ///< how long rank 0 waits for the other ranks' files after its own
};

/// "step-00000100".
std::string checkpoint_name(int64_t step);

class Checkpointer {
 public:
  explicit Checkpointer(CheckpointOptions options);
  /// Abandons a save in flight where rank 0 still waits for other ranks: call finish() first.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Called by every rank at the same step. Waits for the previous save; then, asynchronous: copies the boxes to host memory (as many bytes as they
  /// hold) and returns while a thread writes them; otherwise returns when this rank's part (on rank 0: the whole checkpoint) stands.
  /// A failure leaves the older checkpoints untouched and is told by take_error() or finish().
  void save(const CheckpointDescription& description, std::span<const StateTensor> tensors);
  /// Waits for the save in flight; then as take_error(). On rank 0 the last checkpoint is then published, so a barrier tells the other ranks.
  std::optional<std::string> finish();
  /// What went wrong on this rank since the last call, once.
  std::optional<std::string> take_error();

 private:
  struct Part;
  void write(const Part& part);
  void publish(const Part& part);
  Contents gather_parts(const Part& part) const;
  void move_into_place(const Part& part) const;
  void remove_leftovers(const Part& published) const;
  void wait();

  CheckpointOptions options_;
  int64_t saves_ = 0;
  std::vector<std::byte> snapshot_;  ///< kept between saves
  std::thread thread_;
  std::atomic<bool> abandoned_ = false;
  std::mutex mutex_;
  std::optional<std::string> error_;
};

}  // namespace trireme
