#pragma once
#include <optional>
#include <string>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/loop/trainer.h"

namespace trireme {

struct RunOptions {
  std::string resume = "auto";       ///< auto | never | a checkpoint's directory
  std::optional<int64_t> max_steps;  ///< stop after this step of the run, checkpoint saved; the schedule stays that of the whole run
};

/// Token directories as sequences for `config` (resolved). Errors: those of TokenDataset.
TokenDataset open_dataset(const Config& config, const std::vector<std::string>& directories);

/// The steps a configuration asks for, epochs counted out.
int64_t total_steps(const Config& config, int64_t sequences);

/// Holds run_directory/run.lock (made where missing) until the handle goes; waits up to 8 s for a job that is on its way out.
/// Errors: ConfigError while another job trains there; IoError.
std::shared_ptr<void> lock_run_directory(const std::string& run_directory);

/// The resolved configuration a checkpoint was saved with. Errors: DataError.
Config saved_config(const CheckpointReader& reader, const std::string& checkpoint);

/// What `resume` means for this run directory: the checkpoint to start from, or nothing. Prints what it passes over.
/// Errors: ConfigError where `never` would run into another run's files; MissingFileError, DataError.
std::optional<std::string> checkpoint_to_resume(const std::string& run_directory, const std::string& resume);

/// Lines "checkpoint: key: value", "now: key: value" in which two configurations differ in a way that changes the mathematics of the run; layout, names
/// and intervals of saving and evaluation do not.
std::string mathematical_difference(const Config& saved, const Config& now);

/// Trains to the end of `config` (resolved for this world) or until asked to stop, as one rank of `world`. Collective.
/// Returns kOk, or kRequeue after SIGTERM, SIGINT or SIGUSR1 with a checkpoint saved.
ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options);

}  // namespace trireme
