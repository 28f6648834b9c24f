#pragma once
// Loading: reads any box of a global tensor, whatever boxes the checkpoint stored, so that any layout can load a checkpoint of any other layout.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/non_finite.h"
#include "trainer/checkpoint/safetensors.h"

namespace trireme {

/// Whether files of a checkpoint may be missing when it is opened.
enum class Absent : uint8_t { kRefused, kAllowed };

/// The counts of non-finite elements that the boxes of `tensors` have recorded.
NonFinite recorded_non_finite(const std::map<std::string, StoredTensor>& tensors);

/// A complete checkpoint. Nothing is used unchecked: the manifest's digest is verified when the checkpoint is opened, a file's header at first use of
/// the file, a box's data at first read. Files must be regular files in the directory, not links; the directory itself may be given as a link
/// (`latest`), which is followed once. Not thread-safe: one per rank.
class CheckpointReader {
 public:
  /// Reads and checks the manifest, and checks that every file exists and has its recorded size; with Absent::kAllowed a file may come later, before a box
  /// of it is read.   Errors: MissingFileError (no such directory), DataError naming the file or tensor that is wrong.
  explicit CheckpointReader(const std::filesystem::path& directory, Absent absent = Absent::kRefused);

  const std::filesystem::path& directory() const { return directory_; }  ///< never a link
  const CheckpointDescription& description() const { return manifest_.description; }
  const std::map<std::string, StoredTensor>& tensors() const { return manifest_.contents.tensors; }
  const std::map<std::string, StoredFile>& files() const { return manifest_.contents.files; }
  const std::optional<AuditAnchor>& audit() const { return manifest_.audit; }
  int64_t bytes() const;  ///< total size of its files, without the manifest
  /// Argument for Tokenizer::open: "bytes", or the path of the checkpoint's own copy; empty if no tokenizer is known. Errors: DataError if the copy
  /// is damaged.
  std::string tokenizer_spec() const;
  bool has_kind(const std::string& kind) const;  ///< true if there is a tensor "KIND/..."
  /// Errors: DataError if there is none of this name.
  const StoredTensor& tensor(const std::string& name) const;
  /// Writes the elements of `box` to `out` (row-major, box.numel() elements of `dtype`), converting between floating-point dtypes. Drops the pages it
  /// read. Errors: DataError naming the file and the tensor: missing tensor, box out of range, incompatible dtype, damaged file.
  void read(const std::string& name, const Box& box, DType dtype, void* out);
  /// The files that the calls of read() in `reads` need and that are absent. Meanwhile read() reads nothing and writes zeros.
  std::set<std::string> absent_files_of(const std::function<void()>& reads);
  /// Reads and verifies everything; calls `progress` with the number of bytes verified since the last call. Returns the non-finite element count of
  /// each tensor that has any. Errors: DataError naming the first damaged file, and the tensor if its data are damaged.
  NonFinite verify_digests(const std::function<void(int64_t bytes)>& progress = [](int64_t) {});
  /// The counts recorded in the manifest, without reading data; empty for checkpoints from before manifests had them.
  NonFinite recorded_non_finite() const { return trireme::recorded_non_finite(tensors()); }
  /// An error message if the directory is named after a different step than the manifest's; empty if they agree or the name is not that of a step.
  std::string name_mismatch() const;

 private:
  /// What the manifest says about one entry of a file.
  struct Piece {
    const std::string* tensor;
    const StoredTensor* stored;
    const StoredBox* box;
  };

  SafetensorsFile& file(const std::string& name);  ///< opened, with its header checked, at first use
  void check_header(const SafetensorsFile& file, const std::string& name) const;
  /// The data of a box. The digest is checked at first use, and whenever non-finite elements are to be counted.
  std::span<const std::byte> data(const std::string& tensor, const StoredBox& box, int64_t* non_finite = nullptr);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::map<std::string, std::map<std::string, Piece>> pieces_;     ///< by file and name in the file
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  ///< opened at first use
  std::unordered_set<const StoredBox*> checked_;                   ///< boxes whose digest has been verified
  std::set<std::string>* absent_ = nullptr;                        ///< during absent_files_of(): its result
};

/// The checkpoint that `directory` refers to: itself, or the newest of a run, even if that is damaged, so that damage is never skipped silently.
/// Errors: MissingFileError, IoError; DataError if it is not a directory.
std::filesystem::path checkpoint_at(const std::filesystem::path& directory);

/// The checkpoints of a run in the order in which to try them: the target of `latest`, then lower steps (nearest first), then higher steps, which a
/// rolled-back run leaves behind. Opens none of them. Errors: IoError.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& run_directory);

/// Advice in error messages if a run has checkpoints but none of them can be read.
constexpr const char* kStartAgain = "move them away and use --resume never to start over";

/// The newest checkpoint of a run whose manifest, name and file sizes are valid; data are checked when they are read. An incomplete or damaged one is
/// skipped with a line in `warnings`. Errors: DataError if there are checkpoints but none is valid; IoError.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_directory, std::vector<std::string>& warnings);

}  // namespace trireme
