#pragma once
// Models in the layout of Hugging Face transformers: config.json, model.safetensors or its shards with model.safetensors.index.json, tokenizer files.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/param.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config/config.h"

namespace trireme {

/// A folder with a model of type llama, mistral, qwen2, qwen3 or gpt2. Header and index are checked whole when it is opened: tensors missing, of a wrong
/// shape or dtype, or left over are refused (the first five are listed), files of shards missing or with overlapping tensors too. Of GPT-2 the causal masks
/// that old files carry are passed over, of LLaMA the RoPE frequencies; a head beside tied embeddings must equal them. Files may be links, as the caches of
/// Hugging Face have them. Source of the names: the model classes of transformers (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel).
/// Not thread-safe: one per rank.
class HuggingFaceReader {
 public:
  /// Errors: MissingFileError; DataError naming the file and key or tensor: another model type, an unsupported RoPE scaling or activation, ...
  explicit HuggingFaceReader(const std::filesystem::path& folder);

  const ModelConfig& model() const { return model_; }  ///< resolved, max_positions as config.json has it
  std::vector<std::string> names() const;              ///< of the parameter table
  std::array<int64_t, 2> shape(const std::string& name) const;
  DType dtype(const std::string& name) const;  ///< as it is stored
  /// Of floating dtypes any. Only the box is read, of a matrix that is split by columns what lies between its first and last element; it is not kept.
  /// Errors: DataError where there is no such parameter or the box lies outside it; IoError.
  void read(const std::string& name, const Box& box, DType dtype, void* out) const;

 private:
  /// A parameter: `part` of the tensor that `entry` of `file` is.
  struct Place {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    std::array<int64_t, 2> shape;
    int64_t offset;  ///< elements before it, and the strides of its rows and columns
    int64_t row_stride, column_stride;
  };

  void open_files();
  std::string stored_name(const std::string& name) const;
  void place_tensors();
  void check_tied_head() const;
  const Place& place_of(const std::string& name) const;

  std::filesystem::path folder_;
  ModelConfig model_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> tensors_;  ///< of all files, by their names there
  std::map<std::string, Place> places_;                    ///< of the parameters, by name
};

}  // namespace trireme
