#include "trainer/data/build/document_encoder.h"

#include <malloc.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/data/build/json_line.h"

namespace trireme {
namespace {

std::string unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      plain += text[i];
      continue;
    }
    const char next = ++i < text.size() ? text[i] : '\0';
    if (next != 'n' && next != 't' && next != '\\') throw ConfigError(concat("--template=", text, ": invalid escape; allowed \\n, \\t and \\\\"));
    plain += next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
  }
  return plain;
}

/// The name, spaces around it included, between `braces` opening braces at the start of `text` and as many closing ones; empty if there is none.
/// Other braces are text, as in JSON.
std::string_view braced_name(std::string_view text, size_t braces) {
  const size_t end = text.find('}');
  if (end == std::string_view::npos || !text.substr(end).starts_with(std::string(braces, '}'))) return {};
  const std::string_view inner = text.substr(braces, end - braces);
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto other = [](char c) { return (c >= '0' && c <= '9') || c == '-' || c == '.'; };
  const size_t first = inner.find_first_not_of(' '), last = inner.find_last_not_of(' ');
  if (first == std::string_view::npos || !letter(inner[first])) return {};
  const std::string_view name = inner.substr(first, last - first + 1);
  return std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || other(c); }) ? inner : std::string_view();
}

/// A template: `fields` stand between successive `texts`.
struct Template {
  std::vector<std::string> texts = {""}, fields;
};

Template split_template(std::string_view plain, const std::string& option) {
  Template made;
  while (!plain.empty()) {
    const size_t braces = std::min(plain.find_first_not_of('{'), plain.size());
    const std::string_view name = braces == 0 ? std::string_view() : braced_name(plain, braces);
    if (name.empty()) {
      made.texts.back() += plain.front();
      plain.remove_prefix(1);
      continue;
    }
    const bool field = braces % 2 == 1;  // {{ and }} around a name are the text { and }
    made.texts.back() += std::string(braces / 2, '{');
    if (!field) {
      made.texts.back() += name;
    } else if (name == "prompt" || name == "response") {
      made.fields.emplace_back(name);
      made.texts.emplace_back();
    } else {
      throw ConfigError(concat(option, ": unknown field {", name, "}; allowed {prompt} and {response}, whose JSON fields --prompt-field and ",
                               "--response-field name; {{", name, "}} is the text {", name, "}"));
    }
    made.texts.back() += std::string(braces / 2, '}');
    plain.remove_prefix(2 * braces + name.size());
  }
  return made;
}

struct Encoder {
  Tokenizer& tokenizer;
  EncodeBudget& turns;
  std::vector<std::vector<int32_t>>& tokens;

  /// Returns the number of tokens. Encodes in stretches to bound the tokenizer's working memory.
  int64_t encode(std::string_view text, bool first, const std::string& where) {
    constexpr size_t kStretch = 1 << 14;
    int64_t count = 0;
    for (size_t wanted = kStretch; !text.empty();) {
      size_t bytes = std::min(text.size(), wanted);
      if (bytes < text.size()) bytes = tokenizer.cut(text.substr(0, bytes), first);
      if (bytes == 0) {
        if (wanted >= kMaxUnsplitBytes) throw DataError(concat(where, ": more than ", kMaxUnsplitBytes >> 20, kUnsplittableMessage));
        wanted *= 2;
        continue;
      }
      count += encode_stretch(text.substr(0, bytes), first);
      text.remove_prefix(bytes);
      first = false;
      wanted = kStretch;
    }
    return count;
  }

  int64_t encode_stretch(std::string_view text, bool first) {
    if (tokens.empty() || tokens.back().size() >= kPieceBytes) tokens.emplace_back();
    const size_t before = tokens.back().size();
    const EncodeBudget::Turn turn(turns, text.size());
    tokenizer.encode(text, tokens.back(), first);
    if (text.size() > kPieceBytes) ::malloc_trim(0);  // free memory of this thread's arena is unavailable to the thread that has the next turn
    return static_cast<int64_t>(tokens.back().size() - before);
  }
};

struct Texts {
  std::string prompt, response;
  int64_t line;
};

Texts parse_line(std::string_view line, const DocumentRules& rules, const std::string& where) {
  if (!rules.instruction()) return {"", std::move(strings_in(line, {rules.field}, where, "--field")[0]), 0};
  const std::vector<std::string> texts = strings_in(line, {rules.prompt_field, rules.response_field}, where, "--prompt-field or --response-field");
  return {rules.before + texts[0] + rules.between, texts[1] + rules.after, 0};
}

std::vector<Texts> parse_lines(Piece& piece, const DocumentRules& rules) {
  std::vector<Texts> documents;
  std::string_view rest = piece.text;
  for (int64_t number = piece.line; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      documents.push_back(parse_line(line, rules, concat(piece.path, ":", number)));
      documents.back().line = number;
    } catch (const DataError& error) {
      if (!rules.skip_bad_lines) throw;
      if (piece.skipped++ == 0) piece.first_skipped = error.what();
    }
  }
  return documents;
}

}  // namespace

void parse_template(const std::string& text, DocumentRules& rules) {
  const std::string option = "--template=" + text;
  const Template parts = split_template(unescape(text), option);
  if (parts.fields != std::vector<std::string>{"prompt", "response"})
    throw ConfigError(concat(option, ": must contain {prompt} once and, after it, {response} once"));
  rules.before = parts.texts[0];
  rules.between = parts.texts[1];
  rules.after = parts.texts[2];
}

EncodeBudget::Turn::Turn(EncodeBudget& turns, size_t bytes) : turns_(turns), bytes_(bytes) {
  std::unique_lock lock(turns_.mutex_);
  turns_.ended_.wait(lock, [&] { return turns_.bytes_ == 0 || turns_.bytes_ + bytes_ <= kMaxUnsplitBytes; });
  turns_.bytes_ += bytes_;
}

EncodeBudget::Turn::~Turn() {
  {
    const std::lock_guard lock(turns_.mutex_);
    turns_.bytes_ -= bytes_;
  }
  turns_.ended_.notify_all();
}

void encode_piece(Tokenizer& tokenizer, const DocumentRules& rules, EncodeBudget& turns, Piece& piece) {
  Encoder encoder{tokenizer, turns, piece.tokens};
  if (!piece.lines) {
    piece.documents = {{encoder.encode(piece.text, piece.first, piece.path), 0, piece.last}};
    piece.text = std::string();
    return;
  }
  std::vector<Texts> documents = parse_lines(piece, rules);
  piece.text = std::string();  // the text and its tokens may both be large
  for (Texts& document : documents) {
    const std::string where = concat(piece.path, ":", document.line);
    const int64_t prompt = encoder.encode(document.prompt, true, where);
    const int64_t response = encoder.encode(document.response, document.prompt.empty(), where);
    piece.documents.push_back({prompt + response, prompt, true});
    document = {};
  }
}

}  // namespace trireme
