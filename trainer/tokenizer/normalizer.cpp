#include "trainer/tokenizer/normalizer.h"

#include <utility>

#include "trainer/tokenizer/json_parts.h"
#include "trainer/tokenizer/oniguruma.h"
#include "trainer/tokenizer/precompiled.h"
#include "trainer/tokenizer/regex.h"
#include "trainer/tokenizer/utf8.h"

namespace trireme {

using nlohmann::json;

namespace {

/// Calls character(code point) for each character; bytes that are not UTF-8 are kept. `character` appends to `made`.
template <class Character>
std::string map_characters(std::string_view text, Character&& character) {
  std::string made;
  while (!text.empty()) {
    const CodePoint next = first_code_point(text);
    if (next.bytes == 0) {
      made.push_back(text.front());
      text.remove_prefix(1);
      continue;
    }
    character(next.value, made);
    text.remove_prefix(next.bytes);
  }
  return made;
}

std::string lowercase(std::string_view text) {
  return map_characters(text, [](uint32_t c, std::string& made) { append_lowercase(c, made); });
}

template <class Drops>
std::string without(std::string_view text, Drops&& drops) {
  return map_characters(text, [&](uint32_t c, std::string& made) {
    if (!drops(c)) made += to_utf8(c);
  });
}

std::string strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_white_space(first_code_point(text).value)) text.remove_prefix(first_code_point(text).bytes);
  while (right && !text.empty() && is_white_space(last_code_point(text).value)) text.remove_suffix(last_code_point(text).bytes);
  return std::string(text);
}

bool is_chinese(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/// Removes control characters and makes every white space a space. Source of these rules: BertNormalizer of `tokenizers`.
std::string clean(std::string_view text) {
  return map_characters(text, [](uint32_t c, std::string& made) {
    const bool white = is_white_space(c);
    const bool control = c != '\t' && c != '\n' && c != '\r' && general_category(c).front() == 'C' && general_category(c) != "Cn";
    if (c == 0 || c == 0xFFFD || control) return;
    made += white ? " " : to_utf8(c);
  });
}

std::string apart_chinese(std::string_view text) {
  return map_characters(text, [](uint32_t c, std::string& made) {
    const bool chinese = is_chinese(c);
    made += concat(chinese ? " " : "", to_utf8(c), chinese ? " " : "");
  });
}

}  // namespace

Normalizer Normalizer::parse(const json& component, const std::string& where) {
  Normalizer made;
  if (!component.is_null()) for_each_part(component, "normalizers", where, [&](const json& part) { made.add(part, where); });
  return made;
}

Normalizer Normalizer::nfc(bool on) {
  Normalizer made;
  if (on) made.add({{"type", "NFC"}}, "NFC");
  return made;
}

void Normalizer::add(const json& part, const std::string& where) {
  const std::string type = string_member(part, "type", where);
  const auto take = [&](Step step) { steps_.push_back(std::move(step)); };
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    require_known_keys(part, {"type"}, where);
    if (type == "NFC") {
      ++nfc_steps_;
      take([](std::string_view text) {
        std::string room;
        return std::string(to_nfc(text, room));
      });
    } else {
      take([composed = type == "NFKC", compatible = type != "NFD"](std::string_view text) { return to_form(text, composed, compatible); });
    }
  } else if (type == "Lowercase") {
    require_known_keys(part, {"type"}, where);
    take(lowercase);
  } else if (type == "StripAccents") {
    require_known_keys(part, {"type"}, where);
    take([](std::string_view text) { return without(text, [](uint32_t c) { return general_category(c).front() == 'M'; }); });
  } else if (type == "Strip") {
    require_known_keys(part, {"type", "strip_left", "strip_right"}, where);
    take([left = flag(part, "strip_left", true, where), right = flag(part, "strip_right", true, where)](std::string_view text) {
      return strip(text, left, right);
    });
  } else if (type == "Prepend") {
    require_known_keys(part, {"type", "prepend"}, where);
    take([prefix = string_member(part, "prepend", where)](std::string_view text) { return text.empty() ? std::string() : concat(prefix, text); });
  } else if (type == "Replace") {
    require_known_keys(part, {"type", "pattern", "content"}, where);
    const std::string regex = regex_of(part, concat(where, ": Replace"));
    take([code = compile_regex(regex, where), content = string_member(part, "content", where), where](std::string_view text) {
      std::string made;
      while (!text.empty()) {  // between bytes that are not UTF-8, which no regex matches
        const size_t valid = valid_utf8(text);
        made += replace_matches(code, text.substr(0, valid), content, where);
        made.append(text.substr(valid, 1));
        text.remove_prefix(std::min(text.size(), valid + 1));
      }
      return made;
    });
  } else if (type == "Precompiled") {
    require_known_keys(part, {"type", "precompiled_charsmap"}, where);
    if (is_null(part, "precompiled_charsmap")) return;
    const PrecompiledNormalization rules(string_member(part, "precompiled_charsmap", where), concat(where, ": precompiled_charsmap"));
    take([rules](std::string_view text) { return rules.apply(text); });
  } else if (type == "BertNormalizer") {
    require_known_keys(part, {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}, where);
    const bool lower = flag(part, "lowercase", true, where);
    if (flag(part, "clean_text", true, where)) take(clean);
    if (flag(part, "handle_chinese_chars", true, where)) take(apart_chinese);
    if (is_null(part, "strip_accents") ? lower : flag(part, "strip_accents", lower, where))
      take([](std::string_view text) { return without(to_form(text, false, false), [](uint32_t c) { return general_category(c) == "Mn"; }); });
    if (lower) take(lowercase);
  } else {
    throw DataError(concat(where, " ", type,
                           " is not supported; supported: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled, "
                           "BertNormalizer, Sequence"));
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& room) const {
  if (steps_.empty()) return text;
  if (at_most_nfc()) return to_nfc(text, room);
  std::string made(text);
  for (const Step& step : steps_) made = step(made);
  room = std::move(made);
  return room;
}

}  // namespace trireme
