#pragma once
#include <cstdint>
#include <vector>

namespace trireme {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< only the k most likely; 0: all
  double top_p = 1.0;        ///< of those, the fewest whose probabilities reach p
};

/// A token drawn from softmax(logits / temperature) under the options; `uniform` in [0,1) decides. Ties go to the lower token.
int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options, double uniform);

}  // namespace trireme
