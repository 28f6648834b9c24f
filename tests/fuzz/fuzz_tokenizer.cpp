// Reader of tokenizer.json, on the input as file, and its tokenizer: text to ids and back.
#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme::fuzz {
namespace {

/// Text for all kinds of pieces and merges: words, code, other scripts, runs of white space, special tokens, every byte.
std::string sample_text() {
  std::string text = "the cat, the hat: don't WE'LL 12345 3.14\r\n\n\n  if (a[i] != b) {\n\treturn; }    <|endoftext|> aaaaaaa abababab\nthe end ";
  text +=
      "Stra\xC3\x9F"
      "e \xC3\xA9 e\xCC\x81 \xE6\xBC\xA2\xE5\xAD\x97 \xD8\xB3\xD9\x84 \xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD \xC2\xA0\n\xE2\x80\x83 ";
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  return text + "the end\n";
}

/// Whether decoding restores the bytes: byte-level BPE without a normaliser and a prefix space whose splits and added tokens remove nothing.
bool keeps_bytes(std::string_view file) {
  const nlohmann::json root = nlohmann::json::parse(file);
  const nlohmann::json decoder = root.value("decoder", nlohmann::json());
  const std::string text = root.dump(), pieces = root.value("pre_tokenizer", nlohmann::json()).dump();
  const auto none = [](const std::string& in, std::initializer_list<const char*> words) {
    return std::all_of(words.begin(), words.end(), [&](const char* word) { return in.find(word) == in.npos; });
  };
  return decoder.is_object() && decoder.value("type", nlohmann::json()) == "ByteLevel" && root.value("normalizer", nlohmann::json()).is_null() &&
         pieces.find("\"add_prefix_space\":false") != pieces.npos &&
         none(pieces, {"\"add_prefix_space\":true", "Removed", "Delimiter", "White", "Bert"}) &&
         none(text, {"\"byte_fallback\":true", "strip\":true", "end_of_word_suffix\":\"", "continuing_subword_prefix\":\""});
}

void use(Tokenizer& tokenizer, bool exact) {
  static const std::string text = sample_text();
  require(tokenizer.vocab_size() > 0, "there are tokens");
  const std::vector<int32_t> bytes = tokenizer.token_bytes();
  require(static_cast<int64_t>(bytes.size()) == tokenizer.vocab_size(), "each token has a length");
  require(!tokenizer.end_of_text() || (*tokenizer.end_of_text() >= 0 && *tokenizer.end_of_text() < tokenizer.vocab_size()), "end of text is a token");
  const std::vector<int32_t> ids = tokenizer.encode(text);
  int64_t length = 0;
  for (const int32_t id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size(), "every id is in the vocabulary");
    require(bytes[static_cast<size_t>(id)] >= 0, "no token has a negative length");
    length += bytes[static_cast<size_t>(id)];
  }
  if (exact) {
    require(tokenizer.decode(ids) == text, "decoding restores the text");
    require(length <= static_cast<int64_t>(text.size()), "tokens have no more bytes than the text");
  }
  std::vector<int32_t> all(static_cast<size_t>(tokenizer.vocab_size()));
  std::iota(all.begin(), all.end(), 0);
  tokenizer.decode(all);
  for (const size_t shown : {text.size() - 1, text.size() / 2, size_t{60}, size_t{3}}) {
    const size_t cut = tokenizer.cut(std::string_view(text).substr(0, shown), true);
    require(cut <= shown, "a cut is within the given text");
    if (cut == 0) continue;
    std::vector<int32_t> parts;
    tokenizer.encode(std::string_view(text).substr(0, cut), parts, true);
    tokenizer.encode(std::string_view(text).substr(cut), parts, false);
    require(parts == ids, "parts give the ids of the whole text");
  }
}

}  // namespace

bool accepts(std::string_view input) {
  static const Scratch scratch;
  const std::filesystem::path path = scratch.put("tokenizer.json", input);
  std::optional<Tokenizer> tokenizer;
  if (!taken([&] { tokenizer.emplace(Tokenizer::open(path.string())); })) return false;
  taken([&] { use(*tokenizer, keeps_bytes(input)); });  // a regex may exceed its match limit
  return true;
}

}  // namespace trireme::fuzz
