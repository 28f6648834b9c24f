#pragma once
// What a model consists of, as values. Parameters, layers, profiles and forecasts read these; only spec.cpp derives them from the configuration.
#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/model_config.h"

namespace trireme {

struct NormSpec {
  NormKind kind = NormKind::kRms;
  double epsilon = 0;
  auto operator<=>(const NormSpec&) const = default;
};

/// A table of angles.
struct RopeSpec {
  int64_t rotated = 0;  ///< the first elements of each head, which RoPE rotates; 0: without RoPE
  double theta = 0;
  bool scaled = false;  ///< by model.rope_scaling
  auto operator<=>(const RopeSpec&) const = default;
};

struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_size = 0;  ///< of the whole model
  int64_t window = 0;                              ///< tokens that a query attends to, itself included; 0: all preceding tokens
  bool qkv_bias = false, output_bias = false;
  bool head_norms = false;  ///< RMSNorm of each query and key head, before RoPE
  double score_scale = 0;   ///< factor of the scores; 0: 1/sqrt(head_size)
  RopeSpec rope;
  auto operator<=>(const AttentionSpec&) const = default;
};

struct MlpSpec {
  int64_t size = 0;  ///< F
  Activation activation = Activation::kSilu;
  bool gated = false;  ///< activation(gate) * up instead of activation(up)
  bool bias = false;
  auto operator<=>(const MlpSpec&) const = default;
};

std::string block_name(int64_t block);  ///< "blocks.3"

/// A parameter or layer of a block, by the name that it has in each block.
struct InBlock {
  int64_t block = 0;
  std::string name;  ///< "attention.query.weight"
};
/// nullopt for a name outside of blocks.
std::optional<InBlock> in_block(const std::string& name);

/// The adapters of a block: y = W x + scale * B (A x), with A [rank,inputs] and B [outputs,rank].
struct AdapterSpec {
  int64_t rank = 0;
  double scale = 0;
  std::vector<std::string> layers = {};  ///< InBlock::name, in the order of the block's parameters
  bool has(const std::string& layer) const;
  auto operator<=>(const AdapterSpec&) const = default;
};

/// sequential: x := x + attention(norm(x)); x := x + mlp(norm'(x)). parallel: x := x + attention(norm(x)) + mlp(norm'(x)).
/// With NormPlacement::kBoth norm''(attention(...)) and norm'''(mlp(...)) are added. Blocks of one model may differ.
struct BlockSpec {
  NormSpec norm;  ///< of all norms over the hidden size
  NormPlacement norms = NormPlacement::kBefore;
  ResidualKind residual = ResidualKind::kSequential;
  AttentionSpec attention;
  MlpSpec mlp;
  AdapterSpec adapter = {};
  auto operator<=>(const BlockSpec&) const = default;
};

BlockSpec block_spec(const ModelConfig& model, int64_t block);
/// The linear layers of every block by InBlock::name. Each has a parameter NAME.weight.
std::vector<std::string> linear_layers(const ModelConfig& model);
/// Whether an entry of adapter.targets names a layer: "blocks.0.attention.query".
bool is_target(const std::string& pattern, const std::string& layer);
/// Names of the parameters of an adapter.
std::string adapter_a(const std::string& layer);  ///< "blocks.0.attention.query.lora_a.weight"
std::string adapter_b(const std::string& layer);
bool is_adapter(const std::string& parameter);
/// Whether a layer has an adapter: "blocks.0.attention.query".
bool has_adapter(const ModelConfig& model, const std::string& layer);
/// What the adapters' products are multiplied with.
double adapter_scale(const AdapterConfig& adapter);
/// The norm before the head.
NormSpec final_norm_spec(const ModelConfig& model);
bool has_learned_positions(const ModelConfig& model);
/// RopeSpec::rotated of every block.
int64_t rotated_elements(const ModelConfig& model);
/// The tables of angles that blocks of the model read; every rank has them all. Empty without RoPE.
std::vector<RopeSpec> rope_tables(const ModelConfig& model);
/// Elements of rope_tables(), [max_positions, rotated] each.
int64_t rope_table_elements(const ModelConfig& model);
/// The factor of embeddings, before it is rounded to the run's dtype; 1: none.
double embedding_scale(const ModelConfig& model);
/// The standard deviation of the initial matrices that write to the residual stream.
double residual_init_std(const ModelConfig& model);

}  // namespace trireme
