#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/machine.h"

namespace trireme {

/// A model read from a checkpoint of any layout or from a Hugging Face folder, for `eval`, `generate` and the check of an export.
class CheckpointModel {
 public:
  /// Takes the configuration of the WeightSource, for one rank on any device that supports its precision. Errors: those of WeightSource.
  explicit CheckpointModel(const std::string& path, WeightKind kind = WeightKind::kTrained, Adapters adapters = Adapters::kApart);

  Config& config() { return config_; }  ///< resolved; batch sizes, data, precision and layout may be changed before load()
  const std::string& tokenizer() const { return source_.tokenizer(); }  ///< argument for Tokenizer::open; empty if there is no tokenizer
  const std::string& tokenizer_problem() const { return source_.tokenizer_problem(); }  ///< why a folder's is not supported, if it has one
  bool merges_adapters() const { return source_.merges_adapters(); }
  std::string folder() const { return source_.is_checkpoint() ? source_.path() : source_.folder().string(); }  ///< where its tokenizer is
  /// Loads the model on this process alone, as a world of one rank.
  Trainer& load(const RankPlace& place);
  /// Loads the model on the ranks of `world`, in the layout config().parallel, on a Machine that it makes in `machine`, which must outlive this object.
  /// Collective.
  Trainer& load(std::unique_ptr<Communicator> world, const RankPlace& place, std::optional<Machine>& machine, const MachineOptions& options = {});

 private:
  WeightSource source_;
  Config config_;
  std::optional<Machine> machine_;  ///< of a single process
  std::unique_ptr<Trainer> trainer_;
};

/// Adds the option --weights trained | ema.
void add_weights_option(CLI::App& command, WeightKind& kind);

}  // namespace trireme
