#include "trainer/files/strict_json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {

using nlohmann::json;

namespace {

/// A value for a message; what is long is cut.
std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  const std::string text = value.dump(-1, ' ', true);  // escaped
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace

json parse_object(std::string_view text, const std::string& where) {
  constexpr int kMaxDepth = 32;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw DataError(concat(where, ": JSON nested deeper than ", kMaxDepth));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event != json::parse_event_t::key) return true;
    const auto& key = parsed.get_ref<const std::string&>();
    // Keys are names that messages and tables repeat, on terminals too.
    if (std::any_of(key.begin(), key.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      throw DataError(concat(where, ": key ", shown(parsed), " has control characters"));
    if (!keys.back().insert(key).second) throw DataError(concat(where, ": key ", shown(parsed), " stands twice in one object"));
    return true;
  };
  json value;
  try {
    value = json::parse(text, watch);
  } catch (const json::exception& error) {
    throw DataError(concat(where, ": not valid JSON: ", error.what()));
  }
  if (!value.is_object()) throw DataError(concat(where, ": not a JSON object"));
  return value;
}

void require_known_keys(const json& object, std::initializer_list<std::string_view> known, const std::string& where) {
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
