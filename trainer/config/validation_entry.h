#pragma once
#include <string>

namespace trireme {

/// One entry of data.validation: PATH or name=PATH. Several entries may use the same name; a '=' after a '/' is part of the path.
struct ValidationEntry {
  std::string name;  ///< empty: no name was given
  std::string path;
  bool named = false;
};

inline ValidationEntry validation_entry(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || text.find('/') < equals) return {"", text, false};
  return {text.substr(0, equals), text.substr(equals + 1), true};
}

}  // namespace trireme
