#pragma once
// What a model consists of, as values. Parameters, layers, profiles and forecasts read these; only spec.cpp derives them from the configuration.
#include <compare>

#include "trainer/config/model_config.h"

namespace trireme {

struct NormSpec {
  NormKind kind = NormKind::kRms;
  double epsilon = 0;
  auto operator<=>(const NormSpec&) const = default;
};

struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_size = 0;  ///< of the whole model
  int64_t window = 0;                              ///< tokens that a query attends to, itself included; 0: all preceding tokens
  bool qkv_bias = false, output_bias = false;
  bool head_norms = false;  ///< RMSNorm of each query and key head, before RoPE
  int64_t rotated = 0;      ///< the first elements of each head, which RoPE rotates; 0: without RoPE
  auto operator<=>(const AttentionSpec&) const = default;
};

struct MlpSpec {
  int64_t size = 0;  ///< F
  Activation activation = Activation::kSilu;
  bool gated = false;  ///< activation(gate) * up instead of activation(up)
  bool bias = false;
  auto operator<=>(const MlpSpec&) const = default;
};

/// sequential: x := x + attention(norm(x)); x := x + mlp(norm'(x)). parallel: x := x + attention(norm(x)) + mlp(norm'(x)).
/// Blocks of one model may differ, but all read one table of angles: `rotated` is 0 or the same in each.
struct BlockSpec {
  NormSpec norm;  ///< of both branches
  ResidualKind residual = ResidualKind::kSequential;
  AttentionSpec attention;
  MlpSpec mlp;
  auto operator<=>(const BlockSpec&) const = default;
};

BlockSpec block_spec(const ModelConfig& model, int64_t block);
/// The norm before the head.
NormSpec final_norm_spec(const ModelConfig& model);
bool has_learned_positions(const ModelConfig& model);
/// AttentionSpec::rotated of every block.
int64_t rotated_elements(const ModelConfig& model);
/// Elements of the table of angles that every rank of the model has, [max_positions, rotated_elements]; 0 without RoPE.
int64_t rope_table_elements(const ModelConfig& model);
/// The standard deviation of the initial matrices that write to the residual stream.
double residual_init_std(const ModelConfig& model);

}  // namespace trireme
