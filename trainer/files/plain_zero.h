#pragma once
#include <string>

namespace trireme {

/// "-0.0000" -> "0.0000": a number that rounds to zero has no sign where people read it. Columns keep their width.
std::string plain_zero(std::string text);

}  // namespace trireme
