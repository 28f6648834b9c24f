// Hogwild: one island trains as SGD does, several share their weights after each round, and a checkpoint has nothing else.
#include <algorithm>
#include <mutex>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/resilience/replica_check.h"

namespace trireme::test {
namespace {

const RaggedDataset kSharedData(300, 12, 71);

Config hogwild(int islands, int steps) {
  Config config = parity_config(ParityModel::kGpt2, {}, "fp32");
  config.parallel.islands = islands;
  config.training.steps = 1000;  // no round is cut short
  config.training.global_batch_size = 24;
  config.training.optimizer = {.name = Optimizer::kSgd, .weight_decay = 0.1};
  config.training.asynchronous.mode = AsynchronousMode::kHogwild;
  config.training.asynchronous.steps = steps;
  return config;
}

/// Losses of the first island, and what it saves after the last step, a round's.
struct SharedRun {
  std::vector<double> losses;
  double first = 0, last = 0;  ///< of all data, before and after
  std::map<std::string, std::vector<char>> state;
};
SharedRun train_shared(const Config& config, int steps, double rate) {
  SharedRun run;
  std::mutex mutex;
  const TemporaryDirectory directory;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    const double first = trainer.evaluate(kSharedData, 0).loss;
    for (int step = 0; step < steps; ++step) {
      const StepResult result = trainer.step(kSharedData, step, rate);
      TRIREME_CHECK(result.accepted, "rejected");
      if (trainer.updates().rounds().ends_after(step + 1)) {
        const std::string differences = replica_differences(trainer);
        TRIREME_CHECK(differences.empty(), differences);
      }
      const std::lock_guard lock(mutex);
      if (trainer.mesh().world.rank() == 0) run.losses.push_back(result.loss);
    }
    save(trainer, directory.path, steps);
    const double last = trainer.evaluate(kSharedData, 0).loss;
    const std::lock_guard lock(mutex);
    run.first = first;
    run.last = last;
  });
  run.state = read_whole(directory.path / checkpoint_name(steps));
  return run;
}

}  // namespace

TEST_CASE("hogwild: one island is sequential SGD, to the bit") {
  const Config config = hogwild(1, 3);
  Config plain = config;
  plain.training.asynchronous = {};
  const SharedRun shared = train_shared(config, 6, 0.05), sequential = train_shared(plain, 6, 0.05);
  CHECK(shared.losses == sequential.losses);
  CHECK(shared.state == sequential.state);
}

TEST_CASE("hogwild: islands that step on the same weights learn, agree after each round, and save the weights alone") {
  for (const int islands : {2, 3, 4}) {
    const SharedRun run = train_shared(hogwild(islands, 10), 40, 0.05);
    INFO(islands << " islands, loss from " << run.first << " to " << run.last);
    CHECK(run.last < run.first - 0.01);
    for (const auto& [name, bytes] : run.state) CHECK(name.starts_with("weight/"));
  }
}

TEST_CASE("hogwild: a resumed run continues with the weights of its checkpoint, and in any number of ranks without it") {
  const Config config = hogwild(2, 4);
  const TemporaryDirectory directory;
  std::vector<double> evaluated;
  std::mutex mutex;
  const auto evaluate = [&](Trainer& trainer) {
    const double loss = trainer.evaluate(kSharedData, 1).loss;
    const std::lock_guard lock(mutex);
    if (trainer.mesh().world.rank() == 0) evaluated.push_back(loss);
  };
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 4; ++step) trainer.step(kSharedData, step, 0.05);
    save(trainer, directory.path, 4);
    evaluate(trainer);
  });
  on_ranks(config, [&](Trainer& trainer) {
    CheckpointReader reader(directory.path / checkpoint_name(4));
    TRIREME_CHECK(load_state(trainer, reader).empty(), "a note");
    evaluate(trainer);
    for (int step = 4; step < 8; ++step) TRIREME_CHECK(trainer.step(kSharedData, step, 0.05).accepted, "rejected");
    TRIREME_CHECK(replica_differences(trainer).empty(), "islands differ");
  });
  CHECK(evaluated.at(0) == evaluated.at(1));
}

}  // namespace trireme::test
