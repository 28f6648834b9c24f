#include "trainer/commands/checkpoint_model.h"

#include <map>

#include "parallel/comm/self.h"
#include "trainer/loop/state.h"

namespace trireme {

CheckpointModel::CheckpointModel(const std::string& path, WeightKind kind, Adapters adapters)
    : source_(path, kind, adapters), config_(source_.config()) {
  config_.run.device =
      config_.training.precision == Arithmetic::kFp64 ? DeviceType::kCpu : DeviceType::kAuto;  // independent of the device used for training,
  config_.kernels.attention = AttentionEngine::kAuto;                                          // and of its libraries
}

Trainer& CheckpointModel::load(const RankPlace& place) { return load(std::make_unique<SelfCommunicator>("world"), place, machine_); }

Trainer& CheckpointModel::load(std::unique_ptr<Communicator> world, const RankPlace& place, std::optional<Machine>& machine,
                               const MachineOptions& options) {
  // Nothing is trained, so what protects or compresses training, or lets it run asynchronously, must not decide which devices can compute the model.
  config_.security = {};
  config_.resilience = {};
  config_.training.compression = {};
  config_.training.local = {};
  config_.training.asynchronous = {};
  machine.emplace(std::move(world), place, config_, options);
  trainer_ = std::make_unique<Trainer>(machine->ctx(), machine->world(), config_, false);
  load_weights(*trainer_, source_);
  return *trainer_;
}

void add_weights_option(CLI::App& command, WeightKind& kind) {
  static const std::map<std::string, WeightKind> kKinds{{"trained", WeightKind::kTrained}, {"ema", WeightKind::kAverage}};
  command
      .add_option_function<std::string>(
          "--weights", [&kind](const std::string& name) { kind = kKinds.at(name); },
          "Weights of a checkpoint: trained, or ema (the moving average of training.ema)")
      ->check(CLI::IsMember({"trained", "ema"}))
      ->default_str("trained")
      ->type_name("NAME");
}

}  // namespace trireme
