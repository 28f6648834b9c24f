#include "trainer/loop/decoder.h"

#include <algorithm>

namespace trireme {

Decoder::Decoder(Trainer& trainer, int64_t tokens, bool keep) : trainer_(trainer), keep_(keep) {
  if (keep) trainer.stage().make_cache(trainer.context(), tokens);
}

std::vector<double> Decoder::logits(std::span<const int32_t> text) {
  const auto positions = static_cast<size_t>(trainer_.config().model.max_positions.value());
  const std::span<const int32_t> seen = text.last(std::min(text.size(), positions));
  const size_t known = keep_ && seen.size() == text.size() ? std::min(kept_, text.size() - 1) : 0;
  std::vector<double> logits = trainer_.next_token_logits(seen.subspan(known), static_cast<int64_t>(known));
  kept_ = text.size();
  return logits;
}

}  // namespace trireme
