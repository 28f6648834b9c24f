// Changing a run: `--change KEY` allows a resumed run to differ from its checkpoint in the named keys, and records what differs.
#include <algorithm>
#include <cmath>

#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

const Arguments kTrainAndKeep = kTrain + kNoEvaluation + sets({"checkpoint.every=1", "checkpoint.keep=100"});

void copy(const TemporaryDirectory& directory, const std::string& from, const std::string& to) {
  fs::remove_all(directory / to);
  fs::copy(directory / from, directory / to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

json branch_of(const TemporaryDirectory& directory, const std::string& run) {
  return json::parse(must(directory, {"checkpoint", "inspect", run, "--json"}).out).value("branch", json());
}

std::vector<json> changes_in(const TemporaryDirectory& directory, const std::string& run) {
  std::vector<json> lines;
  for (const json& line : metrics(directory / run))
    if (line.value("event", "") == "change") lines.push_back(line);
  return lines;
}

json step_line(const TemporaryDirectory& directory, const std::string& run, int64_t step) {
  for (const json& line : metrics(directory / run))
    if (line.contains("loss") && line["step"] == step) return line;
  FAIL("no step " << step);
  return {};
}

struct Changed {
  std::string name;
  Arguments base;  ///< arguments up to step 4
  Arguments change;
  std::string option;
  int64_t last;
  json branch;
};

const std::vector<Changed>& changed_runs() {
  const auto branch = [](int64_t sample, const json& changes) { return json::array({{{"step", 4}, {"sample", sample}, {"changes", changes}}}); };
  static const std::vector<Changed> all = {
      {"more steps of a cosine", {}, sets({"training.steps=8"}), "training.steps", 8, branch(32, {{"training.steps", {6, 8}}})},
      {"a WSD decay", sets({"training.schedule.name=wsd", "training.steps=400", "training.schedule.decay_steps=40"}),
       sets({"training.schedule.name=wsd", "training.steps=7", "training.schedule.decay_steps=3"}), "training.steps,training.schedule.decay_steps", 7,
       branch(32, {{"training.steps", {400, 7}}, {"training.schedule.decay_steps", {40, 3}}})},
      {"another schedule",
       {},
       sets({"training.schedule.name=wsd"}),
       "training.schedule.name",
       6,
       branch(32, {{"training.schedule.name", {"cosine", "wsd"}}, {"training.schedule.decay_steps", {nullptr, 1}}})},
      {"other data", {}, sets({"data.train=[validation]"}), "data.train", 6, branch(0, {{"data.train", {{"train"}, {"validation"}}}})},
      {"twice the batch",
       {},
       sets({"training.global_batch_size=16"}) + layout(1, 1, 2, 1),
       "training.global_batch_size",
       6,
       branch(32, {{"training.global_batch_size", {8, 16}}})},
      {"another learning rate",
       {},
       sets({"training.optimizer.learning_rate=0.001"}),
       "training.optimizer.learning_rate",
       6,
       branch(32, {{"training.optimizer.learning_rate", {0.01, 0.001}}})},
      {"bf16", {}, sets({"training.precision=bf16"}), "training.precision", 6, branch(32, {{"training.precision", {"fp32", "bf16"}}})}};
  return all;
}

}  // namespace

TEST_CASE("change: a change is refused unless it is named, recorded, and resumed later with the same bits") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const Changed& each : changed_runs()) {
    CAPTURE(each.name);
    fs::remove_all(directory / "run");
    must(directory, kTrainAndKeep + each.base + in("run") + Arguments{"--max-steps", "4"});
    copy(directory, "run", "whole");
    const Arguments command = kTrainAndKeep + each.change;

    const auto before = directory.listing();
    const Outcome refused = must(directory, command + in("whole"), 64);
    INFO(refused.err);
    CHECK(says(refused, "add --change " + each.option));
    CHECK(directory.changes_since(before) == "");

    must(directory, command + in("whole") + Arguments{"--change", each.option});
    const Fingerprint expected = fingerprint_of(directory / "whole", each.last);
    copy(directory, "run", "parts");
    must(directory, command + in("parts") + Arguments{"--change", each.option, "--max-steps", "5"});
    must(directory, command + in("parts"));
    CHECK(fingerprint_of(directory / "parts", each.last) == expected);

    for (const char* run : {"whole", "parts"}) {
      CHECK(branch_of(directory, run) == each.branch);
      const std::vector<json> lines = changes_in(directory, run);
      REQUIRE(lines.size() == 1);
      CHECK(lines[0]["step"] == 4);
      CHECK(lines[0]["from"] == std::string(run) + "/checkpoints/step-00000004");
      CHECK(lines[0]["changes"] == each.branch[0]["changes"]);
    }
  }
}

TEST_CASE("change: a named key that does not differ changes nothing, and an undisturbed run records no change") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainAndKeep + in("whole"));
  must(directory, kTrainAndKeep + in("parts") + Arguments{"--max-steps", "4"});
  must(directory, kTrainAndKeep + in("parts") + Arguments{"--change", "training,data,run.seed"});
  CHECK(fingerprint_of(directory / "parts", 6) == fingerprint_of(directory / "whole", 6));
  CHECK(branch_of(directory, "parts").is_null());
  CHECK(changes_in(directory, "parts").empty());
  CHECK(read_file(directory / "parts/checkpoints/latest/manifest.json").find("branch") == std::string::npos);
}

TEST_CASE("change: the training data continue behind the last sample, and other data begin at sample 0") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // Nearly constant weights and double precision: the loss of a step identifies its samples.
  const Arguments command = kTrainAndKeep + sets({"training.schedule.final_learning_rate=0", "training.precision=fp64", "model.dropout=0",
                                                  "training.optimizer.learning_rate=1.0e-30", "training.optimizer.weight_decay=0"});
  must(directory, command + in("small") + sets({"training.steps=11"}));
  must(directory, command + in("other") + sets({"training.steps=3", "data.train=[validation]"}));
  const std::vector<double> small = losses(directory / "small", 11), other = losses(directory / "other", 3);

  // Batches of 8, then of 16, then of 8 again.
  must(directory, command + in("run") + sets({"training.steps=3"}));
  must(directory, command + in("run") + sets({"training.steps=6", "training.global_batch_size=16"}) + Arguments{"--change", "training"});
  must(directory, command + in("run") + sets({"training.steps=8"}) + Arguments{"--change", "training.steps,training.global_batch_size"});
  const std::vector<double> found = losses(directory / "run", 8);
  for (const size_t step : {0U, 1U, 2U}) CHECK(std::abs(found[step] - small[step]) < 1e-11);
  for (const size_t step : {3U, 4U, 5U}) {
    const size_t first = 3 + 2 * (step - 3);
    CHECK(std::abs(found[step] - (small[first] + small[first + 1]) / 2) < 1e-11);
  }
  for (const size_t step : {6U, 7U}) CHECK(std::abs(found[step] - small[step + 3]) < 1e-11);

  const json inspected = json::parse(must(directory, {"checkpoint", "inspect", "run", "--json"}).out);
  CHECK(inspected["samples"] == 3 * 8 + 3 * 16 + 2 * 8);
  CHECK(inspected["tokens"] == 16 * (3 * 8 + 3 * 16 + 2 * 8));
  CHECK(step_line(directory, "run", 8)["tokens"] == inspected["tokens"]);
  REQUIRE(inspected["branch"].size() == 2);
  CHECK(inspected["branch"][0]["sample"] == 24);
  CHECK(inspected["branch"][1]["sample"] == 72);
  CHECK(inspected["branch"][1]["changes"] == json{{"training.global_batch_size", {16, 8}}, {"training.steps", {6, 8}}});
  check(run(directory, {"checkpoint", "inspect", "run"}), 0,
        "step 6, sample 72, changes (training.global_batch_size (16, 8), training.steps (6, 8))");

  const Arguments data = sets({"training.steps=11", "data.train=[validation]"});
  must(directory, command + in("run") + data + Arguments{"--change", "data.train,training.steps", "--max-steps", "9"});
  must(directory, command + in("run") + data);
  const std::vector<double> annealed = losses(directory / "run", 11);
  for (const size_t step : {0U, 1U, 2U}) CHECK(std::abs(annealed[8 + step] - other[step]) < 1e-11);

  // Epochs count passes from the start of the data, so they do not determine the end of a changed run.
  std::string text = kConfig;
  write_file(directory / "epochs.yaml", text.replace(text.find("steps: 6"), 8, "epochs: 1"));
  Arguments epochs = command + in("run") + sets({"data.train=[validation]"}) + Arguments{"--change", "training.steps,training.epochs"};
  epochs[1] = "epochs.yaml";
  check(run(directory, epochs), 64, "training.epochs=1: the batch size or the training data changed during the run");
}

TEST_CASE("change: tokens that changed in place are refused, and begin at sample 0 if data.train is named") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainAndKeep + in("run") + Arguments{"--max-steps", "4"});
  fs::remove_all(directory / "train");
  fs::rename(directory / "validation", directory / "train");
  const auto before = directory.listing();
  check(run(directory, kTrainAndKeep + in("run")), 65, "add --change data.train");
  CHECK(directory.changes_since(before) == "");
  must(directory, kTrainAndKeep + in("run") + Arguments{"--change", "data.train"});
  CHECK(branch_of(directory, "run")[0]["sample"] == 0);
  CHECK(branch_of(directory, "run")[0]["changes"] == json{{"data.train", {{"train"}, {"train"}}}});
}

TEST_CASE("change: the loss scale starts anew when fp16 is switched on") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainAndKeep + in("run") + Arguments{"--max-steps", "4"});
  const Arguments command = kTrainAndKeep + in("run") + sets({"training.precision=fp16", "training.loss_scale.initial=512"});
  must(directory, command + Arguments{"--change", "training.precision"});
  CHECK(step_line(directory, "run", 5)["loss_scale"] == 512);
}

TEST_CASE("change: --resume takes the newest complete checkpoint of a run directory, and the branch leaves that run as it is") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainAndKeep + in("run") + Arguments{"--max-steps", "4"});
  fs::remove(directory / "run/checkpoints/step-00000004/manifest.json");
  const std::string manifest = read_file(directory / "run/checkpoints/step-00000003/manifest.json");
  const Arguments command = kTrainAndKeep + in("branch") + sets({"training.steps=8"}) + Arguments{"--resume", "run"};
  const Outcome refused = must(directory, command, 64);
  CHECK(says(refused, "add --change training.steps"));
  CHECK_FALSE(says(refused, "run.directory"));  // the user already uses another one
  CHECK_FALSE(fs::exists(directory / "branch"));

  const Outcome outcome = must(directory, command + Arguments{"--change", "training.steps"});
  CHECK(says(outcome, "resuming from run/checkpoints/step-00000003"));
  CHECK(says(outcome, "warning: skipping run/checkpoints/step-00000004"));
  CHECK(step_line(directory, "branch", 8)["tokens"] == 8 * 8 * 16);
  CHECK(changes_in(directory, "branch").at(0)["from"] == "run/checkpoints/step-00000003");
  CHECK(read_file(directory / "run/checkpoints/step-00000003/manifest.json") == manifest);

  fs::create_directories(directory / "empty/checkpoints");
  check(run(directory, kTrainAndKeep + in("new") + Arguments{"--resume", "empty"}), 66, "--resume empty: this run has no checkpoint yet");
}

TEST_CASE("change: keys that are unknown, can never change or need no permission are refused with the reason") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrainAndKeep + in("run");
  must(directory, command + Arguments{"--max-steps", "2"});
  const auto before = directory.listing();
  struct Case {
    std::string keys;
    Arguments sets;
    std::string words;
  };
  for (const Case& each : {Case{"training.step", {}, "--change training.step: unknown key; did you mean training.steps?"},
                           Case{"training.steps,trainin", {}, "--change trainin: unknown key; did you mean training?"},
                           Case{"model.layers", {}, "--change model.layers: a resumed run can never change it: the model decides"},
                           Case{"model", {}, "--change model: a resumed run can never change it: the model decides"},
                           Case{"training.optimizer.name", {}, "can never change it: the checkpoint contains the state of its own optimizer"},
                           Case{"checkpoint.every", {}, "--change checkpoint.every: a resumed run may change it without this option"},
                           Case{"training.precision", sets({"training.precision=fp64"}), "training.precision can never change"},
                           Case{"training", sets({"model.layers=2", "training.steps=9"}), "model.layers can never change in a resumed run"},
                           Case{"training.steps", sets({"training.steps=9", "run.seed=5"}), "add --change run.seed"},
                           Case{"training.steps", in("nothing"), "--change: run.directory=nothing contains no checkpoint"},
                           Case{"training.steps", Arguments{"--resume", "never"}, "--change: --resume never resumes nothing"}}) {
    CAPTURE(each.keys);
    check(run(directory, command + each.sets + Arguments{"--change", each.keys}), 64, each.words);
  }
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
