#include "trainer/model/spec.h"

#include <fnmatch.h>

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

/// The layers of a block that adapter.targets names.
AdapterSpec adapter_of(const ModelConfig& model, int64_t block) {
  AdapterSpec spec;
  if (model.adapter.rank == 0) return spec;
  spec.rank = model.adapter.rank;
  spec.scale = adapter_scale(model.adapter);
  const std::string prefix = block_name(block) + ".";
  for (const std::string& layer : linear_layers(model))
    if (std::ranges::any_of(model.adapter.targets, [&](const std::string& pattern) { return is_target(pattern, prefix + layer); }))
      spec.layers.push_back(layer);
  return spec;
}

constexpr std::string_view kBlockPrefix = "blocks.";
constexpr const char* kAdapterA = ".lora_a.weight";
constexpr const char* kAdapterB = ".lora_b.weight";

}  // namespace

std::string block_name(int64_t block) { return std::string(kBlockPrefix) + std::to_string(block); }

std::optional<InBlock> in_block(const std::string& name) {
  if (!name.starts_with(kBlockPrefix)) return std::nullopt;
  const size_t dot = name.find('.', kBlockPrefix.size());
  return InBlock{std::stoll(name.substr(kBlockPrefix.size(), dot - kBlockPrefix.size())), dot == name.npos ? "" : name.substr(dot + 1)};
}

bool is_target(const std::string& pattern, const std::string& layer) {
  const auto matches = [&](const std::string& name) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; };
  return matches(layer) || matches(layer.substr(layer.rfind('.') + 1));
}

bool AdapterSpec::has(const std::string& layer) const { return std::ranges::find(layers, layer) != layers.end(); }

std::vector<std::string> linear_layers(const ModelConfig& model) {
  std::vector<std::string> layers{"attention.query", "attention.key", "attention.value", "attention.output"};
  if (model.preset().gated) layers.emplace_back("mlp.gate");
  layers.insert(layers.end(), {"mlp.up", "mlp.down"});
  return layers;
}

std::string adapter_a(const std::string& layer) { return layer + kAdapterA; }
std::string adapter_b(const std::string& layer) { return layer + kAdapterB; }
bool is_adapter(const std::string& parameter) { return parameter.ends_with(kAdapterA) || parameter.ends_with(kAdapterB); }

bool has_adapter(const ModelConfig& model, const std::string& layer) {
  const std::optional<InBlock> inside = in_block(layer);
  return inside && block_spec(model, inside->block).adapter.has(inside->name);
}

double adapter_scale(const AdapterConfig& adapter) {
  const auto rank = static_cast<double>(adapter.rank);
  return adapter.alpha / (adapter.scale == AdapterScale::kAlphaOverRootRank ? std::sqrt(rank) : rank);
}

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
          .mlp = {.size = model.ffn_size.value(), .activation = model.mlp_activation(), .gated = preset.gated, .bias = preset.biases},
          .adapter = adapter_of(model, block)};
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
