// The nearest valid value that a message about an invalid value proposes.
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/config/load.h"

namespace trireme {
namespace {

const std::string kSmallRun = R"(
model: {layers: 4, hidden_size: 96, heads: 6}
training: {steps: 100, sequence_length: 32, global_batch_size: 8}
data: {train: [a]}
)";

/// The message about one invalid --set.
std::string message_of(const std::string& set) {
  try {
    parse_config(kSmallRun, "run.yaml", {set});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

using Settings = std::map<std::string, std::string>;

/// What the program objects to in the run of tests/combinations.yaml with these settings; empty if nothing.
std::string objections_to(const Settings& settings) {
  std::vector<std::string> sets;
  for (const auto& [key, value] : settings) sets.push_back(concat(key, "=", value));
  try {
    load_config(test::in_checkout("tests/combinations.yaml"), sets);
  } catch (const ConfigError& error) {
    return concat(error.what(), "\n");
  }
  return "";
}

/// The features of tests/combinations.txt.
std::vector<Settings> features() {
  std::ifstream file(test::in_checkout("tests/combinations.txt"));
  std::vector<Settings> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line.substr(line.find(": ") + 2));
    Settings& settings = all.emplace_back();
    for (std::string word; words >> word;) settings[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  }
  return all;
}

}  // namespace

TEST_CASE("config: what a refusal of two features proposes ends it and is valid itself") {
  // "PLACE KEY=VALUE: REASON; allowed A; nearest valid B", where B is a value of KEY, or another key and its value.
  const std::regex parts(R"(\S+ ([a-z_.0-9]+)[^:\n]*: (.*); allowed .*; nearest valid (?:([a-z]+\.[a-z_.]+) )?(.*?)(?: or .*)?\n)");
  const std::vector<Settings> all = features();
  int ended = 0;
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      Settings both = all[j];
      both.insert(all[i].begin(), all[i].end());
      const std::string objections = objections_to(both);
      for (std::sregex_iterator at(objections.begin(), objections.end(), parts); at != std::sregex_iterator(); ++at) {
        Settings changed = both;
        const std::string key = (*at)[(*at)[3].matched ? 3 : 1];
        changed[key] = (*at)[4];
        const std::string after = objections_to(changed);
        CAPTURE((*at)[0].str(), after);
        CHECK(after.find(concat(": ", (*at)[2].str(), ";")) == std::string::npos);
        for (const char* invalid : {"not ", "out of range"}) CHECK(after.find(concat(key, "=", changed[key], ": ", invalid)) == std::string::npos);
        ++ended;
      }
    }
  CHECK(ended > 150);
}

TEST_CASE("config: another program's word for a choice leads to the choice") {
  const std::pair<const char*, const char*> cases[] = {{"run.device=gpu", "cuda"},
                                                       {"run.device=GPU", "cuda"},
                                                       {"training.precision=fp8", "bf16"},
                                                       {"training.precision=float32", "fp32"},
                                                       {"training.precision=bfloat16", "bf16"},
                                                       {"training.precision=half", "fp16"},
                                                       {"training.precision=Float16", "fp16"},
                                                       {"training.precision=double", "fp64"},
                                                       {"training.precision=fp31", "fp32"},
                                                       {"model.architecture=gpt", "gpt2"},
                                                       {"model.architecture=mistral", "llama"}};
  for (const auto& [set, nearest] : cases) {
    const std::string message = message_of(set);
    CAPTURE(set, message);
    CHECK(message.ends_with(std::string("; nearest valid ") + nearest));
  }
}

TEST_CASE("config: one value for a list leads to a list of it, if it is a valid item") {
  const auto check = [](const std::string& set, const std::string& end) {
    const std::string message = message_of(set);
    CAPTURE(set, message);
    CHECK(message.find("where a list is expected") != message.npos);
    CHECK(message.ends_with(end));
  };
  check("model.window_layers=0", "; nearest valid [0]");
  check("parallel.layers_per_stage=4", "; nearest valid [4]");
  check("data.weights=0.5", "; nearest valid [0.5]");
  check("data.train=data/a", "; nearest valid [data/a]");
  check("data.train=0", "; nearest valid [\"0\"]");  // a path; another YAML reader would take 0 for a number
  for (const char* set : {"parallel.layers_per_stage=-1", "parallel.layers_per_stage=four", "data.weights=0", "model.window_layers=0.5"}) {
    CAPTURE(set, message_of(set));
    CHECK(message_of(set).find("nearest") == std::string::npos);
  }
}

}  // namespace trireme
