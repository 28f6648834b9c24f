// For builds without the SentencePiece library: the constructor throws, so the other members are never called.
#include "kernels/core/check.h"
#include "trainer/tokenizer/sentencepiece.h"

namespace trireme {

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view, const std::string& where, const std::vector<AddedToken>&, bool) {
  throw ConfigError(concat(where, ": this build cannot read SentencePiece models; install libsentencepiece-dev and rebuild Trireme"));
}
int64_t SentencePieceTokenizer::vocab_size() const { return 0; }
void SentencePieceTokenizer::encode(std::string_view, std::vector<int32_t>&, bool) const {}
size_t SentencePieceTokenizer::cut(std::string_view) const { return 0; }
std::string SentencePieceTokenizer::decode(std::span<const int32_t>) const { return {}; }
std::vector<int32_t> SentencePieceTokenizer::token_bytes() const { return {}; }
std::optional<int32_t> SentencePieceTokenizer::end_of_text() const { return std::nullopt; }
std::optional<int32_t> SentencePieceTokenizer::begin_of_text() const { return std::nullopt; }
std::optional<int32_t> SentencePieceTokenizer::added_token(std::string_view) const { return std::nullopt; }

}  // namespace trireme
