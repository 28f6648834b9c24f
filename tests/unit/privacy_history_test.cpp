// What a run knows about the steps it has released: over restarts, older checkpoints, other keys and changes, and what follows for its noise, its budget
// and its statement.
#include "trainer/privacy/history.h"

#include <cmath>
#include <limits>
#include <set>

#include "parallel/crypto/sodium.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/privacy/statement.h"
#include "trainer/run/private_training.h"

namespace trireme {
namespace {

using namespace privacy;

const Mechanism kFirst{0.01, 1.0, "key a"}, kOtherKey{0.01, 1.0, "key b"}, kOtherNoise{0.01, 2.0, "key a"};

int64_t steps_in(const History& history) { return count_of(steps_of(history)); }

/// What a checkpoint after `step` has of the history.
History at(History history, int64_t step) {
  history.back().steps = step - history.back().first;
  return history;
}

crypto::Key key_of(uint8_t start) {
  crypto::Key key;
  key.data()[0] = start;
  return key;
}

Config config_of(std::optional<double> noise, std::optional<double> target) {
  Config config;
  config.training.global_batch_size = 10;
  config.training.sequence_length = 256;
  config.training.steps = 1000;
  config.security.privacy = {1.0, noise, target, 1e-5, "key"};
  return config;
}

PrivacyStart new_run() { return {0, 1000, 1000, "data"}; }

}  // namespace

TEST_CASE("privacy history: a job that repeats steps of the same lineage counts them once") {
  if (!crypto::has_sodium()) return;
  History history = continued({}, {}, 0, kFirst, "run 1");
  CHECK(steps_in(history) == 0);
  release(history, 30);
  CHECK(steps_in(history) == 30);
  // Killed after step 30; the checkpoint of step 20 is resumed.
  const History resumed = continued(at(history, 20), history, 20, kFirst, "");
  CHECK(steps_in(resumed) == 30);
  CHECK(resumed.back() == history.back());
  // Killed before the first checkpoint: the same run begins again.
  const History again = continued({}, history, 0, kFirst, "run 1");
  CHECK(again == history);
}

TEST_CASE("privacy history: steps that are repeated differently count again, with noise of their own") {
  if (!crypto::has_sodium()) return;
  History history = continued({}, {}, 0, kFirst, "run 1");
  release(history, 30);
  const History saved = at(history, 20);
  std::set<std::string> lineages{history.back().lineage};
  const auto check_fork = [&](const Mechanism& now, const char* changes) {
    CAPTURE(now.key, now.noise, changes);
    History fork = continued(saved, history, 20, now, changes);
    CHECK(steps_in(fork) == 30);
    CHECK(lineages.insert(fork.back().lineage).second);
    CHECK(fork.back().first == 20);
    release(fork, 50);
    CHECK(steps_in(fork) == 60);
    // The change repeated at the same step is the same series.
    const History repeated = continued(saved, fork, 20, now, changes);
    CHECK(repeated.back() == fork.back());
    CHECK(steps_in(repeated) == 60);
    // So is a resume of what it has saved.
    CHECK(continued(at(fork, 40), fork, 40, now, "").back() == fork.back());
    // Back to the first key from there: its noise was used for steps from other weights.
    const History back = continued(at(fork, 25), fork, 25, kFirst, "back");
    CHECK(back.back().lineage != history.back().lineage);
    CHECK(steps_in(back) == 60);
  };
  check_fork(kOtherKey, "");
  check_fork(kOtherNoise, "");
  check_fork({0.02, 1.0, "key a"}, "");
  check_fork(kFirst, "{\"training.optimizer.learning_rate\": [1, 2]}");
  check_fork(kFirst, "{\"training.optimizer.learning_rate\": [1, 3]}");
  // Another run of the same key has noise of its own, and so has the same change at another step.
  CHECK(continued({}, {}, 0, kFirst, "run 2").back().lineage != history.back().lineage);
  CHECK(continued(saved, {}, 20, kFirst, "x").back().lineage != continued(at(history, 21), {}, 21, kFirst, "x").back().lineage);
}

TEST_CASE("privacy history: no step gets lost, whatever checkpoint and file have") {
  if (!crypto::has_sodium()) return;
  History known = continued({}, {}, 0, kFirst, "run 1");
  release(known, 100);
  known = continued(at(known, 40), known, 40, kOtherKey, "");
  release(known, 90);
  CHECK(steps_in(known) == 150);
  CHECK(steps_in(continued({}, known, 0, kOtherNoise, "run 1")) == 150);            // starting over
  CHECK(steps_in(continued({known[0]}, known, 40, kOtherNoise, "")) == 150);        // an older checkpoint with another noise
  CHECK(steps_in(continued({known[0]}, known, 40, kFirst, "")) == 150);             // an older checkpoint with the first key
  CHECK(steps_in(continued(known, {}, 90, kOtherKey, "")) == 150);                  // without the file
  CHECK(steps_in(continued(at(known, 50), {known[0]}, 50, kOtherKey, "")) == 110);  // an older file
  History shrunk = known;
  release(shrunk, 60);
  CHECK(shrunk == known);
}

TEST_CASE("privacy history: a checkpoint has it, and one without it is one of a run that was not private") {
  if (!crypto::has_sodium()) return;
  Manifest manifest;
  manifest.description.model = manifest.description.layout = nlohmann::json::object();
  const std::string without = manifest_text(manifest);
  CHECK(without.find("privacy") == std::string::npos);
  CHECK(parse_manifest(without, "m").description.privacy.empty());
  History history = continued({}, {}, 0, {1.0 / 3, 1.0 / 7, "0123"}, "run 1");
  release(history, 1'000'000);
  history = continued(history, {}, 1'000'000, no_privacy(), "x");
  manifest.description.privacy = history;
  CHECK(parse_manifest(manifest_text(manifest), "m").description.privacy == history);
  for (const char* bad :
       {"1", "[1]", R"([{"lineage": "x"}])", R"([{"lineage": "x", "key": "", "sampling_rate": 2, "noise": 1, "first": 0, "steps": 0}])",
        R"([{"lineage": "x", "key": "", "sampling_rate": 1, "noise": -1, "first": 0, "steps": 0}])",
        R"([{"lineage": "x", "key": "", "sampling_rate": 1, "noise": 1, "first": 0, "steps": -1}])",
        R"([{"lineage": "x", "key": "", "sampling_rate": 1, "noise": 1, "first": 0, "steps": 9223372036854775807}])"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_history(nlohmann::json::parse(bad), "m"), DataError);
  }
}

TEST_CASE("private training: the noise follows from the budget, and a resume keeps it") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1), other = key_of(2);
  const Config config = config_of(std::nullopt, 2.107753076);  // of 1000 steps with rate 0.01 and noise 1
  const PrivateTraining first(config, new_run(), &key);
  CHECK(first.mechanism().noise == 1.0);
  CHECK(first.mechanism().sampling_rate == 0.01);
  CHECK(first.epsilon(0).value == 0);
  CHECK(first.epsilon(1000).value == Approx(2.107753075).epsilon(1e-9));
  CHECK(first.last_step() > 1000);
  // The second accountant has the same steps.
  const auto tight = first.tight(1000);
  REQUIRE(tight);
  CHECK(tight->upper == Approx(1.8283).margin(2e-3));

  PrivacyStart later = new_run();
  later.step = 400;
  later.saved = first.history(400);
  later.known = first.history(500);  // announced, and killed before
  const PrivateTraining resumed(config, later, &key);
  CHECK(resumed.mechanism() == first.mechanism());
  CHECK(resumed.epsilon(400).value == first.epsilon(500).value);
  CHECK(resumed.epsilon(1000).value == first.epsilon(1000).value);
  // Another key repeats 100 steps, so that the rest of the run needs more noise to stay within the budget.
  const PrivateTraining rekeyed(config, later, &other);
  CHECK(rekeyed.mechanism().noise > 1.0);
  CHECK(rekeyed.epsilon(400).value == first.epsilon(500).value);
  CHECK(rekeyed.epsilon(1000).value <= 2.107753076);
  CHECK(rekeyed.epsilon(1000).value > 2.10);
  // A job that was killed before its first checkpoint is repeated with the same noise.
  later.known = rekeyed.history(450);
  const PrivateTraining repeated(config, later, &other);
  CHECK(repeated.mechanism() == rekeyed.mechanism());
  CHECK(repeated.history(450) == rekeyed.history(450));
}

TEST_CASE("private training: two runs of one key, and a run that is changed, have noise of their own") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1);
  const auto value = [](const PrivateTraining& run) {
    std::vector<double> values(2);
    run.random()->normal("weight", 1, 0, values);
    return values;
  };
  const Config config = config_of(1.0, std::nullopt);
  const PrivateTraining first(config, new_run(), &key), same(config, new_run(), &key);
  CHECK(value(first) == value(same));
  Config layout = config;  // of the same mathematics
  layout.parallel.data = 2;
  layout.parallel.zero_stage = 1;
  layout.run.name = "x";
  layout.training.micro_batch_size = 2;
  CHECK(value(PrivateTraining(layout, new_run(), &key)) == value(first));
  std::set<std::vector<double>> seen{value(first)};
  Config changed = config;
  changed.training.optimizer.learning_rate *= 2;
  CHECK(seen.insert(value(PrivateTraining(changed, new_run(), &key))).second);
  changed = config;
  changed.security.privacy.clip = 2.0;
  CHECK(seen.insert(value(PrivateTraining(changed, new_run(), &key))).second);
  PrivacyStart start = new_run();
  start.data = "other data";
  CHECK(seen.insert(value(PrivateTraining(config, start, &key))).second);
  start = new_run();
  start.initial_weights = "of another checkpoint";
  CHECK(seen.insert(value(PrivateTraining(config, start, &key))).second);
  start = new_run();
  start.step = 100;
  start.saved = first.history(100);
  start.data = "data of which a sequence was removed";
  CHECK(seen.insert(value(PrivateTraining(config, start, &key))).second);
  start.data = new_run().data;
  CHECK(value(PrivateTraining(config, start, &key)) == value(first));
  start.changes = "{\"training.optimizer.learning_rate\": [1, 2]}";
  CHECK(seen.insert(value(PrivateTraining(config, start, &key))).second);
}

TEST_CASE("private training: where each data rank adds noise, their number is part of what is released") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1);
  Config config = config_of(1.0, std::nullopt);
  config.security.aggregation.rule = AggregationRule::kMedian;
  config.security.aggregation.byzantine = 1;
  config.parallel.data = 4;
  const PrivateTraining first(config, new_run(), &key);
  CHECK(first.text().find("added by each of 4 data ranks") != std::string::npos);
  CHECK(statement(first.facts(), first.history(1000), std::nullopt)["noise_added"].get<std::string>().starts_with("by each of 4 data ranks"));
  CHECK(first.epsilon(1000).value == PrivateTraining(config_of(1.0, std::nullopt), new_run(), &key).epsilon(1000).value);
  PrivacyStart later = new_run();
  later.step = 400;
  later.saved = first.history(400);
  later.known = first.history(500);  // announced, and killed before
  const PrivateTraining same(config, later, &key);
  CHECK(same.history(1000).size() == 1);
  config.parallel.tensor = 2;  // any layout with as many data ranks
  config.parallel.zero_stage = 2;
  CHECK(PrivateTraining(config, later, &key).history(1000) == same.history(1000));
  config.parallel.data = 8;
  const PrivateTraining other(config, later, &key);
  REQUIRE(other.history(1000).size() == 2);
  CHECK(other.history(1000)[0].steps == 500);
  CHECK(other.history(1000)[1].steps == 600);
  std::vector<double> noise(2), before(2);
  other.random()->normal("weight", 450, 0, noise);
  first.random()->normal("weight", 450, 0, before);
  CHECK(noise != before);
}

TEST_CASE("private training: the budget ends the run before the step that would exceed it") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1), other = key_of(2);
  const Config config = config_of(1.0, 2.0);
  const PrivateTraining run(config, new_run(), &key);
  const int64_t last = run.last_step();
  CHECK(last > 800);
  CHECK(last < 1000);
  CHECK(run.epsilon(last).value <= 2.0);
  CHECK(run.epsilon(last + 1).value > 2.0);
  PrivacyStart ended = new_run();
  ended.step = last;
  ended.saved = ended.known = run.history(last);
  CHECK(PrivateTraining(config, ended, &key).last_step() == last);  // nothing to do
  // With another key the steps after an older checkpoint count again.
  PrivacyStart older = new_run();
  older.step = 300;
  older.saved = run.history(300);
  older.known = run.history(500);
  const PrivateTraining rekeyed(config, older, &other);
  CHECK(rekeyed.last_step() == last - 200);
  older.known = run.history(last);
  test::check_throws<ConfigError>(
      [&] { PrivateTraining(config, older, &other); },
      {"security.privacy.target_epsilon=2: does not suffice for one step", "700 more steps with a noise multiplier of 1 would need"});
  // Over the budget already.
  test::check_throws<ConfigError>([&] { PrivateTraining(config_of(1.0, 1.0), ended, &key); },
                                  {"security.privacy.target_epsilon=1: the run has used 1.99", "would need 2.1078"});
  test::check_throws<ConfigError>([&] { PrivateTraining(config_of(std::nullopt, 1e-3), new_run(), &key); },
                                  {"security.privacy.target_epsilon=0.001: no noise multiplier up to a million keeps 1000 steps within it"});
  // What a refusal names suffices, just above it, and does not just below.
  const auto named = [](const std::string& words, const auto& refused) {
    try {
      refused();
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      REQUIRE(text.find(words) != text.npos);
      return std::stod(text.substr(text.find(words) + words.size()));
    }
    FAIL("accepted");
    return 0.0;
  };
  constexpr double kLittle = 1e-4;
  const double budget = named("would need ", [&] { PrivateTraining(config_of(1.0, 1.0), ended, &key); });
  CHECK(PrivateTraining(config_of(1.0, budget * (1 + kLittle)), ended, &key).last_step() >= 1000);
  CHECK(PrivateTraining(config_of(1.0, budget * (1 - kLittle)), ended, &key).last_step() < 1000);
  const double noiseless = named("a target_epsilon above ", [&] { PrivateTraining(config_of(std::nullopt, 1e-3), new_run(), &key); });
  CHECK_NOTHROW(PrivateTraining(config_of(std::nullopt, noiseless * (1 + kLittle)), new_run(), &key));
  CHECK_THROWS_AS(PrivateTraining(config_of(std::nullopt, 0.9 * noiseless), new_run(), &key), ConfigError);
}

TEST_CASE("private training: data with fewer sequences than a step draws are refused, and a large delta is warned of") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1);
  Config config = config_of(1.0, std::nullopt);
  PrivacyStart start = new_run();
  start.sequences = 9;
  test::check_throws<ConfigError>([&] { PrivateTraining(config, start, &key); }, {"training.global_batch_size=10", "allowed 1 to 9"});
  start.sequences = 10;
  CHECK(PrivateTraining(config, start, &key).mechanism().sampling_rate == 1);
  CHECK(PrivateTraining(config, start, &key).warning().empty());
  config.security.privacy.delta = 0.1;
  CHECK(PrivateTraining(config, start, &key).warning().find("security.privacy.delta=0.1: at least 1 / (number of sequences)") == 0);
}

TEST_CASE("private training: steps without privacy, before or after, leave nothing that bounds epsilon") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1);
  const Config config = config_of(1.0, std::nullopt);
  PrivacyStart after_public = new_run();
  after_public.step = 10;
  after_public.changes = "{\"security.privacy.clip\": [null, 1]}";
  CHECK(std::isinf(PrivateTraining(config, after_public, &key).epsilon(11).value));
  test::check_throws<ConfigError>([&] { PrivateTraining(config_of(1.0, 8.0), after_public, &key); }, {"the run has used unbounded already"});

  PrivacyStart dropped = new_run();
  dropped.step = 100;
  dropped.saved = PrivateTraining(config, new_run(), &key).history(100);
  dropped.changes = "{\"security.privacy.clip\": [1, null]}";
  Config without = config;
  without.security.privacy = {};
  const PrivateTraining run(without, dropped, nullptr);
  CHECK(run.random() == nullptr);
  CHECK(std::isinf(run.epsilon(101).value));
  const nlohmann::ordered_json said = statement(run.facts(), run.history(110), std::nullopt);
  CHECK(said["epsilon"].is_null());
  CHECK(said["history"].size() == 2);
  CHECK(text_of(run.facts(), run.epsilon(110), std::nullopt) == "nothing bounds epsilon for adding or removing one sequence of 256 tokens");
}

TEST_CASE("private training: the statement has what an auditor asks for, and is read back") {
  if (!crypto::has_sodium()) return;
  const crypto::Key key = key_of(1);
  const PrivateTraining run(config_of(1.0, std::nullopt), new_run(), &key);
  const Bracket tight{1.8246, 1.8283};
  const nlohmann::ordered_json said = statement(run.facts(), run.history(1000), tight);
  CHECK(said["unit"] == "one sequence of 256 tokens and the token after it");
  CHECK(said["neighbours"] == "data sets that differ by one added or removed sequence");
  CHECK(said["sequences"] == 1000);
  CHECK(said["sampling_rate"] == 0.01);
  CHECK(said["clip"] == 1.0);
  CHECK(said["noise"] == 1.0);
  CHECK(said["steps"] == 1000);
  CHECK(said["delta"] == 1e-5);
  CHECK(said["epsilon"].get<double>() == Approx(2.107753075).epsilon(1e-9));
  CHECK(said["accountant"]["order"] == 8);
  CHECK(said["tight"]["lower"] == 1.8246);
  CHECK(said["tight"]["upper"] == 1.8283);
  CHECK(said["key"] == crypto::PrivateRandom(crypto::derive(key, "data data")).fingerprint());
  CHECK(said["outside"].size() == 9);
  CHECK(history_in(said.dump(2), "privacy.json") == run.history(1000));
  History two = run.history(1000);
  two.push_back(two.back());
  two.back().lineage = "another";
  two.back().first = 1000;
  two.back().steps = 500;
  CHECK(statement(run.facts(), two, tight)["steps"] == 1500);
  CHECK(text_of(run.facts(), run.epsilon(1000), tight) ==
        "epsilon 2.11 (RDP; 1.83 tight) at delta 1e-05 for adding or removing one sequence of 256 tokens");
  CHECK_THROWS_AS(history_in("{}", "privacy.json"), DataError);
  CHECK_THROWS_AS(history_in(R"({"format": "trireme-privacy", "version": 2, "history": []})", "privacy.json"), DataError);
}

TEST_CASE("private training: steps are announced up to the next checkpoint, and not past the end") {
  CHECK(announced_step(1, 10, 100) == 10);
  CHECK(announced_step(10, 10, 100) == 10);
  CHECK(announced_step(11, 10, 100) == 20);
  CHECK(announced_step(95, 10, 97) == 97);
  CHECK(announced_step(1, 0, 50) == 50);
  CHECK(announced_step(1, 0, 5000) == 1000);
  CHECK(announced_step(1, 1'000'000, 5'000'000) == 1000);
  CHECK(announced_step(1001, 1'000'000, 5'000'000) == 2000);
}

}  // namespace trireme
