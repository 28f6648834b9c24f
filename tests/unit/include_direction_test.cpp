// Modules may include each other in one direction only, and libraries may be included only by their own module.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace {

namespace fs = std::filesystem;

/// Files whose path starts with `where` may include only headers whose path starts with one of `may`.
struct ProjectRule {
  const char* where;
  std::vector<std::string> may;
};
const ProjectRule kProjectRules[] = {
    {"kernels/core/", {"kernels/core/"}},
    {"kernels/reference/", {"kernels/core/", "kernels/ops/", "kernels/reference/"}},
    {"kernels/cpu/", {"kernels/core/", "kernels/ops/", "kernels/cpu/"}},
    {"kernels/cuda/", {"kernels/core/", "kernels/ops/", "kernels/cuda/"}},
    {"kernels/", {"kernels/"}},
    {"parallel/comm/", {"kernels/", "parallel/comm/", "parallel/crypto/"}},
    {"parallel/tensor/", {"kernels/", "parallel/comm/", "parallel/mesh.h", "parallel/param.h", "parallel/tensor/"}},
    {"parallel/pipeline/", {"kernels/", "parallel/comm/", "parallel/mesh.h", "parallel/param.h", "parallel/pipeline/"}},
    {"parallel/sharding/", {"kernels/", "parallel/comm/", "parallel/mesh.h", "parallel/param.h", "parallel/sharding/"}},
    {"parallel/crypto/", {"kernels/core/", "parallel/crypto/"}},
    {"parallel/", {"kernels/", "parallel/"}},
    {"trainer/tokenizer/", {"kernels/core/", "trainer/files/", "trainer/tokenizer/"}},
    {"trainer/config/",
     {"kernels/core/", "parallel/pipeline/schedule.h", "parallel/sharding/aggregation_rule.h", "parallel/sharding/zero_policy.h",
      "trainer/tokenizer/", "trainer/config/"}},
    {"trainer/", {"kernels/", "parallel/", "trainer/"}},
};

/// A header whose name matches `header` may be included only by files whose path starts with one of `only_in`.
struct LibraryRule {
  const char* header;
  std::vector<std::string> only_in;
};
const LibraryRule kLibraryRules[] = {
    {"mpi\\.h", {"parallel/comm/mpi"}},
    {"yaml-cpp/.*", {"trainer/config/"}},
    {"oneapi/.*|dnnl.*", {"kernels/cpu/"}},
    {"omp\\.h", {"kernels/cpu/"}},
    {"xxhash\\.h", {"trainer/files/", "trainer/tokenizer/"}},
    {"pcre2\\.h|utf8proc\\.h|sentencepiece_.*", {"trainer/tokenizer/"}},
    {"CLI/.*", {"trainer/commands/", "trainer/main.cpp"}},
    {"nlohmann/.*", {"trainer/"}},
    {"sodium\\.h", {"parallel/crypto/sodium"}},
    {"cuda.*|cublas.*|cudnn.*|nccl.*", {"kernels/cuda/", "parallel/comm/nccl"}},
};

bool starts_with_any(const std::string& text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& prefix) { return text.starts_with(prefix); });
}

std::vector<std::string> violations_in(const std::string& file, const std::string& text) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^">]+)[">])");
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, include)) continue;
    const std::string header = match[2];
    if (match[1] == "\"") {
      for (const ProjectRule& rule : kProjectRules) {
        if (!file.starts_with(rule.where)) continue;
        if (!starts_with_any(header, rule.may)) found.push_back(file + " includes " + header);
        break;  // the first matching rule is the most specific
      }
    }
    for (const LibraryRule& rule : kLibraryRules)
      if (std::regex_match(header, std::regex(rule.header)) && !starts_with_any(file, rule.only_in)) found.push_back(file + " includes " + header);
  }
  return found;
}

using IncludeGraph = std::map<std::string, std::set<std::string>>;  ///< modules of the trainer that a module includes

void add_includes(IncludeGraph& rooms, const std::string& file, const std::string& text) {
  static const std::regex include(R"re(#\s*include\s*"trainer/([a-z_]+)/)re");
  const std::string room = file.substr(0, file.find('/'));
  for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match)
    if ((*match)[1] != room) rooms[room].insert((*match)[1]);
}

/// The modules that remain after repeatedly removing those that include none of the others.
IncludeGraph cycles_in(IncludeGraph rooms) {
  for (bool taken = true; taken;) {
    taken = false;
    for (auto& [room, others] : rooms) std::erase_if(others, [&](const std::string& other) { return !rooms.contains(other); });
    taken = std::erase_if(rooms, [](const auto& room) { return room.second.empty(); }) > 0;
  }
  return rooms;
}

}  // namespace

TEST_CASE("modules of the trainer include each other without cycles") {
  const fs::path root = trireme::test::in_checkout("trainer");
  IncludeGraph rooms;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string file = entry.path().lexically_relative(root).string();
    if (!entry.is_regular_file() || file.find('/') == std::string::npos) continue;
    std::ifstream stream(entry.path());
    add_includes(rooms, file, {std::istreambuf_iterator<char>(stream), {}});
  }
  CHECK(rooms.size() > 8);
  CHECK_FALSE(rooms["plan"].contains("verify"));  // both work with layouts, which have their own module
  for (const auto& [room, others] : cycles_in(rooms))
    for (const std::string& other : others) FAIL_CHECK(room + " includes " + other + ": part of a cycle, or above one");
  add_includes(rooms, "files/table.h", "#include \"trainer/run/run.h\"\n");
  CHECK(cycles_in(rooms).contains("run"));
}

TEST_CASE("includes run in one direction: kernels <- parallel <- trainer") {
  const fs::path root = trireme::test::in_checkout();
  int files = 0;
  for (const char* room : {"kernels", "parallel", "trainer"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      if (!entry.is_regular_file()) continue;
      ++files;
      std::ifstream stream(entry.path());
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      for (const std::string& violation : violations_in(entry.path().lexically_relative(root).string(), text)) FAIL_CHECK(violation);
    }
  }
  CHECK(files > 100);
}

/// Lines that read the environment, in any spelling of the function.
std::vector<std::string> reads_of_environment(const std::string& file, const std::string& text) {
  static const std::regex read(R"(\b(secure_)?getenv\s*\()");
  std::vector<std::string> found;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    if (std::regex_search(line, read) && file != "trainer/job/launch_environment.cpp") found.push_back(file + ": " + line);
  return found;
}

TEST_CASE("one file of the trainer reads the environment variables of launchers, and passes them to the others as data") {
  const fs::path root = trireme::test::in_checkout();
  for (const auto& entry : fs::recursive_directory_iterator(root / "trainer")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream stream(entry.path());
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    for (const std::string& read : reads_of_environment(entry.path().lexically_relative(root).string(), text)) FAIL_CHECK(read);
  }
  CHECK(reads_of_environment("trainer/commands/train_command.cpp", "if (std::getenv (\"SLURM_PROCID\"))\n").size() == 1);
  CHECK(reads_of_environment("trainer/job/launcher.cpp", "::secure_getenv(kRanksVariable)").size() == 1);
  CHECK(reads_of_environment("trainer/job/launch_environment.cpp", "std::getenv(name)").empty());
}

TEST_CASE("an include in the wrong direction is found") {
  CHECK(violations_in("kernels/ops/matmul.cpp", "#include \"parallel/param.h\"\n").size() == 1);
  CHECK(violations_in("parallel/tensor/linear.h", "#include \"parallel/sharding/unit.h\"\n").size() == 1);
  CHECK(violations_in("parallel/comm/thread.cpp", "  #  include <mpi.h>\n").size() == 1);
  CHECK(violations_in("trainer/run/run.cpp", "#include <yaml-cpp/yaml.h>\n").size() == 1);
  CHECK(violations_in("trainer/config/load.cpp", "#include \"trainer/model/dims.h\"\n").size() == 1);
  CHECK(violations_in("trainer/run/run.cpp", "#include \"parallel/mesh.h\"\n#include <vector>\n").empty());
}

TEST_CASE("test names contain no characters that break CMake lists") {
  static const std::regex name(R"re(^TEST_CASE\("((?:[^"\\]|\\.)*)")re");
  int names = 0;
  for (const auto& entry : fs::recursive_directory_iterator(trireme::test::in_checkout("tests"))) {
    if (!entry.path().string().ends_with("_test.cpp")) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, name)) continue;
      ++names;
      INFO(entry.path().string() << ": " << match[1]);
      CHECK(match[1].str().find_first_of("[];\\") == std::string::npos);
    }
  }
  CHECK(names > 100);
}
