#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

class Trainer;

/// Matrix products that a job computes with the plain kernel because cuBLASLt has none for their shape (kernels/cuda/matmul.h).
struct PlainProducts {
  int64_t per_step = 0;             ///< in the last queued step, sum over ranks
  std::vector<std::string> shapes;  ///< each once, since the start of the job, ordered by rank and first use
};

/// None on devices other than GPUs. Collective; the result is the same on all ranks.
PlainProducts plain_products(Trainer& trainer);

/// The warning for `shapes`, which must not be empty.
std::string plain_products_warning(int64_t per_step, const std::vector<std::string>& shapes);

}  // namespace trireme
