#include "trainer/config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "kernels/core/check.h"

namespace trireme {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool all_of(std::string_view text, std::string_view more) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) { return is_digit(c) || more.find(c) != more.npos; });
}

/// Describes how some YAML parsers read this plain scalar as a number that is not in plain decimal digits; nullptr if no parser does.
const char* number_trap(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (text == ".inf" || text == ".Inf" || text == ".INF") return "infinity is not a value";
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return "NaN is not a value";
  if (text.size() < 2 || !is_digit(text[0])) return nullptr;
  const std::string_view rest = text.substr(2);
  if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X') && all_of(rest, "abcdefABCDEF_")) return "hexadecimal number";
  if (text[0] == '0' && (text[1] == 'o' || text[1] == 'O') && all_of(rest, "_")) return "octal number";
  if (text[0] == '0' && (text[1] == 'b' || text[1] == 'B') && all_of(rest, "_")) return "binary number";
  if (all_of(text, "_.") && text.find('_') != text.npos) return "number with underscores";
  if (all_of(text, ":.") && text.find(':') != text.npos && text.back() != ':') return "number in base 60";
  if (text[0] == '0' && is_digit(text[1]) && all_of(text, ".")) return "number with a leading zero (octal to some readers)";
  return nullptr;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, int source, const Sources& sources, Violations& violations)
      : text_(text), source_(source), sources_(sources), violations_(violations) {}

  YamlNode take_root() { return std::move(root_); }

  [[noreturn]] void stop(const Location& at, const std::string& rule) {
    violations_.add({at, path(), "", rule});
    violations_.raise(sources_);
    throw InternalError("a violation was not raised");
  }

  /// Counts columns in characters; yaml-cpp counts bytes. Marks mostly move forward, so counting continues from the previous mark of the same line.
  Location place_of(const YAML::Mark& mark) {
    if (mark.is_null()) return {source_, 1, 1};
    const size_t end = std::min(text_.size(), static_cast<size_t>(mark.pos));
    if (mark.line != counted_.line - 1 || end < counted_to_) {
      counted_ = {source_, mark.line + 1, 1};
      counted_to_ = end - std::min(end, static_cast<size_t>(mark.column));
    }
    for (; counted_to_ < end; ++counted_to_) counted_.column += (text_[counted_to_] & 0xC0) != 0x80;
    return counted_;
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) stop(place_of(mark), "a second document starts here, but only one is allowed; check the indentation of this line");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node{.at = place_of(mark)};
    if (!frames_.empty() && expecting_key()) stop(node.at, "a key is missing before ':'");
    if (!frames_.empty() && frames_.back().node.kind == YamlNode::Kind::kMapping) node.at = frames_.back().key_at;
    if (refuse_properties(mark, "", anchor)) node.kind = YamlNode::Kind::kRefused;
    place(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    violations_.add({place_of(mark), path(), "", "aliases (*name) are not allowed; write the value out"});
    if (!frames_.empty() && expecting_key()) stop(place_of(mark), "a key must be plain text; or a bracket is never closed");
    place({.kind = YamlNode::Kind::kRefused, .at = place_of(mark)});
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    const Location at = place_of(mark);
    refuse_properties(mark, tag, anchor);
    const char first = char_at(mark);
    if ((first == '"' || first == '\'') && !quote_ends(static_cast<size_t>(mark.pos))) stop(at, concat("the quote ", first, " is never closed"));
    YamlNode node{.kind = YamlNode::Kind::kScalar, .text = value, .at = at};
    node.quoted = first == '"' || first == '\'' || first == '|' || first == '>';
    if (!frames_.empty() && expecting_key()) return begin_entry(node);
    if (value.find('\0') != value.npos) stop(at, "a NUL character in the text");
    const char* trap = node.quoted ? nullptr : number_trap(value);
    if (trap) {
      violations_.add({at, path(), value, std::string(trap) + " is refused; write a plain decimal number, or quote it if text is meant"});
      node.kind = YamlNode::Kind::kRefused;
    }
    place(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMapping);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    YamlNode node;
    std::string path;
    bool has_key = false;
    std::string key = {};
    Location key_at = {};
    std::unordered_map<std::string, Location> seen = {};
  };

  bool expecting_key() const { return frames_.back().node.kind == YamlNode::Kind::kMapping && !frames_.back().has_key; }
  char char_at(const YAML::Mark& mark) const {
    return mark.pos >= 0 && static_cast<size_t>(mark.pos) < text_.size() ? text_[static_cast<size_t>(mark.pos)] : '\0';
  }

  /// Dotted path of the value now being read.
  std::string path() const {
    if (frames_.empty()) return source_ > 0 ? sources_.sets[static_cast<size_t>(source_ - 1)] : "";
    const Frame& frame = frames_.back();
    if (!frame.has_key) return frame.path;
    return frame.path.empty() ? frame.key : frame.path + "." + frame.key;
  }

  /// yaml-cpp accepts the end of the text as the end of a quoted scalar, so a missing quote is found here.
  bool quote_ends(size_t begin) const {
    const char quote = text_[begin];
    for (size_t i = begin + 1; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\')
        ++i;
      else if (quote == '\'' && text_[i] == quote && i + 1 < text_.size() && text_[i + 1] == quote)
        ++i;
      else if (text_[i] == quote)
        return true;
    }
    return false;
  }

  bool refuse_properties(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    // The mark is at the properties of the node. yaml-cpp gives the same tag for `! x` and a quoted scalar, and none for null: check the text too.
    const bool tagged = char_at(mark) == '!' || !(tag.empty() || tag == "?" || tag == "!");
    const bool anchored = char_at(mark) == '&' || anchor != YAML::NullAnchor;
    if (anchored) violations_.add({place_of(mark), path(), "", "anchors (&name) are not allowed"});
    if (tagged) violations_.add({place_of(mark), path(), "", "tags (!name) are not allowed"});
    return tagged || anchored;
  }

  void begin_entry(const YamlNode& key) {
    Frame& frame = frames_.back();
    frame.has_key = true;
    frame.key = key.text;
    frame.key_at = key.at;
    if (key.text == "<<" && !key.quoted) violations_.add({key.at, path(), "", "merge keys (<<) are not allowed; write the keys out"});
    const auto [first, fresh] = frame.seen.emplace(key.text, key.at);
    if (!fresh) violations_.add({key.at, path(), "", "duplicate key, first given at " + sources_.name_of(first->second)});
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    const Location at = place_of(mark);
    // Stopping here also bounds the recursion of the parser: it reports each collection before it descends into it.
    if (static_cast<int>(frames_.size()) == kMaxYamlDepth) stop(at, concat("nested more than ", kMaxYamlDepth, " deep"));
    if (!frames_.empty() && expecting_key()) stop(at, "a key must be plain text; or a bracket is never closed");
    refuse_properties(mark, tag, anchor);
    frames_.push_back({.node = {.kind = kind, .at = at}, .path = path()});
  }

  void close() {
    YamlNode node = std::move(frames_.back().node);
    frames_.pop_back();
    place(std::move(node));
  }

  void place(YamlNode node) {
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    node.key = std::move(frame.key);
    node.key_at = frame.key_at;
    frame.key.clear();
    frame.has_key = false;
    frame.node.children.push_back(std::move(node));
  }

  std::string_view text_;
  int source_;
  const Sources& sources_;
  Violations& violations_;
  int documents_ = 0;
  Location counted_{0, 0, 0};
  size_t counted_to_ = 0;
  std::vector<Frame> frames_;
  YamlNode root_{.kind = YamlNode::Kind::kMapping, .at = {}};
};

/// Length of the UTF-8 character at `i`; 0 if it is invalid (overlong forms and surrogates included).
size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u; };
  const auto tail = [&](size_t k) { return (byte(k) & 0xC0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead < 0xF0) return tail(1) && tail(2) && !(lead == 0xE0 && byte(1) < 0xA0) && !(lead == 0xED && byte(1) >= 0xA0) ? 3 : 0;
  if (lead >= 0xF0 && lead < 0xF5)
    return tail(1) && tail(2) && tail(3) && !(lead == 0xF0 && byte(1) < 0x90) && !(lead == 0xF4 && byte(1) >= 0x90) ? 4 : 0;
  return 0;
}

/// Checks the raw text before parsing: UTF-8, no control characters, no directives (yaml-cpp skips unknown ones).
void check_text(std::string_view text, TreeBuilder& builder, int source) {
  Location at{source, 1, 1};
  bool before_document = true;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    if (length == 0) builder.stop(at, "not UTF-8 text");
    if ((c < ' ' && c != '\n' && c != '\r' && c != '\t') || c == 0x7F)
      builder.stop(at, concat("control character ", static_cast<int>(c), " in the text"));
    if (at.column == 1 && before_document) {
      if (c == '%') builder.stop(at, "directives (%NAME) are not allowed");
      before_document = c == '#' || c == '\n' || c == '\r';
    }
    at = c == '\n' ? Location{source, at.line + 1, 1} : Location{source, at.line, at.column + 1};
    i += length;
  }
}

/// Which language of other programs' configurations this is; empty: YAML, or nothing that is known. A line decides that has no meaning in YAML: `[section]`,
/// and `name = value`, which JSON cannot begin with either.
std::string other_language(std::string_view text, int& line) {
  line = 0;
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
  };
  while (!text.empty()) {
    std::string_view one = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    ++line;
    one = one.substr(0, one.find_last_not_of(" \t\r") + 1);
    one.remove_prefix(std::min(one.find_first_not_of(" \t"), one.size()));
    if (one.empty() || one.front() == '#') continue;
    if (text.empty() && line == 1) return "";  // a value of --set
    const std::string_view inner = one.size() > 2 && one.front() == '[' && one.back() == ']' ? one.substr(1, one.size() - 2) : "";
    if (!inner.empty() && letter(inner.front()) && std::all_of(inner.begin(), inner.end(), letter)) return "TOML";
    const size_t name = static_cast<size_t>(std::find_if_not(one.begin(), one.end(), letter) - one.begin());
    const size_t equals = one.find_first_not_of(" \t", name);
    if (name > 0 && equals != one.npos && one[equals] == '=') return "TOML or Python";
    if (one.starts_with("import ") || one.starts_with("from ")) return "Python";
    return "";
  }
  return "";
}

/// The config.json of a model has other keys than the configuration of a run, and gets one message instead of one for each.
bool is_model_json(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text.starts_with('{') && text.find("\"model_type\"") != text.npos && text.find("\"architectures\"") != text.npos;
}

/// True if the indentation of line `number` (from 0) contains a tab, for which the parser's own message is misleading.
bool indented_with_tab(std::string_view text, int number) {
  size_t begin = 0;
  for (int line = 0; line < number && begin != text.npos; ++line)
    begin = text.find('\n', begin) == text.npos ? text.npos : text.find('\n', begin) + 1;
  if (begin == text.npos) return false;
  const std::string_view blanks = text.substr(begin, text.find_first_not_of(" \t", begin) - begin);
  return blanks.find('\t') != blanks.npos;
}

}  // namespace

std::string control_character_in(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < ' ' || c == 0x7F) return concat("control character ", static_cast<int>(c));
    // U+0080 to U+009F, which some terminals interpret
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (c == 0xC2 && next >= 0x80 && next < 0xA0) return concat("control character ", static_cast<int>(next));
  }
  return "";
}

YamlNode parse_yaml(std::string_view text, int source, const Sources& sources, Violations& violations) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // skip the byte order mark
  TreeBuilder builder(text, source, sources, violations);
  if (text.size() > kMaxYamlBytes) builder.stop({source, 1, 1}, concat("larger than ", kMaxYamlBytes, " bytes"));
  check_text(text, builder, source);
  int line = 0;
  if (const std::string language = other_language(text, line); !language.empty())
    builder.stop({source, line, 1}, concat("is ", language, ", but this file is read as YAML: [training] with steps = 10 is training: {steps: 10}"));
  if (is_model_json(text))
    builder.stop({source, 1, 1},
                 "is the config.json of a Hugging Face model, not the configuration of a run; `trireme checkpoint import` reads its folder and "
                 "writes the model section of a configuration");
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const bool tab = indented_with_tab(text, error.mark.line);
    builder.stop(builder.place_of(error.mark), error.msg + (tab ? "; the line is indented with a tab, but YAML requires spaces" : ""));
  }
  return builder.take_root();
}

}  // namespace trireme
