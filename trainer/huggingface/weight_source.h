#pragma once
// A model's weights on a disk, wherever they come from: what `generate`, `eval`, `checkpoint export` and training.initial_weights read.
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/config/config.h"
#include "trainer/huggingface/reader.h"

namespace trireme {

/// Which of the weights of a checkpoint.
enum class WeightKind : uint8_t {
  kTrained,
  kAverage,  ///< their moving average, of a run with training.ema
};

/// Opened from a Trireme checkpoint (or run directory: its newest) or from a Hugging Face folder (one with config.json). Tensors have the names of the
/// parameter table, "blocks.0.mlp.up.weight", and are read box by box, so that a rank holds its own part and no more than one tensor beside it.
/// Not thread-safe: one per rank.
class WeightSource {
 public:
  /// Reads no weights, but checks that there are the model's, in its shapes: a small manifest that tells of a large model costs no memory.
  /// Errors: MissingFileError; DataError naming file and tensor, for a directory that is neither, and where `kind` asks for an average and there is none.
  explicit WeightSource(const std::filesystem::path& path, WeightKind kind = WeightKind::kTrained);

  const std::string& path() const { return path_; }  ///< the checkpoint's directory, or the folder
  WeightKind kind() const { return kind_; }
  bool is_hugging_face() const { return std::holds_alternative<HuggingFaceReader>(reader_); }
  /// Resolved: what the checkpoint was saved with, on one rank's layout; of a folder its model, and defaults where it says nothing.
  const Config& config() const { return config_; }
  const ModelConfig& model() const { return config_.model; }
  /// What Tokenizer::open takes: the checkpoint's own copy, tokenizer.json or tokenizer.model of a folder; empty where there is none.
  const std::string& tokenizer() const { return tokenizer_; }
  /// Why a folder has none that is read here; empty otherwise.
  const std::string& tokenizer_problem() const { return tokenizer_problem_; }
  std::vector<std::string> names() const;
  std::array<int64_t, 2> shape(const std::string& name) const;  ///< [n,1] for a vector
  DType dtype(const std::string& name) const;                   ///< as it is stored
  /// Elements of `box` to `out`, row-major, in `dtype`, a floating one.
  void read(const std::string& name, const Box& box, DType dtype, void* out);

 private:
  std::string stored(const std::string& name) const;  ///< as a checkpoint calls it: "weight/NAME" or "ema/NAME"

  std::variant<CheckpointReader, HuggingFaceReader> reader_;
  WeightKind kind_;
  std::string path_;
  std::string tokenizer_, tokenizer_problem_;
  Config config_;
};

/// The resolved configuration a checkpoint was saved with. Errors: DataError.
Config saved_config(const CheckpointReader& reader, const std::string& checkpoint);

/// Keys of the model section in which `configured` differs from `weights`, with the values of the latter, as YAML to be put into a configuration; empty where
/// the one can start from the other. dropout and init_std do not count, they say nothing about weights; nor do fewer positions, where RoPE computes them.
std::string model_difference(const ModelConfig& configured, const ModelConfig& weights);

}  // namespace trireme
