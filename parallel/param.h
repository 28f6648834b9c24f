#pragma once
// Each parameter is declared once. Initialisation, checkpoints, ZeRO, the gradient norm and the memory forecast all read this table.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/tensor.h"

namespace trireme {

/// A rectangle of a global matrix. A vector of n elements is treated as [n,1].
struct Box {
  std::array<int64_t, 2> start{0, 0};
  std::array<int64_t, 2> extent{0, 0};
  int64_t numel() const { return extent[0] * extent[1]; }
  bool operator==(const Box&) const = default;
};

struct Init {
  enum class Kind : uint8_t { kZeros, kOnes, kNormal } kind = Kind::kZeros;
  double standard_deviation = 0;
};

/// The ranks over which this rank's gradient is only a partial sum.
enum class Partial : uint8_t {
  kNone,
  kTensor,  ///< each tensor rank contributed only its own rows (norms, positions under sequence parallelism) or its own heads (per-head norms)
  kKv,      ///< each rank of the kv group contributed only its own query heads
};

/// How tensor ranks divide a matrix.
enum class Split : uint8_t { kNone, kRows, kColumns };

/// One named parameter of the model and this rank's part of it.
struct ParamSpec {
  std::string name;                    ///< global: "blocks.3.mlp.up.weight"
  int dims = 2;                        ///< 1 or 2
  std::array<int64_t, 2> shape{0, 1};  ///< global, unpadded
  Box box;                             ///< this rank's part of it
  std::array<int64_t, 2> local{0, 1};  ///< allocated shape: box.extent and, for a vocabulary, rows of padding
  Split split = Split::kNone;
  int parts = 1;                ///< the number of different parts that tensor ranks have
  bool is_primary_copy = true;  ///< true on exactly one of the ranks with the same values: it includes them in norms and saves them
  Partial partial_over = Partial::kNone;
  Init init;
  bool decay = false;  ///< weight decay applies: matrices, not norms and biases
  /// The weight of a linear layer in a block: optimizers of matrices apply. Not embeddings, positions, head, norms and biases.
  bool is_hidden_matrix = false;
  bool trainable = true;  ///< false: training neither computes its gradient nor changes it
  int64_t numel() const { return local[0] * local[1]; }
};

/// Position of this rank on the tensor axis.
struct TensorRank {
  int rank = 0;
  int size = 1;
};

/// The full parameter on every tensor rank; rank 0 has the primary copy.
ParamSpec replicated(std::string name, std::array<int64_t, 2> shape, int dims, const TensorRank& at, Partial partial_over);
/// Rows split into `parts` pieces of ceil(rows / parts); tensor rank r holds piece r * parts / size. With fewer parts than ranks, neighbours hold the
/// same piece, the first of them has the primary copy, and gradients are partial over `kv`.
ParamSpec split_rows(std::string name, std::array<int64_t, 2> shape, int dims, const TensorRank& at, int parts);
/// Columns split evenly over the tensor ranks.
ParamSpec split_columns(std::string name, std::array<int64_t, 2> shape, const TensorRank& at);

/// The part of the same parameter that another tensor rank has: its box, its local shape without padding, and whether it is the primary copy.
ParamSpec on_rank(const ParamSpec& spec, const TensorRank& at);

/// A layer's weight on this rank: one local matrix (or vector) that stacks the rows of one or more parameters, e.g. query, key and value.
/// `value` is set while its unit is unsharded, `grad` (gradient dtype) while its backward runs. Operations add their parts to `grad`, the first one of
/// a step or micro-batch to undefined memory: so a product may write its result without reading, and only other parameters are filled with zeros.
struct Param {
  std::vector<ParamSpec> specs;
  Tensor value;
  Tensor grad;
  bool grad_is_empty = false;  ///< the memory of `grad` is undefined and stands for zeros

  /// `grad` for an operation that adds to it: filled with zeros if it is empty.
  Tensor grad_to_add_to(Context& ctx);
  /// For an operation that writes all of `grad`: whether it must add to it. It is not empty afterwards.
  bool must_add_to_grad() { return !std::exchange(grad_is_empty, false); }
  int64_t numel() const;
  Shape local_shape() const;                                  ///< [rows, columns], or [n] for vectors
  bool trainable() const { return specs.front().trainable; }  ///< as all of its parameters are
};

/// boxes_of: the rectangles of the global tensor that cover elements [begin, end) of this rank's local matrix, in order: at most three (end of a row,
/// whole rows, start of a row). Padding belongs to none. `offset` is a rectangle's first element in the local matrix.
struct BoxRange {
  Box box;
  int64_t offset = 0;
};
std::vector<BoxRange> boxes_of(const ParamSpec& spec, int64_t begin, int64_t end);

}  // namespace trireme
