// What may be done in one place only: opening files for writing, making directories, parsing JSON. kernels/core/writable_file.h says why.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace {

namespace fs = std::filesystem;

/// Code that matches `pattern` may stand in the files `only_in` alone; the others use `instead`.
struct PlaceRule {
  const char* pattern;
  const char* instead;
  std::set<std::string> only_in;
};

const std::string kWritable = "kernels/core/writable_file.cpp";
const PlaceRule kPlaceRules[] = {
    {R"(\bO_CREAT\b|\bO_TRUNC\b|\bO_TMPFILE\b|\b(::|std::)?(creat|creat64|mkfifo|mknod)\s*\()", "open_writable()", {kWritable}},
    // Files of /proc and /dev/null are no files of a run.
    {R"(\bO_WRONLY\b|\bO_RDWR\b)",
     "open_writable()",
     {kWritable, "parallel/comm/shared_memory.cpp", "trainer/job/spawn.cpp", "trainer/loop/resident.cpp", "trainer/main.cpp"}},
    {R"(\b(fopen|fopen64|freopen|open_memstream_file)\s*\()", "open_writable() and fdopen()", {}},
    {R"(\b(basic_)?(ofstream|wofstream|filebuf)\b|\bstd::fstream\b|\bbasic_fstream\b)", "DurableFile or AppendFile", {}},
    {R"(\b(mk(o)?s?temps?|mkdtemp|tmpfile|tmpnam|tempnam)\s*\()", "open_temporary()", {kWritable}},
    {R"(\b(shm_open|sem_open|mq_open)\s*\()", "SharedMemory, which has no name", {}},
    {R"(\bcreate_director(y|ies)(_symlink)?\s*\(|::mkdir(at)?\s*\()", "make_directories() or make_directories_in()", {kWritable}},
    {R"(\b(copy_file|resize_file)\s*\(|\bfs::copy\s*\(|::truncate\s*\()", "DurableFile", {}},
    {R"(\bAF_UNIX\b|\bAF_LOCAL\b|\bsun_path\b)", "a TCP socket of the loopback interface", {}},
    {R"(\b(ordered_)?json::(sax_)?parse\b|\bjson::(accept|from_\w+)\b)",
     "parse_object(), parse_value(), json_line() or JsonLines",
     {"trainer/files/strict_json.cpp", "trainer/data/build/json_line.cpp"}},  // the latter has its own limit of depth
    {R"(\bJson::parse\b)", "parse_value()", {"trainer/files/strict_json.cpp"}},
};

/// The rules' expressions, and a quick look that most lines do not pass: expressions of the standard library are slow.
struct CompiledRules {
  std::vector<std::regex> patterns;
  std::vector<std::string> words{"O_",  "creat",  "fopen", "freopen", "memstream",   "stream",   "filebuf", "temp",     "tmp",
                                 "dir", "_open(", "mk",    "copy",    "resize_file", "truncate", "AF_",     "sun_path", "son::"};
  CompiledRules() {
    for (const PlaceRule& rule : kPlaceRules) patterns.emplace_back(rule.pattern, std::regex::optimize);
  }
  bool may_match(std::string_view code) const {
    return std::ranges::any_of(words, [&](const std::string& word) { return code.find(word) != code.npos; });
  }
};

std::vector<std::string> misplaced_in(const std::string& file, const std::string& text) {
  static const CompiledRules rules;
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const std::string code = line.substr(0, line.find("//"));
    if (!rules.may_match(code)) continue;
    size_t number = 0;
    for (const PlaceRule& rule : kPlaceRules)
      if (const std::regex& pattern = rules.patterns[number++]; !rule.only_in.contains(file) && std::regex_search(code, pattern))
        found.push_back(file + ": " + line + ": use " + rule.instead);
  }
  return found;
}

}  // namespace

TEST_CASE("file rules: one function opens files for writing, one makes directories, and one file parses JSON") {
  const fs::path root = trireme::test::in_checkout();
  int files = 0;
  std::set<std::string> seen;
  for (const char* room : {"kernels", "parallel", "trainer"})
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (!entry.is_regular_file()) continue;
      ++files;
      std::ifstream stream(entry.path());
      const std::string name = entry.path().lexically_relative(root).string();
      seen.insert(name);
      for (const std::string& one : misplaced_in(name, {std::istreambuf_iterator<char>(stream), {}})) FAIL_CHECK(one);
    }
  CHECK(files > 100);
  for (const PlaceRule& rule : kPlaceRules)
    for (const std::string& name : rule.only_in) CHECK(seen.contains(name));
}

TEST_CASE("file rules: a file that is opened beside the rule is found") {
  const auto count = [](const std::string& line) { return misplaced_in("trainer/run/run.cpp", line + "\n").size(); };
  for (const char* line : {"  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0644);", "std::ofstream(path) << text;",
                           "std::ofstream out{path};", "std::FILE* file = std::fopen(name, \"w\");", "freopen (name, \"a\", stdout);",
                           "std::fstream both(path);", "const int d = ::mkstemp(name.data());", "::shm_open(\"/trireme\", O_RDONLY, 0);",
                           "fs::create_directories(path, error);", "if (::mkdir(path, 0755) != 0) return;", "fs::copy_file(from, to);",
                           "address.sun_path[0] = 0;", "const auto v = nlohmann::json::parse(text);", "ordered_json::parse(line, nullptr, false)",
                           "::truncate(path, 0);", "if (::creat(path, 0600) < 0) return;"})
    CHECK(count(line) >= 1);
  for (const char* line : {"// std::ofstream is not used", "::open(path.c_str(), O_RDONLY | O_CLOEXEC)", "std::ifstream file(path);",
                           "parse_object(text, where)", "config_json::parser(x)", "::ftruncate(file, 0)"})
    CHECK(count(line) == 0);
  CHECK(misplaced_in("kernels/core/writable_file.cpp", "::open(path, O_RDWR | O_CREAT, 0644);").empty());
}
