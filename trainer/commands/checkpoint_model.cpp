#include "trainer/commands/checkpoint_model.h"

#include "parallel/comm/self.h"
#include "trainer/loop/state.h"

namespace trireme {

CheckpointModel::CheckpointModel(const std::string& path) : source_(path), config_(source_.config()) {
  // Not where it was trained. These two run on the CPU only.
  const std::string& precision = config_.training.precision;
  config_.run.device = precision == "fp64" || precision == "fp16" ? "cpu" : "auto";
}

Trainer& CheckpointModel::load() { return load(std::make_unique<SelfCommunicator>("world"), {}); }

Trainer& CheckpointModel::load(std::unique_ptr<Communicator> world, const RankPlace& place) {
  machine_ = std::make_unique<Machine>(std::move(world), place, config_);
  trainer_ = std::make_unique<Trainer>(machine_->ctx(), machine_->world(), config_, false);
  load_weights(*trainer_, source_);
  return *trainer_;
}

}  // namespace trireme
