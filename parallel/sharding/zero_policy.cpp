#include "parallel/sharding/zero_policy.h"

#include "kernels/core/check.h"

namespace trireme {

ZeroPolicy zero_policy(int stage, int data, int replicate, GradientAccumulation accumulation, bool reshard_after_use) {
  if (stage < 0 || stage > 3) throw ConfigError(concat("parallel.zero_stage=", stage, ": unknown ZeRO stage; allowed 0, 1, 2, 3"));
  if (data % replicate != 0) throw ConfigError(concat("parallel.replicate=", replicate, ": does not divide parallel.data=", data));
  if (accumulation == GradientAccumulation::kSharded && stage < 2)
    throw ConfigError(concat("parallel.gradient_accumulation=sharded: needs parallel.zero_stage 2 or 3, not ", stage));
  ZeroPolicy policy;
  policy.may_shard_gradients = stage >= 2;
  policy.replicate = stage == 0 ? data : replicate;
  policy.shard = data / policy.replicate;
  policy.parameters_resident = stage < 3;
  policy.unshard_each_use = stage == 3 && reshard_after_use;
  policy.gradients_resident = accumulation == GradientAccumulation::kFull || (accumulation == GradientAccumulation::kAuto && stage < 2);
  return policy;
}

}  // namespace trireme
