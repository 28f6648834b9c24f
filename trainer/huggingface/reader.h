#pragma once
// Reads models in the format of Hugging Face transformers: config.json, and model.safetensors or its shards with model.safetensors.index.json.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/param.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config/config.h"
#include "trainer/huggingface/names.h"

namespace trireme {

/// A folder with a model of a known family. The constructor checks headers and index completely: it refuses missing
/// tensors, tensors of a wrong shape or dtype, unknown tensors (the first five problems are listed), missing shards and overlapping tensors. It
/// ignores the causal masks and RoPE frequencies in files of old versions. A head stored beside tied embeddings must equal them.
/// Files may be links, as in the caches of Hugging Face. Not thread-safe: one per rank.
class HuggingFaceReader {
 public:
  /// Errors: MissingFileError; DataError naming the file and the key or tensor, such as an unsupported model type, RoPE scaling or activation.
  explicit HuggingFaceReader(const std::filesystem::path& folder);

  const ModelConfig& model() const { return model_; }  ///< resolved; max_positions from config.json
  std::vector<std::string> names() const;              ///< in the parameter table
  std::array<int64_t, 2> shape(const std::string& name) const;
  DType dtype(const std::string& name) const;  ///< as stored
  /// Reads `box` of a parameter to `out`, row-major, in any floating `dtype`. Reads only the bytes from its first to its last element; no caching.
  /// Errors: DataError if there is no such parameter or the box lies outside it; IoError.
  void read(const std::string& name, const Box& box, DType dtype, void* out) const;

 private:
  /// Location of a parameter in a file.
  struct Place {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    HuggingFaceTensor::Part part;
    int64_t row_stride, column_stride;  ///< of the tensor, in elements
  };

  void open_files();
  std::string stored_name(const std::string& name) const;
  void place_tensors();
  void check_tied_head() const;
  const Place& place_of(const std::string& name) const;

  std::filesystem::path folder_;
  ModelConfig model_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> tensors_;  ///< file of each tensor, by the tensor's stored name
  std::map<std::string, Place> places_;                    ///< by parameter name
};

}  // namespace trireme
