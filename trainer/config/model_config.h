#pragma once
// The section `model`, and what the names of architectures stand for. Only this file, the keys' texts and the families of trainer/huggingface know
// an architecture by its name; everything else reads the values of its preset.
#include <cstdint>
#include <optional>
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
enum class Architecture : uint8_t { kLlama, kGpt2, kGptNeoX };
template <>
inline constexpr std::array kNames<Architecture>{"llama", "gpt2", "gpt_neox"};

enum class NormKind : uint8_t {
  kRms,    ///< RMSNorm without a bias
  kLayer,  ///< LayerNorm with a bias
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
  PositionKind positions;
  double rope_share;
  ResidualKind residual;
  Activation activation;
  bool gated;                 ///< the MLP multiplies its activation with a second product
  bool biases;                ///< every linear layer has a bias
  bool scaled_residual_init;  ///< the last matrix of each branch begins 1/sqrt(2 layers) as large
};
inline constexpr ArchitecturePreset kPresets[] = {
    {Architecture::kLlama, NormKind::kRms, PositionKind::kRope, 1, ResidualKind::kSequential, Activation::kSilu, true, false, false},
    {Architecture::kGpt2, NormKind::kLayer, PositionKind::kLearned, 1, ResidualKind::kSequential, Activation::kGeluTanh, false, true, true},
    {Architecture::kGptNeoX, NormKind::kLayer, PositionKind::kRope, 0.25, ResidualKind::kParallel, Activation::kGelu, false, true, false},
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
  bool qk_norm = false;                                ///< RMSNorm over each query and key head, before RoPE
  std::optional<int64_t> window;                       ///< tokens that a query attends to, including itself; unset: all tokens before it too
  Auto<std::vector<int64_t>> window_layers;            ///< indices of blocks; auto, written `all` in a file: every block
  double rope_theta = 10000;
  Auto<double> rope_share;  ///< part of each head that RoPE rotates; auto: of the preset
  RopeScalingConfig rope_scaling;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;

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
