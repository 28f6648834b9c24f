#pragma once
// manifest.json: the training state of a checkpoint and its table of contents.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/cuda/matmul.h"
#include "kernels/ops/optimizer.h"
#include "trainer/checkpoint/contents.h"
#include "trainer/privacy/history.h"

namespace trireme {

/// The tokenizer of the training data. A checkpoint contains a copy of its files.
struct StoredTokenizer {
  std::string name = "bytes";       ///< Tokenizer::name(); empty if unknown, as for imported weights
  std::string digest = "bytes-v1";  ///< Tokenizer::digest()
  std::vector<std::string> files;   ///< its file and companion files, all in Contents::files; empty for "bytes" and if unknown
};

/// A resume that changed what is trained (`trireme train --change`).
struct ConfigChange {
  int64_t step = 0;    ///< of the checkpoint that it resumed from
  int64_t sample = 0;  ///< position in the training data that step + 1 begins at: a place in the sample order (DataStart)
  nlohmann::json changes = nlohmann::json::object();  ///< {"training.steps": [old, new]}; null: not set, or without effect
};

/// Evaluations without improvement up to a checkpoint, while training.stop.patience is set (EarlyStopping).
struct StopState {
  int64_t step = 0;                 ///< of the last evaluation counted; 0: none
  int64_t without_improvement = 0;  ///< consecutive evaluations
  std::optional<double> best = {};  ///< loss of the last evaluation that improved; finite
  int64_t best_step = 0;
  bool operator==(const StopState&) const = default;
};

/// What AnomalyWindow knows of an accepted step; finite and positive.
struct StepFigures {
  double loss = 0;  ///< nats
  double grad_norm = 0;
  bool operator==(const StepFigures&) const = default;
};

/// Algorithms of matrix products by GPU model and library versions, as chosen by tune_products.
using AlgorithmsByGpu = std::map<std::string, cuda::ProductAlgorithms>;

/// State and provenance of the run; the same on every rank.
struct CheckpointDescription {
  int64_t step = 0;                       ///< steps completed
  int64_t tokens = 0;                     ///< tokens consumed
  int64_t optimizer_steps = 0;            ///< steps not rejected: the step count of AdamW's bias correction
  std::string config;                     ///< the resolved configuration, as in config.yaml
  nlohmann::json model;                   ///< the model section of the configuration, for readers without YAML
  StoredTokenizer tokenizer;              ///< tokenizer of the training data
  std::string training_data;              ///< TokenDataset::identity of the tokens it was trained on
  int64_t seed = 0;                       ///< with `step` the complete random state: initial values, sample order and dropout are functions of both
  int64_t samples = 0;                    ///< sequences consumed: position of the sampler, except after a change of the training data (`branch`)
  nlohmann::json layout;                  ///< informational, but for "islands": the number of entries of island_steps
  std::optional<LossScale> loss_scale;    ///< only with dynamic loss scaling
  int64_t rejected_steps = 0;             ///< consecutive rejected steps up to `step` (RejectedSteps); with several islands, the most of any
  std::vector<ConfigChange> branch = {};  ///< changes of the configuration up to `step`, oldest first
  StopState early_stopping = {};          ///< without an evaluation after `step` that was made after the save
  std::vector<StepFigures> anomaly_window = {};  ///< AnomalyWindow::state
  /// Those that the step uses; empty without kernels.tuning_file.
  AlgorithmsByGpu product_algorithms = {};
  std::vector<int> micro_batches = {};          ///< with resilience.rebalance, the split of the next step (MicroBatchSplit)
  std::vector<int64_t> island_steps = {};       ///< with several islands, the optimizer_steps of each
  std::vector<int64_t> island_rejections = {};  ///< with several islands and rejected_steps above 0, that of each; empty in older checkpoints

  privacy::History privacy = {};  ///< of the steps up to `step` and of others that may have been released; empty without security.privacy

  int64_t steps_of_island(int64_t island) const { return of_island(island_steps, island, optimizer_steps); }
  int64_t rejections_of_island(int64_t island) const { return of_island(island_rejections, island, rejected_steps); }

 private:
  static int64_t of_island(const std::vector<int64_t>& numbers, int64_t island, int64_t otherwise) {
    return island < std::ssize(numbers) ? numbers[static_cast<size_t>(island)] : otherwise;
  }
};

/// The place in the audit log of its run that a checkpoint or a receipt names. A log that was shortened or changed before it no longer has it.
struct AuditAnchor {
  int64_t records = 0;          ///< up to and with the record of the checkpoint
  std::string head;             ///< hash of that record, in hexadecimal
  std::string public_key = {};  ///< that of the key that signed, in hexadecimal; empty: not signed
  std::string signature = {};   ///< in hexadecimal; empty: not signed
  bool operator==(const AuditAnchor&) const = default;
};

struct Manifest {
  CheckpointDescription description;
  Contents contents;
  std::optional<AuditAnchor> audit = {};  ///< with security.audit
};

/// [{"step", "sample", "changes"}] of each change, as the manifest and `checkpoint inspect` show it.
nlohmann::ordered_json to_json(const std::vector<ConfigChange>& branch);
/// {"step", "without_improvement", "best", "best_step"}, the last two if there is a best loss.
nlohmann::ordered_json to_json(const StopState& state);
/// {"records", "head", "public_key", "signature"}, the last two if it is signed.
nlohmann::json to_json(const AuditAnchor& anchor);
/// Errors: DataError, prefixed with `where`.
AuditAnchor parse_anchor(const nlohmann::json& object, const std::string& where);
/// Serialises a manifest. The text begins with the digest of all its other characters.
std::string manifest_text(const Manifest& manifest);
/// The text that the manifest had without its member "audit", which is what the audit log has the SHA-256 of. Errors: DataError if `text` differs in
/// any byte from what manifest_text() writes.
std::string text_without_anchor(const std::string& text, const std::string& where);
/// Recomputes the digest of an edited manifest text. Errors: DataError if the text does not begin with a digest.
std::string with_digest(std::string text);
/// Checks the digest, format, version and types, and that the boxes of every tensor tile it exactly and those in every file tile its data. Errors:
/// DataError, prefixed with `where`.
Manifest parse_manifest(const std::string& text, const std::string& where);

}  // namespace trireme
