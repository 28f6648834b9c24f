#include "trainer/config/report.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace trireme {
namespace {

/// Text for one line of a message: truncated, without control characters.
std::string printable(const std::string& text) {
  constexpr size_t kLongest = 80;
  std::string out = text.substr(0, kLongest);
  while (out.size() < text.size() && !out.empty() && (text[out.size()] & 0xC0) == 0x80) out.pop_back();  // never half a UTF-8 character
  for (char& c : out)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7F) c = '?';
  return text.size() > kLongest ? out + "..." : out;
}

}  // namespace

Location Sources::locate(const std::string& key) const {
  for (std::string path = key; !path.empty(); path.resize(path.rfind('.') == std::string::npos ? 0 : path.rfind('.'))) {
    const auto found = keys.find(path);
    if (found != keys.end()) return found->second;
  }
  return {};
}

std::string Sources::name_of(const Location& at) const {
  if (at.source > 0) return option + ":" + printable(sets[static_cast<size_t>(at.source - 1)]);
  const std::string& name = at.source < 0 ? included[static_cast<size_t>(-at.source - 1)] : file;
  return name.empty() ? "" : concat(name, ":", at.line, ":", at.column);
}

bool Violations::touch(const std::string& key) const {
  return std::any_of(list_.begin(), list_.end(), [&](const Violation& v) {
    return !v.key.empty() && key.starts_with(v.key) && (key.size() == v.key.size() || key[v.key.size()] == '.');
  });
}

std::string Violations::text(const Sources& sources) const {
  std::vector<const Violation*> sorted;
  for (const Violation& v : list_) sorted.push_back(&v);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Violation* a, const Violation* b) { return a->at < b->at; });
  // What was parsed from no file has no place.
  const auto at = [](const std::string& where, const std::string& what) { return where.empty() ? what : where + ": " + what; };
  std::string out;
  for (const Violation* v : sorted) {
    if (!out.empty()) out += '\n';
    std::string where = sources.name_of(v->at);
    if (!v->key.empty()) where += (where.empty() ? "" : " ") + printable(v->key);
    if (!v->value.empty()) where += "=" + printable(v->value);
    out += at(where, v->rule);
    if (!v->allowed.empty()) out += "; allowed " + v->allowed;
    if (!v->nearest.empty()) out += "; nearest valid " + v->nearest;
  }
  return more_ == 0 ? out : concat(out, "\n", at(sources.file, concat("and ", more_, " more violations")));
}

void Violations::raise(const Sources& sources) const {
  if (!empty()) throw ConfigError(text(sources));
}

}  // namespace trireme
