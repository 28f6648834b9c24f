#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/update.h"
#include "parallel/param.h"
#include "parallel/sharding/shard_group.h"

namespace trireme {

/// Dtypes of a run. In fp32 and fp64 the master weight is the parameter itself; in bf16 it is an fp32 copy of the owned shard.
/// Source: Micikevicius et al. 2017, arXiv:1710.03740 (master weights); Kalamkar et al. 2019, arXiv:1905.12322 (bf16).
struct Precision {
  DType compute = DType::kF32;   ///< parameters as the layers read them, activations
  DType master = DType::kF32;    ///< owned weights and both moments
  DType gradient = DType::kF32;  ///< accumulation of gradients
  DType reduce = DType::kF32;    ///< gradients on the wire between data ranks
};

/// The parameters that are gathered, reduced and updated together (a block, the embedding, the head): one flat buffer per tensor rank, parameters
/// back to back in declaration order, zeros at the end. All shards have the same size, a multiple of kShardAlignment elements: shard s of S owns
/// elements [s, s+1) * shard_numel(S). The last shards of a small unit may be padding alone.
/// All parameters of a unit are trainable, or none is: a frozen unit is gathered like others, and has no gradient and no optimizer state.
class Unit {
 public:
  /// Elements. In every dtype a shard then starts at a multiple of 128 bytes, so that kernels and transports may move 16 bytes at once.
  static constexpr int64_t kShardAlignment = 64;

  explicit Unit(std::string name, const ShardGroup& group = {}) : name_(std::move(name)), group_(group) {}

  /// The returned pointer stays valid for the lifetime of the unit.
  Param* add(std::vector<ParamSpec> specs);

  const std::string& name() const { return name_; }
  const ShardGroup& group() const { return group_; }
  bool trainable() const { return params_.empty() || params_.front()->trainable(); }  ///< as all of its parameters are
  int64_t numel() const { return numel_; }                                            ///< elements on this tensor rank, vocabulary padding included
  int64_t shard_numel() const { return shard_numel(numel_, group_.shards()); }
  /// Elements of each of the shards of a unit of `numel` elements: ceil(numel / shards), rounded up to kShardAlignment.
  static int64_t shard_numel(int64_t numel, int shards);

  /// Points every Param's value (or grad) into `flat` [>= numel], or unbinds it if `flat` is undefined.
  void bind_values(const Tensor& flat) const;
  void bind_grads(const Tensor& flat) const;

  /// The part of one parameter inside a range of the flat buffer.
  struct Segment {
    const ParamSpec* spec;
    int64_t flat_begin;   ///< first element, in the flat buffer
    int64_t param_begin;  ///< the same element, in this rank's local matrix of the parameter
    int64_t count;

    /// The same elements in the global matrix; empty if the whole segment is padding. The range's name is valid for the lifetime of the unit.
    MatrixRange matrix_range() const;
  };
  std::vector<Segment> segments(int64_t begin, int64_t end) const;
  int64_t owned_begin() const { return group_.own_shard() * shard_numel(); }  ///< first element of the owned shard, in the flat buffer
  std::vector<Segment> owned_segments() const { return segments(owned_begin(), owned_begin() + shard_numel()); }
  /// View of a segment within the owned shard's tensor.
  Tensor slice(const Tensor& shard_tensor, const Segment& segment) const;

  const std::vector<std::unique_ptr<Param>>& params() const { return params_; }

 private:
  std::string name_;
  ShardGroup group_;
  std::vector<std::unique_ptr<Param>> params_;
  int64_t numel_ = 0;
};

}  // namespace trireme
