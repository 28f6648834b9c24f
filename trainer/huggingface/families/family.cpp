#include "trainer/huggingface/families/family.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace trireme::huggingface {
namespace {

constexpr const Family* kFamilies[] = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kGpt2, &kGptNeoX, &kGemma3};

struct Unsupported {
  const char* type;
  const char* lacks;  ///< what this program would need
};

/// Source: the modeling files of transformers.
constexpr Unsupported kUnsupported[] = {
    {"bert", "bidirectional attention"},
    {"bloom", "ALiBi, norm of the embedding"},
    {"cohere", "parallel blocks, LayerNorm without bias, logit scale"},
    {"cohere2", "parallel blocks, LayerNorm without bias, logit scale, layers without positions"},
    {"dbrx", "experts"},
    {"deepseek_v2", "latent attention, experts"},
    {"deepseek_v3", "latent attention, experts"},
    {"falcon", "parallel blocks, packed query, key and value"},
    {"gemma", "norms with 1 + weight without norms behind branches"},
    {"gemma2", "soft-capped scores and logits"},
    {"gemma3", "images (\"gemma3_text\" is its text model)"},
    {"gpt_bigcode", "multi-query attention with learned positions"},
    {"gpt_neo", "unscaled attention, windows with learned positions"},
    {"gpt_oss", "experts, attention sinks"},
    {"gptj", "partial rotary embedding, parallel blocks"},
    {"granite", "embedding, attention, residual and logit multipliers"},
    {"granitemoe", "embedding, attention, residual and logit multipliers, experts"},
    {"jamba", "state-space layers, experts"},
    {"llama4", "experts, layers without positions, images"},
    {"llama4_text", "experts, layers without positions"},
    {"mamba", "state-space layers"},
    {"mamba2", "state-space layers"},
    {"mixtral", "experts"},
    {"mpt", "ALiBi"},
    {"nemotron", "partial rotary embedding, squared ReLU"},
    {"olmo", "norms without weights"},
    {"olmo2", "post-norms, norms over all query and key heads"},
    {"olmoe", "experts"},
    {"opt", "ReLU, positions with an offset"},
    {"phi", "partial rotary embedding, parallel blocks"},
    {"phi3", "packed projections (qkv_proj, gate_up_proj)"},
    {"phimoe", "experts"},
    {"qwen2_moe", "experts"},
    {"qwen3_moe", "experts"},
    {"qwen3_next", "linear attention, experts"},
    {"rwkv", "recurrent layers"},
    {"smollm3", "layers without positions"},
    {"stablelm", "partial rotary embedding, LayerNorm with SwiGLU"},
    {"starcoder2", "LayerNorm and biases with RoPE"},
    {"t5", "an encoder, relative positions"},
};

}  // namespace

const Family* find_family(const std::string& model_type) {
  const auto* found = std::ranges::find_if(kFamilies, [&](const Family* family) { return model_type == family->model_type; });
  return found == std::end(kFamilies) ? nullptr : *found;
}

const Family& family_of(const ModelConfig& model) {
  const auto* found = std::ranges::find_if(kFamilies, [&](const Family* family) { return family->has(model); });
  TRIREME_CHECK(found != std::end(kFamilies), "a model of architecture ", model.architecture, " is of no family");
  return **found;
}

std::string unsupported_model_type(const std::string& model_type) {
  const auto* found = std::ranges::find_if(kUnsupported, [&](const Unsupported& row) { return model_type == row.type; });
  std::string text = found == std::end(kUnsupported) ? "not supported" : concat("not supported, because this program lacks ", found->lacks);
  const char* separator = "; supported ";
  for (const Family* family : kFamilies) {
    text += concat(separator, '"', family->model_type, '"');
    separator = ", ";
  }
  return text;
}

}  // namespace trireme::huggingface
