#pragma once
// JSON from files that may be damaged or hostile: duplicate keys, deep nesting, unknown keys and wrong types are refused by name.
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trireme {

/// Parses an object. `where` (a file's name) opens every message. Errors: DataError.
nlohmann::json parse_object(std::string_view text, const std::string& where);

/// Errors: DataError where `object` is none, or has another key than these.
void require_known_keys(const nlohmann::json& object, std::initializer_list<std::string_view> known, const std::string& where);

/// A member of an object, of the type asked for. Errors: DataError where it is missing or of another type.
const nlohmann::json& member(const nlohmann::json& object, const std::string& key, const std::string& where);
const nlohmann::json& object_member(const nlohmann::json& object, const std::string& key, const std::string& where);
const nlohmann::json& array_member(const nlohmann::json& object, const std::string& key, const std::string& where);
std::string string_member(const nlohmann::json& object, const std::string& key, const std::string& where);
/// An integer in [minimum, maximum], written as one: 2.0 and 1e3 are refused.
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
int64_t integer(const nlohmann::json& value, const std::string& where, int64_t minimum = 0, int64_t maximum = kMaxInteger);
int64_t integer_member(const nlohmann::json& object, const std::string& key, const std::string& where, int64_t minimum = 0,
                       int64_t maximum = kMaxInteger);

}  // namespace trireme
