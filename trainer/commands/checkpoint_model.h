#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/machine.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// A model read from a checkpoint of any layout or from a Hugging Face folder, for `eval`, `generate` and the check of an export.
class CheckpointModel {
 public:
  /// The configuration of a WeightSource, laid out for one rank on any device that computes in its precision. Errors: its.
  explicit CheckpointModel(const std::string& path, WeightKind kind = WeightKind::kTrained);

  Config& config() { return config_; }  ///< may be changed before load(), to another resolved one: batch sizes, data, precision, layout
  const std::string& tokenizer() const { return source_.tokenizer(); }  ///< for Tokenizer::open; empty where there is none
  /// On this one rank, in a world of its own.
  Trainer& load(const RankPlace& place);
  /// On the ranks of `world`, laid out as config().parallel says. Collective.
  Trainer& load(std::unique_ptr<Communicator> world, const RankPlace& place);

 private:
  WeightSource source_;
  Config config_;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Trainer> trainer_;
};

/// --weights trained | ema.
void add_weights_option(CLI::App& command, WeightKind& kind);

}  // namespace trireme
