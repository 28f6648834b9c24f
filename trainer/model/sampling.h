#pragma once
#include <cstdint>
#include <vector>

namespace trireme {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< only the k most likely; 0: all
  double top_p = 1.0;        ///< of those, the fewest whose total probability reaches p
  int64_t vocab_size = 0;    ///< only ids below this, as the model may have more rows than the tokenizer has ids; 0: all
};

/// Draws a token from softmax(logits / temperature) under the options; `uniform` in [0,1) is the random number. Ties go to the lower id. Sorts only
/// as many logits as the draw needs. Errors: DataError if the logit of a candidate is NaN or +infinity; a token with -infinity is never drawn.
int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options, double uniform);

}  // namespace trireme
