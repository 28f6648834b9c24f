#pragma once
// JSON from files that may be damaged or hostile: duplicate keys, deep nesting and wrong types are refused by name.
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme {

/// Parses an object. `where` (a file's name) opens every message. Errors: DataError.
nlohmann::json parse_object(std::string_view text, const std::string& where);

/// A member of an object, of the type asked for. Errors: DataError where it is missing or of another type.
const nlohmann::json& member(const nlohmann::json& object, const std::string& key, const std::string& where);
std::string string_member(const nlohmann::json& object, const std::string& key, const std::string& where);
const nlohmann::json& array_member(const nlohmann::json& object, const std::string& key, const std::string& where);
/// An integer in [0, 2^63).
int64_t integer(const nlohmann::json& value, const std::string& where);
int64_t integer_member(const nlohmann::json& object, const std::string& key, const std::string& where);

}  // namespace trireme
