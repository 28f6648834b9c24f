#pragma once
#include <optional>
#include <string>

#include "trainer/loop/trainer.h"

namespace trireme {

struct RunOptions {
  std::string resume = "auto";        ///< auto | never | a checkpoint's directory
  std::optional<int64_t> max_steps;   ///< stop after this step of the run, checkpoint saved; the schedule stays that of the whole run
};

struct Datasets {
  std::unique_ptr<TokenDataset> train, validation;  ///< validation: null where none is configured
};
/// Opens what `config` (resolved) names. Errors: those of TokenDataset.
Datasets open_datasets(const Config& config);

/// The steps a configuration asks for, epochs counted out.
int64_t total_steps(const Config& config, int64_t sequences);

/// What `resume` means for this run directory: the checkpoint to start from, or nothing. Prints what it passes over.
/// Errors: ConfigError where `never` would run into another run's files; MissingFileError, DataError.
std::optional<std::string> checkpoint_to_resume(const std::string& run_directory, const std::string& resume);

/// Lines in which two configurations differ in a way that changes the mathematics of the run (model, data, optimisation), "key: a -> b"; layout, names
/// and intervals of saving and evaluation do not.
std::string mathematical_difference(const Config& saved, const Config& now);

/// Trains to the end of `config` (resolved for this world) or until asked to stop, as one rank of `world`. Collective.
/// Returns kOk, or kRequeue after SIGTERM, SIGINT or SIGUSR1 with a checkpoint saved.
ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options);

}  // namespace trireme
