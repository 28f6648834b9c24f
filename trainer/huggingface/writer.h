#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "trainer/huggingface/weight_source.h"

namespace trireme {

struct HuggingFaceOptions {
  DType dtype = DType::kF32;  ///< F32, BF16 or F16; rounded to nearest, ties to even
  int64_t max_shard_bytes = 5'000'000'000;
};

/// What a folder holds.
struct HuggingFaceSummary {
  int64_t tensors = 0;
  int64_t bytes = 0;  ///< of the tensors
  int64_t files = 0;  ///< with tensors
};

/// Bytes of the tensors of `model` (resolved) in `dtype`.
int64_t hugging_face_bytes(const ModelConfig& model, DType dtype);

/// Fills an empty directory with what transformers opens: config.json, generation_config.json, model.safetensors or, where that would exceed max_shard_bytes,
/// shards of up to so many bytes (or one larger tensor) with model.safetensors.index.json, and tokenizer files. The bytes are a function of model, weights and
/// options, never of the layout that a checkpoint was saved in. Holds one tensor at a time, and a copy of it. `progress` hears of bytes that are written.
/// Errors: ConfigError of hugging_face_class; DataError for a weight that is finite and would not be in fp16; those of WeightSource; IoError.
HuggingFaceSummary write_hugging_face(WeightSource& source, const std::filesystem::path& folder, const HuggingFaceOptions& options,
                                      const std::function<void(int64_t bytes)>& progress);

}  // namespace trireme
