#include "trainer/model/spec.h"

#include <algorithm>
#include <cmath>

namespace trireme {
namespace {

/// model.window if the block has a window (model.window_layers), else 0.
int64_t window_of(const ModelConfig& model, int64_t block) {
  const auto& layers = model.window_layers;
  return !layers || std::ranges::binary_search(*layers, block) ? model.window.value_or(0) : 0;
}

RopeSpec rope_of(const ModelConfig& model, int64_t window) {
  const int64_t rotated = rotated_elements(model);
  if (rotated == 0) return {};
  if (window > 0 && model.window_rope_theta) return {rotated, *model.window_rope_theta, false};
  return {rotated, model.rope_theta, true};
}

}  // namespace

BlockSpec block_spec(const ModelConfig& model, int64_t block) {
  const ArchitecturePreset& preset = model.preset();
  const int64_t window = window_of(model, block);
  return {.norm = final_norm_spec(model),
          .norms = preset.norms,
          .residual = model.block_residual(),
          .attention = {.heads = model.heads,
                        .kv_heads = model.kv_heads.value(),
                        .head_size = model.head_size.value(),
                        .window = window,
                        .qkv_bias = preset.biases || model.qkv_bias,
                        .output_bias = preset.biases,
                        .head_norms = preset.head_norms || model.qk_norm,
                        .score_scale = model.attention_scale.value_or(0),
                        .rope = rope_of(model, window)},
          .mlp = {.size = model.ffn_size.value(), .activation = model.mlp_activation(), .gated = preset.gated, .bias = preset.biases}};
}

NormSpec final_norm_spec(const ModelConfig& model) { return {model.preset().norm, model.norm_epsilon}; }

bool has_learned_positions(const ModelConfig& model) { return model.preset().positions == PositionKind::kLearned; }

int64_t rotated_elements(const ModelConfig& model) {
  if (model.preset().positions != PositionKind::kRope) return 0;
  return std::llround(model.rotated_share() * static_cast<double>(model.head_size.value()));
}

std::vector<RopeSpec> rope_tables(const ModelConfig& model) {
  std::vector<RopeSpec> tables;
  for (int64_t block = 0; block < model.layers; ++block) {
    const RopeSpec rope = rope_of(model, window_of(model, block));
    if (rope.rotated > 0 && std::ranges::find(tables, rope) == tables.end()) tables.push_back(rope);
  }
  return tables;
}

int64_t rope_table_elements(const ModelConfig& model) {
  return static_cast<int64_t>(rope_tables(model).size()) * model.max_positions.value() * rotated_elements(model);
}

double embedding_scale(const ModelConfig& model) { return model.preset().scaled_embedding ? std::sqrt(static_cast<double>(model.hidden_size)) : 1; }

double residual_init_std(const ModelConfig& model) {
  return model.init_std * (model.preset().scaled_residual_init ? 1 / std::sqrt(2.0 * static_cast<double>(model.layers)) : 1);
}

}  // namespace trireme
