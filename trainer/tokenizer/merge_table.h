#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {

/// Which neighbours merge, how early, and into what.
class MergeTable {
 public:
  static constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t pair = kEmpty;  ///< left, right
    int32_t rank = kNoRank, result = -1;
  };

  /// Errors: DataError where a pair stands twice; `where` opens the message.
  MergeTable(const std::vector<Merge>& merges, const std::string& where);
  /// rank kNoRank where the two do not merge.
  const Entry& find(int32_t left, int32_t right) const;

 private:
  size_t slot(uint64_t pair) const;

  std::vector<Entry> slots_;  ///< open addressing, at most half full
  int shift_ = 0;
};

/// Room for the merges of one piece, reused from piece to piece.
struct MergeRoom {
  struct Symbol {
    int32_t id;  ///< -1: merged into the one before
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

/// Merges in `ids` the neighbours of the lowest rank, of equal ones the leftmost, until none merge.
void merge_all(const MergeTable& table, std::vector<int32_t>& ids, MergeRoom& room);

}  // namespace trireme
