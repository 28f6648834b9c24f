#pragma once
// Reads weights from a Trireme checkpoint, a Hugging Face folder or a folder of PEFT, for `generate`, `eval`, `checkpoint export` and
// training.initial_weights.
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/config/config.h"
#include "trainer/huggingface/peft.h"
#include "trainer/huggingface/reader.h"

namespace trireme {

/// Selects the weights of a checkpoint.
enum class WeightKind : uint8_t {
  kTrained,
  kAverage,  ///< exponential moving average, from a run with training.ema
};

/// What becomes of adapters.
enum class Adapters : uint8_t {
  kApart,   ///< they are parameters
  kMerged,  ///< the weights of their layers are W + scale * B A, computed in fp64, and the model has no adapters
};

/// A Trireme checkpoint (or a run directory: its newest one), a Hugging Face folder (one with config.json), or a folder of PEFT with its base. Tensors
/// have the names of the parameter table, such as "blocks.0.mlp.up.weight", and are read by box, so that a rank needs memory for its own part and at
/// most one tensor more.
/// Not thread-safe: one per rank.
class WeightSource {
 public:
  /// Checks that all tensors of the model are stored in their shapes, without reading or allocating weights.
  /// Errors: MissingFileError; DataError naming file and tensor, for a directory that is neither, or if `kind` is kAverage and there is no average.
  explicit WeightSource(const std::filesystem::path& path, WeightKind kind = WeightKind::kTrained, Adapters adapters = Adapters::kApart);

  const std::string& path() const { return path_; }  ///< directory of the checkpoint, or the folder
  WeightKind kind() const { return kind_; }
  bool is_checkpoint() const { return std::holds_alternative<CheckpointReader>(reader_); }
  /// The Hugging Face folder: path(), or that of the base of adapters. Not of a checkpoint.
  const std::filesystem::path& folder() const { return folder_; }
  bool merges_adapters() const { return merges_; }
  /// Resolved: the configuration of the checkpoint with the layout of one rank; for a Hugging Face folder its model, with defaults otherwise.
  const Config& config() const { return config_; }
  const ModelConfig& model() const { return config_.model; }
  /// Argument for Tokenizer::open: the checkpoint's copy, or the folder's tokenizer.json or tokenizer.model; empty if there is none.
  const std::string& tokenizer() const { return tokenizer_; }
  /// Why the tokenizer of a Hugging Face folder cannot be used; empty otherwise.
  const std::string& tokenizer_problem() const { return tokenizer_problem_; }
  std::vector<std::string> names() const;
  std::array<int64_t, 2> shape(const std::string& name) const;  ///< [n,1] for a vector
  DType dtype(const std::string& name) const;                   ///< as stored
  /// Reads the elements of `box` to `out`, row-major, converted to `dtype`, a floating dtype.
  void read(const std::string& name, const Box& box, DType dtype, void* out);

 private:
  std::string stored(const std::string& name) const;  ///< name in a checkpoint: "weight/NAME" or "ema/NAME"
  void read_apart(const std::string& name, const Box& box, DType dtype, void* out);
  /// `use(reader)` of a folder, which is not a checkpoint.
  auto with_folder(const auto& use) const {
    const auto* const peft = std::get_if<PeftReader>(&reader_);
    return peft != nullptr ? use(*peft) : use(std::get<HuggingFaceReader>(reader_));
  }

  std::variant<CheckpointReader, HuggingFaceReader, PeftReader> reader_;
  WeightKind kind_;
  std::string path_;
  std::filesystem::path folder_;
  ModelConfig stored_;   ///< as saved, with adapters
  bool merges_ = false;  ///< it has adapters, which read() adds to the weights of their layers
  std::string tokenizer_, tokenizer_problem_;
  Config config_;
};

/// The resolved configuration of a checkpoint. Errors: DataError.
Config saved_config(const CheckpointReader& reader, const std::string& checkpoint);

/// Keys of the model section in which `configured` differs from `weights`, with the values of `weights`, as YAML for a configuration file; empty if
/// a run with `configured` can start from these weights. Ignores dropout and init_std, which do not affect weights, and a smaller max_positions with
/// RoPE.
std::string model_difference(const ModelConfig& configured, const ModelConfig& weights);

}  // namespace trireme
