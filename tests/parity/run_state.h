#pragma once
// The state of a small training run on rank threads: saved, loaded, and gathered to be compared bit for bit.
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/state.h"

namespace trireme::test {

int world_of(const Config& config);

/// Runs body(trainer) on every rank of the configuration's layout.
template <class Body>
void on_ranks(const Config& config, const Body& body) {
  run_ranks(world_of(config), [&](Communicator& world) {
    Arena arena(config.training.precision == "fp64" ? Device::kReference : Device::kCpu, true);
    Context ctx{arena.device(), &arena, 1};
    Trainer trainer(ctx, world, config, true);
    body(trainer);
  });
}

/// CheckpointManager as step `step` of <directory>, all ranks at once, after `change` has been done to what this rank writes.
void save(
    Trainer& trainer, const std::filesystem::path& directory, int64_t step,
    const std::function<void(std::vector<StateTensor>&)>& change = [](std::vector<StateTensor>&) {});

/// Every global tensor of a run by the name it has in a checkpoint: the bytes of its unpadded elements.
class GatheredState {
 public:
  /// Adds what this rank owns; all ranks do. Throws if another rank has put a value with other bits in the same place.
  void add(Trainer& trainer);
  /// Throws if elements belong to no rank.
  const std::map<std::string, std::vector<char>>& whole() const;

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<char>> tensors_;
  std::map<std::string, std::vector<bool>> known_;
};

/// The same of a checkpoint.
std::map<std::string, std::vector<char>> read_whole(const std::filesystem::path& checkpoint);

}  // namespace trireme::test
