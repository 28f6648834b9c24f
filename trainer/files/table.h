#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace trireme {

/// Formats flat JSON objects with the same keys as the rows of a table, with the keys as header, numbers to four digits, and null as "-".
std::string table_of(const nlohmann::ordered_json& rows);

/// 1536 -> "1.5 KiB".
std::string binary_bytes_text(double bytes);

}  // namespace trireme
