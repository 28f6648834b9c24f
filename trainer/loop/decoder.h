#pragma once
#include "trainer/loop/trainer.h"

namespace trireme {

/// Continues one text: its first tokens at once, then each new one alone, over the keys and values kept of those before it.
class Decoder {
 public:
  /// `tokens`: the text will not be longer. `keep` false: nothing is kept, and every token costs the whole text before it.
  Decoder(Trainer& trainer, int64_t tokens, bool keep);

  /// Logits [V] of what comes after `text`, on every rank. It is not empty, and begins with the text of the last call. Of a text longer
  /// than the model has positions it sees the last so many tokens, and as each of them is at another position than before, all are computed again.
  std::vector<double> logits(std::span<const int32_t> text);

 private:
  Trainer& trainer_;
  bool keep_;
  size_t kept_ = 0;  ///< tokens of the text whose keys and values the stage has
};

}  // namespace trireme
