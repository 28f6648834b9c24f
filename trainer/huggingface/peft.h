#pragma once
// Adapters in the format of PEFT: adapter_config.json and adapter_model.safetensors, beside the Hugging Face folder of their base model.
// A tensor with several of our layers (c_attn of GPT-2) has one A and B there. PEFT's own share A among the layers. Those of
// peft_tensors() stack the A of the layers, and each layer has columns of B of its own.
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/huggingface/reader.h"

namespace trireme {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterTensors = "adapter_model.safetensors";

/// Whether `folder` has an adapter_config.json. Errors: DataError if it has the weights of a model, too.
bool is_peft_folder(const std::filesystem::path& folder);

/// A folder of adapters together with its base model, the folder that "base_model_name_or_path" names, from the current directory or from the folder.
/// Not thread-safe: one per rank.
class PeftReader {
 public:
  /// Errors: MissingFileError; DataError for what this program does not compute (DoRA, trained biases, layers that are no adapters, adapters of embeddings,
  /// several ranks), naming the key or tensor; those of HuggingFaceReader.
  explicit PeftReader(const std::filesystem::path& folder);

  const HuggingFaceReader& base() const { return *base_; }
  const std::filesystem::path& base_folder() const { return base_folder_; }
  const ModelConfig& model() const { return model_; }  ///< that of the base, with its adapters
  std::vector<std::string> names() const;              ///< in the parameter table, those of the base included
  std::array<int64_t, 2> shape(const std::string& name) const;
  DType dtype(const std::string& name) const;
  /// As HuggingFaceReader::read.
  void read(const std::string& name, const Box& box, DType dtype, void* out) const;

 private:
  /// A parameter of an adapter: the rectangle of a tensor from `column` on, whose rows are those that `part` has in the tensor.
  struct Place {
    const SafetensorsEntry* entry;
    HuggingFaceTensor::Part part;
    int64_t column;
  };
  void place(const HuggingFaceTensor& tensor);
  const SafetensorsEntry& entry(const std::string& name) const;
  void check_columns(const SafetensorsEntry& b, const HuggingFaceTensor& tensor) const;

  std::filesystem::path folder_, base_folder_;
  std::unique_ptr<HuggingFaceReader> base_;
  ModelConfig model_;
  nlohmann::json config_;
  std::unique_ptr<SafetensorsFile> file_;
  std::map<std::string, Place> places_;
};

/// A tensor of a folder of adapters, row-major: where its elements come from.
struct PeftTensor {
  std::string name;  ///< "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
  std::array<int64_t, 2> shape;
  struct Piece {
    std::string parameter;
    Box from;                      ///< in the parameter
    std::array<int64_t, 2> begin;  ///< in the tensor
  };
  std::vector<Piece> pieces;  ///< the other elements are 0
};
/// Those of the adapters of a resolved model. Errors: ConfigError if only some of the layers of one tensor have an adapter.
std::vector<PeftTensor> peft_tensors(const ModelConfig& model);

/// adapter_config.json. `base`: the path of the base model; empty: unknown, and written as null.
nlohmann::ordered_json peft_config(const ModelConfig& model, const std::string& base);

}  // namespace trireme
