#pragma once
// The texts of a JSON line. What a build does not use need not be right.
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The strings at `fields` in an object, in their order. A field is a key, or the path to a member of an inner object: "data.text".
/// Other members may be anything that programs write: NaN and Infinity, halves of surrogate pairs, and keys that occur twice.
/// Errors: DataError, prefixed with `where`, for text that is not one JSON object even so, a field that is missing, occurs twice, is not a string or
/// has half a surrogate pair; a missing one names the fields that are there, and that of `option` to name one of them.
std::vector<std::string> strings_in(std::string_view line, const std::vector<std::string>& fields, const std::string& where,
                                    const std::string& option);

/// The paths of the first strings of an object, "data.text"; none if the text is not an object.
std::vector<std::string> string_fields(std::string_view line);

}  // namespace trireme
