// GPTNeoXForCausalLM: the models of Pythia and GPT-NeoX-20B.   Source: configuration_gpt_neox.py and modeling_gpt_neox.py of transformers.
#include <cmath>

#include "kernels/core/check.h"
#include "trainer/huggingface/families/family.h"

namespace trireme::huggingface {
namespace {

constexpr LayerName kGptNeoXLayers[] = {
    {"embedding", "gpt_neox.embed_in"},
    {"final_norm", "gpt_neox.final_layer_norm"},
    {"head", "embed_out"},
};
constexpr LayerName kGptNeoXBlockLayers[] = {
    {"attention_norm", "input_layernorm"},
    {"attention.query", "attention.query_key_value", LayerStorage::kByHead},
    {"attention.key", "attention.query_key_value", LayerStorage::kByHead},
    {"attention.value", "attention.query_key_value", LayerStorage::kByHead},
    {"attention.output", "attention.dense"},
    {"mlp_norm", "post_attention_layernorm"},
    {"mlp.up", "mlp.dense_h_to_4h"},
    {"mlp.down", "mlp.dense_4h_to_h"},
};

constexpr const char* kGptNeoXBuffers[] = {".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"};

constexpr ActivationName kNeoXActivations[] = {{Activation::kGelu, "gelu"}, {Activation::kGeluTanh, "gelu_new"}};

/// The elements of a head that the class rotates.
int64_t rotated_by_class(double share, int64_t head_size) { return static_cast<int64_t>(static_cast<double>(head_size) * share); }

ModelConfig read_gpt_neox(const ConfigKeys& keys) {
  ModelConfig model;
  model.architecture = Architecture::kGptNeoX;
  model.layers = keys.integer("num_hidden_layers");
  model.hidden_size = keys.integer("hidden_size");
  model.heads = keys.integer("num_attention_heads");
  model.ffn_size = keys.integer("intermediate_size");
  model.vocab_size = keys.integer("vocab_size");
  model.max_positions = keys.integer("max_position_embeddings");
  model.tied_embeddings = keys.boolean("tie_word_embeddings", false);
  model.norm_epsilon = keys.number("layer_norm_eps", 1e-5);
  model.residual = keys.boolean("use_parallel_residual", true) ? ResidualKind::kParallel : ResidualKind::kSequential;
  keys.require("attention_bias", true, "attention without biases is not supported");
  model.activation = read_activation(keys, "hidden_act", kNeoXActivations);
  read_rope(keys, model, RopeKeys{.theta = "rotary_emb_base", .share = "rotary_pct", .default_share = 0.25});
  const int64_t head_size = model.hidden_size / model.heads;
  const double rotated = *model.rope_share * static_cast<double>(head_size);
  if (rotated - static_cast<double>(rotated_by_class(*model.rope_share, head_size)) > 1e-6)  // written_share() may exceed the integer by a rounding
    throw DataError(concat(keys.where(), ": RoPE on ", *model.rope_share, " of heads of ", head_size, " elements is ", rotated,
                           " elements, which the class rounds down; allowed whole numbers"));
  return model;
}

const char* gpt_neox_lacks(const ModelConfig& model) {
  if (model.window) return "model.architecture gpt_neox with model.window";
  if (model.attention_scale) return "model.architecture gpt_neox with model.attention_scale";
  if (*model.kv_heads != model.heads) return "model.architecture gpt_neox with fewer model.kv_heads than model.heads";
  if (*model.head_size * model.heads != model.hidden_size) return "model.architecture gpt_neox with a model.head_size other than hidden_size / heads";
  return nullptr;
}

/// The share of which the class makes the same elements: rounding may leave the product below the integer.
double written_share(const ModelConfig& model) {
  const int64_t rotated = std::llround(*model.rope_share * static_cast<double>(*model.head_size));
  double share = static_cast<double>(rotated) / static_cast<double>(*model.head_size);
  while (rotated_by_class(share, *model.head_size) < rotated) share = std::nextafter(share, 2);
  return share;
}

nlohmann::ordered_json write_gpt_neox(const ModelConfig& model) {
  return {{"model_type", "gpt_neox"},
          {"hidden_size", model.hidden_size},
          {"intermediate_size", *model.ffn_size},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"hidden_act", activation_name(model.activation.value(), kNeoXActivations)},
          {"max_position_embeddings", *model.max_positions},
          {"layer_norm_eps", model.norm_epsilon},
          {"use_parallel_residual", model.residual == ResidualKind::kParallel},
          {"rotary_pct", written_share(model)},
          {"rotary_emb_base", model.rope_theta},
          {"rope_scaling", rope_scaling_of(model.rope_scaling)},
          {"attention_bias", true},
          {"attention_dropout", 0.0},
          {"hidden_dropout", model.dropout}};
}

}  // namespace

constinit const Family kGptNeoX{
    .model_type = "gpt_neox",
    .class_name = "GPTNeoXForCausalLM",
    .read = read_gpt_neox,
    .has = [](const ModelConfig& model) { return model.architecture == Architecture::kGptNeoX; },
    .lacks = gpt_neox_lacks,
    .write = write_gpt_neox,
    .layers = kGptNeoXLayers,
    .block_layers = kGptNeoXBlockLayers,
    .blocks = "gpt_neox.layers.",
    .buffers = kGptNeoXBuffers,
};

}  // namespace trireme::huggingface
