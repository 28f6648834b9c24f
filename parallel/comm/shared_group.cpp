#include "parallel/comm/shared_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/core/hash.h"

namespace trireme {

/// Each rank writes only its own; the others read them.
struct alignas(64) SharedGroup::Counters {
  uint64_t in, reduced, done;
  std::array<uint64_t, kSlots> tags;  ///< hash of the call, for the piece in each slot
};

namespace {

uint64_t load(const uint64_t& word) { return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire); }

void copy_chunk(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

/// First element of share `i` of `n` of a piece: a multiple of 64, so that shares are whole cache lines even of the smallest dtype.
int64_t share_begin(int64_t size, int64_t i, int64_t n) { return i == n ? size : size * i / n & ~int64_t{63}; }

uint64_t pieces_of(int64_t length, int64_t step) { return static_cast<uint64_t>((length + step - 1) / step); }

bool reduces(const Call& call) { return call.verb == Verb::kAllReduce || call.verb == Verb::kReduceScatter; }

}  // namespace

int64_t SharedGroup::bytes(int ranks, int64_t slot_bytes) {
  return ranks * (static_cast<int64_t>(sizeof(Counters)) + static_cast<int64_t>(kSlots) * slot_bytes);
}

SharedGroup::SharedGroup(std::shared_ptr<SharedDriver> driver, std::unique_ptr<SharedMemory> memory, int rank, std::vector<int> host_ranks,
                         int64_t slot_bytes, std::string place)
    : driver_(std::move(driver)),
      memory_(std::move(memory)),
      rank_(static_cast<size_t>(rank)),
      host_ranks_(std::move(host_ranks)),
      slot_bytes_(slot_bytes),
      place_(std::move(place)) {
  TRIREME_CHECK(slot_bytes % 64 == 0 && slot_bytes >= 64 * std::ssize(host_ranks_), "invalid slot size ", slot_bytes);
}

SharedGroup::~SharedGroup() { driver_->remove(*this); }

class SharedGroup::Operation final : public Work::Operation {
 public:
  Operation(std::shared_ptr<SharedGroup> group, uint64_t number, Tensor in, Tensor out)
      : group_(std::move(group)), number_(number), in_(std::move(in)), out_(std::move(out)) {}
  ~Operation() override {
    if (group_->finished_ < number_) group_->give_up();
  }
  void wait(Context& /*ctx*/) override {
    group_->driver_->wait([&] {
      TRIREME_CHECK(!group_->broken_, "an earlier operation of this group was abandoned (", group_->place_, ")");
      return group_->finished_ >= number_;
    });
  }
  bool ready() override {
    group_->driver_->advance();
    return group_->broken_ || group_->finished_ >= number_;
  }

 private:
  std::shared_ptr<SharedGroup> group_;
  uint64_t number_;  ///< from 1
  Tensor in_, out_;
};

Work SharedGroup::start(const std::shared_ptr<SharedGroup>& group, const Call& call, const Tensor& in, const Tensor& out,
                        std::span<const int64_t> send_counts, std::span<const int64_t> receive_counts) {
  TRIREME_CHECK(!group->broken_, "an earlier operation of this group was abandoned (", group->place_, ")");
  const int64_t parts = call.verb == Verb::kReduceScatter ? std::ssize(group->host_ranks_) : 1;
  const int64_t step = (group->slot_bytes_ - group->counts_bytes(call)) / size_of(call.dtype) / parts;
  auto operation = std::make_unique<Operation>(group, ++group->issued_, in, out);
  Flight flight{call, static_cast<const std::byte*>(in.raw()), static_cast<std::byte*>(out.raw()), call.count, step, fnv1a(call.str()), 1};
  if (call.verb == Verb::kAllToAll) group->set_equal_parts(flight);
  if (call.verb == Verb::kAllToAllV) {
    flight.counted = false;
    flight.length = in.numel();
    flight.send_counts.assign(send_counts.begin(), send_counts.end());
    flight.receive_counts.assign(receive_counts.begin(), receive_counts.end());
  } else {
    flight.pieces = pieces_of(flight.length, step);
  }
  group->flights_.push_back(std::move(flight));
  if (group->flights_.size() == 1) group->driver_->add(*group);
  group->driver_->advance();
  return Work(std::move(operation));
}

SharedGroup::Counters& SharedGroup::counters(size_t rank) const { return reinterpret_cast<Counters*>(memory_->data())[rank]; }

std::byte* SharedGroup::slot(size_t rank, uint64_t piece) const {
  const size_t ranks = host_ranks_.size();
  return memory_->data() + ranks * sizeof(Counters) + ((piece % kSlots) * ranks + rank) * static_cast<size_t>(slot_bytes_);
}

SharedGroup::Flight* SharedGroup::flight_of(uint64_t piece) {
  uint64_t first = front_;
  for (Flight& flight : flights_) {
    flight.first = first;
    first += flight.pieces;
    if (piece < first) return &flight;
    if (!flight.counted) return nullptr;  // the number of pieces is not known yet, so the piece may belong to this operation
  }
  return nullptr;
}

SharedGroup::Piece SharedGroup::piece_of(const Flight& flight, uint64_t number) {
  const int64_t begin = static_cast<int64_t>(number - flight.first) * flight.step;
  const int64_t size = std::clamp<int64_t>(flight.length - begin, 0, flight.step);
  return {flight, flight.call, number, flight.step, begin, size, flight.in, flight.out};
}

void SharedGroup::copy_in(const Piece& piece) {
  const int64_t item = size_of(piece.call.dtype), n = std::ssize(host_ranks_), me = static_cast<int64_t>(rank_);
  const std::byte* from = piece.in + piece.begin * item;
  std::byte* const to = slot(rank_, piece.number);
  switch (piece.call.verb) {
    case Verb::kAllReduce: {
      const int64_t before = share_begin(piece.size, me, n) * item, after = share_begin(piece.size, me + 1, n) * item;
      copy_chunk(to, from, before);
      return copy_chunk(to + after, from + after, piece.size * item - after);
    }
    case Verb::kReduceScatter:
      for (int64_t part = 0; part < n; ++part)
        if (part != me) copy_chunk(to + part * piece.step * item, from + part * piece.call.count * item, piece.size * item);
      return;
    case Verb::kAllToAll:
    case Verb::kAllToAllV: return copy_parts_in(piece);
    default: return copy_chunk(to, from, piece.size * item);
  }
}

void SharedGroup::reduce(const Piece& piece) {
  const int64_t item = size_of(piece.call.dtype), n = std::ssize(host_ranks_), me = static_cast<int64_t>(rank_);
  const bool everywhere = piece.call.verb == Verb::kAllReduce;
  const int64_t begin = everywhere ? share_begin(piece.size, me, n) : 0;
  const int64_t size = (everywhere ? share_begin(piece.size, me + 1, n) : piece.size) - begin;
  const int64_t in_slot = (everywhere ? begin : me * piece.step) * item;
  const int64_t in_own = (everywhere ? piece.begin + begin : me * piece.call.count + piece.begin) * item;
  std::vector<const std::byte*> parts;
  for (size_t rank = 0; rank < host_ranks_.size(); ++rank) parts.push_back(rank == rank_ ? piece.in + in_own : slot(rank, piece.number) + in_slot);
  std::byte* const to = piece.out + (piece.begin + begin) * item;
  reduce_in_order(piece.call.dtype, piece.call.op, parts, to, size);
  if (everywhere) copy_chunk(slot(rank_, piece.number) + in_slot, to, size * item);
}

void SharedGroup::copy_out(const Piece& piece) {
  if (piece.call.verb == Verb::kAllToAll || piece.call.verb == Verb::kAllToAllV) return copy_parts_out(piece);
  const int64_t item = size_of(piece.call.dtype), n = std::ssize(host_ranks_), me = static_cast<int64_t>(rank_);
  std::byte* const to = piece.out + piece.begin * item;
  for (int64_t rank = 0; rank < n; ++rank) {
    const std::byte* const from = slot(static_cast<size_t>(rank), piece.number);
    switch (piece.call.verb) {
      case Verb::kAllReduce: {
        const int64_t begin = share_begin(piece.size, rank, n), end = share_begin(piece.size, rank + 1, n);
        if (rank != me) copy_chunk(to + begin * item, from + begin * item, (end - begin) * item);
        break;
      }
      case Verb::kAllGather: {
        std::byte* const part = to + rank * piece.call.count * item;
        const std::byte* const own = piece.in + piece.begin * item;
        if (rank != me) copy_chunk(part, from, piece.size * item);
        if (rank == me && part != own) copy_chunk(part, own, piece.size * item);
        break;
      }
      default: break;
    }
  }
}

bool SharedGroup::all_reached(uint64_t Counters::*stage, uint64_t value) const {
  for (size_t rank = 0; rank < host_ranks_.size(); ++rank)
    if (load(counters(rank).*stage) < value) return false;
  return true;
}

/// The last rank to complete a stage wakes the others; an earlier wake-up would be useless.
void SharedGroup::publish(uint64_t Counters::*stage, uint64_t value) {
  std::atomic_ref(counters(rank_).*stage).store(value, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // if two ranks complete it at the same time, at least one sees both
  if (!all_reached(stage, value)) return;
  for (size_t rank = 0; rank < host_ranks_.size(); ++rank)
    if (rank != rank_) driver_->ring(host_ranks_[rank]);
}

/// Called once all ranks are `in`, so that their tags are written.
void SharedGroup::check_calls(const Flight& flight, uint64_t piece) const {
  for (size_t rank = 0; rank < host_ranks_.size(); ++rank)
    TRIREME_CHECK(load(counters(rank).tags[piece % kSlots]) == flight.tag, "ranks disagree (", place_, "): this rank called ", flight.call.str(),
                  ", rank ", rank, " made a different call");
}

bool SharedGroup::try_in() {
  const Flight* flight = flight_of(in_);
  if (flight == nullptr || (in_ >= kSlots && !all_reached(&Counters::done, in_ + 1 - kSlots))) return false;
  copy_in(piece_of(*flight, in_));
  std::atomic_ref(counters(rank_).tags[in_ % kSlots]).store(flight->tag, std::memory_order_relaxed);
  publish(&Counters::in, ++in_);
  return true;
}

bool SharedGroup::try_reduce() {
  const Flight* flight = flight_of(reduced_);
  if (flight == nullptr || reduced_ >= in_) return false;
  if (reduces(flight->call)) {
    if (!all_reached(&Counters::in, reduced_ + 1)) return false;
    check_calls(*flight, reduced_);
    reduce(piece_of(*flight, reduced_));
  }
  ++reduced_;
  if (flight->call.verb == Verb::kAllReduce) publish(&Counters::reduced, reduced_);  // other verbs do not use this counter
  return true;
}

bool SharedGroup::try_done() {
  Flight* const flight = flight_of(done_);
  if (flight == nullptr || done_ >= reduced_) return false;
  if (!all_reached(flight->call.verb == Verb::kAllReduce ? &Counters::reduced : &Counters::in, done_ + 1)) return false;
  if (!reduces(flight->call)) check_calls(*flight, done_);
  if (!flight->counted) read_counts(*flight, done_);
  copy_out(piece_of(*flight, done_));
  publish(&Counters::done, ++done_);
  if (done_ < flight->first + flight->pieces) return true;
  front_ = done_;
  ++finished_;
  flights_.pop_front();
  return true;
}

bool SharedGroup::advance() {
  if (broken_) return false;
  bool moved = false;
  while (try_done() || try_reduce() || try_in()) moved = true;
  return moved;
}

/// Called when an exception drops an operation: its buffers are gone, and no later operation of this group can complete.
void SharedGroup::give_up() {
  broken_ = true;
  flights_.clear();
  driver_->remove(*this);
}

}  // namespace trireme
