#pragma once
// One rank's part of a saved state: the boxes of the global tensors that it owns, as rank-00003.safetensors, and rank-00003.json, the Contents of that
// file. Checkpoints and peer copies are made of these parts.
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"

namespace trireme {

/// A box of a global tensor that this rank saves. Over all ranks the boxes of one name tile the tensor exactly once; replicas are excluded.
struct StateTensor {
  std::string name;  ///< "weight/blocks.0.mlp.up.weight", "exp_avg/...", "exp_avg_sq/..."
  DType dtype = DType::kF32;
  std::array<int64_t, 2> global_shape{0, 1};
  int dims = 2;
  Box box;
  const void* data = nullptr;  ///< in host memory: box.numel() elements, row-major
  Tensor storage = {};         ///< owner of `data` if that is a host copy made for this save (state on a GPU)
};

/// Bytes of all boxes.
int64_t bytes_of(const std::vector<StateTensor>& tensors);

/// A copy of a rank's state in host memory, for a thread that writes it while training continues.
class StateSnapshot {
 public:
  /// Copies the tensors that are not host copies already, and points them to the copy. Returns false, and changes nothing, if there is not enough memory.
  bool take(std::vector<StateTensor>& tensors);

 private:
  std::unique_ptr<std::byte[]> memory_;  ///< reused: page faults on new memory cost more than the copy
  size_t bytes_ = 0;
};

/// "rank-00003".
std::string part_name(int rank);

struct PartChecks {
  bool read_back = true;  ///< reads what was written, and compares
  bool sha256 = false;    ///< Contents::files has the SHA-256 of the file
};
/// Writes the part of `rank` durably, with rank-00003.json last. Creates the directory. Returns the size of the safetensors file; a rank without tensors
/// writes none.   Errors: IoError; DataError if what is read back differs.
int64_t write_part(const std::filesystem::path& directory, int rank, const std::vector<StateTensor>& tensors, const PartChecks& checks);

}  // namespace trireme
