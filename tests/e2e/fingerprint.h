#pragma once
#include <filesystem>
#include <string>

namespace trireme::test {

/// What two runs must share to be the same run, bit for bit. Each is a SHA-256 in hexadecimal.
struct Fingerprint {
  std::string
      state;  ///< of a checkpoint: every tensor whole and by name, seed and step (the random state), samples (the place in the data), steps of AdamW
  std::string steps;  ///< of metrics.jsonl: step, loss, gradient norm and learning rate of every step, and every validation loss

  bool operator==(const Fingerprint&) const = default;
};

/// Of the newest checkpoint and the metrics of a run that has done `steps` steps. Throws std::runtime_error where a step is missing from the metrics or stands
/// there twice, where the newest checkpoint is another step's, or where something unpublished is left beside it; what CheckpointReader throws.
Fingerprint fingerprint_of(const std::filesystem::path& run_directory, int64_t steps);

/// By coreutils' sha256sum. Throws std::runtime_error.
std::string sha256(const std::string& bytes);

}  // namespace trireme::test
