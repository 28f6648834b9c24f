// Two types with the same name in the same namespace, in two files, are undefined behaviour that no compiler detects: the linker keeps the members of
// one of them for both.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace {

namespace fs = std::filesystem;

using Definitions = std::map<std::string, std::set<std::string>>;  ///< files that define "namespace::Name"

/// Finds types defined in a named namespace. Relies on the code style: nothing in a namespace is indented, and a namespace ends with a comment.
void add_definitions(Definitions& found, const std::string& file, const std::string& text) {
  static const std::regex opens(R"(^(?:inline )?namespace(?: ([A-Za-z0-9_:]+))? \{$)"), closes(R"(^\}  // namespace.*$)");
  // A declaration has a semicolon and no brace (that of an enum has its type before the semicolon); a nested type has two colons after its name.
  static const std::regex type(
      R"(^(?:struct|class|union|enum(?: class| struct)?) (?:alignas\([^)]*\) )?([A-Za-z_][A-Za-z0-9_]*)(?:$| \{| :| final).*$)");
  std::vector<std::string> namespaces;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (std::regex_match(line, match, opens)) {
      namespaces.push_back(match[1]);
    } else if (std::regex_match(line, closes)) {
      if (!namespaces.empty()) namespaces.pop_back();
    } else if (const bool declares = line.find(';') != line.npos && line.find('{') == line.npos; !declares && std::regex_match(line, match, type)) {
      std::string name;
      bool anonymous = false;
      for (const std::string& space : namespaces) {
        anonymous = anonymous || space.empty();
        name += space + "::";
      }
      if (!anonymous) found[name + match[1].str()].insert(file);
    }
  }
}

std::vector<std::string> doubles_in(const Definitions& definitions) {
  std::vector<std::string> found;
  for (const auto& [name, files] : definitions) {
    if (files.size() < 2) continue;
    std::string text = name + ":";
    for (const std::string& file : files) text += " " + file;
    found.push_back(text);
  }
  return found;
}

}  // namespace

TEST_CASE("one definition: no two files of the product define types with the same name in the same namespace") {
  const fs::path root = trireme::test::in_checkout();
  Definitions definitions;
  for (const char* room : {"kernels", "parallel", "trainer"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string name = entry.path().filename().string();
      // Stubs replace other sources and are never linked with them; loops of kernels/cpu/isa have a namespace per instruction-set level.
      if (!entry.is_regular_file() || name.ends_with("stub.cpp")) continue;
      std::ifstream stream(entry.path());
      add_definitions(definitions, entry.path().lexically_relative(root).string(), {std::istreambuf_iterator<char>(stream), {}});
    }
  }
  CHECK(definitions.size() > 300);
  CHECK(definitions.contains("trireme::RankState"));
  for (const std::string& twice : doubles_in(definitions)) FAIL_CHECK(twice);
}

TEST_CASE("one definition: a second type with the same name is found, a declaration or a type of an anonymous namespace is not") {
  Definitions definitions;
  add_definitions(definitions, "a.h", "namespace trireme {\n\nstruct Verdict {\n  int a;\n};\nenum class Kind { kA };\n}  // namespace trireme\n");
  CHECK(definitions.size() == 2);
  add_definitions(definitions, "b.h", "namespace trireme {\nstruct Verdict;\nenum class Kind : uint8_t;  // a.h\n}  // namespace trireme\n");
  add_definitions(definitions, "b.cpp", "namespace trireme {\nnamespace {\n\nstruct Verdict {\n};\n\n}  // namespace\n}  // namespace trireme\n");
  add_definitions(definitions, "c.h", "namespace trireme::bench {\nstruct Verdict {\n};\n}  // namespace trireme::bench\n");
  CHECK(doubles_in(definitions).empty());
  add_definitions(definitions, "c.cpp",
                  "namespace trireme {\nnamespace {\nint a;\n}  // namespace\n\nclass Verdict final : public Base {\n};\n}  // namespace trireme\n");
  add_definitions(definitions, "d.h", "namespace trireme {\nenum class Kind : uint8_t { kB };\n}  // namespace trireme\n");
  CHECK(doubles_in(definitions).size() == 2);
}
