#pragma once
// Maps the parameter table to the tensor names of Hugging Face transformers; used by both reader and writer.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// A tensor as transformers stores it, and the parameters whose rows it has: query, key and value in GPT-2's c_attn and GPT-NeoX's
/// query_key_value; otherwise one.
struct HuggingFaceTensor {
  struct Part {
    std::string parameter;           ///< "blocks.0.attention.query.weight"
    std::array<int64_t, 2> shape{};  ///< of the parameter; [n,1] for a vector
    int64_t first_row = 0;           ///< in the tensor
    int64_t run = 0;                 ///< consecutive rows of the parameter that are consecutive in the tensor: all, or those of a head
    int64_t stride = 0;              ///< rows of the tensor from one run to the next
    int64_t row(int64_t of_parameter) const { return first_row + of_parameter / run * stride + of_parameter % run; }
  };
  std::string name;            ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  ///< in the file: [n], [rows,columns], or if transposed [columns,rows]
  bool transposed = false;     ///< GPT-2's Conv1D stores its matrices as [inputs,outputs]
  std::vector<Part> parts;

  int64_t rows() const;     ///< the sum of parts[i].shape[0]
  int64_t columns() const;  ///< 1 for a vector
};

/// Every tensor of `model` (resolved) but for those of adapters, in the order of the parameter table: embedding, blocks, final norm, head unless it is tied.
/// The names are those of the model's family (families/).
std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelConfig& model);
/// "lm_head.weight": the tensor of an untied head, which files of tied models may have too.
std::string head_name(const ModelConfig& model);

}  // namespace trireme
