#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

class Dataset;
class Trainer;

/// What tune_products() found; the same on all ranks.
struct TunedProducts {
  int64_t timed = 0, known = 0;  ///< kinds of products, over all ranks
  std::string warning;           ///< about the file or the checkpoint; empty: none
};

/// Chooses the algorithms of cuBLASLt for the products of a training step, on GPUs with kernels.tuning_file; otherwise returns nothing and clears
/// trainer.product_algorithms().
///  - Algorithms that the checkpoint records (trainer.product_algorithms()) come first, then those of the file. The rest are timed in a rehearsal of
///    `step`, which changes only gradients.
///  - All ranks use the same algorithm for the same kind of product on the same GPU model: the one with the least sum of the ranks' times.
///  - Rank 0 adds what was timed to the file. A file that cannot be read as such is ignored and left as it is.
///  - trainer.product_algorithms() are afterwards those that the step uses, for the next checkpoints. Products that occur elsewhere, such as in
///    evaluations, use them too, or the heuristic's first algorithm.
/// Call it before the first step. Collective. Errors: IoError on all ranks if the file cannot be written.
std::optional<TunedProducts> tune_products(Trainer& trainer, const Dataset& data, int64_t step);

}  // namespace trireme
