#include "parallel/comm/transfer.h"

#include <vector>

#include "tests/support/catch.h"

using namespace trireme;

namespace {

/// The result of `verb` on the last rank, if every element of rank r is of_ranks[r]. All elements of the result are equal.
float reduced(Verb verb, ReduceOp op, const std::vector<float>& of_ranks) {
  const size_t ranks = of_ranks.size();
  constexpr int64_t kCount = 1500;  // elements of a rank's result: more than a block
  std::vector<std::vector<bfloat16>> buffers;
  for (const float value : of_ranks) buffers.emplace_back(ranks * kCount, bfloat16(value));
  Transfer transfer{{verb, DType::kBF16, kCount, op}, 0, {}, {}};
  for (size_t rank = 0; rank < ranks; ++rank) {
    transfer.in.push_back(reinterpret_cast<const std::byte*>(buffers[rank].data()));
    const size_t own = verb == Verb::kReduceScatter ? rank * kCount : 0;
    transfer.out.push_back(reinterpret_cast<std::byte*>(buffers[rank].data() + own));
  }
  move_data(transfer);
  const bfloat16* const out = reinterpret_cast<const bfloat16*>(transfer.out.back());
  for (int64_t i = 0; i < kCount; ++i) CHECK(out[i].bits == out[0].bits);
  return out[0];
}

}  // namespace

TEST_CASE("threads sum bf16 in fp32 and round once") {
  // 257 lies half way between bf16 neighbours and would be rounded back to 256 at every rank; the sum, 263, is rounded to 264.
  const std::vector<float> of_ranks = {256, 1, 1, 1, 1, 1, 1, 1};
  for (const Verb verb : {Verb::kAllReduce, Verb::kReduceScatter}) {
    CHECK(reduced(verb, ReduceOp::kSum, of_ranks) == 264);
    CHECK(reduced(verb, ReduceOp::kMax, of_ranks) == 256);
    CHECK(reduced(verb, ReduceOp::kMin, of_ranks) == 1);
  }
}
