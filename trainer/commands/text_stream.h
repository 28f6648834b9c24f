#pragma once
#include <span>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// The text of tokens as they come, in whole characters: bytes that a later token may complete are held back. Bytes that are no UTF-8 pass.
class TextStream {
 public:
  /// `before`: the tokens in front of the first. A decoder may join it to them.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before);

  std::string add(int32_t token);
  /// What was held back, at the end.
  std::string rest();

 private:
  std::string take(size_t end, const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;  ///< the last ones whose text was whole, and those since
  size_t context_;               ///< how many those last ones are
  size_t told_;                  ///< bytes of the text of tokens_
};

}  // namespace trireme
