#pragma once
// Saves, loads and gathers the state of a small training run on rank threads, for bit-exact comparison.
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/state.h"

namespace trireme::test {

int world_of(const Config& config);

/// Runs body(trainer) on every rank of the configuration's layout.
template <class Body>
void on_ranks(const Config& config, const Body& body) {
  run_ranks(world_of(config), [&](Communicator& world) {
    Arena arena(config.training.precision == Arithmetic::kFp64 ? Device::kReference : Device::kCpu, true);
    Context ctx{arena.device(), &arena, 1};
    Trainer trainer(ctx, world, config, true);
    body(trainer);
  });
}

/// What the ranks of a run have used, by rank.
struct MeasuredRun {
  std::vector<RankMemory> memory;
  std::vector<CommunicationRecord> communication;
};
/// Trains with the phases that forecast_memory() counts: two steps, a save and an evaluation, and the steps from the third one on.
MeasuredRun measured_run(const Config& config, const Dataset& data, int steps = 3);
/// Checks that the forecast of a rank's memory equals what it has used, and returns the forecast.
RankMemory checked_forecast(const Config& config, const MeasuredRun& run, int rank);

/// The same model on one rank, one sample at a time, with the plain sum of gradients.
Config on_one_rank(Config config);

bool same_bits(const GlobalTensor& a, const GlobalTensor& b);
/// The elements of all parameters in the order of their names.
std::vector<double> flattened(const GlobalTensors& tensors);
/// The gradient of the last step of all ranks, likewise. Collective. Throws if copies of it differ.
std::vector<double> gathered_gradient(Trainer& trainer);

/// What a checkpoint after `step` steps says of the state. Collective.
CheckpointDescription description_of_step(Trainer& trainer, int64_t step);

/// Saves a checkpoint of step `step` in `directory` from all ranks, after applying `change` to the tensors this rank writes. Collective.
void save(
    Trainer& trainer, const std::filesystem::path& directory, int64_t step,
    const std::function<void(std::vector<StateTensor>&)>& change = [](std::vector<StateTensor>&) {});

/// The unpadded bytes of every global tensor of a run, by its name in a checkpoint.
class GatheredState {
 public:
  /// Adds what this rank owns; call on all ranks. Throws if another rank has added different bits for an element.
  void add(Trainer& trainer);
  /// Throws if no rank owns some of the elements.
  const std::map<std::string, std::vector<char>>& whole() const;

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<char>> tensors_;
  std::map<std::string, std::vector<bool>> known_;
};

/// Trains three steps, adds the state to `saved`, saves it as step 3 in `directory`, trains three more, and adds the state to `after`.
void train_with_save(const Config& config, const Dataset& data, const std::filesystem::path& directory, GatheredState& saved, GatheredState& after);
/// Continues from that checkpoint: the state as loaded, and after the same three steps.
void continue_from_save(const Config& config, const Dataset& data, const std::filesystem::path& directory, GatheredState& loaded,
                        GatheredState& after);

/// The same for a checkpoint.
std::map<std::string, std::vector<char>> read_whole(const std::filesystem::path& checkpoint);

}  // namespace trireme::test
