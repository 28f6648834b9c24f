#pragma once
#include <vector>

#include "tests/support/parity.h"

namespace trireme::test {

struct ParityCase {
  ParityModel model;
  Layout layout;
};

/// Every legal layout with tensor, pipeline, data in {1,2,3,4}, product <= 8, ZeRO 0-3, replicate x shard, sequence parallelism on and off, both
/// schedules; the finer options (accumulation, reshard, prefetch, micro-batch size, layers per stage) cycle through their values along the list.
std::vector<ParityCase> all_parity_cases();

/// A subset of those in which every pair of values of any two options that is legal at all appears at least once; greedy and deterministic.
std::vector<ParityCase> pairwise_parity_cases();

}  // namespace trireme::test
