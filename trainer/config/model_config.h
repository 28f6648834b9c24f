#pragma once
// The sections `model` and `adapter`, and what the names of architectures stand for. Only this file, the keys' texts and the families of trainer/huggingface know
// an architecture by its name; everything else reads the values of its preset.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/one_of.h"

namespace trireme {

/// `auto` in the file is std::nullopt here until it is resolved.
template <class T>
using Auto = std::optional<T>;

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };
template <>
inline constexpr std::array kNames<RopeScaling>{"none", "linear", "llama3"};

struct RopeScalingConfig {
  OneOf<RopeScaling> type = RopeScaling::kNone;
  double factor = 1.0;
  double low_frequency_factor = 1.0;  ///< this and the next two: llama3 only
  double high_frequency_factor = 4.0;
  int64_t original_max_positions = 8192;
  bool operator==(const RopeScalingConfig&) const = default;
};

/// Named sets of values of a model.
enum class Architecture : uint8_t { kLlama, kGpt2, kGptNeoX, kGemma3 };
template <>
inline constexpr std::array kNames<Architecture>{"llama", "gpt2", "gpt_neox", "gemma3"};

enum class NormKind : uint8_t {
  kRms,         ///< RMSNorm without a bias
  kRmsPlusOne,  ///< the same; 1 is added to each weight, which begins as 0
  kLayer,       ///< LayerNorm with a bias
};
/// The norms of each branch of a block.
enum class NormPlacement : uint8_t {
  kBefore,  ///< of what it reads
  kBoth,    ///< also of its result, before the residual stream gets it
};
enum class PositionKind : uint8_t {
  kRope,     ///< queries and keys are rotated
  kLearned,  ///< a row for each position is added to the embedding
};
enum class Activation : uint8_t { kAuto, kSilu, kGelu, kGeluTanh };
template <>
inline constexpr std::array kNames<Activation>{"auto", "silu", "gelu", "gelu_tanh"};

/// What the MLP reads: the sum of the residual stream and attention's result, or the same as attention.
enum class ResidualKind : uint8_t { kAuto, kSequential, kParallel };
template <>
inline constexpr std::array kNames<ResidualKind>{"auto", "sequential", "parallel"};

/// What the name of an architecture stands for.
struct ArchitecturePreset {
  Architecture architecture;
  NormKind norm;
  NormPlacement norms = NormPlacement::kBefore;
  bool head_norms = false;        ///< always with model.qk_norm
  bool scaled_embedding = false;  ///< embeddings are multiplied by sqrt(hidden_size), rounded to the run's dtype
  PositionKind positions;
  double rope_share = 1;
  ResidualKind residual;
  Activation activation;
  bool gated = false;                 ///< the MLP multiplies its activation with a second product
  bool biases = false;                ///< every linear layer has a bias
  bool scaled_residual_init = false;  ///< the last matrix of each branch begins 1/sqrt(2 layers) as large
};
inline constexpr ArchitecturePreset kPresets[] = {
    {.architecture = Architecture::kLlama,
     .norm = NormKind::kRms,
     .positions = PositionKind::kRope,
     .residual = ResidualKind::kSequential,
     .activation = Activation::kSilu,
     .gated = true},
    {.architecture = Architecture::kGpt2,
     .norm = NormKind::kLayer,
     .positions = PositionKind::kLearned,
     .residual = ResidualKind::kSequential,
     .activation = Activation::kGeluTanh,
     .biases = true,
     .scaled_residual_init = true},
    {.architecture = Architecture::kGptNeoX,
     .norm = NormKind::kLayer,
     .positions = PositionKind::kRope,
     .rope_share = 0.25,
     .residual = ResidualKind::kParallel,
     .activation = Activation::kGelu,
     .biases = true},
    {.architecture = Architecture::kGemma3,
     .norm = NormKind::kRmsPlusOne,
     .norms = NormPlacement::kBoth,
     .head_norms = true,
     .scaled_embedding = true,
     .positions = PositionKind::kRope,
     .residual = ResidualKind::kSequential,
     .activation = Activation::kGeluTanh,
     .gated = true},
};

/// The factor of what an adapter adds.
enum class AdapterScale : uint8_t { kAlphaOverRank, kAlphaOverRootRank };
template <>
inline constexpr std::array kNames<AdapterScale>{"alpha_over_rank", "alpha_over_root_rank"};

/// The section `adapter`: a product of two narrow matrices beside each of some linear layers of the blocks.
/// Source: Hu et al. 2021, arXiv:2106.09685; alpha_over_root_rank: Kalajdzievski 2023, arXiv:2312.03732.
struct AdapterConfig {
  static constexpr int64_t kMostRank = 1 << 16;
  int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16;
  OneOf<AdapterScale> scale = AdapterScale::kAlphaOverRank;
  std::vector<std::string> targets{"*"};  ///< patterns of layers, by their whole name or by its last part
  bool operator==(const AdapterConfig&) const = default;
};

struct ModelConfig {
  OneOf<Architecture> architecture = Architecture::kLlama;
  int64_t layers = 8;
  int64_t hidden_size = 256;
  int64_t heads = 8;
  Auto<int64_t> kv_heads;       ///< auto: heads
  Auto<int64_t> head_size;      ///< auto: hidden_size / heads
  Auto<int64_t> ffn_size;       ///< auto: gated 8/3 hidden_size rounded up to a multiple of 64, else 4 hidden_size
  Auto<int64_t> vocab_size;     ///< auto: the tokenizer's vocabulary size
  Auto<int64_t> max_positions;  ///< auto: sequence_length
  bool tied_embeddings = true;
  OneOf<ResidualKind> residual = ResidualKind::kAuto;  ///< this and the next one, auto: of the preset
  OneOf<Activation> activation = Activation::kAuto;    ///< of the MLP
  double dropout = 0.0;                                ///< probability, on the embedding and on each residual branch
  bool qkv_bias = false;                               ///< always true if the preset has biases
  bool qk_norm = false;                                ///< RMSNorm over each query and key head, before RoPE; always true if the preset has it
  std::optional<double> attention_scale;               ///< factor of the scores; unset: 1/sqrt(head_size)
  std::optional<int64_t> window;                       ///< tokens that a query attends to, including itself; unset: all tokens before it too
  Auto<std::vector<int64_t>> window_layers;            ///< indices of blocks; auto, written `all` in a file: every block
  double rope_theta = 10000;
  std::optional<double> window_rope_theta;  ///< of blocks with a window, whose RoPE is then not scaled; unset: as in other blocks
  Auto<double> rope_share;                  ///< part of each head that RoPE rotates; auto: of the preset
  RopeScalingConfig rope_scaling;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;
  std::vector<std::string> frozen;  ///< patterns of the names of parameters that training leaves as they are; with adapters, empty: of all others
  AdapterConfig adapter;

  /// The preset of the architecture; llama's if the name is unknown, which check() reports.
  const ArchitecturePreset& preset() const {
    for (const ArchitecturePreset& row : kPresets)
      if (architecture == row.architecture) return row;
    return kPresets[0];
  }
  /// The values of keys that may be auto and follow from the preset alone.
  ResidualKind block_residual() const { return residual == ResidualKind::kAuto ? preset().residual : residual.value(); }
  Activation mlp_activation() const { return activation == Activation::kAuto ? preset().activation : activation.value(); }
  double rotated_share() const { return rope_share.value_or(preset().rope_share); }
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace trireme
