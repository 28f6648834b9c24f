// Resumed runs: from the newest valid checkpoint, on the right branch after a roll-back, with the correct samples.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "kernels/core/check.h"
#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

fs::path checkpoint(const TemporaryDirectory& directory, const std::string& run_directory, int step) {
  return directory / concat(run_directory, "/checkpoints/step-0000000", step);
}

std::string latest(const TemporaryDirectory& directory, const std::string& run_directory) {
  return fs::read_symlink(directory / (run_directory + "/checkpoints/latest")).string();
}

/// Flips one bit in the last tensor of a file.
void flip_a_bit(const fs::path& checkpoint) {
  const fs::path shard = checkpoint / "rank-00001.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() - 40] = static_cast<char>(bytes[bytes.size() - 40] ^ 4);
  write_file(shard, bytes);
}

void truncate(const fs::path& checkpoint) {
  fs::resize_file(checkpoint / "rank-00001.safetensors", fs::file_size(checkpoint / "rank-00001.safetensors") / 2);
}

void remove_manifest(const fs::path& checkpoint) { fs::remove(checkpoint / "manifest.json"); }

}  // namespace

TEST_CASE("resume: each step reads the correct samples after repeated resumes with different data degrees") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // Nearly constant weights and double precision: the loss of a step identifies its samples, in any layout.
  const Arguments command =
      kTrainOnly + sets({"training.steps=12", "training.precision=fp64", "model.dropout=0", "training.optimizer.learning_rate=1.0e-30",
                         "training.optimizer.weight_decay=0", "training.schedule.final_learning_rate=0"});
  must(directory, command + in("whole"));
  const std::vector<double> expected = losses(directory / "whole", 12);
  for (size_t i = 0; i < expected.size(); ++i)
    for (size_t j = 0; j < i; ++j) REQUIRE(std::abs(expected[i] - expected[j]) > 1e-6);  // the losses of all batches are distinct

  must(directory, command + in("parts") + layout(1, 1, 2, 2) + Arguments{"--max-steps", "3"});
  must(directory, command + in("parts") + layout(1, 1, 4, 3) + Arguments{"--max-steps", "5"});
  must(directory, command + in("parts") + layout(1, 2, 1, 0) + Arguments{"--max-steps", "8"});
  must(directory, command + in("parts") + layout(2, 1, 2, 1));
  const std::vector<double> found = losses(directory / "parts", 12);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(found[i] - expected[i]) < 1e-11);
  }
}

TEST_CASE("resume: a run that was rolled back and killed resumes on its new branch, not on the abandoned one") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments two = kTrainOnly + layout(1, 2, 1, 0) + sets({"training.steps=400", "checkpoint.keep=100"});
  must(directory, two + in("run") + Arguments{"--max-steps", "6"});
  REQUIRE(latest(directory, "run") == "step-00000006");
  const std::string abandoned = read_file(checkpoint(directory, "run", 6) / "manifest.json");

  // A different layout, so that the new branch differs from the abandoned one in its bits.
  const Arguments one =
      kTrainOnly + layout(1, 1, 1, 0) + sets({"training.steps=400", "checkpoint.keep=100", "training.global_batch_size=8"}) + in("run");
  Process process(Arguments{kBinary} + one + sets({"checkpoint.every=0"}) + Arguments{"--resume", "run/checkpoints/step-00000002"}, directory.path());
  REQUIRE(process.wait_for("step 4/"));
  process.signal(SIGKILL);
  const Outcome killed = process.wait();
  INFO(killed.err);
  CHECK(killed.code == 128 + SIGKILL);
  CHECK(says(killed, "resuming from run/checkpoints/step-00000002"));
  CHECK(latest(directory, "run") == "step-00000002");

  const Outcome on = must(directory, one + Arguments{"--max-steps", "4"});
  CHECK(says(on, "resuming from run/checkpoints/step-00000002"));
  CHECK(latest(directory, "run") == "step-00000004");
  losses(directory / "run", 4);
  CHECK(read_file(checkpoint(directory, "run", 6) / "manifest.json") == abandoned);  // must not be deleted

  // Step 4 of the branch is damaged: resume from the previous one of the branch, not from the abandoned step 6.
  remove_manifest(checkpoint(directory, "run", 4));
  const Outcome back = must(directory, one + Arguments{"--max-steps", "8"});
  CHECK(says(back, "resuming from run/checkpoints/step-00000002"));
  CHECK(latest(directory, "run") == "step-00000008");
  const Arguments fresh = one + in("fresh");
  fs::create_directories(directory / "fresh/checkpoints");
  must(directory, fresh + Arguments{"--max-steps", "8", "--resume", "run/checkpoints/step-00000002"});
  const auto branch = metrics(directory / "fresh");
  const std::vector<double> all = losses(directory / "run", 8);
  size_t compared = 0;
  for (const auto& line : branch)
    if (line.contains("loss")) {
      CHECK(line["loss"] == all[line["step"].get<size_t>() - 1]);
      ++compared;
    }
  CHECK(compared == 6);
}

TEST_CASE("resume: a damaged checkpoint is named and skipped, and the run ends with bit-identical results") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrainOnly + layout(1, 1, 2, 2) + sets({"training.steps=6", "checkpoint.every=1", "checkpoint.keep=100"});
  must(directory, command + in("whole"));
  const Fingerprint expected = fingerprint_of(directory / "whole", 6);
  must(directory, command + in("half") + Arguments{"--max-steps", "4"});

  struct Case {
    std::string name, file;
    void (*damage)(const fs::path&);
  };
  for (const Case& each : {Case{"flipped", "rank-00001.safetensors", flip_a_bit}, Case{"truncated", "rank-00001.safetensors", truncate},
                           Case{"without a manifest", "manifest.json", remove_manifest}}) {
    CAPTURE(each.name);
    fs::copy(directory / "half", directory / each.name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    each.damage(checkpoint(directory, each.name, 4));
    const Outcome outcome = must(directory, command + in(each.name));
    INFO(outcome.err);
    const size_t warning = outcome.err.find("warning: ");
    REQUIRE(warning != std::string::npos);
    const std::string line = outcome.err.substr(warning, outcome.err.find('\n', warning) - warning);
    CHECK(line.find("checkpoints/step-00000004") != std::string::npos);
    CHECK(line.find(each.file) != std::string::npos);
    CHECK(says(outcome, "resuming from " + each.name + "/checkpoints/step-00000003"));
    const Fingerprint found = fingerprint_of(directory / each.name, 6);
    CHECK(found.state == expected.state);
    CHECK(found.steps == expected.steps);
  }

  for (const auto& damage : {flip_a_bit, truncate, remove_manifest}) {
    fs::remove_all(directory / "all");
    fs::copy(directory / "half", directory / "all", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    for (int step = 1; step <= 4; ++step) damage(checkpoint(directory, "all", step));
    const auto before = directory.listing();
    const Outcome refused = must(directory, command + in("all"), 65);
    INFO(refused.err);
    CHECK(says(refused, "no checkpoint in all/checkpoints can be read"));
    CHECK(says(refused, damage == remove_manifest ? "manifest.json" : "rank-00001.safetensors"));
    CHECK(directory.changes_since(before) == "");
  }
}

TEST_CASE("resume: only changes of the mathematics are refused, with the difference") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrainOnly + in("run");
  must(directory, command + Arguments{"--max-steps", "2"});
  const auto before = directory.listing();
  struct Case {
    std::string change, saved, now;
  };
  for (const Case& each :
       {Case{"training.optimizer.learning_rate=0.02", "training.optimizer.learning_rate: 0.01", "training.optimizer.learning_rate: 0.02"},
        Case{"training.optimizer.beta2=0.9", "training.optimizer.beta2: 0.95", "training.optimizer.beta2: 0.9"},
        Case{"model.dropout=0.2", "model.dropout: 0.1", "model.dropout: 0.2"}, Case{"model.layers=2", "model.layers: 4", "model.layers: 2"},
        Case{"run.seed=7", "run.seed: 1234", "run.seed: 7"},
        Case{"training.global_batch_size=16", "training.global_batch_size: 8", "training.global_batch_size: 16"},
        Case{"training.gradient_clip=0.5", "training.gradient_clip: 1", "training.gradient_clip: 0.5"},
        Case{"training.steps=8", "training.steps: 6", "training.steps: 8"},  // with a cosine schedule the end affects all steps
        Case{"training.precision=fp64", "training.precision: fp32", "training.precision: fp64"}}) {
    const Outcome refused = must(directory, command + sets({each.change}), 64);
    INFO(refused.err);
    CHECK(says(refused, "the configuration changes what is trained"));
    CHECK(says(refused, "checkpoint: " + each.saved));
    CHECK(says(refused, "now:        " + each.now));
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') <= 6);  // only the difference is printed
  }
  CHECK(directory.changes_since(before) == "");

  const Outcome accepted = must(directory, command + layout(1, 2, 2, 2) +
                                               sets({"run.name=another", "resilience.hang_seconds=20", "resilience.restarts=1",
                                                     "resilience.replica_check_every=1", "checkpoint.every=3", "checkpoint.keep=1",
                                                     "checkpoint.asynchronous=false", "training.micro_batch_size=2", "training.logits_chunk=16"}));
  CHECK(says(accepted, "resuming from run/checkpoints/step-00000002"));
  losses(directory / "run", 6);
}

TEST_CASE("resume: fp16 resumes with the saved loss scale, after a kill and in a different layout") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // This loss scale overflows immediately, and again after growing back.
  const Arguments command = kTrainOnly + sets({"training.steps=40", "training.precision=fp16", "training.loss_scale.initial=8388608",
                                               "training.loss_scale.growth_interval=2", "checkpoint.every=2"});
  const Outcome through = must(directory, command + in("through") + layout(1, 2, 1, 0));
  CHECK_FALSE(says(through, "rejected"));  // overflows are normal with loss scaling

  const std::string parts = (directory / "parts").string();  // appears in the ranks' command lines, to find their processes
  Process process(Arguments{kBinary} + command + in(parts) + layout(1, 2, 1, 0), directory.path());
  REQUIRE(process.wait_for("step 5/"));
  process.signal(SIGKILL);
  process.wait();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!processes_with(parts).empty() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const size_t stop = std::stoul(fs::read_symlink(directory / "parts/checkpoints/latest").string().substr(std::string("step-").size())) + 3;
  REQUIRE(stop < 38);
  must(directory, command + in("parts") + layout(1, 2, 1, 0) + Arguments{"--max-steps", std::to_string(stop)});
  const Outcome inspected = must(directory, {"checkpoint", "inspect", "parts", "--json"});
  must(directory, command + in("parts") + layout(2, 1, 2, 3));

  using nlohmann::json;
  const auto lines_of = [&](const std::string& run_directory, const char* event) {
    std::vector<json> lines;
    for (const json& line : metrics(directory / run_directory))
      if (event == line.value("event", "")) lines.push_back(line);
    return lines;
  };
  const auto step_lines = [&](const std::string& run_directory) {
    std::vector<json> steps;
    for (const json& line : metrics(directory / run_directory))
      if (line.contains("loss")) steps.push_back(line);
    return steps;
  };
  const std::vector<json> expected = step_lines("through"), found = step_lines("parts");
  REQUIRE(expected.size() == 40);
  REQUIRE(found.size() == 40);
  size_t overflows = 0, grown = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i, expected[i].dump(), found[i].dump());
    if (i <= stop) CHECK(found[i]["loss_scale"] == expected[i]["loss_scale"]);  // later a different order of summation may avoid an overflow
    if (i < stop) CHECK((found[i]["loss"] == expected[i]["loss"] && found[i]["grad_norm"] == expected[i]["grad_norm"]));
    if (i < stop + 3) CHECK(std::abs(found[i]["loss"].get<double>() - expected[i]["loss"].get<double>()) < 1e-2);
    overflows += expected[i]["grad_norm"].is_null();
    grown += i > 0 && expected[i]["loss_scale"].get<int64_t>() > expected[i - 1]["loss_scale"].get<int64_t>();
  }
  CHECK(lines_of("through", "overflow").size() == overflows);
  CHECK(grown > 1);
  for (const char* run_directory : {"through", "parts"}) {
    CHECK(lines_of(run_directory, "overflow").size() > 3);
    CHECK(lines_of(run_directory, "rejected_step").empty());
  }
  const json facts = json::parse(inspected.out);
  CHECK(facts["step"] == stop);
  CHECK(facts["loss_scale"]["scale"] == expected[stop]["loss_scale"]);
  CHECK(facts["optimizer_steps"].get<size_t>() < stop);
}

}  // namespace trireme::test
