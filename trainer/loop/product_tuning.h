#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "trainer/checkpoint/manifest.h"

namespace trireme {

class Dataset;
class Trainer;

/// Reads the file of kernels.tuning_file, if it exists, so that a run with an unusable one ends before it starts.
/// Errors: DataError if it is not a tuning file; IoError if it cannot be read or written.
void check_tuning_file(const std::string& path);

/// What tune_products() found; the same on all ranks.
struct TunedProducts {
  AlgorithmsByGpu algorithms;    ///< those that the step uses
  int64_t timed = 0, known = 0;  ///< kinds of products in `algorithms`: timed now, and taken from checkpoint or file
  std::string note = {};         ///< why kinds were timed although algorithms were known; empty: no reason to tell
};

/// With kernels.tuning_file, on GPUs: chooses the algorithms of cuBLASLt for the products of a training step, for all products from now on. Otherwise
/// returns nothing.
///  - `recorded` (those of the checkpoint that a run resumes from) come first, then those of the file. The rest are timed in a rehearsal of `step`,
///    which changes only gradients.
///  - All ranks use the same algorithm for the same kind of product on the same GPU model: the one with the least sum of the ranks' times.
///  - Rank 0 reads the file, and adds what was timed.
/// Call it before the first step. Collective. Errors, on all ranks: those of check_tuning_file; IoError if the file cannot be written.
std::optional<TunedProducts> tune_products(Trainer& trainer, const Dataset& data, int64_t step, const AlgorithmsByGpu& recorded = {});

}  // namespace trireme
