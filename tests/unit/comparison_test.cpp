// `trireme compare`: which differences it finds and what it takes for their cause. The end-to-end tests compare runs that were trained.
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "tests/support/small_checkpoint.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/report/comparison.h"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;
using test::Scratch;

const std::string kYaml = R"(run:
  name: NAME
  directory: runs/NAME
  seed: 1234
training:
  steps: 3
  optimizer:
    learning_rate: 0.001
data:
  train: [train]
checkpoint:
  every: 2
)";

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

std::string metrics_of(const std::string& third_loss = "3.5") {
  return R"({"event":"start","step":0,"version":"1-abc"})"
         "\n"
         R"({"step":1,"loss":5.5,"grad_norm":1.5,"learning_rate":0.001,"step_seconds":0.5})"
         "\n"
         R"({"step":2,"loss":4.5,"grad_norm":null,"learning_rate":0.001,"step_seconds":0.6})"
         "\n"
         R"({"step":2,"validation_loss":4.25})"
         "\n"
         R"({"step":3,"loss":)" +
         third_loss +
         R"(,"grad_norm":1.0,"learning_rate":0.001,"step_seconds":0.5})"
         "\n";
}

struct RunFiles {
  std::string yaml = kYaml, environment = R"({"version":"1-abc","host":{"name":"x","cpu":"a CPU","cores":2},"layout":{"tensor":1}})",
              metrics = metrics_of();
};

RunRecord record(const Scratch& scratch, const std::string& name, const RunFiles& files = {}) {
  scratch.write(name + "/config.yaml", edited(files.yaml, "directory: runs/NAME", "directory: runs/" + name));
  scratch.write(name + "/environment.json", files.environment);
  scratch.write(name + "/metrics.jsonl", files.metrics);
  return read_run(scratch / name);
}

/// As if both had a checkpoint of equal data.
CheckpointComparison equal_checkpoints() {
  CheckpointComparison checkpoints;
  checkpoints.steps = {2};
  checkpoints.training_data = {"17", "17"};
  checkpoints.tokenizer = {"bytes-v1", "bytes-v1"};
  return checkpoints;
}

Result result_of(const Comparison& all, const std::string& part) { return std::ranges::find(all.parts, part, &Part::name)->result; }

void check_says(const std::string& text, const std::string& words) { CHECK_THAT(text, Catch::Matchers::Contains(words)); }

/// Writes a checkpoint of step 7.
void save(const fs::path& run, const std::vector<StateTensor>& tensors) {
  fs::create_directories(run);
  CheckpointDescription about;
  about.step = 7;
  about.model = {{"architecture", "llama"}};
  about.layout = {{"tensor", 1}};
  Checkpointer checkpointer({run / "checkpoints", "s1", 0, 1, 3, false, std::chrono::seconds(20)});
  checkpointer.save(about, tensors);
  const auto report = checkpointer.finish();
  REQUIRE(report.has_value());
  REQUIRE(report->error.value_or("") == "");
}

}  // namespace

TEST_CASE("compare: restarts, times, hosts, names and directories do not count") {
  const Scratch scratch;
  RunFiles other;
  other.yaml = edited(kYaml, "name: NAME", "name: other");
  other.environment = edited(edited(other.environment, "\"name\":\"x\"", "\"name\":\"y\""), "\"cores\":2", "\"cores\":2,\"system\":\"Linux 7\"");
  other.metrics = edited(metrics_of(), "\"step_seconds\":0.6", "\"step_seconds\":7.5");
  other.metrics = edited(other.metrics, R"({"step":3,)",
                         R"({"event":"start","step":2,"version":"1-abc"
  })"
                         "\n"
                         R"({"step":3,)");
  const Comparison same = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  CAPTURE(comparison_text(same));
  CHECK(same.equal());
  CHECK(same.cause.empty());
  CHECK(result_of(same, "sample ids") == Result::kEqual);
  CHECK(comparison_json(same)["equal"] == true);
  check_says(comparison_text(same), "equal: restarts, times");
}

TEST_CASE("compare: micro-batches that were split differently explain other last bits") {
  const Scratch scratch;
  const auto with = [](const std::string& third_loss, const std::string& split) {
    RunFiles files;
    files.metrics = edited(metrics_of(third_loss), R"({"step":3,)",
                           R"({"event":"rebalance","step":2,"micro_batches":)" + split +
                               "}\n"
                               R"({"step":3,)");
    return files;
  };
  const RunRecord one = record(scratch, "a", with("3.5", "[7,3]"));
  const Comparison same = compare(one, record(scratch, "b", with("3.5", "[7,3]")), equal_checkpoints());
  CHECK(same.equal());
  CHECK(result_of(same, "micro-batches") == Result::kEqual);
  const Comparison other = compare(one, record(scratch, "c", with("3.5000000000000004", "[6,4]")), equal_checkpoints());
  CHECK(result_of(other, "micro-batches") == Result::kDifferent);
  CHECK(other.cause == "another order of sums, as micro-batches are split differently from step 3 on (resilience.rebalance)");
  RunFiles even;
  even.metrics = metrics_of("3.5000000000000004");
  check_says(compare(one, record(scratch, "d", even), equal_checkpoints()).cause, "split differently from step 3 on");
  // A split that comes after the first difference does not explain it.
  RunFiles earlier = even;
  earlier.metrics = edited(earlier.metrics, R"("loss":4.5)", R"("loss":4.25)");
  const Comparison fault = compare(one, record(scratch, "e", earlier), equal_checkpoints());
  CHECK(result_of(fault, "micro-batches") == Result::kDifferent);
  check_says(fault.cause, "a fault of memory or hardware");
  // Nor does one that the shorter run has not reached.
  RunFiles shorter;
  shorter.metrics = shorter.metrics.substr(0, shorter.metrics.find(R"({"step":3,)"));
  const Comparison common = compare(one, record(scratch, "f", shorter), equal_checkpoints());
  CHECK(std::ranges::find(common.parts, "micro-batches", &Part::name) == common.parts.end());
  check_says(common.cause, "one run has trained further");
}

TEST_CASE("compare: jobs in other layouts or on other hosts are named before hardware is blamed") {
  const Scratch scratch;
  const std::string time = R"(,"time":"2026-01-01T00:00:00.000Z"})";
  const auto start = [&](int64_t step, int64_t world, const std::string& more = "") {
    return concat(R"({"event":"start","step":)", step, R"(,"world_size":)", world, more, time, "\n");
  };
  const std::string plain = R"(,"threads":1,"hosts":["x"],"keys":{})";
  int number = 0;
  const auto compared = [&](const std::string& jobs_a, const std::string& jobs_b, const std::string& third_loss = "3.5000000000000004") {
    RunFiles other;
    other.metrics = metrics_of(third_loss);
    const std::string a = concat("a", number), b = concat("b", number);
    ++number;
    scratch.write(a + "/jobs.jsonl", jobs_a);
    scratch.write(b + "/jobs.jsonl", jobs_b);
    return compare(record(scratch, a), record(scratch, b, other), equal_checkpoints());
  };
  // Step 2 was trained by two ranks in B; its last job, which config.yaml describes, had one.
  const Comparison layout = compared(start(0, 1), start(0, 1) + start(1, 2) + start(2, 1));
  CHECK(result_of(layout, "jobs") == Result::kDifferent);
  check_says(layout.cause, "another order of sums, as the jobs that trained step 2 differ: world_size 1 -> 2");
  check_says(comparison_text(layout), "from step 2: world_size 1 -> 2");
  CHECK(comparison_json(layout)["jobs"].size() == 1);
  // The same number of ranks in another way, and other threads.
  const Comparison keys = compared(start(0, 2, R"(,"threads":1,"hosts":["x"],"keys":{"parallel.data":"2"})"),
                                   start(0, 2, R"(,"threads":2,"hosts":["x"],"keys":{"parallel.tensor":"2"})"));
  check_says(keys.cause, "parallel.data 2 -> default, parallel.tensor default -> 2, threads 1 -> 2");
  // Hosts alone.
  const Comparison hosts = compared(start(0, 1, plain), start(0, 1, plain) + start(2, 1, R"(,"threads":1,"hosts":["y"],"keys":{})"));
  check_says(hosts.cause, "other hosts from step 3 on, x -> y, or, if they are alike, a fault of memory or hardware");
  // What differs only after the first difference does not explain it, nor does what only one of the runs has recorded, nor a job of another history.
  for (const auto& [jobs_a, jobs_b] : {std::pair(start(0, 1, plain), start(0, 1, plain) + start(3, 2, plain)),
                                       {start(0, 1), start(0, 1, plain)},
                                       {start(0, 1), start(0, 1) + start(2, 2) + start(0, 1)},
                                       {start(0, 1, plain), start(0, 1, plain)}}) {
    const Comparison fault = compared(jobs_a, jobs_b);
    CHECK(fault.cause == "nothing that is recorded differs, so a fault of memory or hardware, or a program that is not what its version says");
  }
  // Jobs do not count where results are equal.
  CHECK(compared(start(0, 1), start(0, 2), "3.5").equal());
}

TEST_CASE("compare: of two sample keys that changed at different steps the earliest is named") {
  const Scratch scratch;
  const auto with = [](const std::string& changes) {
    RunFiles files;
    files.yaml = edited(kYaml, "  steps: 3\n", "  steps: 3\n  sequence_length: 32\n  global_batch_size: 8\n");
    files.metrics = edited(metrics_of(), R"({"step":3,)", changes + R"({"step":3,)");
    return files;
  };
  const auto change = [](int64_t step, const std::string& key, int64_t from, int64_t to) {
    return concat(R"({"event":"change","step":)", step, R"(,"changes":{")", key, R"(":[)", from, ",", to, "]}}\n");
  };
  const std::string batch = change(2, "training.global_batch_size", 8, 16), length = change(1, "training.sequence_length", 32, 64);
  for (const std::string& both : {batch + length, length + batch}) {
    const Comparison all = compare(record(scratch, "a", with("")), record(scratch, "b", with(both)), equal_checkpoints());
    CHECK(std::ranges::find(all.parts, std::string("sample ids"), &Part::name)->detail == "from step 2: training.sequence_length");
  }
}

TEST_CASE("compare: of two checkpoints that differ only the tensors of the first are counted") {
  const Scratch scratch;
  // Names, whose weights differ from step 4 on in three of them, and from step 6 on in all.
  const std::vector<std::string> names = {"weight/a", "weight/b", "weight/c", "weight/d", "weight/e"};
  for (const std::string run : {"a", "b"}) {
    Checkpointer checkpointer({.directory = scratch / (run + "/checkpoints"), .session = "s1", .keep = 0, .asynchronous = false});
    for (const int64_t step : {2, 4, 6}) {
      CheckpointDescription about;
      about.step = step;
      about.model = about.layout = nlohmann::json::object();
      std::vector<std::vector<float>> values(names.size(), std::vector<float>{1, 2, 3, 4});
      std::vector<StateTensor> tensors;
      for (size_t i = 0; i < names.size(); ++i) {
        if (run == "b" && ((step == 4 && i >= 2) || step == 6)) values[i][i % 4] = 9;
        tensors.push_back({names[i], DType::kF32, {2, 2}, 2, {{0, 0}, {2, 2}}, values[i].data()});
      }
      checkpointer.save(about, tensors);
      REQUIRE_FALSE(checkpointer.finish().value().error);
    }
  }
  CheckpointComparison checkpoints = compare_checkpoints({scratch / "a", scratch / "b"});
  REQUIRE(checkpoints.tensors.size() == 3);
  const Comparison all = compare(record(scratch, "a"), record(scratch, "b"), checkpoints);
  CHECK(std::ranges::find(all.parts, std::string("checkpoints"), &Part::name)->detail == "from step 4: weight/c and 2 more tensors");
  CHECK(all.tensor->step == 4);
  CHECK(all.tensor->elements->first == std::array<int64_t, 2>{1, 0});
}

TEST_CASE("compare: the first step and figure that differ, to the last bit") {
  const Scratch scratch;
  RunFiles other;
  other.metrics = metrics_of("3.5000000000000004");
  const Comparison last_bit = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  CHECK_FALSE(last_bit.equal());
  REQUIRE(last_bit.step);
  CHECK(last_bit.step->step == 3);
  CHECK(last_bit.step->figure == "loss");
  check_says(comparison_text(last_bit), "3: loss 3.5 -> 3.5000000000000004");
  check_says(last_bit.cause, "nothing that is recorded differs");
  CHECK(comparison_json(last_bit)["first_step"]["values"] == nlohmann::ordered_json{3.5, 3.5000000000000004});

  other.metrics = edited(metrics_of(), "\"grad_norm\":null", "\"grad_norm\":2.0");
  const Comparison norm = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  REQUIRE(norm.step);
  CHECK(norm.step->step == 2);
  CHECK(norm.step->figure == "grad_norm");
  CHECK(comparison_json(norm)["first_step"]["values"] == nlohmann::ordered_json{nullptr, 2.0});
  CHECK(result_of(norm, "losses") == Result::kEqual);

  other.metrics = edited(metrics_of("3.0"), "\"grad_norm\":null", "\"grad_norm\":2.0");
  const Comparison both = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  REQUIRE(both.step);
  CHECK(both.step->step == 2);  // the loss differs later

  other.metrics = edited(metrics_of(), "\"validation_loss\":4.25", "\"validation_loss\":4.5");
  const Comparison validation = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  REQUIRE(validation.step);
  CHECK(validation.step->figure == "validation_loss");

  other.metrics = metrics_of().substr(0, metrics_of().find(R"({"step":3)"));
  const Comparison shorter = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  CHECK_FALSE(shorter.equal());
  CHECK_FALSE(shorter.step);
  check_says(shorter.cause, "one run has trained further than the other (steps 3 -> 2)");
}

TEST_CASE("compare: the cause is what decides what is trained before what changes only the last bits") {
  const Scratch scratch;
  RunFiles other;
  other.metrics = metrics_of("3.0");
  const auto cause = [&] { return compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints()).cause; };
  other.environment = edited(other.environment, "a CPU", "another CPU");
  CHECK(cause() == "other hardware: host.cpu: a CPU -> another CPU");
  other.yaml = edited(kYaml, "run:", "parallel:\n  tensor: 2\nrun:");
  CHECK(cause() ==
        "another order of sums, which changes the last bits: parallel.tensor not set -> 2; other hardware: host.cpu: a CPU -> another CPU");
  other.metrics = edited(other.metrics, "1-abc", "1-def");
  check_says(cause(), "another version of the program: version: 1-abc -> 1-def");
  other.yaml = edited(other.yaml, "learning_rate: 0.001", "learning_rate: 0.002");
  CHECK(cause() == "changed keys: training.optimizer.learning_rate 0.001 -> 0.002");
  other.yaml = edited(other.yaml, "seed: 1234", "seed: 5");
  CHECK(cause() == "another seed: run.seed 1234 -> 5; changed keys: training.optimizer.learning_rate 0.001 -> 0.002");
}

TEST_CASE("compare: differences without an effect on the results are differences, and said to have none") {
  const Scratch scratch;
  RunFiles other;
  other.yaml = edited(kYaml, "every: 2", "every: 3");
  const Comparison key = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  CHECK_FALSE(key.equal());
  CHECK(key.cause == "changed keys: checkpoint.every 2 -> 3; the results that both runs have are equal");
  other.yaml = kYaml;
  other.metrics = edited(metrics_of(), "1-abc", "1-def");
  const Comparison commit = compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints());
  CHECK_FALSE(commit.equal());
  check_says(commit.cause, "another version of the program: version: 1-abc -> 1-def");
  // A number may be written in another way.
  other = {};
  other.yaml = edited(kYaml, "learning_rate: 0.001", "learning_rate: 1.0e-03");
  CHECK(compare(record(scratch, "a"), record(scratch, "b", other), equal_checkpoints()).equal());
}

TEST_CASE("compare: paths of the same tokens do not count, other tokens under the same path do") {
  const Scratch scratch;
  RunFiles moved;
  moved.yaml = edited(kYaml, "train: [train]", "train: [/elsewhere/train]");
  CHECK(compare(record(scratch, "a"), record(scratch, "b", moved), equal_checkpoints()).equal());
  CheckpointComparison unknown = equal_checkpoints();
  unknown.training_data = {};
  const Comparison unidentified = compare(record(scratch, "a"), record(scratch, "b", moved), unknown);
  CHECK_FALSE(unidentified.equal());
  CHECK(result_of(unidentified, "data") == Result::kDifferent);

  CheckpointComparison others = equal_checkpoints();
  others.training_data = {"17", "18"};
  RunFiles trained;
  trained.metrics = metrics_of("3.0");
  const Comparison other = compare(record(scratch, "a"), record(scratch, "b", trained), others);
  CHECK(result_of(other, "data") == Result::kDifferent);
  CHECK(result_of(other, "sample ids") == Result::kDifferent);
  CHECK(other.cause == "another data set under the same path");

  RunFiles validation;
  validation.yaml = edited(kYaml, "train: [train]", "train: [train]\n  validation: [v]");
  CHECK(compare(record(scratch, "a"), record(scratch, "b", validation), equal_checkpoints()).equal());  // its losses are equal
}

TEST_CASE("compare: a change in the middle of a run differs from its step on") {
  const Scratch scratch;
  RunFiles changed;
  changed.yaml = edited(kYaml, "seed: 1234", "seed: 5");
  changed.metrics = edited(metrics_of("3.0"), R"({"step":3,)",
                           R"({"event":"start","step":2,"version":"1-abc"})"
                           "\n"
                           R"({"event":"change","step":2,"changes":{"run.seed":[1234,5]}})"
                           "\n"
                           R"({"step":3,)");
  const Comparison found = compare(record(scratch, "a"), record(scratch, "b", changed), equal_checkpoints());
  CHECK(found.cause == "another seed: run.seed 1234 -> 5 since step 3, by --change");
  REQUIRE(found.step);
  CHECK(found.step->step == 3);
  const auto part = std::ranges::find(found.parts, std::string("sample ids"), &Part::name);
  CHECK(part->result == Result::kDifferent);
  CHECK(part->detail == "from step 3: run.seed");
  CHECK(compare(record(scratch, "b", changed), record(scratch, "c", changed), equal_checkpoints()).equal());
}

TEST_CASE("compare: of a key that changed twice the first change counts, and of many keys those that count are named or numbered") {
  const Scratch scratch;
  RunFiles changed;
  changed.yaml = edited(kYaml, "seed: 1234", "seed: 9");
  const auto change = [](int64_t step, int64_t from, int64_t to) {
    return concat(R"({"event":"change","step":)", step, R"(,"changes":{"run.seed":[)", from, ",", to, "]}}\n");
  };
  changed.metrics = edited(metrics_of("3.0"), R"({"step":2,)", change(1, 1234, 5) + R"({"step":2,)");
  changed.metrics = edited(changed.metrics, R"({"step":3,)", change(2, 5, 9) + R"({"step":3,)");
  const Comparison twice = compare(record(scratch, "a"), record(scratch, "b", changed), equal_checkpoints());
  CHECK(std::ranges::find(twice.parts, std::string("sample ids"), &Part::name)->detail == "from step 2: run.seed");

  RunFiles once = changed;  // the first change only
  once.yaml = edited(kYaml, "seed: 1234", "seed: 5");
  once.metrics = edited(metrics_of("3.0"), R"({"step":2,)", change(1, 1234, 5) + R"({"step":2,)");
  for (const auto& [first, second] : {std::pair(once, changed), std::pair(changed, once)}) {
    const Comparison later = compare(record(scratch, "a", first), record(scratch, "b", second), equal_checkpoints());
    CHECK(std::ranges::find(later.parts, std::string("sample ids"), &Part::name)->detail == "from step 3: run.seed");
  }

  RunFiles many;
  many.yaml =
      edited(edited(edited(edited(kYaml, "name: NAME", "name: other"), "seed: 1234", "seed: 5"), "steps: 3", "steps: 3\n  sequence_length: 32"),
             "learning_rate: 0.001", "learning_rate: 0.002\n    beta1: 0.8\n    beta2: 0.9\n    weight_decay: 0.2");
  const Comparison differing = compare(record(scratch, "a"), record(scratch, "c", many), equal_checkpoints());
  CHECK_THAT(std::ranges::find(differing.parts, std::string("configuration"), &Part::name)->detail, Catch::Matchers::EndsWith("; and 2 more"));
}

namespace {

std::string detail_of(const Comparison& all, const std::string& part) { return std::ranges::find(all.parts, part, &Part::name)->detail; }

/// Both runs record an environment of these members, beside what every one has.
std::string environment_with(const std::string& more) { return concat(R"({"version":"1-abc","host":{"cpu":"a CPU"})", more, "}"); }

std::string change_line(int64_t step, const std::string& key, const std::string& from, const std::string& to) {
  return concat(R"({"event":"change","step":)", step, R"(,"changes":{")", key, R"(":[)", from, ",", to, "]}}\n");
}

/// The default metrics with lines before those of step `step`.
std::string metrics_with(int64_t step, const std::string& lines, const std::string& third_loss = "3.5") {
  const std::string begin = concat(R"({"step":)", step, R"(,"loss")");
  return edited(metrics_of(third_loss), begin, lines + begin);
}

/// A difference of one element of weight/a at step 4.
TensorDifference tensor_difference(int64_t bits, const std::string& damage_in_a, const std::string& damage_in_b) {
  return {
      .step = 4, .tensor = "weight/a", .what = "", .elements = ElementDifference{{1, 2}, {0.5, 0.75}, 1, bits}, .damage = {damage_in_a, damage_in_b}};
}

}  // namespace

TEST_CASE("compare: a key that is not set is not zero, lists are compared as lists, and a value that came back was another one") {
  const Scratch scratch;
  RunFiles zero;
  zero.yaml = edited(kYaml, "learning_rate: 0.001", "learning_rate: 0.001\n    weight_decay: 0");
  const RunRecord a = record(scratch, "a"), b = record(scratch, "b", zero);
  CHECK(detail_of(compare(a, b, equal_checkpoints()), "configuration") == "training.optimizer.weight_decay not set -> 0");
  CHECK(detail_of(compare(b, a, equal_checkpoints()), "configuration") == "training.optimizer.weight_decay 0 -> not set");
  CHECK(detail_of(compare(a, a, equal_checkpoints()), "configuration").empty());

  RunFiles longer;
  longer.yaml = edited(kYaml, "train: [train]", "train: [train, more]");
  longer.metrics = metrics_with(3, change_line(2, "data.train", R"(["train"])", R"(["train","more"])"));
  CheckpointComparison unknown = equal_checkpoints();
  unknown.training_data = {};
  const Comparison lists = compare(a, record(scratch, "c", longer), unknown);
  CHECK(detail_of(lists, "configuration") == "data.train [train] -> [train, more] since step 3, by --change");
  CHECK(detail_of(lists, "data") == "paths: [train] -> [train, more]");
  CHECK(detail_of(lists, "sample ids") == "from step 3: data.train");

  RunFiles back;
  back.metrics = metrics_with(2, change_line(1, "run.seed", "1234", "5"));
  back.metrics = edited(back.metrics, R"({"step":3,)", change_line(2, "run.seed", "5", "1234") + R"({"step":3,)");
  const Comparison returned = compare(a, record(scratch, "d", back), equal_checkpoints());
  CHECK(result_of(returned, "configuration") == Result::kDifferent);
  CHECK(detail_of(returned, "sample ids") == "from step 2: run.seed");
  CHECK(detail_of(returned, "configuration") == "run.seed 1234 -> 5 since step 2, by --change; equal at the end");
  back.metrics = metrics_with(2, change_line(1, "run.seed", "9", "1234"));
  const RunRecord began = record(scratch, "e", back);
  CHECK(detail_of(compare(a, began, equal_checkpoints()), "configuration") == "run.seed 1234 -> 9 since step 1; equal at the end");
  CHECK(detail_of(compare(began, a, equal_checkpoints()), "configuration") == "run.seed 9 -> 1234 since step 1; equal at the end");
  // A job that changed a key ends before its first checkpoint: the next one changes it again, or gives the change up.
  const auto restarted = [](int64_t after) { return concat(R"({"event":"start","step":)", after, R"(,"steps":8)", "}\n"); };
  const std::string once = change_line(1, "run.seed", "1234", "5");
  RunFiles changed, again, given_up;
  changed.metrics = metrics_with(2, once);
  again.metrics = metrics_with(2, once + restarted(1) + once);
  given_up.metrics = metrics_with(2, once + restarted(1));
  const RunRecord changed_once = record(scratch, "f", changed);
  CHECK(result_of(compare(changed_once, record(scratch, "g", again), equal_checkpoints()), "configuration") == Result::kEqual);
  CHECK(result_of(compare(a, record(scratch, "h", given_up), equal_checkpoints()), "configuration") == Result::kEqual);
}

TEST_CASE("compare: of changes in both runs the first step counts at which their values differ") {
  const Scratch scratch;
  const auto changed = [&](const std::string& name, int64_t step, int64_t seed) {
    RunFiles files;
    files.yaml = edited(kYaml, "seed: 1234", concat("seed: ", seed));
    files.metrics = metrics_with(step + 1, change_line(step, "run.seed", "1234", std::to_string(seed)));
    return record(scratch, name, files);
  };
  const RunRecord early = changed("a", 1, 5), late = changed("b", 2, 5), other = changed("c", 2, 6), same = changed("d", 2, 5);
  CHECK(detail_of(compare(early, late, equal_checkpoints()), "sample ids") == "from step 2: run.seed");
  CHECK(detail_of(compare(late, early, equal_checkpoints()), "sample ids") == "from step 2: run.seed");
  CHECK(detail_of(compare(late, other, equal_checkpoints()), "sample ids") == "from step 3: run.seed");
  CHECK(compare(late, same, equal_checkpoints()).equal());
}

TEST_CASE("compare: each key that numbers samples changes the sample ids, and the path of the same tokens does not") {
  const Scratch scratch;
  const RunRecord plain = record(scratch, "plain");
  int number = 0;
  const auto samples = [&](const std::string& key, const std::string& from, const std::string& to, const CheckpointComparison& checkpoints) {
    RunFiles files;
    files.metrics = metrics_with(2, change_line(1, key, from, to));
    return detail_of(compare(plain, record(scratch, concat("run", ++number), files), checkpoints), "sample ids");
  };
  CHECK(samples("run.seed", "1234", "5", equal_checkpoints()) == "from step 2: run.seed");
  for (const std::string key :
       {"data.weights", "data.document_mask", "data.packing", "data.packing_window", "training.sequence_length", "training.global_batch_size"})
    CHECK(samples(key, "null", "\"x\"", equal_checkpoints()) == "from step 2: " + key);
  CHECK(samples("training.dropout", "null", "0.5", equal_checkpoints()) == "a function of seed, step and data");
  CHECK(samples("data.train", R"(["train"])", R"(["x"])", equal_checkpoints()) == "a function of seed, step and data");
  CheckpointComparison unknown = equal_checkpoints();
  unknown.training_data = {"17", ""};
  CHECK(samples("data.train", R"(["train"])", R"(["x"])", unknown) == "from step 2: data.train");
  const Comparison unidentified = compare(plain, plain, unknown);
  CHECK(result_of(unidentified, "data") == Result::kUnknown);
  CHECK(result_of(unidentified, "sample ids") == Result::kUnknown);
  CHECK(detail_of(unidentified, "sample ids") == "the data are not identified");
}

TEST_CASE("compare: what of the environment is code, what is hardware, and what is neither") {
  const Scratch scratch;
  int number = 0;
  const auto compared = [&](const std::string& more_a, const std::string& more_b) {
    RunFiles a, b;
    a.environment = environment_with(more_a);
    b.environment = environment_with(more_b);
    ++number;
    return compare(record(scratch, concat("a", number), a), record(scratch, concat("b", number), b), equal_checkpoints());
  };
  struct Case {
    std::string a, b, code, hardware;
  };
  const std::string gpu = R"(,"gpu":{"name":"G")";
  for (const Case& one :
       {Case{"", "", "1-abc", "a CPU"},
        {R"(,"compiler":"g")", R"(,"compiler":"h")", "compiler: g -> h", "a CPU"},
        {R"(,"libraries":{"x":"1","y":"1"})", R"(,"libraries":{"x":"1","y":"2"})", "libraries.y: 1 -> 2", "a CPU"},
        {R"(,"compiler":"g","libraries":{"x":"1"})", R"(,"compiler":"h","libraries":{"z":"2"})",
         "compiler: g -> h; libraries.x: 1 -> not set; libraries.z: not set -> 2", "a CPU"},
        {gpu + R"(,"driver":1})", gpu + R"(,"driver":2})", "gpu.driver: 1 -> 2", "G"},
        {gpu + R"(,"runtime":1})", gpu + R"(,"runtime":2})", "gpu.runtime: 1 -> 2", "G"},
        {gpu + R"(,"memory":80,"count":1})", gpu + R"(,"memory":81,"count":2})", "1-abc", "gpu.count: 1 -> 2; gpu.memory: 80 -> 81"},
        {R"(,"world_size":1,"layout":{"data":1})", R"(,"world_size":2,"layout":{"data":2})", "1-abc", "a CPU"}}) {
    const Comparison all = compared(one.a, one.b);
    CAPTURE(one.a, one.b);
    CHECK(detail_of(all, "code") == one.code);
    CHECK(detail_of(all, "hardware") == one.hardware);
    CHECK(result_of(all, "code") == (one.code == "1-abc" ? Result::kEqual : Result::kDifferent));
    CHECK(result_of(all, "hardware") == ((one.hardware == "a CPU" || one.hardware == "G") ? Result::kEqual : Result::kDifferent));
  }
  RunFiles resumed;
  resumed.metrics = metrics_with(3, R"({"event":"start","step":2,"version":"1-def"})"
                                    "\n");
  const RunRecord a = record(scratch, "a"), b = record(scratch, "b", resumed);
  CHECK(detail_of(compare(a, b, equal_checkpoints()), "code") == "version: 1-abc -> 1-abc and 1-def");
  CHECK(detail_of(compare(b, a, equal_checkpoints()), "code") == "version: 1-abc and 1-def -> 1-abc");
  fs::remove(fs::path(scratch / "b/environment.json"));
  for (const auto& [one, other] : {std::pair("a", "b"), {"b", "a"}}) {
    const Comparison missing = compare(read_run(scratch / one), read_run(scratch / other), equal_checkpoints());
    CHECK(result_of(missing, "hardware") == Result::kUnknown);
    check_says(comparison_text(missing), "\nhardware           not recorded  environment.json is missing\n");
  }
}

TEST_CASE("compare: only steps and evaluations that both runs have are compared, from whichever each begins") {
  const Scratch scratch;
  const std::string first = R"({"step":1,"loss":5.5,"grad_norm":1.5,"learning_rate":0.001,"step_seconds":0.5})"
                            "\n";
  RunFiles later, far;
  later.metrics = edited(metrics_of("3.0"), first, "");
  far.metrics = R"({"step":7,"loss":1.5,"grad_norm":1.5,"learning_rate":0.001,"step_seconds":0.5})"
                "\n"
                R"({"step":7,"validation_loss":4.25})"
                "\n";
  const RunRecord a = record(scratch, "a"), b = record(scratch, "b", later), c = record(scratch, "c", far);
  for (const bool swapped : {false, true}) {
    const Comparison all = swapped ? compare(b, a, equal_checkpoints()) : compare(a, b, equal_checkpoints());
    REQUIRE(all.step);
    CHECK(all.step->step == 3);
    CHECK(all.step->values == (swapped ? std::array{3.0, 3.5} : std::array{3.5, 3.0}));
    CHECK(detail_of(all, "losses") == (swapped ? "from step 3: 3 -> 3.5" : "from step 3: 3.5 -> 3"));
    CHECK(detail_of(all, "gradient norms") == "2 steps");
    CHECK(detail_of(all, "validation losses") == "1 evaluation");
    const Comparison none = swapped ? compare(c, a, equal_checkpoints()) : compare(a, c, equal_checkpoints());
    for (const char* part : {"losses", "gradient norms", "learning rates"}) {
      CHECK(result_of(none, part) == Result::kUnknown);
      CHECK(detail_of(none, part) == "no common step");
    }
    CHECK(detail_of(none, "validation losses") == "no common evaluation");
    CHECK(detail_of(none, "steps") == (swapped ? "7 -> 3" : "3 -> 7"));
  }
  // Two sets with names, of which the second has another loss, and an order of its own.
  RunFiles sets, others;
  sets.metrics = edited(metrics_of(), R"("validation_loss":4.25)", R"("validation_loss":4.25,"validation":{"x":4.0,"y":4.5})");
  others.metrics = edited(metrics_of(), R"("validation_loss":4.25)", R"("validation_loss":4.25,"validation":{"y":4.75,"x":4.0})");
  const Comparison named = compare(record(scratch, "d", sets), record(scratch, "e", others), equal_checkpoints());
  REQUIRE(named.step);
  CHECK(named.step->figure == "validation_loss of y");
  CHECK(named.step->values == std::array{4.5, 4.75});
  CHECK(detail_of(named, "validation losses") == "from step 2: 4.5 -> 4.75");
}

TEST_CASE("compare: of many keys the first four are shown as a part, and three as a cause") {
  const Scratch scratch;
  const std::vector<std::string> lines = {"learning_rate: 0.002", "beta1: 0.8", "beta2: 0.9", "weight_decay: 0.2", "epsilon: 1.0e-6"};
  std::string given;
  for (size_t keys = 1; keys <= lines.size(); ++keys) {
    given += (given.empty() ? "" : "\n    ") + lines[keys - 1];
    RunFiles files;
    files.yaml = edited(kYaml, "learning_rate: 0.001", given);
    files.metrics = metrics_of("3.0");
    const Comparison all = compare(record(scratch, "a"), record(scratch, concat("b", keys), files), equal_checkpoints());
    const std::string detail = detail_of(all, "configuration");
    CAPTURE(keys, detail, all.cause);
    CHECK((detail.find(" more") != detail.npos) == (keys > 4));
    CHECK((all.cause.find(" more") != all.cause.npos) == (keys > 3));
    if (keys == 5) CHECK_THAT(detail, Catch::Matchers::EndsWith("training.optimizer.weight_decay not set -> 0.2; and 1 more"));
    if (keys >= 4) CHECK_THAT(all.cause, Catch::Matchers::EndsWith(concat("training.optimizer.beta2 not set -> 0.9 and ", keys - 3, " more")));
    CHECK(comparison_json(all)["keys"].size() == keys + 1);  // and run.directory, which does not count
  }
}

TEST_CASE("compare: what is said of checkpoints, of the data that they identify, and of files that have changed") {
  const Scratch scratch;
  const RunRecord a = record(scratch, "a"), b = record(scratch, "b");
  CheckpointComparison checkpoints = equal_checkpoints();
  const auto compared = [&] { return compare(a, b, checkpoints); };
  CHECK(detail_of(compared(), "checkpoints") == "every byte of step 2");
  CHECK(detail_of(compared(), "data") == "17");
  checkpoints.steps = {2, 4, 6};
  CHECK(detail_of(compared(), "checkpoints") == "every byte of steps 2, 4, 6");
  checkpoints.steps = {};
  CHECK(detail_of(compared(), "checkpoints") == "no common checkpoint");
  CHECK(result_of(compared(), "checkpoints") == Result::kUnknown);

  checkpoints = equal_checkpoints();
  checkpoints.tensors = {tensor_difference(1, "", "")};
  CHECK(detail_of(compared(), "checkpoints") == "from step 4: weight/a");
  check_says(comparison_text(compared()), "step 4: weight/a, element [1, 2]: 0.5 -> 0.75; 1 bit of 1 element differs\n");
  check_says(compared().cause, "nothing that is recorded differs");
  checkpoints.tensors.push_back(tensor_difference(2, "", ""));
  CHECK(detail_of(compared(), "checkpoints") == "from step 4: weight/a and 1 more tensor");

  // Files that do not match their manifests.
  for (const auto& [in_a, in_b, bits, words, cause] :
       {std::tuple("x", "", 1, "1 bit of 1 element differs; A does not match its manifest\n",
                   "the file of run A has changed since it was saved: one flipped bit in weight/a of step 4"),
        {"", "y", 2, "2 bits of 1 element differ; B does not match its manifest\n",
         "the file of run B has changed since it was saved: damage in weight/a of step 4"},
        {"x", "y", 3, "3 bits of 1 element differ; A does not match its manifest; B does not match its manifest\n",
         "the file of run A and run B has changed since it was saved: damage in weight/a of step 4"}}) {
    checkpoints = equal_checkpoints();
    checkpoints.tensors = checkpoints.damaged = {tensor_difference(bits, in_a, in_b)};
    const Comparison all = compared();
    check_says(comparison_text(all), words);
    CHECK(all.cause == cause);
    for (const std::string damage : {in_a, in_b})
      if (!damage.empty()) check_says(comparison_text(all), concat("damaged file               ", damage, "\n"));
    CHECK(comparison_json(all)["first_tensor"]["damage"] == nlohmann::ordered_json{in_a, in_b});
    // A second tensor whose files are whole has been trained apart.
    checkpoints.tensors.push_back(tensor_difference(1, "", ""));
    check_says(compared().cause, "nothing that is recorded differs");
  }

  checkpoints = equal_checkpoints();
  checkpoints.unreadable = {"b/step-4: is damaged", "b/step-6: is damaged"};
  CHECK(detail_of(compared(), "checkpoints") == "b/step-4: is damaged");
  CHECK(compared().cause == "a checkpoint that cannot be read: b/step-4: is damaged; the results that both runs have are equal");

  // The tokens are the same numbers, but of another tokenizer.
  RunFiles trained;
  trained.metrics = metrics_of("3.0");
  const RunRecord other = record(scratch, "c", trained);
  checkpoints = equal_checkpoints();
  checkpoints.tokenizer = {"t1", "t2"};
  CHECK(detail_of(compared(), "data") == "tokenizer: t1 -> t2");
  CHECK(compared().cause == "another tokenizer; the results that both runs have are equal");
  CHECK(compare(a, other, checkpoints).cause == "another tokenizer");
  checkpoints.training_data = {};
  checkpoints.tokenizer = {};
  CHECK(compare(a, other, checkpoints).cause == "the data, which are not recorded, or a fault of memory or hardware");

  // The path of a tokenizer counts where the tokenizers are not known to be the same.
  RunFiles elsewhere;
  elsewhere.yaml = edited(kYaml, "train: [train]", "train: [train]\n  tokenizer: elsewhere");
  const RunRecord moved = record(scratch, "d", elsewhere);
  CHECK(compare(a, moved, equal_checkpoints()).equal());
  CHECK(detail_of(compare(a, moved, equal_checkpoints()), "configuration") == "except for names, directories and paths of equal data");
  for (const std::array<std::string, 2>& digests : {std::array<std::string, 2>{}, {"t1", "t2"}}) {
    checkpoints = equal_checkpoints();
    checkpoints.tokenizer = digests;
    CHECK(result_of(compare(a, moved, checkpoints), "configuration") == Result::kDifferent);
  }

  // A run that has trained less, with another key.
  RunFiles shorter;
  shorter.yaml = edited(kYaml, "every: 2", "every: 3");
  shorter.metrics = metrics_of().substr(0, metrics_of().find(R"({"step":3)"));
  CHECK(compare(a, record(scratch, "e", shorter), equal_checkpoints()).cause ==
        "one run has trained further than the other (steps 3 -> 2), and changed keys: checkpoint.every 2 -> 3");
}

TEST_CASE("compare: checkpoints of one run only, tensors of one run only, and other shapes and types are told apart") {
  const Scratch scratch;
  const std::vector<float> four{1, 2, 3, 4};
  const std::vector<double> of_a{1.5, 2, 3}, of_b{1.5, 2.5, -3};
  const std::vector<int32_t> large{1, 1 << 30}, other{1, (1 << 30) + 3};
  const std::vector<uint8_t> bytes{7};
  for (const std::string run : {"a", "b"}) {
    const bool is_a = run == "a";
    Checkpointer checkpointer({.directory = scratch / (run + "/checkpoints"), .session = "s1", .keep = 0, .asynchronous = false});
    for (const int64_t step : is_a ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{4, 6, 8}) {
      CheckpointDescription about;
      about.step = step;
      about.model = about.layout = nlohmann::json::object();
      about.training_data = concat("d", step);
      about.tokenizer.digest = concat("t", step);
      std::vector<StateTensor> tensors;
      tensors.push_back({"weight/a", DType::kF32, {2, 2}, 2, {{0, 0}, {2, 2}}, four.data()});
      tensors.push_back({"weight/b", DType::kF64, {1, 3}, 2, {{0, 0}, {1, 3}}, (is_a ? of_a : of_b).data()});
      tensors.push_back({"weight/c", DType::kI32, {2, 1}, 1, {{0, 0}, {2, 1}}, (is_a ? large : other).data()});
      if (is_a)
        tensors.push_back({"weight/only", DType::kU8, {1, 1}, 1, {{0, 0}, {1, 1}}, bytes.data()});
      else
        tensors.push_back({"exp_avg/only", DType::kU8, {1, 1}, 1, {{0, 0}, {1, 1}}, bytes.data()});
      const std::array<int64_t, 2> shape = is_a ? std::array<int64_t, 2>{2, 2} : std::array<int64_t, 2>{4, 1};
      tensors.push_back({"weight/shape", DType::kF32, shape, is_a ? 2 : 1, {{0, 0}, shape}, four.data()});
      checkpointer.save(about, tensors);
      REQUIRE(checkpointer.finish().value().error.value_or("") == "");
    }
  }
  int64_t reported = 0;
  const CheckpointComparison found = compare_checkpoints({scratch / "a", scratch / "b"}, [&](int64_t count) { reported += count; });
  CHECK(found.steps == std::vector<int64_t>{4});
  CHECK(found.only == std::array<std::vector<int64_t>, 2>{std::vector<int64_t>{2}, {6, 8}});
  CHECK(found.training_data == std::array<std::string, 2>{"d4", "d8"});  // of the newest
  CHECK(found.tokenizer == std::array<std::string, 2>{"t4", "t8"});
  std::vector<std::string> words;
  for (const TensorDifference& one : found.tensors) words.push_back(one.tensor + ": " + one.what);
  CHECK(words == std::vector<std::string>{"weight/b: ", "weight/c: ", "weight/only: only in the first run",
                                          "weight/shape: F32 [2, 2] in the first run, F32 [4] in the second",
                                          "exp_avg/only: only in the second run"});
  REQUIRE((found.tensors.size() == 5 && found.tensors[0].elements && found.tensors[1].elements));
  const ElementDifference& doubles = *found.tensors[0].elements;
  CHECK((doubles.first == std::array<int64_t, 2>{0, 1} && doubles.values == std::array{2.0, 2.5}));
  CHECK((doubles.elements == 2 && doubles.bits == 1 + 1));  // 2.5 has one bit more than 2, and -3 has a sign
  const ElementDifference& integers = *found.tensors[1].elements;
  CHECK((integers.first == std::array<int64_t, 2>{1, 0} && integers.values == std::array{0x1p30, 0x1p30 + 3}));
  CHECK((integers.elements == 1 && integers.bits == 2));
  CHECK(reported == 2 * (4 * 4 + 3 * 8 + 2 * 4 + 4 * 4));  // all that both have
  int64_t size = 0;
  for (const std::string run : {"a", "b"})
    for (const auto& file : fs::directory_iterator(scratch / (run + "/checkpoints/step-00000004")))
      if (file.path().extension() == ".safetensors") size += static_cast<int64_t>(file.file_size());
  CHECK(bytes_to_compare({scratch / "a", scratch / "b"}) == size);
}

TEST_CASE("compare: tensors that differ are in the order of the model, weights first and blocks by number") {
  const Scratch scratch;
  const std::vector<std::string> names = {"weight/embedding.weight",      "weight/blocks.9.norm.weight",   "weight/blocks.10.norm.weight",
                                          "weight/blocks.99.norm.weight", "weight/blocks.100.norm.weight", "weight/final_norm.weight",
                                          "exp_avg/blocks.2.norm.weight"};
  for (const float value : {1.0F, 2.0F}) {
    std::vector<StateTensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::kF32, {1, 1}, 1, {{0, 0}, {1, 1}}, &value});
    save(scratch / (value == 1 ? "a" : "b"), tensors);
  }
  std::vector<std::string> found;
  for (const TensorDifference& one : compare_checkpoints({scratch / "a", scratch / "b"}).tensors) found.push_back(one.tensor);
  CHECK(found == names);
}

TEST_CASE("compare: the row of an element counts from the first row of its tensor, also behind the 64 MiB that are read at a time") {
  const Scratch scratch;
  std::vector<uint8_t> elements(size_t{70'000} * 1024);
  for (const char* name : {"a", "b"}) {
    if (name[0] == 'b') elements[size_t{69'999} * 1024 + 3] = 7;
    save(scratch / name, {{"weight/embedding.weight", DType::kU8, {70'000, 1024}, 2, {{0, 0}, {70'000, 1024}}, elements.data()}});
  }
  const CheckpointComparison found = compare_checkpoints({scratch / "a", scratch / "b"});
  REQUIRE(found.tensors.size() == 1);
  REQUIRE(found.tensors[0].elements);
  CHECK(found.tensors[0].elements->first == std::array<int64_t, 2>{69'999, 3});
  CHECK(found.tensors[0].elements->elements == 1);
}

TEST_CASE("compare: the first tensor, element and number of bits of checkpoints that differ, and which file does not match its manifest") {
  const Scratch scratch;
  scratch.write("a/x", "");
  scratch.write("b/x", "");
  const fs::path a = test::save_small_checkpoint(scratch / "a"), b = test::save_small_checkpoint(scratch / "b");
  const CheckpointComparison same = compare_checkpoints({scratch / "a", scratch / "b"});
  CHECK(same.equal());
  CHECK(same.steps == std::vector<int64_t>{7});
  CHECK(same.training_data[0] == same.training_data[1]);
  CHECK(bytes_to_compare({scratch / "a", scratch / "b"}) > 0);

  for (const auto& file : fs::directory_iterator(b)) {
    if (file.path().extension() != ".safetensors") continue;
    const std::string whole = test::slurp(file.path().string());
    const std::string path = file.path().string();
    std::map<std::string, SafetensorsEntry> entries;
    {
      const SafetensorsFile opened(path);
      entries = opened.entries();
    }
    for (const auto& [entry, place] : entries) {
      CAPTURE(path, entry);
      std::string damaged = whole;
      damaged[static_cast<size_t>(place.begin)] = static_cast<char>(damaged[static_cast<size_t>(place.begin)] ^ 8);
      scratch.write("b/" + fs::relative(file.path(), scratch / "b").string(), damaged);
      const CheckpointComparison found = compare_checkpoints({scratch / "a", scratch / "b"});
      REQUIRE(found.tensors.size() == 1);
      const TensorDifference& one = found.tensors.front();
      CHECK(one.tensor == entry.substr(0, entry.rfind('@')));
      CHECK(one.damage[0].empty());
      check_says(one.damage[1], "the manifest says");
      REQUIRE(one.elements);
      CHECK(one.elements->elements == 1);
      CHECK(one.elements->bits == 1);
      CHECK(one.elements->values[0] != one.elements->values[1]);
      // The first element of the box is its start in the global tensor.
      const std::string start = entry.substr(entry.rfind('@') + 1);
      CHECK(start == concat(one.elements->first[0], ",", one.elements->first[1]));
    }
    std::string header = whole;
    header[20] = static_cast<char>(header[20] ^ 1);
    scratch.write("b/" + fs::relative(file.path(), scratch / "b").string(), header);
    const CheckpointComparison found = compare_checkpoints({scratch / "a", scratch / "b"});
    CHECK_FALSE(found.equal());
    CHECK_FALSE(found.damaged.empty());
    scratch.write("b/" + fs::relative(file.path(), scratch / "b").string(), whole);
  }
  CHECK(compare_checkpoints({scratch / "a", scratch / "b"}).equal());

  fs::remove(b / "manifest.json");
  const CheckpointComparison incomplete = compare_checkpoints({scratch / "a", scratch / "b"});
  CHECK_FALSE(incomplete.equal());
  REQUIRE(incomplete.unreadable.size() == 1);
  check_says(incomplete.unreadable[0], "manifest.json is missing");
  fs::remove_all(b);
  const CheckpointComparison none = compare_checkpoints({scratch / "a", scratch / "b"});
  CHECK(none.equal());
  CHECK(none.steps.empty());
  CHECK(none.only[0] == std::vector<int64_t>{7});
}

}  // namespace trireme::report
