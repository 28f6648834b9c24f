// Differentially private runs: what they say, what they refuse, and what restarts, older checkpoints, other keys and budgets cost.
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "tests/e2e/harness.h"
#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"
#include "trainer/audit/chain.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const std::string kKeyText = "8uXk1Zp0m5Qw3nV7rT9yB2cD4eF6gH8jKlMnPqRsTuV";

void write_key(const fs::path& path, const std::string& text) {
  write_file(path, text + "\n");
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
}

void prepare_private_run(const TemporaryDirectory& directory) {
  prepare_run(directory);
  write_key(directory / "key", kKeyText);
  write_key(directory / "other_key", "1" + kKeyText);
}

const Arguments kPrivate =
    kNoEvaluation + sets({"model.dropout=0", "security.privacy.clip=1", "security.privacy.noise=1.1", "security.privacy.delta=1e-4",
                          "security.privacy.key_file=key", "checkpoint.every=2", "checkpoint.keep=20", "training.steps=12"});

nlohmann::json statement_of(const fs::path& run) { return nlohmann::json::parse(read_file(run / "privacy.json")); }

std::vector<double> epsilons(const fs::path& run) {
  std::vector<double> found;
  for (const nlohmann::json& line : metrics(run))
    if (line.contains("loss")) found.push_back(line["epsilon"].get<double>());
  return found;
}

}  // namespace

TEST_CASE("privacy: a run states its epsilon in every step, in privacy.json, in its audit log and at its end") {
  TemporaryDirectory directory;
  prepare_private_run(directory);
  const Outcome outcome = must(directory, kTrain + kPrivate + layout(1, 1, 2, 1) + sets({"security.audit.enabled=true"}));
  CHECK(says(outcome, "privacy: epsilon "));
  CHECK(says(outcome, " at delta 0.0001 for adding or removing one sequence of 16 tokens"));
  CHECK(says(outcome, " tight)"));
  const nlohmann::json said = statement_of(directory / "run");
  CHECK(said["steps"] == 12);
  CHECK(said["noise"] == 1.1);
  CHECK(said["unit"] == "one sequence of 16 tokens and the token after it");
  CHECK(said["history"].size() == 1);
  CHECK(said["sampling_rate"].get<double>() == 8.0 / said["sequences"].get<double>());
  CHECK(said["tight"]["upper"].get<double>() < said["epsilon"].get<double>());
  CHECK(said["tight"]["lower"].get<double>() <= said["tight"]["upper"].get<double>());
  const std::vector<double> spent = epsilons(directory / "run");
  REQUIRE(spent.size() == 12);
  for (size_t step = 1; step < spent.size(); ++step) CHECK(spent[step] > spent[step - 1]);
  CHECK(spent.back() == said["epsilon"].get<double>());

  must(directory, {"audit", "verify", "run"});
  std::vector<int64_t> recorded;
  for (const audit::Record& record : audit::read_log(directory / "run/audit.jsonl").records)
    if (record.event() == "privacy") {
      recorded.push_back(record.member("step").get<int64_t>());
      CHECK(record.member("epsilon").get<double>() == spent[static_cast<size_t>(recorded.back() - 1)]);
    }
  CHECK(recorded == std::vector<int64_t>{2, 4, 6, 8, 10, 12, 12});
  check(shell(directory, "grep -rl " + kKeyText + " run"), 1, "");
}

TEST_CASE("privacy: runs of one key in different layouts draw the same samples and noise") {
  TemporaryDirectory directory;
  prepare_private_run(directory);
  must(directory, kTrain + kPrivate + in("serial"));
  must(directory, kTrain + kPrivate + in("tensor") + layout(2, 1, 2, 3));
  must(directory, kTrain + kPrivate + in("pipeline") + layout(1, 2, 2, 1));
  const std::vector<double> serial = losses(directory / "serial", 12);
  for (const char* other : {"tensor", "pipeline"}) {
    CAPTURE(other);
    const std::vector<double> found = losses(directory / other, 12);
    for (size_t step = 0; step < serial.size(); ++step) CHECK(found[step] == Approx(serial[step]).epsilon(1e-4));
    CHECK(statement_of(directory / other) == statement_of(directory / "serial"));
  }
}

TEST_CASE("privacy: a restart counts a repeated step once, and with another key again") {
  TemporaryDirectory directory;
  prepare_private_run(directory);
  must(directory, kTrain + kPrivate + in("whole"));
  const nlohmann::json whole = statement_of(directory / "whole");
  const std::vector<double> expected = losses(directory / "whole", 12);
  const auto steps_of_run = [&](const char* run) { return statement_of(directory / run)["steps"].get<int64_t>(); };

  must(directory, kTrain + kPrivate + in("same") + Arguments{"--max-steps", "7"});
  CHECK(steps_of_run("same") == 7);
  must(directory, kTrain + kPrivate + in("same") + Arguments{"--resume", "same/checkpoints/step-00000004"});
  CHECK(statement_of(directory / "same")["epsilon"] == whole["epsilon"]);
  CHECK(steps_of_run("same") == 12);
  CHECK(losses(directory / "same", 12) == expected);

  must(directory, kTrain + kPrivate + in("rekeyed") + Arguments{"--max-steps", "7"});
  const Arguments other = sets({"security.privacy.key_file=other_key"});
  must(directory, kTrain + kPrivate + in("rekeyed") + other + Arguments{"--resume", "rekeyed/checkpoints/step-00000004"});
  CHECK(steps_of_run("rekeyed") == 15);  // 7, and 5 to 12 again
  CHECK(statement_of(directory / "rekeyed")["epsilon"].get<double>() > whole["epsilon"].get<double>());
  CHECK(statement_of(directory / "rekeyed")["history"].size() == 2);

  // Another noise needs --change; it counts again, and a third series is added to both.
  const Arguments quieter = kTrain + kPrivate + in("rekeyed") + sets({"security.privacy.noise=2"});
  check_error(run(directory, quieter + Arguments{"--resume", "rekeyed/checkpoints/step-00000004"}), 64, "--change security.privacy.noise");
  must(directory, quieter + Arguments{"--resume", "rekeyed/checkpoints/step-00000004", "--change", "security.privacy.noise"});
  CHECK(steps_of_run("rekeyed") == 23);
}

TEST_CASE("privacy: a job that was killed has announced the steps that it may have released") {
  TemporaryDirectory directory;
  prepare_private_run(directory);
  const Arguments arguments = kPrivate + sets({"training.steps=400", "checkpoint.every=50", "checkpoint.asynchronous=false"});
  LiveJob job(directory, "run", arguments);
  REQUIRE(job.wait_for_step(60));
  job.signal(SIGKILL);
  job.wait();
  const int64_t announced = statement_of(directory / "run")["steps"].get<int64_t>();
  CHECK(announced % 50 == 0);
  CHECK(announced >= 100);
  CHECK(announced >= std::ssize(epsilons(directory / "run")));
  fs::rename(directory / "run/privacy.json", directory / "privacy.json");
  check_error(run(directory, kTrain + arguments), 65, "run/privacy.json is missing");
  fs::rename(directory / "privacy.json", directory / "run/privacy.json");
  must(directory, kTrain + arguments);
  CHECK(statement_of(directory / "run")["steps"] == 400);
}

TEST_CASE("privacy: a run ends before the step that would exceed its budget, and one that is over it is refused") {
  TemporaryDirectory directory;
  prepare_private_run(directory);
  must(directory, kTrain + kPrivate + in("whole"));
  const std::vector<double> spent = epsilons(directory / "whole");
  const auto target = [&](double epsilon) { return sets({"security.privacy.target_epsilon=" + std::to_string(epsilon)}); };
  const Outcome ended = must(directory, kTrain + kPrivate + target((spent[7] + spent[8]) / 2));
  CHECK(says(ended, "the privacy budget is used up"));
  CHECK(says(ended, "done: 8 of 12 steps"));
  CHECK(epsilons(directory / "run").size() == 8);
  CHECK(checkpoint_names(directory / "run").contains("step-00000008"));
  check(run(directory, kTrain + kPrivate + target((spent[7] + spent[8]) / 2)), 0, "");
  const Outcome over = run(directory, kTrain + kPrivate + target(spent[2]) + Arguments{"--change", "security.privacy.target_epsilon"});
  check_error(over, 64, "security.privacy.target_epsilon=");
  CHECK(says(over, "the run has used "));
  CHECK(says(over, "would need "));
  // The noise that follows from a budget leaves room for all steps.
  const Arguments derived = kTrain + kPrivate + in("derived") + sets({"security.privacy.noise=null"}) + target(spent[7]);
  must(directory, derived + Arguments{"--max-steps", "5"});
  const double noise = statement_of(directory / "derived")["noise"].get<double>();
  CHECK(noise > 1.1);
  must(directory, derived);
  CHECK(statement_of(directory / "derived")["noise"] == noise);
  CHECK(statement_of(directory / "derived")["epsilon"].get<double>() <= spent[7]);
  CHECK(epsilons(directory / "derived").size() == 12);
}

TEST_CASE("privacy: what would make its statement untrue is refused") {
  TemporaryDirectory directory;
  prepare_private_run(directory);
  check_error(run(directory, kTrain + kPrivate + sets({"security.privacy.key_file=nowhere"})), 66, "security.privacy.key_file: nowhere");
  REQUIRE(::chmod((directory / "other_key").c_str(), 0644) == 0);
  check_error(run(directory, kTrain + kPrivate + sets({"security.privacy.key_file=other_key"})), 64, "allowed 0600");
  check_error(run(directory, kTrain + kPrivate + sets({"training.global_batch_size=4000"})), 64,
              "security.privacy draws each sequence at most once in a step");
  must(directory, kTrain + kPrivate + Arguments{"--max-steps", "2"});
  check_error(run(directory, kTrain + kPrivate + sets({"security.privacy.clip=2"})), 64, "--change security.privacy.clip");
  check_error(run(directory, kTrain + kPrivate + sets({"training.sequence_length=8"})), 64, "now:        training.sequence_length: 8");
  check_error(run(directory, kTrainOnly + sets({"model.dropout=0", "checkpoint.every=2", "checkpoint.keep=20", "training.steps=12"})), 64,
              "security.privacy.clip");
  const Outcome warned = must(directory, kTrain + kPrivate + in("large") + sets({"security.privacy.delta=0.01", "training.steps=2"}));
  CHECK(says(warned, "warning: security.privacy.delta=0.01: at least 1 / (number of sequences)"));
}

}  // namespace trireme::test
