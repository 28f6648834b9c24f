#pragma once
// Maps the parameter table to the tensor names of Hugging Face transformers; used by both reader and writer.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace trireme {

/// A tensor as transformers stores it, and the parameters whose rows it stacks, top to bottom: query, key and value in GPT-2's c_attn; otherwise one.
struct HuggingFaceTensor {
  struct Part {
    std::string parameter;           ///< "blocks.0.attention.query.weight"
    std::array<int64_t, 2> shape{};  ///< of the parameter; [n,1] for a vector
    int64_t first_row = 0;           ///< first row in the stack
  };
  std::string name;            ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  ///< in the file: [n], [rows,columns], or if transposed [columns,rows]
  bool transposed = false;     ///< GPT-2's Conv1D stores its matrices as [inputs,outputs]
  std::vector<Part> parts;

  int64_t rows() const;     ///< rows of the stack: the sum of parts[i].shape[0]
  int64_t columns() const;  ///< 1 for a vector
};

/// Every tensor of `model` (resolved), in the order of the parameter table: embedding, blocks, final norm, head unless it is tied.
/// The names are those of the model's family (families/).
std::vector<HuggingFaceTensor> hugging_face_tensors(const ModelConfig& model);

}  // namespace trireme
