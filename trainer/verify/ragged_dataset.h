#pragma once
#include "trainer/data/dataset.h"

namespace trireme {

/// Reproducible tokens, irregularly masked to expose wrong means over tokens: targets with (3 sample + 5 t) % 7 == 0 are masked, and all targets of
/// sample 3.
class RaggedDataset final : public Dataset {
 public:
  /// `masked` false: no target is masked. `documents`: each sequence consists of two documents, split at a varying place.
  RaggedDataset(int64_t sequences, int64_t sequence_length, int64_t vocab_size, bool masked = true, bool documents = false)
      : sequences_(sequences), length_(sequence_length), vocab_(vocab_size), masked_(masked), documents_(documents) {}
  int64_t sequences() const override { return sequences_; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override;

 private:
  int64_t sequences_, length_, vocab_;
  bool masked_, documents_;
};

}  // namespace trireme
