#pragma once
#include <filesystem>
#include <string>

namespace trireme::test {

/// Digests that are equal for two bit-identical runs. Each is a SHA-256 in hexadecimal.
struct Fingerprint {
  std::string state;  ///< of a checkpoint: all tensors by name, seed and step (the random state), samples (the position in the data), optimizer steps
  std::string steps;  ///< of metrics.jsonl: step, loss, gradient norm and learning rate of every step, and every validation loss

  bool operator==(const Fingerprint&) const = default;
};

/// Fingerprint of the newest checkpoint and the metrics of a run after `steps` steps. Throws std::runtime_error if the metrics lack a step or contain
/// it twice, if the newest checkpoint is of a different step, or if there are unpublished leftovers; also what CheckpointReader throws.
Fingerprint fingerprint_of(const std::filesystem::path& run_directory, int64_t steps);

/// Runs sha256sum of coreutils. Throws std::runtime_error.
std::string sha256(const std::string& bytes);

}  // namespace trireme::test
