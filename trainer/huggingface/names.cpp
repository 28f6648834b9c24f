#include "trainer/huggingface/names.h"

#include "kernels/core/check.h"
#include "trainer/model/declare.h"

namespace trireme {
namespace {

struct Name {
  const char* ours;  ///< without the prefix "blocks.N." of parameters in a block
  const char* theirs;
  bool transposed = false;  ///< the weight is stored transposed; biases never are
};

constexpr Name kLlama[] = {
    {"embedding", "model.embed_tokens"},
    {"final_norm", "model.norm"},
    {"head", "lm_head"},
};
constexpr Name kLlamaBlock[] = {
    {"attention_norm", "input_layernorm"},
    {"attention.query", "self_attn.q_proj"},
    {"attention.key", "self_attn.k_proj"},
    {"attention.value", "self_attn.v_proj"},
    {"attention.query_norm", "self_attn.q_norm"},
    {"attention.key_norm", "self_attn.k_norm"},
    {"attention.output", "self_attn.o_proj"},
    {"mlp_norm", "post_attention_layernorm"},
    {"mlp.gate", "mlp.gate_proj"},
    {"mlp.up", "mlp.up_proj"},
    {"mlp.down", "mlp.down_proj"},
};
constexpr Name kGpt2[] = {
    {"embedding", "transformer.wte"},
    {"positions", "transformer.wpe"},
    {"final_norm", "transformer.ln_f"},
    {"head", "lm_head"},
};
constexpr Name kGpt2Block[] = {
    {"attention_norm", "ln_1"},
    {"attention.query", "attn.c_attn", true},
    {"attention.key", "attn.c_attn", true},
    {"attention.value", "attn.c_attn", true},
    {"attention.output", "attn.c_proj", true},
    {"mlp_norm", "ln_2"},
    {"mlp.up", "mlp.c_fc", true},
    {"mlp.down", "mlp.c_proj", true},
};

template <size_t N>
const Name& find(const Name (&names)[N], std::string_view layer, const std::string& parameter) {
  for (const Name& name : names)
    if (name.ours == layer) return name;
  throw InternalError(concat("parameter ", parameter, " has no name in Hugging Face transformers"));
}

struct Translation {
  std::string name;
  bool transposed;
};

/// "blocks.3.mlp.up.weight" -> "model.layers.3.mlp.up_proj.weight".
Translation translate(const std::string& parameter, bool gpt2) {
  constexpr std::string_view kBlocks = "blocks.";
  const size_t last = parameter.rfind('.');
  const std::string kind = parameter.substr(last);  // ".weight" or ".bias"
  const auto result = [&](const std::string& prefix, const Name& name) {
    return Translation{concat(prefix, name.theirs, kind), name.transposed && kind == ".weight"};
  };
  if (!parameter.starts_with(kBlocks)) {
    const std::string layer = parameter.substr(0, last);
    return result("", gpt2 ? find(kGpt2, layer, parameter) : find(kLlama, layer, parameter));
  }
  const size_t number_end = parameter.find('.', kBlocks.size());
  const std::string number = parameter.substr(kBlocks.size(), number_end - kBlocks.size());
  const std::string layer = parameter.substr(number_end + 1, last - number_end - 1);
  return result(concat(gpt2 ? "transformer.h." : "model.layers.", number, "."),
                gpt2 ? find(kGpt2Block, layer, parameter) : find(kLlamaBlock, layer, parameter));
}

}  // namespace

int64_t HuggingFaceTensor::rows() const { return parts.back().first_row + parts.back().shape[0]; }

int64_t HuggingFaceTensor::columns() const { return parts.back().shape[1]; }

std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelConfig& model) {
  std::vector<HuggingFaceTensor> tensors;
  for (const ParamSpec& spec : whole_model(model)) {
    auto [name, transposed] = translate(spec.name, model.architecture == Architecture::kGpt2);
    if (tensors.empty() || tensors.back().name != name) tensors.push_back({std::move(name), {}, transposed, {}});
    HuggingFaceTensor& tensor = tensors.back();
    tensor.parts.push_back({spec.name, spec.shape, tensor.parts.empty() ? 0 : tensor.rows()});
    tensor.shape = {tensor.rows()};
    if (spec.dims == 2) tensor.shape.insert(transposed ? tensor.shape.begin() : tensor.shape.end(), tensor.columns());
  }
  return tensors;
}

}  // namespace trireme
