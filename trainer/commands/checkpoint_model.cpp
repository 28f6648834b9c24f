#include "trainer/commands/checkpoint_model.h"

#include "parallel/comm/self.h"
#include "trainer/loop/state.h"

namespace trireme {

CheckpointModel::CheckpointModel(const std::string& path) : source_(path), config_(source_.config()) {
  config_.run.device = config_.training.precision == "fp64" ? "cpu" : "auto";  // not where it was trained
}

Trainer& CheckpointModel::load() { return load(std::make_unique<SelfCommunicator>("world"), {}); }

Trainer& CheckpointModel::load(std::unique_ptr<Communicator> world, const RankPlace& place) {
  machine_ = std::make_unique<Machine>(std::move(world), place, config_);
  trainer_ = std::make_unique<Trainer>(machine_->ctx(), machine_->world(), config_, false);
  load_weights(*trainer_, source_);
  return *trainer_;
}

}  // namespace trireme
