#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/machine.h"

namespace trireme {

/// What an exported folder computes beside its source, in fp32 on the CPU, for one sequence of pseudo-random tokens.
struct ExportCheck {
  std::vector<int32_t> tokens;
  std::vector<double> logits;  ///< of the folder: [tokens, vocabulary]
  /// To the source with its weights rounded as the folder's are, which must compute the same bits: every other error is one of the export. NaN where one is
  /// a number and the other is not.
  double error = 0;
  bool equal = false;   ///< those bits are the same
  double rounding = 0;  ///< largest difference to the source as it is: 0 in fp32
};

/// Loads the source, then the folder: one model in memory at a time. Errors: those of CheckpointModel.
ExportCheck check_export(const std::string& source, WeightKind kind, const std::string& folder, DType dtype, const RankPlace& place);

}  // namespace trireme
