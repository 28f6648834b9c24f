// Compares merges with their definition, on random tables. Pieces of more than 40 symbols use a different algorithm than short ones.
#include "trainer/tokenizer/merge_table.h"

#include <algorithm>
#include <set>

#include "kernels/core/rng.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

class Draws {
 public:
  explicit Draws(uint64_t seed) : key_(random_key(seed, "merges")) {}
  /// A random number below `end`.
  int32_t operator()(int32_t end) { return static_cast<int32_t>(random_bits(key_, at_++) % static_cast<uint64_t>(end)); }

 private:
  uint64_t key_;
  uint64_t at_ = 0;
};

/// Merges of pairs of the first `letters` symbols and the results of earlier merges, as in a trained table; some results have two merges.
std::vector<Merge> random_merges(Draws& draw, int32_t letters, int32_t count) {
  std::vector<Merge> merges;
  std::set<std::pair<int32_t, int32_t>> seen;
  for (int32_t symbols = letters; static_cast<int32_t>(merges.size()) < count;) {
    const int32_t left = draw(symbols), right = draw(symbols);
    if (!seen.emplace(left, right).second) continue;
    const bool again = symbols > letters && draw(8) == 0;
    merges.push_back({left, right, again ? letters + draw(symbols - letters) : symbols++});
  }
  return merges;
}

/// The definition: merge the adjacent pair of lowest rank, ties broken to the left, until no pair merges.
std::vector<int32_t> merged_by_definition(const std::vector<Merge>& merges, std::vector<int32_t> ids) {
  for (;;) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (size_t rank = 0; rank < best; ++rank)
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best = rank;
          place = i;
        }
    if (best == merges.size()) return ids;
    ids[place] = merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST_CASE("merges of short and long pieces match the definition, on random tables") {
  Draws draw(19);
  MergeBuffers room;  // reused, as in a tokenizer
  constexpr int kTables = 3000;
  size_t longest = 0;
  for (int table = 0; table < kTables; ++table) {
    const int32_t letters = 2 + draw(4);
    const std::vector<Merge> merges = random_merges(draw, letters, 1 + draw(std::min(letters * letters, 12)));
    const MergeTable fast(merges, "random");
    for (const int32_t length : {1 + draw(40), 41 + draw(60)}) {
      std::vector<int32_t> ids(static_cast<size_t>(length));
      for (int32_t& id : ids) id = draw(letters);
      const std::vector<int32_t> expected = merged_by_definition(merges, ids);
      CAPTURE(table, ids);
      merge_all(fast, ids, room);
      REQUIRE(ids == expected);
      longest = std::max(longest, ids.size());
    }
  }
  CHECK(longest > 1);
}

}  // namespace
}  // namespace trireme::test
