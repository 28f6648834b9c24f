#include "trainer/tokenizer/decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "trainer/tokenizer/byte_fallback_json.h"
#include "trainer/tokenizer/json_parts.h"
#include "trainer/tokenizer/tokenizer_json.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {

using nlohmann::json;

namespace {

using Texts = std::vector<std::string>;

std::string joined(const Texts& texts, const char* between) {
  std::string made;
  for (size_t i = 0; i < texts.size(); ++i) made += (i > 0 ? between : "") + texts[i];
  return made;
}

/// Removes the spaces that pre-tokenization of English leaves before punctuation. Source: `tokenizers`, decoders::wordpiece::cleanup.
std::string cleaned(std::string text) {
  constexpr std::array<std::pair<const char*, const char*>, 11> kRules = {{{" .", "."},
                                                                           {" ?", "?"},
                                                                           {" !", "!"},
                                                                           {" ,", ","},
                                                                           {" ' ", "'"},
                                                                           {" n't", "n't"},
                                                                           {" 'm", "'m"},
                                                                           {" do not", " don't"},
                                                                           {" 's", "'s"},
                                                                           {" 've", "'ve"},
                                                                           {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) text = replaced(text, from, to);
  return text;
}

void decode_word_pieces(Texts& texts, const std::string& prefix, bool cleanup) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) texts[i] = texts[i].starts_with(prefix) ? texts[i].substr(prefix.size()) : " " + texts[i];
    if (cleanup) texts[i] = cleaned(texts[i]);
  }
}

/// Replaces runs of byte tokens by what their bytes say.
void decode_bytes(Texts& texts) {
  Texts made;
  std::string run;
  const auto finish = [&] {
    if (valid_utf8(run) == run.size()) {
      if (!run.empty()) made.push_back(run);
    } else {
      for (size_t i = 0; i < run.size(); ++i) made.emplace_back("\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& text : texts) {
    if (const std::optional<uint8_t> byte = byte_of_token(text)) {
      run.push_back(static_cast<char>(*byte));
    } else {
      finish();
      made.push_back(std::move(text));
    }
  }
  finish();
  texts = std::move(made);
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string made;
  for (size_t at = 0; at <= text.size();) {
    const size_t next = std::min(text.find(from, at), text.size());
    made.append(text.substr(at, next - at));
    if (next < text.size()) made.append(to);
    at = next < text.size() ? next + from.size() : text.size() + 1;
  }
  return made;
}

std::string with_replacements(std::string_view bytes) {
  std::string made;
  while (!bytes.empty()) {
    const size_t valid = valid_utf8(bytes);
    made.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    made += "\xEF\xBF\xBD";
    size_t wrong = 1;
    for (size_t length = 2; length <= std::min<size_t>(3, bytes.size()); ++length)
      if (unfinished_utf8(bytes.substr(0, length)) == length) wrong = length;
    bytes.remove_prefix(wrong);
  }
  return made;
}

TokenDecoder TokenDecoder::parse(const json& component, const std::string& where) {
  TokenDecoder made;
  if (!component.is_null()) for_each_part(component, "decoders", where, [&](const json& part) { made.add(part, where); });
  return made;
}

void TokenDecoder::add(const json& part, const std::string& where) {
  const std::string type = string_member(part, "type", where);
  if (type == "ByteLevel") {
    require_known_keys(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);  // none affects decoding
    steps_.emplace_back([](Texts& texts) {
      std::string bytes;
      for (const std::string& text : texts) bytes += from_byte_level(text).value_or(text);
      texts = {with_replacements(bytes)};
    });
  } else if (type == "WordPiece") {
    require_known_keys(part, {"type", "prefix", "cleanup"}, where);
    steps_.emplace_back([prefix = string_member(part, "prefix", where), cleanup = flag(part, "cleanup", true, where)](Texts& texts) {
      decode_word_pieces(texts, prefix, cleanup);
    });
  } else if (type == "Metaspace") {
    require_known_keys(part, {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}, where);
    const bool prepends = flag(part, "add_prefix_space", true, where) && part.value("prepend_scheme", json("always")) != json("never");
    steps_.emplace_back([mark = string_member(part, "replacement", where), prepends](Texts& texts) {
      for (size_t i = 0; i < texts.size(); ++i) texts[i] = replaced(texts[i], mark, i == 0 && prepends ? "" : " ");
    });
  } else if (type == "BPEDecoder") {
    require_known_keys(part, {"type", "suffix"}, where);
    steps_.emplace_back([suffix = string_member(part, "suffix", where)](Texts& texts) {
      for (size_t i = 0; !suffix.empty() && i < texts.size(); ++i) texts[i] = replaced(texts[i], suffix, i + 1 == texts.size() ? "" : " ");
    });
  } else if (type == "ByteFallback") {
    require_known_keys(part, {"type"}, where);
    steps_.emplace_back(decode_bytes);
  } else if (type == "Fuse") {
    require_known_keys(part, {"type"}, where);
    steps_.emplace_back([](Texts& texts) { texts = {joined(texts, "")}; });
  } else if (type == "Replace" && part.value("pattern", json()).contains("String")) {
    require_known_keys(part, {"type", "pattern", "content"}, where);
    const std::string from = string_member(part.at("pattern"), "String", where);
    if (from.empty()) throw DataError(concat(where, ": Replace of an empty text is not supported"));
    steps_.emplace_back([from, to = string_member(part, "content", where)](Texts& texts) {
      for (std::string& text : texts) text = replaced(text, from, to);
    });
  } else if (type == "Strip") {
    require_known_keys(part, {"type", "content", "start", "stop"}, where);
    steps_.emplace_back([content = string_member(part, "content", where), start = integer_member(part, "start", where),
                         stop = integer_member(part, "stop", where)](Texts& texts) {
      for (std::string& text : texts) {
        for (int64_t i = 0; i < start && !content.empty() && text.starts_with(content); ++i) text.erase(0, content.size());
        for (int64_t i = 0; i < stop && !content.empty() && text.ends_with(content); ++i) text.erase(text.size() - content.size());
      }
    });
  } else {
    throw DataError(
        concat(where, " ", type,
               " is not supported; supported: ByteLevel, WordPiece, Metaspace, BPEDecoder, ByteFallback, Fuse, Replace of a String, Strip, "
               "Sequence"));
  }
}

std::string TokenDecoder::apply(std::vector<std::string> tokens) const {
  if (steps_.empty()) return joined(tokens, " ");
  for (const Step& step : steps_) step(tokens);
  return joined(tokens, "");
}

}  // namespace trireme
