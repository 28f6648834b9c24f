#pragma once
#include <string>
#include <string_view>

namespace trireme::report {

/// Text for HTML and SVG, between tags and in quoted attributes: names and texts of a run are untrusted. Control characters and bytes that are not
/// UTF-8 become visible escapes.
std::string markup(std::string_view text);

}  // namespace trireme::report
