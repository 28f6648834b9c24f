#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "trainer/huggingface/weight_source.h"

namespace trireme {

struct HuggingFaceOptions {
  DType dtype = DType::kF32;  ///< F32, BF16 or F16; values are rounded to nearest, ties to even
  int64_t max_shard_bytes = 5'000'000'000;
};

struct HuggingFaceSummary {
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< sum of tensor sizes
  int64_t files = 0;  ///< safetensors files
};

/// Size in bytes of the tensors of `model` (resolved) in `dtype`.
int64_t hugging_face_bytes(const ModelConfig& model, DType dtype);

/// Writes a model in the format of transformers to the empty directory `folder`: config.json, generation_config.json, tokenizer files and
/// model.safetensors; above max_shard_bytes, shards of at most that size (or one larger tensor) with model.safetensors.index.json. The output bytes
/// depend on model, weights and options only, not on the layout of the checkpoint. Needs memory for one tensor and a copy of it. Calls `progress`
/// with the bytes about to be written.
/// `source`: without adapters, or with merged ones. Errors: ConfigError of hugging_face_class; DataError for a finite weight that overflows in fp16; those of WeightSource; IoError.
HuggingFaceSummary write_hugging_face(WeightSource& source, const std::filesystem::path& folder, const HuggingFaceOptions& options,
                                      const std::function<void(int64_t bytes)>& progress);

}  // namespace trireme
