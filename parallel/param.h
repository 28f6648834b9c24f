#pragma once
// A parameter is declared once. Initialisation, checkpoints, ZeRO, the gradient norm and the memory plan all read this table.
#include <array>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace trireme {

/// A rectangle of a global matrix. A vector of n elements is seen as [n,1].
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

/// Over which ranks the gradient this rank computes is still a partial sum.
enum class Partial : uint8_t {
  kNone,
  kTensor,  ///< each tensor rank saw its own rows (norms, positions under sequence parallelism) or its own heads (their norms) only
  kKv,      ///< each rank of the kv group saw its own query heads only
};

/// One named parameter of the model and this rank's part of it.
struct ParamSpec {
  std::string name;                    ///< global: "blocks.3.mlp.up.weight"
  int dims = 2;                        ///< 1 or 2
  std::array<int64_t, 2> shape{0, 1};  ///< global, unpadded
  Box box;                             ///< this rank's part of it
  std::array<int64_t, 2> local{0, 1};  ///< allocated here: box.extent, rows padded where they do not divide (vocabulary)
  bool is_primary_copy = true;         ///< of the ranks that hold these same values, exactly one counts them in norms and saves them
  Partial partial_over = Partial::kNone;
  Init init;
  bool decay = false;  ///< weight decay applies: matrices, not norms and biases
  int64_t numel() const { return local[0] * local[1]; }
};

/// Where this rank stands on the tensor axis.
struct TensorRank {
  int rank = 0;
  int size = 1;
};

/// The whole parameter on every tensor rank; rank 0 counts it.
ParamSpec replicated(std::string name, std::array<int64_t, 2> shape, int dims, const TensorRank& at, Partial partial_over);
/// Rows split into `parts` pieces of ceil(rows / parts), tensor rank r holding piece r * parts / size. Fewer parts than ranks: neighbours hold the
/// same piece, the first of them counts it, and gradients are partial over `kv`.
ParamSpec split_rows(std::string name, std::array<int64_t, 2> shape, int dims, const TensorRank& at, int parts);
/// Columns split evenly over the tensor ranks.
ParamSpec split_columns(std::string name, std::array<int64_t, 2> shape, const TensorRank& at);

/// What a layer computes with: one local matrix (or vector) that stacks the rows of one or more parameters, e.g. query, key and value.
/// `value` is set while the unit that holds it is unsharded, `grad` (+=, gradient dtype) while its backward runs.
struct Param {
  std::vector<ParamSpec> specs;
  Tensor value;
  Tensor grad;
  int64_t numel() const;
  Shape local_shape() const;  ///< [rows, columns], or [n] for vectors
};

/// The rectangles of the global tensor that elements [begin, end) of this rank's local matrix are, in order: at most three (end of a row, whole rows,
/// start of a row). Padding belongs to none. `offset` of each is its first element in the local matrix.
struct BoxRange {
  Box box;
  int64_t offset = 0;
};
std::vector<BoxRange> boxes_of(const ParamSpec& spec, int64_t begin, int64_t end);

}  // namespace trireme
