#pragma once
// JSON from untrusted files: duplicate keys, deep nesting, unknown keys and wrong types are errors that name the key. No other file of the trainer
// parses JSON (tests/unit/file_rules_test.cpp).
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme {

constexpr size_t kMaxJsonDepth = 32;
constexpr size_t kMaxJsonLine = size_t{64} << 20;  ///< enough for the step times of a million ranks

enum class ControlCharacters : uint8_t { kRefused, kInKeys };
/// Parses an object. Keys may have control characters only with kInKeys. Errors: DataError, prefixed with `where`, such as a file name.
nlohmann::json parse_object(std::string_view text, const std::string& where, ControlCharacters control = ControlCharacters::kRefused);

/// Parses any value, for text that this program has written: duplicate keys are not looked for. `Json` is nlohmann::json or nlohmann::ordered_json.
/// Errors: DataError.
template <class Json = nlohmann::json>
Json parse_value(std::string_view text, const std::string& where);
/// Reads MessagePack that this program has written, as ranks send it to each other. Errors: DataError.
nlohmann::json unpack_value(std::string_view bytes, const std::string& where);
/// The object in a line of a file of JSON lines, or of a connection; null if the line is cut, damaged, too long, too deep or something else.
/// trainer/files/json_lines.h reads whole files.
template <class Json = nlohmann::json>
Json json_line(std::string_view line);

/// Errors: DataError if `object` is not an object or has a key that is not in `known`.
void require_known_keys(const nlohmann::json& object, const std::vector<std::string_view>& known, const std::string& where);

/// A member of an object, of the requested type. Errors: DataError if it is missing or of another type.
const nlohmann::json& member(const nlohmann::json& object, const std::string& key, const std::string& where);
const nlohmann::json& object_member(const nlohmann::json& object, const std::string& key, const std::string& where);
const nlohmann::json& array_member(const nlohmann::json& object, const std::string& key, const std::string& where);
std::string string_member(const nlohmann::json& object, const std::string& key, const std::string& where);
/// All members of an object, which must be strings.
std::map<std::string, std::string> strings_of(const nlohmann::json& object, const std::string& where);
/// An integer in [minimum, maximum], in integer notation: 2.0 and 1e3 are refused.
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
int64_t integer(const nlohmann::json& value, const std::string& where, int64_t minimum = 0, int64_t maximum = kMaxInteger);
int64_t integer_member(const nlohmann::json& object, const std::string& key, const std::string& where, int64_t minimum = 0,
                       int64_t maximum = kMaxInteger);

}  // namespace trireme
