#pragma once
// Reading of the components of a tokenizer.json. Errors: DataError, prefixed with `where`.
#include <string>

#include "kernels/core/check.h"
#include "trainer/files/strict_json.h"
#include "trainer/tokenizer/oniguruma.h"

namespace trireme {

inline bool flag(const nlohmann::json& object, const std::string& key, bool otherwise, const std::string& where) {
  if (!object.contains(key)) return otherwise;
  if (!object.at(key).is_boolean()) throw DataError(concat(where, ": \"", key, "\" must be true or false"));
  return object.at(key).get<bool>();
}

/// Refuses a setting that would change ids and is not supported, unless it is off.
inline void require_off(const nlohmann::json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) return;
  const bool off = found->is_null() || (found->is_boolean() && !found->get<bool>()) || (found->is_string() && found->get<std::string>().empty()) ||
                   (found->is_number() && found->get<double>() == 0);
  if (!off) throw DataError(concat(where, ": \"", key, "\" is ", found->dump(-1, ' ', true).substr(0, 60), ", which is not supported"));
}

inline bool is_null(const nlohmann::json& object, const std::string& key) { return !object.contains(key) || object.at(key).is_null(); }

/// The regex of a component's "pattern", which is one Regex, or a String that is then quoted.
inline std::string regex_of(const nlohmann::json& part, const std::string& where) {
  const nlohmann::json& pattern = object_member(part, "pattern", where);
  require_known_keys(pattern, {"Regex", "String"}, concat(where, ": \"pattern\""));
  if (pattern.size() != 1) throw DataError(concat(where, ": \"pattern\" must be one Regex or String"));
  return pattern.contains("Regex") ? string_member(pattern, "Regex", where) : quoted_regex(string_member(pattern, "String", where));
}

/// Calls part(json) for a component or, if it is a Sequence, for each element of its list `list`.
template <class Part>
void for_each_part(const nlohmann::json& component, const std::string& list, const std::string& where, Part&& part) {
  if (string_member(component, "type", where) != "Sequence") return part(component);
  require_known_keys(component, {"type", list}, where);
  for (const nlohmann::json& one : array_member(component, list, where)) for_each_part(one, list, where, part);
}

}  // namespace trireme
