#include "trainer/checkpoint/strict_json.h"

#include <limits>
#include <set>
#include <vector>

#include "kernels/core/check.h"

namespace trireme {

using nlohmann::json;

json parse_object(std::string_view text, const std::string& where) {
  constexpr int kMaxDepth = 32;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw DataError(concat(where, ": JSON nested deeper than ", kMaxDepth));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw DataError(concat(where, ": key ", parsed.dump(), " stands twice in one object"));
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

const json& member(const json& object, const std::string& key, const std::string& where) {
  if (!object.is_object() || !object.contains(key)) throw DataError(concat(where, ": \"", key, "\" is missing"));
  return object.at(key);
}

std::string string_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_string()) throw DataError(concat(where, ": \"", key, "\" is not a string"));
  return value.get<std::string>();
}

const json& array_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_array()) throw DataError(concat(where, ": \"", key, "\" is not a list"));
  return value;
}

int64_t integer(const json& value, const std::string& where) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMax)
    throw DataError(concat(where, ": ", value.dump(), " is not an integer in [0, 2^63)"));
  return value.get<int64_t>();
}

int64_t integer_member(const json& object, const std::string& key, const std::string& where) {
  return integer(member(object, key, where), concat(where, ": \"", key, "\""));
}

}  // namespace trireme
