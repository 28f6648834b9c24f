#include "trainer/data/tokenizer.h"

#include "kernels/core/check.h"

namespace trireme {

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const {
  tokens.reserve(tokens.size() + text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;
  encode(text, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size()) throw DataError(concat("token ", token, " is outside the tokenizer's vocabulary of ", vocab_size()));
    text.push_back(static_cast<char>(token));
  }
  return text;
}

Tokenizer make_tokenizer(const std::string& spec) {
  if (spec != "bytes") throw ConfigError(concat("tokenizer=", spec, ": unknown tokenizer; allowed: bytes"));
  return Tokenizer();
}

}  // namespace trireme
