#pragma once
// The parameter table in the names of Hugging Face transformers: one table for reading and for writing.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// A tensor as transformers stores it, and the parameters whose rows it stacks, from the top: query, key and value in GPT-2's c_attn, one parameter anywhere
/// else.
struct HuggingFaceTensor {
  struct Part {
    std::string parameter;           ///< "blocks.0.attention.query.weight"
    std::array<int64_t, 2> shape{};  ///< of the parameter, [n,1] for a vector
    int64_t first_row = 0;           ///< where it begins in the stack
  };
  std::string name;            ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  ///< in the file: [n], [rows,columns], or where transposed [columns,rows]
  bool transposed = false;     ///< GPT-2's Conv1D keeps its matrices as [inputs,outputs]
  std::vector<Part> parts;

  int64_t rows() const;     ///< of the stack, of parts[i].shape[0] each
  int64_t columns() const;  ///< 1 of a vector
};

/// Every tensor of `model` (resolved), in the order of the parameter table: embedding, blocks, final norm, head where it is not tied.
/// llama: model.embed_tokens, model.layers.N, model.norm, lm_head, alike in LLaMA, Mistral, Qwen2 (biases) and Qwen3 (q_norm, k_norm). gpt2: transformer.wte, wpe, h.N,
/// ln_f. Source: modeling_llama.py, modeling_mistral.py, modeling_qwen2.py, modeling_qwen3.py, modeling_gpt2.py of transformers.
std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelConfig& model);

}  // namespace trireme
