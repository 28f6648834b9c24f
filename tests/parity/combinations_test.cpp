// Trains with every pair of a feature of security and another feature that the program accepts. docs/combinations.md, which scripts/combinations.py writes
// from the same list of features, says which pairs those are.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/audit/chain.h"
#include "trainer/config/load.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/run/run.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

struct Feature {
  std::string name;
  std::map<std::string, std::string> settings;
};

std::vector<Feature> features() {
  std::ifstream file(in_checkout("tests/combinations.txt"));
  std::vector<Feature> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    Feature feature{line.substr(0, line.find(": ")), {}};
    std::istringstream words(line.substr(line.find(": ") + 2));
    for (std::string word; words >> word;) feature.settings[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    all.push_back(feature);
  }
  return all;
}

/// Runs in a directory of their own each, by threads of this process: two hosts if messages are to be encrypted.
class Runs {
 public:
  Runs() {
    write_tokens(home_.path / "tokens", 8 * 200 + 1, 64);
    for (const char* key : {"privacy.key", "links.key"}) {
      std::ofstream(home_.path / key) << "PeGpBrEQI71sSk8pqSUE3q2Edkh1Np83LJ93Pss7C94=\n";
      REQUIRE(::chmod((home_.path / key).c_str(), 0600) == 0);
    }
  }

  /// The configuration with these features; nothing if two of them have different values for a key, or the program refuses them.
  std::optional<Config> config_of(const std::vector<Feature>& of) const {
    std::map<std::string, std::string> settings;
    for (const Feature& feature : of)
      for (const auto& [key, value] : feature.settings)
        if (settings.emplace(key, value).first->second != value) return std::nullopt;
    for (auto& [key, value] : settings)
      if (key.ends_with("key_file")) value = (home_.path / value).string();
    settings["data.train"] = "[" + (home_.path / "tokens").string() + "]";
    std::vector<std::string> sets;
    for (const auto& [key, value] : settings) sets.push_back(concat(key, "=", value));
    try {
      return resolve(load_config(in_checkout("tests/combinations.yaml"), sets));
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

  /// [step, loss, gradient norm] of each step, and the run directory. `by_messages`: collectives are lists of messages, as those between hosts are.
  std::pair<std::vector<nlohmann::json>, fs::path> train(Config config, bool by_messages) {
    const fs::path directory = home_.path / std::to_string(number_++);
    config.run.directory = directory.string();
    const int ranks = mesh_shape(config.parallel).world();
    const MessageCosts costs{.ranges = {{0, 2e-6, 4e9}}, .sums = {}};
    RankOptions options;
    if (by_messages) options.collectives = {.algorithm = CollectiveAlgorithm::kRecursiveDoubling, .within = costs, .between = costs};
    if (is_encrypted(config.security))
      for (int rank = 0; rank < ranks; ++rank) options.hosts.push_back(2 * rank / ranks);
    run_ranks(
        ranks,
        [&](Communicator& world) {
          Progress progress;
          Arena arena(Device::kCpu, true);
          Context ctx{Device::kCpu, &arena, 1};
          run_training(ctx, world, config, {}, progress);
        },
        options);
    return {steps_of(directory), directory};
  }

 private:
  TemporaryDirectory home_;
  int number_ = 0;
};

bool has(const std::vector<nlohmann::json>& steps, int64_t count) {
  return std::ssize(steps) == count && std::ranges::all_of(steps, [](const nlohmann::json& step) { return step[1].is_number(); });
}

/// The largest relative difference of losses.
double difference_of(const std::vector<nlohmann::json>& a, const std::vector<nlohmann::json>& b) {
  double worst = a.size() == b.size() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(a[i][1].get<double>() - b[i][1].get<double>()) / std::abs(b[i][1].get<double>()));
  return worst;
}

void check_records(const Config& config, const fs::path& directory) {
  if (is_private(config.security)) {
    std::ifstream file(directory / "privacy.json");
    CHECK(nlohmann::json::parse(file)["steps"] == config.training.steps.value());
  }
  if (config.security.audit.enabled) CHECK(audit::read_log(directory / "audit.jsonl").records.back().event() == "end");
}

/// Not on CPU threads of one process.
const std::set<std::string> kElsewhere = {"GPUs", "federation"};
/// Change no bit of what is trained.
const std::set<std::string> kOutside = {"encryption", "audit log"};
/// Divide the same computation otherwise.
const std::set<std::string> kLayouts = {"sharded accumulation", "tensor", "sequence parallelism", "pipeline", "ZeRO-3", "replicas"};
/// The order of arrivals decides what is trained.
const std::set<std::string> kUnordered = {"parameter servers", "elastic averaging", "hogwild", "backup replicas"};

/// Trains with each accepted pair of this feature of security and one after it in the list: as the other feature alone, where that is defined.
void check_pairs_of(const std::string& name, int least) {
  Runs runs;
  const std::vector<Feature> all = features();
  // What encryption and the audit log do does not depend on the number of data ranks.
  const Feature two_data_ranks{"", {{"parallel.data", "2"}}};
  std::map<std::string, std::vector<nlohmann::json>> alone;
  const auto alone_with = [&](std::vector<Feature> of, bool by_messages) -> const std::vector<nlohmann::json>& {
    std::vector<nlohmann::json>& steps = alone[concat(of.front().name, " ", of.size(), by_messages)];
    if (steps.empty()) steps = runs.train(runs.config_of(of).value(), by_messages).first;
    return steps;
  };
  const auto first = std::ranges::find(all, name, &Feature::name);
  REQUIRE(first != all.end());
  int trained = 0;
  for (auto other = first + 1; other != all.end(); ++other) {
    if (kElsewhere.contains(other->name) || !runs.config_of({*first, *other})) continue;
    std::vector<Feature> size;
    if (kOutside.contains(name) && runs.config_of({*first, *other, two_data_ranks})) size = {two_data_ranks};
    const auto with_size = [&](std::vector<Feature> of) {
      of.insert(of.end(), size.begin(), size.end());
      return of;
    };
    INFO(name << " and " << other->name);
    const Config config = runs.config_of(with_size({*first, *other})).value();
    const bool by_messages = is_encrypted(config.security);
    const auto [steps, directory] = runs.train(config, by_messages);
    CHECK(has(steps, config.training.steps.value()));
    check_records(config, directory);
    ++trained;
    if (kOutside.contains(name) && !kUnordered.contains(other->name)) CHECK(steps == alone_with(with_size({*other}), by_messages));
    if (kOutside.contains(other->name)) CHECK(steps == alone_with(with_size({*first}), by_messages));
    if (!kOutside.contains(name) && kLayouts.contains(other->name)) CHECK(difference_of(steps, alone_with({*first}, by_messages)) < 2e-5);
  }
  CHECK(trained >= least);
}

}  // namespace

TEST_CASE("combinations: a robust rule trains with everything that it is allowed with") { check_pairs_of("robust rule", 17); }

TEST_CASE("combinations: privacy trains with everything that it is allowed with") { check_pairs_of("privacy", 15); }

TEST_CASE("combinations: encryption trains with everything that it is allowed with, and changes no bit") { check_pairs_of("encryption", 25); }

TEST_CASE("combinations: the audit log trains with everything that it is allowed with, and changes no bit") { check_pairs_of("audit log", 25); }

}  // namespace trireme::test
