#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {

/// Hash table from a pair of adjacent tokens to the rank of its merge and the resulting token.
class MergeTable {
 public:
  static constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t pair = kEmpty;  ///< left id in the upper, right id in the lower 32 bits
    int32_t rank = kNoRank, result = -1;
  };

  /// Errors: DataError, prefixed with `where`, for a duplicate pair.
  MergeTable(const std::vector<Merge>& merges, const std::string& where);
  /// The entry of a pair; rank kNoRank if it does not merge.
  const Entry& find(int32_t left, int32_t right) const;

 private:
  size_t slot(uint64_t pair) const;

  std::vector<Entry> slots_;  ///< open addressing, at most half full
  int shift_ = 0;
};

/// Buffers of merge_all, reused from piece to piece.
struct MergeBuffers {
  struct Symbol {
    int32_t id;  ///< -1: merged into its predecessor
    int32_t previous, next;
  };
  struct Candidate {
    int32_t rank, place, left, right, result;
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
  };
  std::vector<int32_t> ids;
  std::vector<MergeTable::Entry> pairs;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

/// Repeatedly merges the adjacent pair of lowest rank in `ids`, ties broken to the left, until no pair merges.
void merge_all(const MergeTable& table, std::vector<int32_t>& ids, MergeBuffers& room);

}  // namespace trireme
