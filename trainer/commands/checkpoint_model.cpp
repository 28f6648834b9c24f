#include "trainer/commands/checkpoint_model.h"

#include "parallel/comm/self.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/run.h"
#include "trainer/loop/state.h"

namespace trireme {

CheckpointModel::CheckpointModel(const std::string& directory) : reader_(directory), world_(std::make_unique<SelfCommunicator>("world")) {
  config_ = saved_config(reader_, directory);
  config_.parallel = {};
  config_.parallel.layers_per_stage = std::vector<int64_t>{config_.model.layers};
}

Trainer& CheckpointModel::load() {
  const Device device = device_of(config_.training.precision);
  arena_ = std::make_unique<Arena>(device);
  ctx_ = {device, arena_.get(), threads_per_rank(1)};
  trainer_ = std::make_unique<Trainer>(ctx_, *world_, config_, false);
  load_weights(*trainer_, reader_);
  return *trainer_;
}

}  // namespace trireme
