#pragma once
// Loading: any box of a global tensor, from whatever boxes a checkpoint stored, so that any layout reads any other's.
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"

namespace trireme {

/// A whole checkpoint. Not thread-safe: one per rank.
class CheckpointReader {
 public:
  /// Reads and checks the manifest, and that every file is there with its size.
  /// Errors: MissingFileError (no such directory), DataError naming the file or tensor that is wrong.
  explicit CheckpointReader(const std::filesystem::path& directory);

  const CheckpointDescription& description() const { return manifest_.description; }
  const std::map<std::string, StoredTensor>& tensors() const { return manifest_.contents.tensors; }
  /// Errors: DataError if there is none of this name.
  const StoredTensor& tensor(const std::string& name) const;
  /// Writes elements of `box` to `out` (row-major, box.numel() of dtype), converting between F32 and F64.
  /// Errors: DataError naming the file and the tensor: missing, box outside it, another kind of dtype, damaged file.
  void read(const std::string& name, const Box& box, DType dtype, void* out);
  /// Reads every file whole. Errors: DataError naming the first whose digest differs.
  void verify_digests();

 private:
  SafetensorsFile& file(const std::string& name);  ///< opened, and its digest checked, when first asked for

  std::filesystem::path directory_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  ///< opened when first read
};

/// The newest whole checkpoint of a run: the one `latest` names, else that of the highest step. One that is torn or damaged is passed over with a line
/// in `warnings`. Errors: DataError where there are checkpoints but none is whole; IoError.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_directory, std::vector<std::string>& warnings);

}  // namespace trireme
