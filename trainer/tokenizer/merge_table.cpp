#include "trainer/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

#include "kernels/core/check.h"

namespace trireme {
namespace {

uint64_t pair_of(int32_t left, int32_t right) { return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right); }

/// Scans all adjacent pairs for each merge: the fastest method for short pieces.
void merge_short(const MergeTable& table, std::vector<int32_t>& ids, std::vector<MergeTable::Entry>& pairs) {
  pairs.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) pairs.push_back(table.find(ids[i], ids[i + 1]));
  while (!pairs.empty()) {
    const auto best = std::min_element(pairs.begin(), pairs.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == MergeTable::kNoRank) return;
    const auto i = best - pairs.begin();
    ids[static_cast<size_t>(i)] = best->result;
    ids.erase(ids.begin() + i + 1);
    pairs.erase(best);
    const auto at = static_cast<size_t>(i);
    if (at > 0) pairs[at - 1] = table.find(ids[at - 1], ids[at]);
    if (at < pairs.size()) pairs[at] = table.find(ids[at], ids[at + 1]);
  }
}

/// Linked list of symbols and a heap of candidate merges: O(n log n), for pieces as long as a document.
class LongMerge {
 public:
  LongMerge(const MergeTable& table, MergeBuffers& room) : table_(table), symbols_(room.symbols), heap_(room.heap) {}

  void run(std::vector<int32_t>& ids) {
    symbols_.clear();
    heap_.clear();
    TRIREME_CHECK(ids.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()), "a piece of ", ids.size(), " bytes");
    const auto count = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < count; ++i) symbols_.push_back({ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    for (int32_t i = 0; i + 1 < count; ++i) consider(i);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const MergeBuffers::Candidate candidate = heap_.back();
      heap_.pop_back();
      apply(candidate);
    }
    ids.clear();
    for (int32_t i = 0; i >= 0; i = at(i).next) ids.push_back(at(i).id);
  }

 private:
  MergeBuffers::Symbol& at(int32_t i) { return symbols_[static_cast<size_t>(i)]; }

  void consider(int32_t place) {
    if (place < 0 || at(place).next < 0) return;
    const int32_t left = at(place).id, right = at(at(place).next).id;
    const MergeTable::Entry& entry = table_.find(left, right);
    if (entry.rank == MergeTable::kNoRank) return;
    heap_.push_back({entry.rank, place, left, right, entry.result});
    std::push_heap(heap_.begin(), heap_.end());
  }

  void apply(const MergeBuffers::Candidate& candidate) {
    MergeBuffers::Symbol& symbol = at(candidate.place);
    // The candidate is stale if either side has been merged since.
    if (symbol.id != candidate.left || symbol.next < 0 || at(symbol.next).id != candidate.right) return;
    MergeBuffers::Symbol& absorbed = at(symbol.next);
    symbol.id = candidate.result;
    symbol.next = absorbed.next;
    absorbed.id = -1;
    if (symbol.next >= 0) at(symbol.next).previous = candidate.place;
    consider(symbol.previous);
    consider(candidate.place);
  }

  const MergeTable& table_;
  std::vector<MergeBuffers::Symbol>& symbols_;
  std::vector<MergeBuffers::Candidate>& heap_;
};

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges, const std::string& where) {
  const size_t size = std::bit_ceil(2 * merges.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  slots_.resize(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    Entry& entry = slots_[slot(pair_of(merge.left, merge.right))];
    if (entry.pair != kEmpty) throw DataError(concat(where, ": model: merge ", rank, " is a duplicate of merge ", entry.rank));
    entry = {pair_of(merge.left, merge.right), static_cast<int32_t>(rank), merge.result};
  }
}

size_t MergeTable::slot(uint64_t pair) const {
  size_t at = (pair * 0x9E3779B97F4A7C15u) >> shift_;  // Fibonacci hashing: the high bits of the product depend on all of the pair
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

const MergeTable::Entry& MergeTable::find(int32_t left, int32_t right) const { return slots_[slot(pair_of(left, right))]; }

void merge_all(const MergeTable& table, std::vector<int32_t>& ids, MergeBuffers& room) {
  constexpr size_t kShort = 40;
  if (ids.size() <= kShort) {
    merge_short(table, ids, room.pairs);
  } else {
    LongMerge(table, room).run(ids);
  }
}

}  // namespace trireme
