// Tests which configuration keys a resumed run may change, by changing every key, one at a time.
#include <algorithm>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/key_change.h"
#include "trainer/run/resume.h"

using namespace trireme;
using namespace trireme::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

/// Sections whose keys do not affect what is trained.
const std::vector<std::string> kNeutralSections = {"run.",  "parallel.", "checkpoint.",        "resilience.",    "kernels.",
                                                   "plan.", "observe.",  "training.evaluate.", "training.stop.", "security.audit."};
const std::set<std::string> kNeutral = {"training.logits_chunk",
                                        "training.recompute",
                                        "training.recompute_every",
                                        "training.recompute_elementwise",
                                        "training.recompute_budget",
                                        "training.micro_batch_size",
                                        "training.max_rejected_steps",
                                        "training.ema.decay",
                                        "training.asynchronous.replay",
                                        "data.validation",
                                        "data.balance",
                                        "security.encryption",
                                        "security.key_file",
                                        "security.privacy.key_file",
                                        "security.federation.rounds",
                                        "security.federation.roster",
                                        "security.federation.identity_key_file",
                                        "security.federation.address",
                                        "security.federation.port",
                                        "security.federation.wait_seconds",
                                        "security.federation.round_seconds",
                                        "data.tokenizer"};  // the tokenizer is compared by its digest

bool is_neutral(const std::string& path) {
  if (path == "run.seed" || path == "parallel.islands" || path == "resilience.backup_replicas") return false;
  return kNeutral.contains(path) || std::any_of(kNeutralSections.begin(), kNeutralSections.end(), [&](const auto& s) { return path.starts_with(s); });
}

}  // namespace

TEST_CASE("resume: exactly the keys that do not affect what is trained may change") {
  Config saved;
  saved.training.schedule.name = LearningRateSchedule::kCosine;  // depends on the end of training
  std::set<std::string> paths;
  for (size_t i = 0;; ++i) {
    Config now = saved;
    Change change(i);
    visit(change, now);
    if (change.path.empty()) break;
    paths.insert(change.path);
    INFO(change.path);
    const std::string difference = mathematical_difference(saved, now);
    if (is_neutral(change.path)) {
      CHECK(difference.empty());
    } else if (change.seen_by_writer) {
      CHECK_FALSE(difference.empty());
    }
  }
  CHECK(paths.size() > 60);
  for (const char* known : {"plan.must_fit", "plan.cluster", "run.seed", "model.layers", "training.optimizer.learning_rate"}) {
    INFO(known);
    CHECK(paths.contains(known));
  }
}

TEST_CASE("resume: changed keys are listed one by one, the saved value first") {
  Config saved;
  saved.training.steps = 10;
  saved.training.schedule.name = LearningRateSchedule::kWsd;
  Config now = saved;
  now.training.optimizer.learning_rate = 0.25;
  now.training.steps.reset();
  now.training.epochs = 2;
  now.training.schedule.name = LearningRateSchedule::kLinear;
  now.training.schedule.final_learning_rate = 0.125;
  now.data.train = {"a b", "c"};
  now.parallel.tensor = 2;
  now.run.name = "another";
  CHECK(mathematical_difference(saved, now) ==
        "  checkpoint: training.steps: 10\n"
        "  now:        training.steps: not set\n"
        "  checkpoint: training.epochs: not set\n"
        "  now:        training.epochs: 2\n"
        "  checkpoint: training.optimizer.learning_rate: 0.001\n"
        "  now:        training.optimizer.learning_rate: 0.25\n"
        "  checkpoint: training.schedule.name: wsd\n"
        "  now:        training.schedule.name: linear\n"
        "  checkpoint: training.schedule.final_learning_rate: auto\n"
        "  now:        training.schedule.final_learning_rate: 0.125\n"
        "  checkpoint: data.train: []\n"
        "  now:        data.train: [\"a b\", c]\n");
  CHECK(mathematical_difference(saved, now, changeable_keys({"training", "data.train"})) == "");
  CHECK(mathematical_difference(saved, now, changeable_keys({"training.schedule", "training.optimizer", "data", "training.epochs"})) ==
        "  checkpoint: training.steps: 10\n"
        "  now:        training.steps: not set\n");
}

TEST_CASE("resume: the length of training may change while the schedule is constant") {
  Config saved;
  saved.training.steps = 10;
  saved.training.schedule.name = LearningRateSchedule::kConstant;
  Config now = saved;
  now.training.steps = 20;
  CHECK(mathematical_difference(saved, now) == "");
  now.training.steps.reset();
  now.training.epochs = 2;
  CHECK(mathematical_difference(saved, now) == "");
}

TEST_CASE("resume: the advice names every key that has changed") {
  const Config saved;
  Config now;
  now.training.gradient_clip = 0.25;
  now.training.global_batch_size = 2 * saved.training.global_batch_size;
  const std::string advice = advice_to_change(saved, now, {}, false);
  CHECK_THAT(advice, Contains("add --change ") && Contains("training.global_batch_size") && Contains("training.gradient_clip"));
  CHECK_THAT(advice_to_change(saved, now, {"training.gradient_clip"}, false), !Contains("training.gradient_clip"));
}

TEST_CASE("resume: --change takes exactly the keys that would be refused, except those that can never change") {
  Config saved;
  saved.training.schedule.name = LearningRateSchedule::kCosine;
  size_t changeable = 0;
  for (size_t i = 0;; ++i) {
    Config now = saved;
    Change change(i);
    visit(change, now);
    if (change.path.empty()) break;
    INFO(change.path);
    const bool never = change.path.starts_with("model.") || change.path == "training.optimizer.name" || change.path == "parallel.islands" ||
                       change.path == "training.asynchronous.mode" || change.path == "adapter.rank" || change.path == "adapter.targets";
    if (is_neutral(change.path) || never) {
      CHECK_THROWS_AS(changeable_keys({change.path}), ConfigError);
    } else {
      CHECK(changeable_keys({change.path}) == std::set{change.path});
      CHECK(mathematical_difference(saved, now, {change.path}) == "");
      ++changeable;
    }
  }
  CHECK(changeable > 20);
  CHECK(changeable_keys({}).empty());
  CHECK(changeable_keys({"data"}) ==
        std::set<std::string>{"data.document_mask", "data.packing", "data.packing_window", "data.train", "data.weights"});
  CHECK(changeable_keys({"run"}) == std::set<std::string>{"run.seed"});
  CHECK_FALSE(changeable_keys({"training"}).contains("training.optimizer.name"));
  CHECK_THROWS_WITH(changeable_keys({"trainin.steps"}), "--change trainin.steps: unknown key; did you mean training.steps?");
  CHECK_THROWS_WITH(changeable_keys({""}), StartsWith("--change : unknown key"));
}

TEST_CASE("resume: a change keeps the position in the data if the samples stay the same") {
  Config saved;
  saved.training.steps = 100;
  saved.training.global_batch_size = 8;
  saved.data.train = {"a"};
  CheckpointDescription about;
  about.step = 10;
  const std::set<std::string> all = changeable_keys({"training", "data", "run.seed"});
  const auto position = [&](const auto& edit, bool same_tokens = true) {
    Config now = saved;
    edit(now);
    return change_of(about, saved, now, same_tokens, all).sample;
  };
  CHECK(position([](Config&) {}) == 80);
  CHECK(position([](Config& now) { now.training.global_batch_size = 32; }) == 80);
  CHECK(position([](Config& now) { now.training.optimizer.learning_rate = 1; }) == 80);
  CHECK(position([](Config& now) { now.run.seed = 5; }) == 80);
  CHECK(position([](Config& now) { now.data.train = {"moved"}; }) == 80);
  CHECK(position([](Config& now) { now.data.train = {"other"}; }, false) == 0);
  CHECK(position([](Config&) {}, false) == 0);
  CHECK(position([](Config& now) { now.data.weights = {1.0}; }) == 0);
  CHECK(position([](Config& now) { now.data.document_mask = true; }) == 0);
  CHECK(position([](Config& now) { now.data.packing = Packing::kBestFit; }) == 0);
  CHECK(position([](Config& now) { now.training.sequence_length += 1; }) == 0);
  Config packs = saved;
  packs.data.packing = Packing::kBestFit;
  Config wider = packs;
  wider.data.packing_window *= 2;
  CHECK(change_of(about, packs, wider, true, all).sample == 0);

  about.branch = {{2, 16}, {5, 0}};  // other data from step 5 on
  CHECK(position([](Config& now) { now.training.steps = 200; }) == 40);
  CHECK(change_of(about, saved, saved, true, all).changes.empty());
  const DataStart start = data_start(about.branch);
  CHECK(start.step == 5);
  CHECK(start.place == 0);

  Config epochs = saved;
  epochs.training.steps.reset();
  epochs.training.epochs = 2;
  CHECK_THROWS_AS(check_epochs(epochs, about.branch), ConfigError);
  CHECK_NOTHROW(check_epochs(epochs, {{2, 16}}));
  CHECK_NOTHROW(check_epochs(saved, about.branch));
}

TEST_CASE("resume: what two precisions keep in common can change, and restarts the loss scale") {
  Config saved;
  saved.training.steps = 100;
  const auto change_to = [&](const char* precision) {
    Config now = saved;
    now.training.precision = OneOf<Arithmetic>(precision);
    return change_of({}, saved, now, true, changeable_keys({"training.precision"}));
  };
  CHECK(restarts_loss_scale(change_to("bf16")));
  CHECK(change_to("bf16").changes == nlohmann::json{{"training.precision", {"fp32", "bf16"}}});
  CHECK(change_to("fp16").changes["training.loss_scale.initial"] == nlohmann::json{nullptr, saved.training.loss_scale.initial});
  CHECK_THROWS_WITH(change_to("fp64"), StartsWith("training.precision can never change from fp32 to fp64 in a resumed run: fp64 keeps"));
  CHECK_FALSE(restarts_loss_scale({}));
  // Without another precision, each key of the scale alone restarts it, and no other key does.
  saved.training.precision = Arithmetic::kFp16;
  const auto restarts = [&](const char* key, const std::function<void(TrainingConfig&)>& change) {
    Config now = saved;
    change(now.training);
    return restarts_loss_scale(change_of({}, saved, now, true, changeable_keys({key})));
  };
  CHECK(restarts("training.loss_scale.initial", [](TrainingConfig& t) { t.loss_scale.initial = 1024; }));
  CHECK(restarts("training.loss_scale.growth_interval", [](TrainingConfig& t) { t.loss_scale.growth_interval = 7; }));
  CHECK_FALSE(restarts("training.gradient_clip", [](TrainingConfig& t) { t.gradient_clip = 0.5; }));
}
