#pragma once
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/sharding/unit_message.h"
#include "parallel/sharding/zero_policy.h"

namespace trireme {

/// Owns this rank's parameters: the master shard of every unit, and the full copies that the layers read.
/// Memory per rank, P elements in all units, S shards. If master dtype = compute dtype: P if resident (the master is a view of it), else P/S plus the
/// units that are currently gathered. Otherwise P/S more for the masters, counted as optimizer memory; the full copies are made from them: P if
/// resident, else the units that are currently gathered. The master of a frozen unit is in the compute dtype, unless there is an encoding: nothing is
/// ever added to it.
/// Wire per gather: (S-1)/S * unit bytes in the compute dtype.
///
/// With an encoding the owners send their matrices encoded, and every rank, the owner included, reads what it decodes: all full copies have equal
/// bits, and the masters stay exact, so errors of one gather do not enter the next one. A group of one rank encodes nothing.
/// Wire per gather: (S-1) times the largest message of a shard. More memory: P/S for the masters, which are then never views, counted as optimizer
/// memory if resident; while a gather is in flight its messages; and while it is decoded a shard in the master dtype if compute dtype is another one.
/// Source: Wang et al. 2023, arXiv:2306.10209 (quantized weight communication).
///
/// With a secondary group of G ranks, a part of the shard group, each rank keeps 1/G of the full copy from the first gather after an update on, and
/// further gathers until the next update are between these G ranks, with the same bits. For full copies that are not resident.
/// Memory: P/G more in the compute dtype. Wire per further gather: (G-1)/G * unit bytes in the compute dtype.
/// Source: Wang et al. 2023, arXiv:2306.10209 (hierarchical weight partition).
class ParamStore {
 public:
  ParamStore(Context& ctx, std::vector<Unit*> units, const ZeroPolicy& policy, const Precision& precision,
             const EncodingOptions& encoding = {.encoding = Encoding::kNone});

  void unshard(Context& ctx, int unit);  ///< starts the gather unless the full copy is up to date
  void wait(Context& ctx, int unit);     ///< completes the gather; the layers may then read the unit
  void reshard(Context& ctx, int unit);  ///< frees the full copy unless it is resident
  void mark_stale(int unit);             ///< call after changing the masters: marks the full copy stale
  void mark_all_stale() {                ///< marks every unit
    for (size_t unit = 0; unit < units_.size(); ++unit) mark_stale(static_cast<int>(unit));
  }

  const std::vector<Unit*>& units() const { return units_; }
  Tensor master(int unit) const { return states_[static_cast<size_t>(unit)].master; }  ///< [shard_numel]

 private:
  struct State {
    Tensor full, master;
    std::vector<UnitMessage> layout;  ///< by shard, the layout of its message; empty if gathers are not encoded
    Tensor messages;                  ///< u8, of all shards in turn: defined from the start of an encoded gather until it is decoded
    Work gather;
    bool fresh = false;  ///< `full` equals the masters, or a gather that makes it so is in flight
    Tensor secondary;    ///< this rank's part of the full copy among the secondary group
    bool secondary_fresh = false;
  };
  const Unit& unit_of(int unit) const { return *units_[static_cast<size_t>(unit)]; }
  DType master_dtype(const Unit& unit) const {
    return unit.trainable() || encoding_.encoding != Encoding::kNone ? precision_.master : precision_.compute;
  }
  bool encodes(const ShardGroup& group) const { return encoding_.encoding != Encoding::kNone && group.shards() > 1; }
  static bool has_secondary(const ShardGroup& group) { return group.secondary != nullptr && group.secondary->size() > 1; }
  Tensor own_part(int unit, const Tensor& full) const;
  UnitMessage message(int unit, int shard) const;
  Tensor encoded(Context& ctx, int unit);
  void decode_messages(Context& ctx, int unit);
  void complete(Context& ctx, int unit);

  std::vector<Unit*> units_;
  std::vector<State> states_;
  bool resident_;
  Precision precision_;
  EncodingOptions encoding_;
};

}  // namespace trireme
