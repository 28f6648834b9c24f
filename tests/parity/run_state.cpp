#include "tests/parity/run_state.h"

#include <algorithm>
#include <cstring>

#include "kernels/ops/transfer.h"
#include "tests/support/catch.h"
#include "trainer/config/derived_sizes.h"
#include "trainer/config/write.h"
#include "trainer/machine/environment.h"

namespace trireme::test {

int world_of(const Config& config) { return mesh_shape(config.parallel).world(); }

MeasuredRun measured_run(const Config& config, const Dataset& data, int steps) {
  MeasuredRun run;
  run.memory.resize(static_cast<size_t>(world_of(config)));
  run_ranks(world_of(config),
            [&](Communicator& world) {
              constexpr double kRate = 1e-3;
              Arena arena(Device::kReference, true);
              Context ctx{Device::kReference, &arena, 1};
              Trainer trainer(ctx, world, config, true);
              trainer.initialise();
              for (int step = 0; step < 2; ++step) trainer.step(data, step, kRate);
              arena.set_phase(MemoryPhase::kSave);
              trainer.evaluate(data, 1);
              for (int step = 2; step < steps; ++step) trainer.step(data, step, kRate);
              run.memory[static_cast<size_t>(world.rank())] = measured_memory(arena);
            },
            {.records = &run.communication});
  return run;
}

RankMemory checked_forecast(const Config& config, const MeasuredRun& run, int rank) {
  const RankMemory forecast = forecast_memory(config, rank, world_of(config)), &real = run.memory[static_cast<size_t>(rank)];
  CHECK(forecast.peak == real.peak);
  CHECK(forecast.peak_total == real.peak_total);
  CHECK(forecast.arena_bytes == real.arena_bytes);
  return forecast;
}

Config on_one_rank(Config config) {
  config.security = {};
  config.parallel = ParityLayout().parallel();
  config.parallel.virtual_stages = 1;
  config.parallel.layers_per_stage = {config.model.layers};
  config.training.micro_batch_size = 1;
  return config;
}

bool same_bits(const GlobalTensor& a, const GlobalTensor& b) {
  return a.values.size() == b.values.size() && std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(double)) == 0;
}

std::vector<double> flattened(const GlobalTensors& tensors) {
  std::vector<double> all;
  for (const auto& [name, tensor] : tensors) all.insert(all.end(), tensor.values.begin(), tensor.values.end());
  return all;
}

std::vector<double> gathered_gradient(Trainer& trainer) {
  RunRecord record;
  std::vector<double> gradient = flattened(gather(trainer, Gathered::kGradient, 1, record));
  TRIREME_CHECK(!record.disagreement && record.unheld.empty(),
                "copies of the gradient differ: ", record.disagreement ? record.disagreement->str() : record.unheld);
  return gradient;
}

CheckpointDescription description_of_step(Trainer& trainer, int64_t step) {
  CheckpointDescription about;
  about.step = step;
  about.optimizer_steps = trainer.scalars().accepted_steps();
  about.island_steps = island_numbers(trainer, trainer.scalars().accepted_steps());
  if (scales_loss(trainer.config().training)) about.loss_scale = trainer.scalars().loss_scale();
  Config config = with_derived_sizes(trainer.config());  // with the required keys that these tests do not use
  config.data.tokenizer = "none";
  config.data.train = {"none"};
  about.config = to_yaml(config);
  about.model = nlohmann::json::object();
  about.layout = describe_layout(trainer.mesh().shape);
  return about;
}

void save(Trainer& trainer, const std::filesystem::path& directory, int64_t step, const std::function<void(std::vector<StateTensor>&)>& change) {
  Communicator& world = trainer.mesh().world;
  Checkpointer checkpointer({directory, "session", world.rank(), world.size(), 0, false, std::chrono::seconds(60)});
  const CheckpointDescription about = description_of_step(trainer, step);
  std::vector<StateTensor> tensors = state_tensors(trainer);
  change(tensors);
  checkpointer.save(about, tensors);
  const std::optional<SaveReport> report = checkpointer.finish();
  TRIREME_CHECK(report && !report->error, report ? report->error.value_or("") : "no report");
  world.barrier();
}

void GatheredState::add(Trainer& trainer) {
  const std::lock_guard lock(mutex_);
  const auto put = [&](const std::string& kind, const OwnedBox& owned, const Tensor& tensor) {
    const Tensor host = to_host(trainer.context(), tensor);
    const auto width = static_cast<size_t>(size_of(host.dtype()));
    const std::string name = kind + "/" + owned.spec->name;
    const std::array<int64_t, 2> shape = owned.spec->shape;
    std::vector<char>& whole = tensors_[name];
    std::vector<bool>& known = known_[name];
    whole.resize(static_cast<size_t>(shape[0] * shape[1]) * width);
    known.resize(static_cast<size_t>(shape[0] * shape[1]));
    const Box& box = owned.box;
    for (int64_t i = 0; i < box.numel(); ++i) {
      const auto place = static_cast<size_t>((box.start[0] + i / box.extent[1]) * shape[1] + box.start[1] + i % box.extent[1]);
      const char* const from = static_cast<const char*>(host.raw()) + static_cast<size_t>(i) * width;
      char* const to = whole.data() + place * width;
      TRIREME_CHECK(!known[place] || std::memcmp(from, to, width) == 0, name, ", element ", place, ": two ranks have different values");
      known[place] = true;
      std::memcpy(to, from, width);
    }
  };
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    for (const auto& [kind, tensor] : owned.kept()) put(saved_kind(kind, trainer.mesh().at.island), owned, tensor);
  }
}

const std::map<std::string, std::vector<char>>& GatheredState::whole() const {
  for (const auto& [name, known] : known_)
    TRIREME_CHECK(std::find(known.begin(), known.end(), false) == known.end(), name, ": no rank owns some of its elements");
  return tensors_;
}

namespace {

/// Trains steps [first, first + 3).
void train_three(Trainer& trainer, const Dataset& data, int first) {
  for (int step = first; step < first + 3; ++step) trainer.step(data, step, 3e-3);
}

}  // namespace

void train_with_save(const Config& config, const Dataset& data, const std::filesystem::path& directory, GatheredState& saved, GatheredState& after) {
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    train_three(trainer, data, 0);
    saved.add(trainer);
    save(trainer, directory, 3);
    train_three(trainer, data, 3);
    after.add(trainer);
  });
}

void continue_from_save(const Config& config, const Dataset& data, const std::filesystem::path& directory, GatheredState& loaded,
                        GatheredState& after) {
  on_ranks(config, [&](Trainer& trainer) {
    CheckpointReader reader(directory / checkpoint_name(3));
    load_state(trainer, reader);
    loaded.add(trainer);
    train_three(trainer, data, 3);
    after.add(trainer);
  });
}

std::map<std::string, std::vector<char>> read_whole(const std::filesystem::path& checkpoint) {
  CheckpointReader reader(checkpoint);
  std::map<std::string, std::vector<char>> tensors;
  for (const auto& [name, stored] : reader.tensors()) {
    std::vector<char>& whole = tensors[name];
    whole.resize(static_cast<size_t>(stored.shape[0] * stored.shape[1] * size_of(stored.dtype)));
    reader.read(name, {{0, 0}, stored.shape}, stored.dtype, whole.data());
  }
  return tensors;
}

}  // namespace trireme::test
