#pragma once
#include <memory>
#include <string>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/loop/machine.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// A model read from a checkpoint of any layout onto this one rank, for `eval` and `generate`.
class CheckpointModel {
 public:
  /// The configuration saved with a checkpoint, laid out for one rank. Errors: MissingFileError, DataError.
  explicit CheckpointModel(const std::string& directory);

  Config& config() { return config_; }  ///< may be changed before load(): batch sizes, data, precision
  Trainer& load();

 private:
  CheckpointReader reader_;
  Config config_;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace trireme
