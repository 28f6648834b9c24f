// GPT2LMHeadModel.   Source: configuration_gpt2.py and modeling_gpt2.py of transformers.
#include <algorithm>

#include "trainer/huggingface/families/family.h"

namespace trireme::huggingface {
namespace {

constexpr LayerName kGpt2Layers[] = {
    {"embedding", "transformer.wte"},
    {"positions", "transformer.wpe"},
    {"final_norm", "transformer.ln_f"},
    {"head", "lm_head"},
};
constexpr LayerName kGpt2BlockLayers[] = {
    {"attention_norm", "ln_1"},
    {"attention.query", "attn.c_attn", LayerStorage::kTransposed},
    {"attention.key", "attn.c_attn", LayerStorage::kTransposed},
    {"attention.value", "attn.c_attn", LayerStorage::kTransposed},
    {"attention.output", "attn.c_proj", LayerStorage::kTransposed},
    {"mlp_norm", "ln_2"},
    {"mlp.up", "mlp.c_fc", LayerStorage::kTransposed},
    {"mlp.down", "mlp.c_proj", LayerStorage::kTransposed},
};

constexpr const char* kGpt2Buffers[] = {".attn.bias", ".attn.masked_bias"};

ModelConfig read_gpt2(const ConfigKeys& keys) {
  ModelConfig model;
  model.architecture = Architecture::kGpt2;
  model.layers = keys.integer("n_layer");
  model.hidden_size = keys.integer("n_embd");
  model.heads = keys.integer("n_head");
  model.ffn_size = keys.integer("n_inner", 4 * std::min<int64_t>(model.hidden_size, 1 << 30));
  model.vocab_size = keys.integer("vocab_size");
  model.max_positions = keys.integer("n_positions");
  model.tied_embeddings = keys.boolean("tie_word_embeddings", true);
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  model.qkv_bias = true;
  const std::string activation = keys.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu") keys.refuse("activation_function", "not supported; allowed \"gelu_new\", \"gelu\"");
  model.activation = activation == "gelu" ? Activation::kGelu : Activation::kGeluTanh;
  keys.require("scale_attn_weights", true, "unscaled attention is not supported");
  keys.require("scale_attn_by_inverse_layer_idx", false, "attention scaled by layer is not supported");
  keys.require("add_cross_attention", false, "cross-attention is not supported");
  return model;
}

const char* gpt2_lacks(const ModelConfig& model) {
  if (model.qk_norm) return "model.architecture gpt2 with model.qk_norm";
  if (model.window) return "model.architecture gpt2 with model.window";
  if (*model.kv_heads != model.heads) return "model.architecture gpt2 with fewer model.kv_heads than model.heads";
  if (*model.head_size * model.heads != model.hidden_size) return "model.architecture gpt2 with a model.head_size other than hidden_size / heads";
  if (model.attention_scale) return "model.architecture gpt2 with model.attention_scale";
  if (model.residual == ResidualKind::kParallel) return "model.architecture gpt2 with model.residual parallel";
  return nullptr;
}

nlohmann::ordered_json write_gpt2(const ModelConfig& model) {
  return {{"model_type", "gpt2"},
          {"n_embd", model.hidden_size},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"n_inner", *model.ffn_size},
          {"n_positions", *model.max_positions},
          {"activation_function", model.activation == Activation::kGelu ? "gelu" : "gelu_new"},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"embd_pdrop", model.dropout},
          {"resid_pdrop", model.dropout},
          {"attn_pdrop", 0.0},
          {"scale_attn_weights", true},
          {"scale_attn_by_inverse_layer_idx", false}};
}

}  // namespace

constinit const Family kGpt2{
    .model_type = "gpt2",
    .class_name = "GPT2LMHeadModel",
    .read = read_gpt2,
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kGpt2; },
    .lacks = gpt2_lacks,
    .write = write_gpt2,
    .layers = kGpt2Layers,
    .block_layers = kGpt2BlockLayers,
    .blocks = "transformer.h.",
    .buffers = kGpt2Buffers,
};

}  // namespace trireme::huggingface
