#include "trainer/commands/text_stream.h"

#include "kernels/core/rng.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

std::vector<std::string> pieces_of(const std::string& before, const std::string& text) {
  Tokenizer tokenizer = Tokenizer::open("bytes");
  TextStream stream(tokenizer, tokenizer.encode(before));
  std::vector<std::string> pieces;
  for (const int32_t token : tokenizer.encode(text)) pieces.push_back(stream.add(token));
  pieces.push_back(stream.rest());
  return pieces;
}

TEST_CASE("streamed text consists of complete characters") {
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of("x", "aé€😀b") == Pieces{"a", "", "é", "", "", "€", "", "", "", "😀", "b", ""});
  CHECK(pieces_of("", "\xE2\x82") == Pieces{"", "", "\xE2\x82"});                    // incomplete at the end: output by the final flush
  CHECK(pieces_of("x", "\xFF\x80g") == Pieces{"\xFF", "\x80", "g", ""});             // not UTF-8: unchanged
  CHECK(pieces_of("x", "\xE2\x82zz") == Pieces{"", "", "\xE2\x82z", "z", ""});       // a character that is never completed
  CHECK(pieces_of("caf\xC3", "\xA9s") == Pieces{"\xA9", "s", ""});                   // begun by the prompt, which has been output already
  CHECK(pieces_of("", "\xEF\xBF\xBD!") == Pieces{"", "", "", "\xEF\xBF\xBD!", ""});  // may be a decoder's placeholder for an incomplete character
}

TEST_CASE("streamed text: no byte is lost or repeated") {
  const uint64_t key = random_key(2, "bytes");
  for (uint64_t length = 0; length < 200; ++length) {
    std::string text;
    for (uint64_t i = 0; i < length; ++i)
      text += static_cast<char>(random_bits(key, length, i) % 3 == 0 ? 0xC0 + random_bits(key, i, length) % 64 : random_bits(key, i, length));
    std::string told;
    for (const std::string& piece : pieces_of("before", text)) told += piece;
    CHECK(told == text);
  }
}

}  // namespace
}  // namespace trireme::test
