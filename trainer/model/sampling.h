#pragma once
#include <cstdint>
#include <vector>

namespace trireme {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< only the k most likely; 0: all
  double top_p = 1.0;        ///< of those, the fewest whose probabilities reach p
  int64_t vocab_size = 0;    ///< only tokens below it, where the model has more rows than the tokenizer has ids; 0: all
};

/// A token drawn from softmax(logits / temperature) under the options; `uniform` in [0,1) decides. Ties go to the lower token. Sorts no more of the
/// logits than the draw looks at. Errors: DataError where the logit of a token that may be drawn is NaN or infinity; -infinity is a token that cannot be.
int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options, double uniform);

}  // namespace trireme
