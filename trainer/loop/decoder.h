#pragma once
#include "trainer/loop/trainer.h"

namespace trireme {

/// Decodes one text incrementally: processes the prompt at once, then each new token alone, with a KV cache of the tokens before it.
class Decoder {
 public:
  /// `tokens`: maximum length of the text. `keep` false: no KV cache, so each token recomputes the entire text before it.
  Decoder(Trainer& trainer, int64_t tokens, bool keep);

  /// Next-token logits [V] for `text`, on every rank. `text` is not empty and starts with the text of the previous call. If it is longer than
  /// max_positions, only its last max_positions tokens are used; their positions change with every call, so all of them are recomputed.
  std::vector<double> logits(std::span<const int32_t> text);

 private:
  Trainer& trainer_;
  bool keep_;
  size_t kept_ = 0;  ///< tokens whose keys and values are in the stage's KV cache
};

}  // namespace trireme
