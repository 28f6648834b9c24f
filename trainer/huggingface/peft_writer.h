#pragma once
#include <filesystem>

#include "trainer/huggingface/weight_source.h"

namespace trireme {

struct PeftSummary {
  int64_t layers = 0;
  int64_t bytes = 0;      ///< sum of tensor sizes
  std::string base = {};  ///< "base_model_name_or_path"; empty: unknown
};

/// Writes the adapters of `source` in the format of PEFT to the empty directory `folder`, in F32, BF16 or F16, and reads them back. The base is that of
/// a folder of PEFT, or training.initial_weights if that is a Hugging Face folder.
/// Errors: ConfigError if the model has no adapters, or if other parameters were trained too, which such a folder lacks; those of peft_tensors() and
/// WeightSource; DataError for values that are not finite, or overflow in `dtype`; IoError; InternalError if what is read back is something else.
PeftSummary write_peft(WeightSource& source, const std::filesystem::path& folder, DType dtype);

}  // namespace trireme
