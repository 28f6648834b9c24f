#pragma once
#include <span>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// Decodes a stream of tokens into text in complete characters. Bytes that a later token may complete are held back; invalid UTF-8 passes through.
class TextStream {
 public:
  /// `before`: the preceding tokens, which may affect how the first token decodes.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before);

  std::string add(int32_t token);
  /// Returns the text that was held back; call at the end.
  std::string rest();

 private:
  std::string take(size_t end, const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;  ///< the last tokens with complete text, and those since
  size_t context_;               ///< number of tokens with complete text at the front of tokens_
  size_t told_;                  ///< bytes of the text of tokens_ that were returned
};

}  // namespace trireme
