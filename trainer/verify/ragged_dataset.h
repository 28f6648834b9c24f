#pragma once
#include "trainer/data/dataset.h"

namespace trireme {

/// Reproducible tokens with every irregularity that a mean over tokens can stumble on: target (3 sample + 5 t) % 7 == 0 is masked, and sample 3 is
/// masked whole.
class RaggedDataset final : public Dataset {
 public:
  /// `masked` false: every target counts. `documents`: each sequence holds two, cut at a place of its own, which do not attend to each other.
  RaggedDataset(int64_t sequences, int64_t sequence_length, int64_t vocab_size, bool masked = true, bool documents = false)
      : sequences_(sequences), length_(sequence_length), vocab_(vocab_size), masked_(masked), documents_(documents) {}
  int64_t sequences() const override { return sequences_; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override;

 private:
  int64_t sequences_, length_, vocab_;
  bool masked_, documents_;
};

}  // namespace trireme
