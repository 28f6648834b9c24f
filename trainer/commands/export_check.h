#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/machine/machine.h"

namespace trireme {

/// Comparison of an exported folder with its source: logits of one sequence of pseudo-random tokens, in fp32 on the CPU.
struct ExportCheck {
  std::vector<int32_t> tokens;
  std::vector<double> logits;  ///< logits of the folder, [tokens, vocabulary]
  /// Largest difference to the source with its weights rounded to the folder's dtype. Any difference is an error of the export. NaN if only one of
  /// two values is NaN.
  double error = 0;
  bool equal = false;                  ///< true if both logits are bit-identical
  double rounding = 0;                 ///< largest effect of rounding the source's weights: 0 in fp32
  std::optional<double> merging = {};  ///< largest effect of merging the source's adapters; nullopt: it has none
};

/// Loads the source, then the folder, with one model in memory at a time. Errors: those of CheckpointModel.
ExportCheck check_export(const std::string& source, WeightKind kind, const std::string& folder, DType dtype, const RankPlace& place);

}  // namespace trireme
