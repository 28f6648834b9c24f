#include "trainer/commands/checkpoint_model.h"

#include "parallel/comm/self.h"
#include "trainer/config/load.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/state.h"

namespace trireme {

CheckpointModel::CheckpointModel(const std::string& directory) : reader_(directory), world_(std::make_unique<SelfCommunicator>("world")) {
  try {
    config_ = resolve(parse_config(reader_.description().config, directory + "/manifest.json"));
  } catch (const ConfigError& error) {
    throw DataError(concat(directory, ": the configuration saved in it is not valid: ", error.what()));
  }
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
