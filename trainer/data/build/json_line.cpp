#include "trainer/data/build/json_line.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr size_t kMaxLineDepth = 32;
constexpr size_t kShownFields = 8;
/// U+FDD0, a code point that is no character, stands for half a surrogate pair.
constexpr std::string_view kHalf = "\xef\xb7\x90", kEscapedHalf = "\\ufdd0";

/// A value for a message, truncated if long.
std::string in_words(const json& value) {
  constexpr size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

/// Collects the strings at `fields` without building a tree.
class FieldReader : public json::json_sax_t {
 public:
  FieldReader(const std::vector<std::string>& fields, const std::string& where) : fields_(fields), where_(where), texts_(fields.size()) {}

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(json::number_integer_t value) override { return other(std::to_string(value)); }
  bool number_unsigned(json::number_unsigned_t value) override { return other(std::to_string(value)); }
  bool number_float(json::number_float_t, const std::string& text) override { return other(text); }
  bool binary(json::binary_t&) override { return other("binary"); }
  bool string(std::string& value) override {
    if (const auto field = place()) {
      texts_[*field] = std::move(value);
    } else if (is_named() && seen_.size() < kShownFields) {
      seen_.push_back(path_);
    }
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ > 0) other("an object");
    is_object_ = is_object_ || depth_ == 0;
    return open(false);
  }
  bool start_array(size_t) override {
    other("a list");
    if (is_named() && lists_seen_.size() < kShownFields) lists_seen_.push_back(path_);
    return open(true);
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& key) override {
    path_.resize(levels_.back().path);
    if (lists_ == 0) path_ += (path_.empty() ? "" : ".") + key;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    problem_ = error.what();
    return false;
  }

  const std::string& problem() const { return problem_; }
  bool is_object() const { return is_object_; }
  const std::vector<std::string>& seen() const { return seen_; }
  const std::vector<std::string>& lists_seen() const { return lists_seen_; }
  std::vector<std::optional<std::string>>& texts() { return texts_; }

 private:
  struct Level {
    size_t path;  ///< length of the path to it
    bool list;
  };

  bool is_named() const { return depth_ > 0 && lists_ == 0; }
  /// The wanted field of the current value, which may have only one.
  std::optional<size_t> place() {
    if (!is_named()) return std::nullopt;
    const auto found = std::find(fields_.begin(), fields_.end(), path_);
    if (found == fields_.end()) return std::nullopt;
    const auto field = static_cast<size_t>(found - fields_.begin());
    if (texts_[field]) throw DataError(concat(where_, ": duplicate key ", in_words(json(path_)), " in one object"));
    return field;
  }
  bool other(const std::string& what) {
    if (place()) throw DataError(concat(where_, ": ", in_words(json(path_)), " is ", what, "; expected a string"));
    return true;
  }
  bool open(bool list) {
    if (depth_ == kMaxLineDepth) throw DataError(concat(where_, ": JSON nested deeper than ", kMaxLineDepth));
    ++depth_;
    lists_ += list ? 1 : 0;
    levels_.push_back({path_.size(), list});
    return true;
  }
  bool close() {
    path_.resize(levels_.back().path);
    lists_ -= levels_.back().list ? 1 : 0;
    levels_.pop_back();
    --depth_;
    return true;
  }

  const std::vector<std::string>& fields_;
  const std::string& where_;
  std::vector<std::optional<std::string>> texts_;
  std::vector<std::string> seen_, lists_seen_;
  std::vector<Level> levels_;
  std::string path_, problem_;
  size_t depth_ = 0, lists_ = 0;
  bool is_object_ = false;
};

bool is_hex(std::string_view digits) { return digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos; }

/// Whether an escape \uXXXX at `at` is the first (D800 to DBFF) or the second (DC00 to DFFF) half of a pair.
bool is_half(std::string_view text, size_t at, bool second) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u' || !is_hex(text.substr(at + 2, 4))) return false;
  const unsigned long unit = std::stoul(std::string(text.substr(at + 2, 4)), nullptr, 16);
  return second ? unit >= 0xDC00 && unit <= 0xDFFF : unit >= 0xD800 && unit <= 0xDBFF;
}

/// The same line with what Python's json.dumps writes and JSON does not have made readable: NaN and infinities become null, and halves of surrogate
/// pairs the mark kHalf. The text of a line that has none is not changed.
std::string made_readable(std::string_view line) {
  std::string out;
  out.reserve(line.size());
  bool quoted = false;
  for (size_t i = 0; i < line.size();) {
    if (quoted && line[i] == '\\') {
      if (is_half(line, i, false) && is_half(line, i + 6, true)) {
        out += line.substr(i, 12);
        i += 12;
      } else if (is_half(line, i, false) || is_half(line, i, true)) {
        out += kEscapedHalf;
        i += 6;
      } else {
        out += line.substr(i, 2);
        i += 2;
      }
      continue;
    }
    if (line[i] == '"') quoted = !quoted;
    const std::string_view rest = line.substr(i);
    const std::string_view word = quoted                          ? ""
                                  : rest.starts_with("NaN")       ? "NaN"
                                  : rest.starts_with("Infinity")  ? "Infinity"
                                  : rest.starts_with("-Infinity") ? "-Infinity"
                                                                  : "";
    if (word.empty()) {
      out += line[i++];
      continue;
    }
    out += "null";
    i += word.size();
  }
  return out;
}

}  // namespace

std::vector<std::string> strings_in(std::string_view line, const std::vector<std::string>& fields, const std::string& where,
                                    const std::string& option) {
  FieldReader first(fields, where);
  FieldReader* read = &first;
  json::sax_parse(line, &first);
  std::optional<FieldReader> second;
  if (!first.problem().empty()) {
    read = &second.emplace(fields, where);
    json::sax_parse(made_readable(line), read);
  }
  if (!read->problem().empty()) {
    constexpr size_t kMost = 240;  // the message quotes the last token read, which may be a long string
    const std::string& message = first.problem();
    throw DataError(concat(where, ": not valid JSON: ", message.size() <= kMost ? message : message.substr(0, kMost) + "..."));
  }
  if (!read->is_object()) throw DataError(concat(where, ": not a JSON object"));
  std::vector<std::string> texts;
  for (size_t i = 0; i < fields.size(); ++i) {
    std::optional<std::string>& text = read->texts()[i];
    const std::string name = in_words(json(fields[i]));
    if (!text) {
      const auto quoted = [](const std::vector<std::string>& paths) {
        std::vector<std::string> words;
        for (const std::string& path : paths) words.push_back(in_words(json(path)));
        return joined(words, ", ");
      };
      std::string there = "; the line has no text in any other field";
      if (!read->seen().empty())
        there = concat("; the line has texts in ", quoted(read->seen()), ", which ", option, " can name");
      else if (!read->lists_seen().empty())
        there = concat("; the line has lists in ", quoted(read->lists_seen()),
                       ": write the parts of each document, such as the turns of a chat, into one text");
      throw DataError(concat(where, ": ", name, " is missing", there));
    }
    if (second && text->find(kHalf) != text->npos) throw DataError(concat(where, ": ", name, " has half of a surrogate pair, which is no character"));
    texts.push_back(std::move(*text));
  }
  return texts;
}

std::vector<std::string> string_fields(std::string_view line) {
  const std::vector<std::string> none;
  FieldReader reader(none, "");
  try {
    json::sax_parse(made_readable(line), &reader);
  } catch (const Error&) {  // nested too deeply
    return {};
  }
  return reader.problem().empty() && reader.is_object() ? reader.seen() : std::vector<std::string>();
}

}  // namespace trireme
