// What a checkpoint holds of a training run: every element once, and all of it.
#include "trainer/loop/state.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/loop/run.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

const RaggedDataset kData(29, 12, 61);

Config config_of(ParityModel model, int tensor, int pipeline, int data, int zero, int replicate) {
  Layout layout;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.zero = zero;
  layout.replicate = replicate;
  layout.sequence_parallel = tensor > 1;
  return parity_config(model, layout, "fp64");
}

int world_of(const Config& config) { return static_cast<int>(config.parallel.tensor * config.parallel.pipeline * *config.parallel.data); }

/// Runs body(trainer) on every rank of the configuration's layout.
template <class Body>
void on_ranks(const Config& config, const Body& body) {
  run_ranks(world_of(config), [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    body(trainer);
  });
}

/// Saves as step `step` of <directory>; `without`: a tensor that is left out.
void save(Trainer& trainer, const fs::path& directory, int64_t step, const std::string& without = "") {
  Communicator& world = trainer.mesh().world;
  Checkpointer checkpointer({directory, "session", world.rank(), world.size(), 0, false, std::chrono::seconds(60)});
  CheckpointDescription about;
  about.step = step;
  about.optimizer_steps = trainer.accepted_steps();
  about.model = nlohmann::json::object();
  about.layout = nlohmann::json::object();
  std::vector<StateTensor> tensors = state_tensors(trainer);
  std::erase_if(tensors, [&](const StateTensor& tensor) { return tensor.name == without; });
  checkpointer.save(about, tensors);
  const std::optional<std::string> error = checkpointer.finish();
  TRIREME_CHECK(!error, error.value_or(""));
  world.barrier();
}

std::vector<double> losses(Trainer& trainer, int first, int last) {
  std::vector<double> all;
  for (int step = first; step < last; ++step) {
    const StepResult result = trainer.step(kData, step, 3e-3);
    all.insert(all.end(), {result.loss, result.grad_norm});
  }
  return all;
}

}  // namespace

TEST_CASE("a run stopped twice consumes the samples, and takes the steps, of one that was not") {
  const TemporaryDirectory directory;
  write_tokens(directory.path / "tokens", 12 * 40 + 1);
  const auto run = [&](const std::string& name, std::optional<int64_t> max_steps) {
    Config config = parity_config(ParityModel::kLlamaGrouped, {}, "fp64");
    config.run.directory = directory.path / name;
    config.model.vocab_size = 256;
    config.data.train = {directory.path / "tokens"};
    SelfCommunicator world("world");
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    CHECK(run_training(ctx, world, resolve(config, 1), {"auto", max_steps}) == ExitCode::kOk);
  };
  run("through", std::nullopt);
  for (const std::optional<int64_t> until : {std::optional<int64_t>(3), std::optional<int64_t>(7), std::optional<int64_t>()}) run("stopped", until);
  const std::vector<nlohmann::json> through = steps_of(directory.path / "through");
  CHECK(through.size() == 10);
  CHECK(through == steps_of(directory.path / "stopped"));
}

TEST_CASE("training goes on from a checkpoint bit for bit, twice, in every kind of layout") {
  for (const Config& config : {config_of(ParityModel::kLlamaGrouped, 4, 1, 2, 3, 1), config_of(ParityModel::kGpt2Dropout, 2, 2, 2, 3, 2),
                               config_of(ParityModel::kLlama, 1, 2, 3, 1, 1), config_of(ParityModel::kGpt2, 3, 1, 2, 0, 1)}) {
    const TemporaryDirectory directory;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      const std::vector<double> through = losses(trainer, 0, 6);
      std::vector<double> in_parts;
      for (int first = 0; first < 6; first += 2) {
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1};
        Trainer part(ctx, trainer.mesh().world, config, true);
        if (first == 0) {
          part.initialise();
        } else {
          CheckpointReader reader(directory.path / checkpoint_name(first));
          load_state(part, reader);
        }
        const std::vector<double> some = losses(part, first, first + 2);
        in_parts.insert(in_parts.end(), some.begin(), some.end());
        save(part, directory.path, first + 2);
      }
      TRIREME_CHECK(through == in_parts, "training took another way after a resume");
    });
  }
}

TEST_CASE("any layout reads the weights of any other, without its padding") {
  const TemporaryDirectory directory;
  double expected = 0;
  int64_t step = 0;
  std::optional<fs::path> previous;
  for (const Config& config : {config_of(ParityModel::kGpt2, 1, 1, 1, 0, 1), config_of(ParityModel::kGpt2, 3, 1, 2, 3, 1),
                               config_of(ParityModel::kGpt2, 2, 2, 2, 2, 2), config_of(ParityModel::kGpt2, 1, 1, 1, 0, 1)}) {
    ++step;
    on_ranks(config, [&](Trainer& trainer) {
      if (previous) {
        CheckpointReader reader(*previous);
        load_weights(trainer, reader);
      } else {
        trainer.initialise();
      }
      save(trainer, directory.path, step);
      const double loss = trainer.evaluate(kData, 0).loss;
      if (trainer.mesh().world.rank() == 0 && !previous) expected = loss;
      if (previous) TRIREME_CHECK(std::abs(loss - expected) < 1e-12 * expected, "loss ", loss, " instead of ", expected);
    });
    previous = directory.path / checkpoint_name(step);
    CHECK(CheckpointReader(*previous).tensor("weight/embedding.weight").shape == std::array<int64_t, 2>{61, config.model.hidden_size});
  }
}

TEST_CASE("a checkpoint that lacks a tensor is refused by its name") {
  const Config config = config_of(ParityModel::kLlama, 1, 1, 1, 0, 1);
  for (const std::string name : {"weight/blocks.3.mlp.up.weight", "exp_avg/blocks.1.attention.key.bias", "exp_avg_sq/final_norm.weight"}) {
    const TemporaryDirectory directory;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      save(trainer, directory.path, 1, name);
      std::string message;
      try {
        CheckpointReader reader(directory.path / checkpoint_name(1));
        load_state(trainer, reader);
      } catch (const std::exception& error) {
        message = error.what();
      }
      TRIREME_CHECK(message.find(name) != std::string::npos, name, " is missing, and the message is: ", message);
    });
  }
}

}  // namespace trireme::test
