#pragma once
// A strict reader of YAML on the events of yaml-cpp. Its loader takes the first of two equal keys in silence, expands alias bombs, reads 010 as 8
// and forgets where things stood; here each of these is refused, with its place.
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/report.h"

namespace trireme {

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMapping, kRefused };  ///< kRefused: already reported, says nothing more
  Kind kind = Kind::kNull;
  std::string text = {};  ///< of a scalar
  bool quoted = false;    ///< 'text', "text", or a block scalar: never a number, a boolean or null
  Location at = {};       ///< of the value
  std::string key = {};   ///< in a mapping
  Location key_at = {};
  std::vector<YamlNode> children = {};  ///< of a sequence or a mapping, in file order
};

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr int kMaxYamlDepth = 32;

/// "control character 10" for the first one in `text`; empty where there is none.
std::string control_character_in(std::string_view text);

/// The one document in `text` (`source` as in Location). Duplicate keys, anchors, aliases, merge keys, tags, directives, non-decimal numbers, NaN and
/// infinity are added to `violations` with the reading going on; text that is no YAML, more than one document, and text beyond the limits end it
/// with Violations::raise. No document at all is an empty mapping.
YamlNode parse_yaml(std::string_view text, int source, const Sources& sources, Violations& violations);

}  // namespace trireme
