#include "trainer/files/strict_json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {

using nlohmann::json;

namespace {

/// A value for a message, truncated if long.
std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  const std::string text = value.dump(-1, ' ', true);  // escaped
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

/// True if brackets are nested deeper than allowed, before any value is made: code that copies, writes or frees a value calls itself for each level.
/// Up to the first syntax error, where every parser ends, this counts what a parser counts.
bool is_too_deep(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return true;
    } else if (c == '}' || c == ']') {
      depth -= depth > 0 ? 1 : 0;
    }
  }
  return false;
}

void check_depth(std::string_view text, const std::string& where) {
  if (is_too_deep(text)) throw DataError(concat(where, ": JSON nested deeper than ", kMaxJsonDepth));
}

template <class Json>
Json parsed(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const json::exception& error) {
    constexpr size_t kMost = 240;                      // the message quotes the last token read, which may be a long string
    const std::string text_of_library = error.what();  // "[json.exception.parse_error.101] parse error at line 1 ..."
    const size_t words = text_of_library.find("] ");
    const std::string message = words == text_of_library.npos ? text_of_library : text_of_library.substr(words + 2);
    throw DataError(concat(where, ": not valid JSON: ", message.size() <= kMost ? message : message.substr(0, kMost) + "..."));
  }
}

/// Refuses duplicate keys and oversized documents in a separate pass before parsing: json::parse with a callback takes time quadratic
/// in the number of an object's members. A syntax error ends the pass; the parser then reports it.
class Watch : public json::json_sax_t {
 public:
  Watch(const std::string& where, ControlCharacters control) : where_(where), control_(control) {}

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(json::number_integer_t) override { return count(); }
  bool number_unsigned(json::number_unsigned_t) override { return count(); }
  bool number_float(json::number_float_t, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(json::binary_t&) override { return count(); }
  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

  bool key(std::string& key) override {
    // Messages and tables repeat keys, also on terminals.
    if (control_ == ControlCharacters::kRefused && std::any_of(key.begin(), key.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      throw DataError(concat(where_, ": key ", shown(key), " has control characters"));
    if (!keys_.back().insert(key).second) throw DataError(concat(where_, ": duplicate key ", shown(key), " in one object"));
    return true;
  }

 private:
  static constexpr int64_t kMaxValues = int64_t{1} << 26;  // enough for a manifest of thousands of ranks; each takes about 40 bytes of memory

  bool count() {
    if (++values_ > kMaxValues) throw DataError(concat(where_, ": JSON with more than ", kMaxValues, " values"));
    return true;
  }
  bool open() {
    keys_.emplace_back();
    return count();
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& where_;
  ControlCharacters control_;
  int64_t values_ = 0;
  std::vector<std::set<std::string>> keys_;  // keys of each open object; empty for a list
};

}  // namespace

json parse_object(std::string_view text, const std::string& where, ControlCharacters control) {
  check_depth(text, where);
  Watch watch(where, control);
  json::sax_parse(text, &watch);
  json value = parsed<json>(text, where);
  if (!value.is_object()) throw DataError(concat(where, ": not a JSON object"));
  return value;
}

template <class Json>
Json parse_value(std::string_view text, const std::string& where) {
  check_depth(text, where);
  return parsed<Json>(text, where);
}
template json parse_value<json>(std::string_view, const std::string&);
template nlohmann::ordered_json parse_value<nlohmann::ordered_json>(std::string_view, const std::string&);

json unpack_value(std::string_view bytes, const std::string& where) {
  try {
    return json::from_msgpack(bytes);
  } catch (const json::exception&) {
    throw DataError(concat(where, ": not valid MessagePack"));
  }
}

template <class Json>
Json json_line(std::string_view line) {
  if (line.size() > kMaxJsonLine || is_too_deep(line)) return {};
  Json value = Json::parse(line, nullptr, false);
  return value.is_object() ? value : Json();
}
template json json_line<json>(std::string_view);
template nlohmann::ordered_json json_line<nlohmann::ordered_json>(std::string_view);

void require_known_keys(const json& object, const std::vector<std::string_view>& known, const std::string& where) {
  if (!object.is_object()) throw DataError(concat(where, ": is ", shown(object), "; expected an object"));
  for (const auto& [key, unused] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) throw DataError(concat(where, ": unknown key ", shown(key)));
}

const json& member(const json& object, const std::string& key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) throw DataError(concat(where, ": \"", key, "\" is missing"));
  return object.at(key);
}

const json& object_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_object()) throw DataError(concat(where, ": \"", key, "\" is ", shown(value), "; expected an object"));
  return value;
}

const json& array_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_array()) throw DataError(concat(where, ": \"", key, "\" is ", shown(value), "; expected a list"));
  return value;
}

std::string string_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_string()) throw DataError(concat(where, ": \"", key, "\" is ", shown(value), "; expected a string"));
  return value.get<std::string>();
}

std::map<std::string, std::string> strings_of(const json& object, const std::string& where) {
  if (!object.is_object()) throw DataError(concat(where, ": is ", shown(object), "; expected an object"));
  std::map<std::string, std::string> strings;
  for (const auto& [key, unused] : object.items()) strings[key] = string_member(object, key, where);
  return strings;
}

int64_t integer(const json& value, const std::string& where, int64_t minimum, int64_t maximum) {
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kMaxInteger));
  if (!fits || value.get<int64_t>() < minimum || value.get<int64_t>() > maximum)
    throw DataError(concat(where, ": is ", shown(value), "; expected an integer in [", minimum, ", ", maximum, "]"));
  return value.get<int64_t>();
}

int64_t integer_member(const json& object, const std::string& key, const std::string& where, int64_t minimum, int64_t maximum) {
  return integer(member(object, key, where), concat(where, ": \"", key, "\""), minimum, maximum);
}

}  // namespace trireme
