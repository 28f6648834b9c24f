// A checkpoint contains the complete state of a run, every element once.
#include "trainer/loop/state.h"

#include <array>
#include <fstream>

#include "parallel/comm/self.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/layout/resolve.h"
#include "trainer/run/run.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

const RaggedDataset kData(29, 12, 61);

Config config_of(ParityModel model, int tensor, int pipeline, int data, int zero, int replicate) {
  ParityLayout layout;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.zero = zero;
  layout.replicate = replicate;
  layout.sequence_parallel = tensor > 1;
  return parity_config(model, layout, "fp64");
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

TEST_CASE("a run stopped twice reads the samples and takes the steps of an uninterrupted one") {
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
    Progress progress;
    CHECK(run_training(ctx, world, resolve(config, 1), {.max_steps = max_steps}, progress) == ExitCode::kOk);
  };
  run("through", std::nullopt);
  for (const std::optional<int64_t> until : {std::optional<int64_t>(3), std::optional<int64_t>(7), std::optional<int64_t>()}) run("stopped", until);
  const std::vector<nlohmann::json> through = steps_of(directory.path / "through");
  CHECK(through.size() == 10);
  CHECK(through == steps_of(directory.path / "stopped"));
}

TEST_CASE("a run that continues with other sets of a blend counts what it has read of them from there on") {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b"}) write_tokens(directory.path / name, 12 * 40 + 1);
  for (const char* name : {"c", "d"}) write_tokens(directory.path / name, 12 * 40 + 1, 200);
  Config config = parity_config(ParityModel::kLlama, {}, "fp64");
  config.run.directory = directory.path / "run";
  config.model.vocab_size = 256;
  config.data.weights = {1, 3};
  const auto run = [&](const std::vector<std::string>& sets, const RunOptions& options) {
    config.data.train.clear();
    for (const std::string& name : sets) config.data.train.push_back(directory.path / name);
    SelfCommunicator world("world");
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Progress progress;
    CHECK(run_training(ctx, world, resolve(config, 1), options, progress) == ExitCode::kOk);
  };
  run({"a", "b"}, {.max_steps = 4});
  run({"c", "d"}, {.change = {"data.train"}, .max_steps = 7});
  run({"c", "d"}, {});
  const int64_t tokens_of_step = config.training.global_batch_size * config.training.sequence_length;
  int64_t steps = 0;
  std::ifstream lines(directory.path / "run/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json fields = nlohmann::json::parse(line);
    if (!fields.contains("loss")) continue;
    CAPTURE(line);
    const auto step = fields["step"].get<int64_t>();
    CHECK(step == ++steps);
    int64_t read = 0;
    for (const char* name : step <= 4 ? std::array{"a", "b"} : std::array{"c", "d"})
      read += fields["data_tokens"].value((directory.path / name).string(), int64_t{0});
    CHECK(fields["data_tokens"].size() == 2);
    CHECK(read == (step <= 4 ? step : step - 4) * tokens_of_step);
  }
  CHECK(steps == 10);
}

TEST_CASE("training resumes from a checkpoint bit for bit, twice, in every kind of layout") {
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
      TRIREME_CHECK(through == in_parts, "training differs after a resume");
    });
  }
}

TEST_CASE("any layout loads the weights of any other, without padding") {
  const TemporaryDirectory directory;
  double expected = 0;
  int64_t step = 0;
  std::optional<fs::path> previous;
  for (const Config& config : {config_of(ParityModel::kGpt2, 1, 1, 1, 0, 1), config_of(ParityModel::kGpt2, 3, 1, 2, 3, 1),
                               config_of(ParityModel::kGpt2, 2, 2, 2, 2, 2), config_of(ParityModel::kGpt2, 1, 1, 1, 0, 1)}) {
    ++step;
    on_ranks(config, [&](Trainer& trainer) {
      if (previous) {
        WeightSource source(*previous);
        load_weights(trainer, source);
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

TEST_CASE("a checkpoint with missing, extra or wrong tensors is refused on every rank, naming the tensor") {
  using Tensors = std::vector<StateTensor>;
  const auto without = [](const std::string& name) {
    return [name](Tensors& tensors) { std::erase_if(tensors, [&](const StateTensor& tensor) { return tensor.name == name; }); };
  };
  // If this rank writes `name`, it also writes the same tensor as `other`.
  const auto as_well = [](const std::string& name, const std::string& other) {
    return [name, other](Tensors& tensors) {
      Tensors more;
      for (const StateTensor& tensor : tensors)
        if (tensor.name == name) (more.emplace_back(tensor)).name = other;
      tensors.insert(tensors.end(), more.begin(), more.end());
    };
  };
  const auto as_it_is = [](Tensors&) {};
  const auto with = [](Config config, auto change) {
    change(config);
    return config;
  };
  const Config one = config_of(ParityModel::kLlama, 1, 1, 1, 0, 1), many = config_of(ParityModel::kLlama, 2, 2, 2, 3, 1);
  const struct {
    const char* what;
    Config saved, loaded;
    std::function<void(Tensors&)> change;
    const char* named;
  } cases[] = {
      {"missing weight", one, one, without("weight/blocks.3.mlp.up.weight"), "weight/blocks.3.mlp.up.weight"},
      {"missing first moment", one, one, without("exp_avg/blocks.1.attention.key.bias"), "exp_avg/blocks.1.attention.key.bias"},
      {"missing second moment", one, many, without("exp_avg_sq/final_norm.weight"), "exp_avg_sq/final_norm.weight"},
      {"missing second moment of one stage", many, many, without("exp_avg_sq/final_norm.weight"), "exp_avg_sq/final_norm.weight"},
      {"an extra block", one, one, as_well("weight/blocks.4.mlp.up.weight", "weight/blocks.5.mlp.up.weight"), "weight/blocks.5.mlp.up.weight"},
      {"an extra moment", many, many, as_well("exp_avg/final_norm.weight", "exp_avg/other_norm.weight"), "exp_avg/other_norm.weight"},
      {"unknown kind of state", one, one, as_well("exp_avg/final_norm.weight", "foo/final_norm.weight"), "foo/final_norm.weight"},
      {"unknown kind of state", many, many, as_well("exp_avg/final_norm.weight", "max_exp_avg_sq/final_norm.weight"),
       "max_exp_avg_sq/final_norm.weight"},
      {"missing kind", one, one, as_well("weight/final_norm.weight", "final_norm.weight"), "final_norm.weight"},
      {"a kind twice", one, one, as_well("weight/final_norm.weight", "weight/weight/final_norm.weight"), "weight/weight/final_norm.weight"},
      {"different vocabulary", one, with(many, [](Config& c) { c.model.vocab_size = 59; }), as_it_is, "/embedding.weight"},
      {"different dtype", with(one, [](Config& c) { c.training.precision = Arithmetic::kFp32; }), one, as_it_is, "weight/embedding.weight"},
      {"tied instead of untied", one, with(one, [](Config& c) { c.model.tied_embeddings = true; }), as_it_is, "/head.weight"},
      {"untied instead of tied", with(one, [](Config& c) { c.model.tied_embeddings = true; }), one, as_it_is, "weight/head.weight"},
      {"different width", one, with(one, [](Config& c) { c.model.ffn_size = 24; }), as_it_is, "weight/blocks.0.mlp."},
  };
  for (const auto& c : cases) {
    INFO(c.what << ", " << world_of(c.saved) << " -> " << world_of(c.loaded) << " ranks");
    const TemporaryDirectory directory;
    on_ranks(c.saved, [&](Trainer& trainer) {
      trainer.initialise();
      save(trainer, directory.path, 1, c.change);
    });
    std::vector<std::string> messages(static_cast<size_t>(world_of(c.loaded)));
    on_ranks(c.loaded, [&](Trainer& trainer) {
      try {
        CheckpointReader reader(directory.path / checkpoint_name(1));
        load_state(trainer, reader);
      } catch (const Error& error) {
        messages[static_cast<size_t>(trainer.mesh().world.rank())] = error.what();
      }
    });
    for (const std::string& message : messages) {
      INFO("message: " << message);
      CHECK(message.find(c.named) != std::string::npos);
    }
  }
}

}  // namespace trireme::test
