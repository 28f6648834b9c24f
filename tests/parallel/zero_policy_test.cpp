#include "parallel/sharding/zero_policy.h"

#include "kernels/core/check.h"
#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("ZeRO stages have the lifetimes of the table in the header") {
  struct Row {
    int stage, replicate;
    GradientAccumulation accumulation;
    bool reshard_after_use;
    ZeroPolicy expected;  // replicate, shard, parameters resident, unsharded each use, gradients resident
  };
  using enum GradientAccumulation;
  for (const Row& row : {
           Row{0, 1, kAuto, true, {6, 1, true, false, true}},
           Row{1, 1, kAuto, true, {1, 6, true, false, true}},
           Row{2, 1, kAuto, true, {1, 6, true, false, false}},
           Row{3, 1, kAuto, true, {1, 6, false, true, false}},
           Row{3, 1, kAuto, false, {1, 6, false, false, false}},
           Row{1, 2, kAuto, true, {2, 3, true, false, true}},
           Row{2, 3, kAuto, true, {3, 2, true, false, false}},
           Row{3, 6, kAuto, true, {6, 1, false, true, false}},
           Row{2, 1, kFull, true, {1, 6, true, false, true}},
           Row{3, 2, kFull, true, {2, 3, false, true, true}},
           Row{2, 1, kSharded, true, {1, 6, true, false, false}},
       }) {
    CAPTURE(row.stage, row.replicate);
    const ZeroPolicy policy = zero_policy(row.stage, 6, row.replicate, row.accumulation, row.reshard_after_use);
    CHECK(policy.replicate == row.expected.replicate);
    CHECK(policy.shard == row.expected.shard);
    CHECK(policy.parameters_resident == row.expected.parameters_resident);
    CHECK(policy.unshard_each_use == row.expected.unshard_each_use);
    CHECK(policy.gradients_resident == row.expected.gradients_resident);
    CHECK(policy.may_shard_gradients == (row.stage == 2 || row.stage == 3));
  }
}

TEST_CASE("invalid ZeRO options are refused") {
  CHECK_THROWS_AS(zero_policy(4, 6, 1, GradientAccumulation::kAuto, true), ConfigError);
  CHECK_THROWS_AS(zero_policy(1, 6, 4, GradientAccumulation::kAuto, true), ConfigError);
  CHECK_THROWS_AS(zero_policy(1, 6, 1, GradientAccumulation::kSharded, true), ConfigError);
}
