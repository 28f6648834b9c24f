#pragma once
// The tensors and files of a checkpoint, or of the part of one rank: the location of every box of every global tensor, and size and digest of every file.
#include <array>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/core/dtype.h"
#include "parallel/param.h"

namespace trireme {

constexpr const char* kManifestName = "manifest.json";

struct StoredBox {
  Box box;
  std::string file;   ///< name in the checkpoint directory
  int64_t begin = 0;  ///< byte offset from the start of the file
  int64_t end = 0;
  std::string digest;      ///< of bytes [begin, end)
  int64_t non_finite = 0;  ///< number of infinite or NaN elements when written
};

struct StoredTensor {
  DType dtype = DType::kF32;
  int dims = 2;
  std::array<int64_t, 2> shape{0, 1};  ///< global; [n,1] for a vector
  std::vector<StoredBox> boxes;        ///< every element is in exactly one box
};

struct StoredFile {
  int64_t bytes = 0;
  std::string digest;       ///< SafetensorsSummary::digest; for tokenizer files: over the bytes
  std::string sha256 = {};  ///< hash of the bytes, in hexadecimal; empty in runs without an audit log
};

/// Tensors and files by name, of a complete checkpoint or of one rank's part.
struct Contents {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, StoredFile> files;
};

/// The name of a box in its safetensors file: "weight/blocks.0.mlp.up.weight@128,0".
std::string entry_name(const std::string& tensor, const Box& box);

std::string contents_text(const Contents& contents);
nlohmann::json to_json(const Contents& contents);
/// Errors: DataError, prefixed with `where`.
Contents parse_contents(const std::string& text, const std::string& where);
/// The same from the members "tensors" and "files" of an object that may have others.
Contents parse_contents(const nlohmann::json& object, const std::string& where);
/// Adds another rank's part. Errors: DataError if the two disagree on dtype or shape of a tensor.
void merge(Contents& into, const Contents& part, const std::string& where);

/// Errors: DataError naming the tensor if its boxes leave a gap, overlap, lie out of range or have a byte range of the wrong size.
void check_tiling(const std::map<std::string, StoredTensor>& tensors, const std::string& where);
/// Checks that the boxes tile the data of every file. `tokenizer`: files that contain no boxes. Errors: DataError naming the file.
void check_files(const Contents& contents, const std::vector<std::string>& tokenizer, const std::string& where);

}  // namespace trireme
