#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace trireme {

/// Flat JSON objects with the same keys as lines of a table, keys as its head; numbers with four digits, null as "-".
std::string table_of(const nlohmann::ordered_json& rows);

/// 1536 -> "1.5 KiB".
std::string binary_bytes_text(double bytes);

}  // namespace trireme
