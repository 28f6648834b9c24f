#pragma once
// Loading: any box of a global tensor, from whatever boxes a checkpoint stored, so that any layout reads any other's.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/non_finite.h"
#include "trainer/checkpoint/safetensors.h"

namespace trireme {

/// A whole checkpoint, of which nothing is used unseen: the manifest's digest is checked when it is opened, a file's header when the file is first needed, a
/// box's data when it is first read. Its files are regular ones in its directory, never links; the directory itself may be reached through one (`latest`),
/// which is followed once. Not thread-safe: one per rank.
class CheckpointReader {
 public:
  /// Reads and checks the manifest, and that every file is there with its size.
  /// Errors: MissingFileError (no such directory), DataError naming the file or tensor that is wrong.
  explicit CheckpointReader(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }  ///< no link
  const CheckpointDescription& description() const { return manifest_.description; }
  const std::map<std::string, StoredTensor>& tensors() const { return manifest_.contents.tensors; }
  const std::map<std::string, StoredFile>& files() const { return manifest_.contents.files; }
  int64_t bytes() const;  ///< of its files, without the manifest
  /// What Tokenizer::open takes: "bytes", or the path of the checkpoint's own copy; empty where no tokenizer is known. Errors: DataError where the copy is damaged.
  std::string tokenizer_spec() const;
  bool has_kind(const std::string& kind) const;  ///< whether there is any tensor "KIND/..."
  /// Errors: DataError if there is none of this name.
  const StoredTensor& tensor(const std::string& name) const;
  /// Writes elements of `box` to `out` (row-major, box.numel() of dtype), converting between floating dtypes. Keeps none of the file in memory.
  /// Errors: DataError naming the file and the tensor: missing, box outside it, another kind of dtype, damaged file.
  void read(const std::string& name, const Box& box, DType dtype, void* out);
  /// Reads everything; `progress` hears how many more bytes of it are done. Returns how many elements are not finite, of the tensors that have such.
  /// Errors: DataError naming the first damaged file, and the tensor where it is in data.
  NonFinite verify_digests(const std::function<void(int64_t bytes)>& progress = [](int64_t) {});
  /// The same as the manifest has it, so only of what was saved since manifests have it; reads no data.
  NonFinite recorded_non_finite() const;
  /// Why the directory's name contradicts the manifest: "step-00000100" of a checkpoint of another step. Empty where it does not, or names no step.
  std::string misnamed() const;

 private:
  /// A box as its file should have it.
  struct Piece {
    const std::string* tensor;
    const StoredTensor* stored;
    const StoredBox* box;
  };

  SafetensorsFile& file(const std::string& name);  ///< opened, and its header checked, when first asked for
  void check_header(const SafetensorsFile& file, const std::string& name) const;
  /// Checked when first asked for, and whenever its elements that are not finite are to be counted.
  std::span<const std::byte> data(const std::string& tensor, const StoredBox& box, int64_t* non_finite = nullptr);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::map<std::string, std::map<std::string, Piece>> pieces_;     ///< by file and name in the file
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  ///< opened when first read
  std::unordered_set<const StoredBox*> checked_;                   ///< those whose data match their digest
};

/// The checkpoint meant by `directory`: itself, or the newest of a run. Not the newest whole one, for which a damaged one would be passed over in silence.
/// Errors: MissingFileError, IoError; DataError where it is no directory.
std::filesystem::path checkpoint_at(const std::filesystem::path& directory);

/// The checkpoints of a run in the order in which to try them: the one `latest` names, those of lower steps (nearest first), those of higher steps, which a
/// run that was rolled back has left behind. Nothing is opened. Errors: IoError.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& run_directory);

/// What a message advises where there are checkpoints of which none can be read.
constexpr const char* kStartAgain = "move them away and use --resume never to start again";

/// The newest checkpoint of a run whose manifest, name and file sizes are right; data are checked as they are read. One that is torn or damaged is passed over
/// with a line in `warnings`. Errors: DataError where there are checkpoints but none is whole; IoError.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_directory, std::vector<std::string>& warnings);

}  // namespace trireme
