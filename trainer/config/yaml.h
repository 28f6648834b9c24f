#pragma once
// A strict YAML reader built on the events of yaml-cpp. The loader of yaml-cpp silently takes the first of two equal keys, expands alias bombs, reads
// 010 as 8 and drops positions; this reader refuses such input with its position.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/report.h"

namespace trireme {

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMapping, kRefused };  ///< kRefused: already reported, ignored from then on
  Kind kind = Kind::kNull;
  std::string text = {};  ///< value of a scalar
  bool quoted = false;    ///< 'text', "text" or a block scalar: never a number, boolean or null
  Location at = {};       ///< position of the value
  std::string key = {};   ///< if the parent is a mapping
  Location key_at = {};
  std::vector<YamlNode> children = {};  ///< items of a sequence or a mapping, in file order
};

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr int kMaxYamlDepth = 32;

/// "control character 10" for the first control character in `text`; empty if there is none.
std::string control_character_in(std::string_view text);

/// Parses the single document in `text` (`source` as in Location); empty text gives an empty mapping. Duplicate keys, anchors, aliases, merge keys,
/// tags, non-decimal numbers, NaN and infinity are added to `violations`, and reading continues. Invalid YAML, directives, more than one document and
/// text beyond the limits stop reading: Violations::raise throws.
YamlNode parse_yaml(std::string_view text, int source, const Sources& sources, Violations& violations);

}  // namespace trireme
