// Tests which configuration keys a resumed run may change, by changing every key, one at a time.
#include <algorithm>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/key_change.h"
#include "trainer/run/resume.h"

using namespace trireme;
using namespace trireme::test;

namespace {

/// Sections whose keys do not affect what is trained.
const std::vector<std::string> kNeutralSections = {"run.", "parallel.", "checkpoint.", "resilience.", "kernels.", "plan.", "training.evaluate."};
const std::set<std::string> kNeutral = {
    "training.logits_chunk",     "training.recompute",        "training.recompute_every",
    "training.recompute_budget", "training.micro_batch_size", "training.max_rejected_steps",
    "training.ema.decay",        "data.validation",           "data.tokenizer"};  // the tokenizer is compared by its digest

bool is_neutral(const std::string& path) {
  if (path == "run.seed") return false;
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

TEST_CASE("resume: changed keys are listed one by one, saved values first") {
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
        "  checkpoint: training.optimizer.learning_rate: 0.001\n"
        "  checkpoint: training.schedule.name: wsd\n"
        "  checkpoint: training.schedule.final_learning_rate: 0\n"
        "  checkpoint: training.schedule.decay_steps: auto\n"
        "  checkpoint: data.train: []\n"
        "  now:        training.epochs: 2\n"
        "  now:        training.optimizer.learning_rate: 0.25\n"
        "  now:        training.schedule.name: linear\n"
        "  now:        training.schedule.final_learning_rate: 0.125\n"
        "  now:        data.train: [\"a b\", c]\n");
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
