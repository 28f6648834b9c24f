// What security.federation needs and does not go with: each is refused by its own key, with the reason. And what each role makes of the configuration.
#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "parallel/crypto/secure_sum_round.h"
#include "tests/support/catch.h"
#include "trainer/config/check.h"
#include "trainer/config/check_federation.h"
#include "trainer/config/fields.h"
#include "trainer/config/load.h"
#include "trainer/config/report.h"
#include "trainer/federation/role.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

Config federated_config() {
  Config c;
  c.model.layers = 2;
  c.model.vocab_size = 256;
  c.training.steps = 12;
  c.training.global_batch_size = 8;
  c.training.local.steps = 3;
  c.data.train = {"data"};
  c.security.federation.members = 4;
  c.security.federation.roster = "roster";
  c.security.federation.identity_key_file = "key";
  return c;
}

std::vector<std::string> federation_refusals(const Config& config) {
  Violations violations;
  check(config, Sources{}, violations);
  std::istringstream lines(violations.text(Sources{}));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) found.push_back(line);
  return found;
}

}  // namespace

TEST_CASE("federation: what it needs, and every feature that it does not go with, is refused by name") {
  CHECK(federation_refusals(federated_config()).empty());
  const auto check_refused = [](const std::string& key, const std::string& reason, const auto& edit) {
    CAPTURE(key);
    Config config = federated_config();
    edit(config);
    const std::vector<std::string> found = federation_refusals(config);
    const bool refused = std::ranges::any_of(found, [&](const std::string& line) {
      return (line.starts_with(key + "=") || line.starts_with(key + ":")) && line.find(reason) != std::string::npos;
    });
    CAPTURE(found);
    CHECK(refused);
  };
  using F = FederationConfig;
  const auto of_federation = [](const auto& edit) { return [edit](Config& c) { edit(c.security.federation); }; };
  check_refused("security.federation.roster", "recognise each other", of_federation([](F& f) { f.roster.reset(); }));
  check_refused("security.federation.identity_key_file", "prove its identity", of_federation([](F& f) { f.identity_key_file.reset(); }));
  check_refused("security.federation.members", "the sum of one member's update is that update", of_federation([](F& f) { f.members = 1; }));
  check_refused("security.federation.minimum", "more than half", of_federation([](F& f) { f.minimum = 2; }));
  check_refused("security.federation.minimum", "more than half", of_federation([](F& f) { f.minimum = 5; }));
  check_refused("security.federation.rounds", "divided by training.local.steps=3", of_federation([](F& f) { f.rounds = 5; }));
  check_refused("security.federation.delta", "without the delta", of_federation([](F& f) {
                  f.clip = 1;
                  f.noise = 1;
                }));
  check_refused("training.steps", "a multiple of training.local.steps=3", [](Config& c) { c.training.steps = 13; });
  check_refused("training.local.steps", "alone in a round", [](Config& c) { c.training.local.steps.reset(); });
  check_refused("training.epochs", "data of different sizes", [](Config& c) {
    c.training.steps.reset();
    c.training.epochs = 1;
  });
  check_refused("training.local.fragments", "whole updates", [](Config& c) { c.training.local.fragments = 3; });
  check_refused("training.local.delay", "at the end of a round", [](Config& c) { c.training.local.delay = 1; });
  check_refused("training.local.blend", "weights of the coordinator", [](Config& c) { c.training.local.blend = 0.5; });
  check_refused("training.asynchronous.mode", "synchronous steps",
                [](Config& c) { c.training.asynchronous.mode = AsynchronousMode::kParameterServer; });
  check_refused("parallel.islands", "an island of its own", [](Config& c) { c.parallel.islands = 2; });
  check_refused("security.aggregation.rule", "hides the updates that a robust rule compares",
                [](Config& c) { c.security.aggregation.rule = AggregationRule::kMedian; });
  check_refused("security.aggregation.rule", "and not members", [](Config& c) {
    c.security.federation.secure = false;
    c.security.aggregation.rule = AggregationRule::kMedian;
  });
  check_refused("security.privacy.clip", "protects whole members", [](Config& c) { c.security.privacy = {1.0, 1.1, std::nullopt, 1e-5, "key"}; });
  check_refused("training.ema.decay", "mix the weights", [](Config& c) { c.training.ema.decay = 0.9; });
  check_refused("training.stop.patience", "when training ends", [](Config& c) { c.training.stop.patience = 2; });
}

TEST_CASE("federation: fewest members, and the configurations of the roles") {
  FederationConfig f;
  for (const auto& [members, fewest] : {std::pair{2, 2}, {3, 3}, {4, 3}, {5, 4}, {6, 5}, {7, 5}, {16, 11}}) {
    f.members = members;
    CHECK(fewest_members(f) == fewest);
    CHECK(fewest_members(f) ==
          static_cast<int64_t>(crypto::default_threshold(static_cast<size_t>(members))));  // the configuration knows no cryptography
  }
  f.secure = false;
  CHECK(fewest_members(f) == 1);
  CHECK(noise_of_member(f) == 0);

  const Config config = federated_config();
  CHECK(!federation::role_of(Config{}, std::nullopt));
  CHECK_THROWS_WITH(federation::role_of(Config{}, "host:1"), Catch::Matchers::Contains("join host:1: security.federation.members is 0"));
  const federation::Role member = federation::role_of(config, "host:1").value(), coordinator = federation::role_of(config, std::nullopt).value();
  CHECK(!member.coordinates);
  CHECK(coordinator.coordinates);
  CHECK(member.round_steps == 3);
  CHECK(member.terms == coordinator.terms);
  for (const federation::Role& role : {member, coordinator}) {
    const Config own = resolve(federation::config_of(role, {config, {}}));  // has no violations
    CHECK(!is_federated(own.security));
    CHECK(own.training.local.steps.has_value() == role.coordinates);
  }
  const auto terms_with = [&](const auto& edit) {
    Config other = config;
    edit(other);
    return federation::terms_of(other);
  };
  CHECK(terms_with([](Config& c) { c.model.layers = 3; }) != member.terms);
  CHECK(terms_with([](Config& c) { c.training.local.outer_momentum = 0.5; }) != member.terms);
  CHECK(terms_with([](Config& c) { c.security.federation.clip = 2; }) != member.terms);
  CHECK(terms_with([](Config& c) {
          c.data.train = {"other"};
          c.parallel.tensor = 2;
          c.run.seed = 8;
          c.security.federation.identity_key_file = "other";
        }) == member.terms);
}

TEST_CASE("federation: a value that a federation's file may have leaves each role a valid configuration") {
  const std::string file = R"(
model: {layers: 2, vocab_size: 256}
training: {steps: 12, global_batch_size: 8, local: {steps: 3}}
data: {train: [data], validation: [held-out]}
security: {federation: {members: 4, roster: roster, identity_key_file: key}}
)";
  int accepted = 0;
  std::vector<std::string> refused;
  for (const FieldRow& row : table_of(federated_config()).fields) {
    if (row.path == "data.tokenizer") continue;  // names a file
    std::vector<std::string> values{row.field.choices.begin(), row.field.choices.end()};
    if (values.empty()) values = {"0", "1", "2", "0.5", "true", "[other]"};
    for (const std::string& value : values) {
      LoadedConfig loaded;
      try {
        loaded = parse_config(file, "federation.yaml", {row.path + "=" + value});
        if (!federation_refusals(loaded.config).empty() || !is_federated(loaded.config.security)) continue;
      } catch (const ConfigError&) {
        continue;
      }
      for (const std::optional<std::string>& join : {std::optional<std::string>(), std::optional<std::string>("host:1")}) {
        ++accepted;
        try {
          resolve(federation::config_of(federation::role_of(loaded.config, join).value(), loaded));
        } catch (const Error& error) {
          refused.push_back(concat(row.path, "=", value, join ? " of a member: " : " of the coordinator: ", error.what()));
        }
      }
    }
  }
  CHECK(refused == std::vector<std::string>{});
  CHECK(accepted > 400);
}

TEST_CASE("federation: the noise of the others alone is what epsilon is for, so that it holds against each member") {
  FederationConfig f;
  f.noise = 1.5;
  f.clip = 2;
  for (const int members : {2, 3, 4, 16})
    for (const bool secure : {true, false}) {
      f.members = members;
      f.secure = secure;
      const auto others = static_cast<double>(std::max<int64_t>(1, fewest_members(f) - 1));
      CHECK(noise_of_member(f) * std::sqrt(others) == Approx(1.5 * 2));
    }
}

}  // namespace trireme
