// Layout of an all_to_all in the slots of a SharedGroup.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "parallel/comm/arguments.h"
#include "parallel/comm/shared_group.h"

namespace trireme {
namespace {

void copy_part(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// Calls copy(begin, count) for the elements of a piece that are also in [begin, end).
template <class Copy>
void for_common(int64_t piece_begin, int64_t piece_end, int64_t begin, int64_t end, const Copy& copy) {
  begin = std::max(begin, piece_begin);
  end = std::min(end, piece_end);
  if (begin < end) copy(begin, end - begin);
}

}  // namespace

/// Bytes at the beginning of a slot for the rank's counts: those it sends, then those it expects.
int64_t SharedGroup::counts_bytes(const Call& call) const {
  const int64_t counts = 2 * std::ssize(host_ranks_) * static_cast<int64_t>(sizeof(int64_t));
  return call.verb == Verb::kAllToAllV ? (counts + 63) & ~int64_t{63} : 0;
}

void SharedGroup::set_equal_parts(Flight& flight) const {
  const int64_t n = std::ssize(host_ranks_), count = flight.call.count;
  flight.length = n * count;
  flight.from.assign(host_ranks_.size(), {static_cast<int64_t>(rank_) * count, count});
  for (int64_t source = 0; source < n; ++source) flight.to.push_back({source * count, count});
}

/// Called once all ranks are `in` with the first piece, so that their counts can be read.
void SharedGroup::read_counts(Flight& flight, uint64_t piece) {
  const size_t n = host_ranks_.size();
  const auto counts_of = [&](size_t rank) { return std::span(reinterpret_cast<const int64_t*>(slot(rank, piece)), 2 * n); };
  int64_t longest = 0, received = 0;
  for (size_t source = 0; source < n; ++source) {
    const std::span<const int64_t> sent = counts_of(source).first(n);
    for (size_t destination = 0; destination < n; ++destination) {
      const int64_t expected = counts_of(destination)[n + source];
      TRIREME_CHECK(sent[destination] == expected,
                    count_mismatch(static_cast<int>(source), sent[destination], static_cast<int>(destination), expected), " (", place_, ")");
    }
    const int64_t before = std::accumulate(sent.begin(), sent.begin() + static_cast<std::ptrdiff_t>(rank_), int64_t{0});
    flight.from.push_back({before, sent[rank_]});
    flight.to.push_back({received, sent[rank_]});
    received += sent[rank_];
    longest = std::max(longest, std::accumulate(sent.begin(), sent.end(), int64_t{0}));
  }
  flight.pieces = std::max<uint64_t>(1, static_cast<uint64_t>((longest + flight.step - 1) / flight.step));
  flight.counted = true;
}

/// Copies what other ranks need of this piece of `in`: all but the part that stays on this rank.
void SharedGroup::copy_parts_in(const Piece& piece) {
  const Flight& flight = piece.flight;
  const int64_t item = size_of(piece.call.dtype), end = piece.begin + piece.size;
  std::byte* const memory = slot(rank_, piece.number);
  std::byte* const to = memory + counts_bytes(piece.call);
  if (piece.call.verb == Verb::kAllToAllV && piece.number == flight.first) {
    const int64_t bytes = std::ssize(flight.send_counts) * static_cast<int64_t>(sizeof(int64_t));
    copy_part(memory, reinterpret_cast<const std::byte*>(flight.send_counts.data()), bytes);
    copy_part(memory + bytes, reinterpret_cast<const std::byte*>(flight.receive_counts.data()), bytes);
  }
  const Part own = own_part_of(flight);
  const auto copy = [&](int64_t begin, int64_t count) { copy_part(to + (begin - piece.begin) * item, piece.in + begin * item, count * item); };
  for_common(piece.begin, end, 0, own.begin, copy);
  for_common(piece.begin, end, own.begin + own.count, flight.length, copy);
}

void SharedGroup::copy_parts_out(const Piece& piece) {
  const Flight& flight = piece.flight;
  const int64_t item = size_of(piece.call.dtype);
  for (size_t source = 0; source < host_ranks_.size(); ++source) {
    const Part from = flight.from[source], to = flight.to[source];
    const std::byte* const first = source == rank_ ? piece.in + piece.begin * item : slot(source, piece.number) + counts_bytes(piece.call);
    for_common(piece.begin, piece.begin + piece.step, from.begin, from.begin + from.count, [&](int64_t begin, int64_t count) {
      copy_part(piece.out + (to.begin + begin - from.begin) * item, first + (begin - piece.begin) * item, count * item);
    });
  }
}

/// The part of `in` that this rank sends to itself.
SharedGroup::Part SharedGroup::own_part_of(const Flight& flight) const {
  if (flight.call.verb == Verb::kAllToAll) return flight.from[rank_];
  const auto begin = flight.send_counts.begin(), own = begin + static_cast<std::ptrdiff_t>(rank_);
  return {std::accumulate(begin, own, int64_t{0}), *own};
}

}  // namespace trireme
