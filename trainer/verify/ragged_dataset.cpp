#include "trainer/verify/ragged_dataset.h"

#include "kernels/core/rng.h"

namespace trireme {

void RaggedDataset::read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const {
  const auto token = [&](int64_t t) {
    return static_cast<int32_t>(random_bits(random_key(7, "tokens"), static_cast<uint64_t>(sample * 1000 + t)) % static_cast<uint64_t>(vocab_));
  };
  for (int64_t t = 0; t < length_; ++t) {
    tokens[t] = sample < 0 ? 0 : token(t);
    const bool masked = sample < 0 || (masked_ && (sample == 3 || (3 * sample + 5 * t) % 7 == 0));
    targets[t] = masked ? -1 : token(t + 1);
  }
  const int64_t first = documents_ && length_ > 1 && sample >= 0 ? 1 + sample % (length_ - 1) : length_;
  segments.push_back(first);
  if (first < length_) segments.push_back(length_ - first);
}

}  // namespace trireme
