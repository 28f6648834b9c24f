#include "trainer/commands/checkpoint_model.h"

#include "parallel/comm/self.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/resume.h"
#include "trainer/loop/state.h"

namespace trireme {

CheckpointModel::CheckpointModel(const std::string& directory) : reader_(directory) {
  config_ = saved_config(reader_, directory);
  config_.run.device = "auto";  // not where it was trained
  config_.parallel = {};
  config_.parallel.layers_per_stage = std::vector<int64_t>{config_.model.layers};
}

Trainer& CheckpointModel::load() {
  machine_ = std::make_unique<Machine>(std::make_unique<SelfCommunicator>("world"), RankPlace{}, config_);
  trainer_ = std::make_unique<Trainer>(machine_->ctx(), machine_->world(), config_, false);
  load_weights(*trainer_, reader_);
  return *trainer_;
}

}  // namespace trireme
