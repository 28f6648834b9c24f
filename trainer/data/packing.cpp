#include "trainer/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {

std::vector<int64_t> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<int64_t> bins(lengths.size());
  std::set<std::pair<int64_t, int64_t>> open;  // room and number of each bin that is not full
  int64_t opened = 0;
  for (const size_t item : order) {
    const int64_t length = lengths[item];
    TRIREME_CHECK(length >= 1 && length <= capacity, "length ", length, " for bins of ", capacity);
    const auto best = open.lower_bound({length, 0});
    const auto [room, bin] = best == open.end() ? std::pair(capacity, opened++) : *best;
    if (best != open.end()) open.erase(best);
    if (room > length) open.emplace(room - length, bin);
    bins[item] = bin;
  }
  return bins;
}

PackedDocuments::PackedDocuments(Visit visit, int64_t documents, int64_t sequence_length, int64_t window)
    : visit_(std::move(visit)), documents_(documents), length_(sequence_length), window_(window), first_{0}, kept_(std::make_unique<Kept>()) {
  TRIREME_CHECK(documents >= 1 && sequence_length >= 1 && window >= 1, documents, " documents, sequences of ", sequence_length, ", windows of ",
                window);
  for (int64_t w = 0; w * window_ < documents_; ++w) first_.push_back(first_.back() + pack(w).sequences());
}

PackedDocuments::Window PackedDocuments::pack(int64_t window) const {
  std::vector<Piece> pieces;
  int64_t left = std::min(window_, documents_ - window * window_);
  visit_(window * window_, [&](const TokenFile::Document& document) {
    for (int64_t begin = document.begin; begin < document.end; begin += length_) {
      const int64_t end = std::min(begin + length_, document.end);
      pieces.push_back({begin, end, document.response, end < document.end});
    }
    return --left > 0;
  });
  std::vector<int64_t> lengths;
  for (const Piece& piece : pieces) lengths.push_back(piece.end - piece.begin);
  const std::vector<int64_t> bins = best_fit_decreasing(lengths, length_);
  Window packed;
  const int64_t sequences = bins.empty() ? 0 : *std::ranges::max_element(bins) + 1;
  packed.starts.assign(static_cast<size_t>(sequences) + 1, 0);
  for (const int64_t bin : bins) ++packed.starts[static_cast<size_t>(bin) + 1];
  std::partial_sum(packed.starts.begin(), packed.starts.end(), packed.starts.begin());
  std::vector<int64_t> next = packed.starts;
  packed.pieces.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) packed.pieces[static_cast<size_t>(next[static_cast<size_t>(bins[i])]++)] = pieces[i];
  return packed;
}

std::shared_ptr<const PackedDocuments::Window> PackedDocuments::window_of(int64_t window) const {
  constexpr size_t kMostPieces = size_t{1} << 20, kMostWindows = 1024;  // a piece has 32 bytes; the list of windows is searched from its start
  const std::lock_guard lock(kept_->mutex);
  auto& windows = kept_->windows;
  const auto found = std::ranges::find(windows, window, [](const auto& entry) { return entry.first; });
  if (found != windows.end()) {
    std::rotate(found, found + 1, windows.end());
    return windows.back().second;
  }
  auto packed = std::make_shared<const Window>(pack(window));
  const auto number = static_cast<size_t>(window);
  if (packed->sequences() != first_[number + 1] - first_[number])
    throw DataError(concat("the training data changed while in use: documents from number ", window * window_, " on have other lengths"));
  windows.emplace_back(window, std::move(packed));
  size_t pieces = 0;
  for (const auto& entry : windows) pieces += entry.second->pieces.size();
  for (; windows.size() > 1 && (pieces > kMostPieces || windows.size() > kMostWindows); windows.erase(windows.begin()))
    pieces -= windows.front().second->pieces.size();
  return windows.back().second;
}

/// The pieces of a sequence, which live as long as `window`.
std::span<const PackedDocuments::Piece> PackedDocuments::find(int64_t sequence, std::shared_ptr<const Window>& window) const {
  TRIREME_CHECK(sequence >= 0 && sequence < sequences(), "sequence ", sequence, " of ", sequences());
  const auto number = std::ranges::upper_bound(first_, sequence) - first_.begin() - 1;
  window = window_of(number);
  const auto at = static_cast<size_t>(sequence - first_[static_cast<size_t>(number)]);
  const int64_t begin = window->starts[at], end = window->starts[at + 1];
  return std::span(window->pieces).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

std::vector<PackedDocuments::Piece> PackedDocuments::pieces(int64_t sequence) const {
  std::shared_ptr<const Window> window;
  const std::span<const Piece> found = find(sequence, window);
  return {found.begin(), found.end()};
}

int64_t PackedDocuments::padding(int64_t sequence) const {
  std::shared_ptr<const Window> window;
  int64_t padding = length_;
  for (const Piece& piece : find(sequence, window)) padding -= piece.end - piece.begin;
  return padding;
}

}  // namespace trireme
