#pragma once
// Collectives between processes of one host through shared memory.
//
// An operation is split into pieces that fit a slot. A piece goes through three stages on every rank; the rank's counter of a stage says which pieces
// have completed it:
//   in       the rank copies what others need into its slot, once all ranks are done with the slot's previous piece;
//   reduced  once all are in: the rank reduces its own share of the piece, in rank order, reading its own part in place (sums: transfer.h);
//   done     once all have reduced: the rank copies the shares of the others out.
// In an all_to_all a rank splits its whole input, with the parts in rank order, into pieces; each other rank copies its own part out of them. The
// first piece of an all_to_all_v begins with the rank's counts, from which every rank computes the number of pieces; until then the pieces of later
// operations have no numbers.
//
// Counters run over all pieces of all operations of a group. So operations of a group follow each other without a barrier between them, and a rank
// that is done may continue: what others still read from it is in shared memory. No process accesses another one's private memory.
//
// Starting an operation never waits: it progresses as far as its slots are free. Afterwards it progresses whenever its rank waits for anything,
// including an MPI message, because every wait progresses all operations in flight. So ranks may wait for several operations in different orders
// without blocking each other, as long as all of them issue in one order: the first unfinished operation in that order has been issued, or will be,
// by each of its ranks, and every rank that waits progresses it. A rank that computes delays the others until its next wait, as with large MPI
// messages.
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/shared_driver.h"
#include "parallel/comm/shared_memory.h"
#include "parallel/comm/transfer.h"

namespace trireme {

/// One rank's endpoint of a group.
class SharedGroup {
 public:
  static int64_t bytes(int ranks, int64_t slot_bytes);
  /// `memory` is shared by the group; `host_ranks` are its ranks, numbered as in `driver`. `place` is for messages: "group 'tensor', rank 1 of 2".
  SharedGroup(std::shared_ptr<SharedDriver> driver, std::unique_ptr<SharedMemory> memory, int rank, std::vector<int> host_ranks, int64_t slot_bytes,
              std::string place);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  /// Starts a non-empty all_reduce, all_gather, reduce_scatter or all_to_all, or an all_to_all_v, with the arguments of communicator.h. Only an
  /// all_to_all_v has counts and may be empty.
  /// Errors, from a wait, on every rank: InternalError if the ranks' calls differ, or if counts differ between sender and receiver.
  static Work start(const std::shared_ptr<SharedGroup>& group, const Call& call, const Tensor& in, const Tensor& out,
                    std::span<const int64_t> send_counts = {}, std::span<const int64_t> receive_counts = {});

  /// Progresses the operations as far as possible without waiting; false if none moved.
  bool advance();
  bool busy() const { return !flights_.empty(); }  ///< true if operations are in flight

 private:
  class Operation;
  struct Part {
    int64_t begin = 0, count = 0;  ///< elements
  };
  struct Flight {
    Call call;
    const std::byte* in;
    std::byte* out;
    int64_t length;       ///< elements that are split into pieces: of the buffer, or of each part; for an all_to_all of the whole `in`
    int64_t step;         ///< elements per piece
    uint64_t tag;         ///< hash of the call
    uint64_t pieces;      ///< number of pieces if `counted`, else a lower bound
    bool counted = true;  ///< false for an all_to_all_v until the counts of all ranks are known
    uint64_t first = 0;   ///< number of its first piece, set by flight_of
    std::vector<int64_t> send_counts{}, receive_counts{};  ///< all_to_all_v only
    std::vector<Part> from{};                              ///< all_to_all(_v) only, by source rank: the part of its `in` for this rank
    std::vector<Part> to{};                                ///< all_to_all(_v) only, by source rank: the place of that part in `out`
  };
  /// A piece of an operation and its location.
  struct Piece {
    const Flight& flight;
    const Call& call;
    uint64_t number;      ///< among all pieces of the group
    int64_t step;         ///< elements between the parts in a slot
    int64_t begin, size;  ///< elements, within Flight::length
    const std::byte* in;
    std::byte* out;
  };
  static constexpr uint64_t kSlots = 2;
  struct Counters;

  Counters& counters(size_t rank) const;
  std::byte* slot(size_t rank, uint64_t piece) const;
  Flight* flight_of(uint64_t piece);
  static Piece piece_of(const Flight& flight, uint64_t number);
  void copy_in(const Piece& piece);
  void reduce(const Piece& piece);
  void copy_out(const Piece& piece);
  void copy_parts_in(const Piece& piece);
  void copy_parts_out(const Piece& piece);
  int64_t counts_bytes(const Call& call) const;
  void set_equal_parts(Flight& flight) const;
  void read_counts(Flight& flight, uint64_t piece);
  Part own_part_of(const Flight& flight) const;
  bool try_in();
  bool try_reduce();
  bool try_done();
  bool all_reached(uint64_t Counters::*stage, uint64_t value) const;
  void publish(uint64_t Counters::*stage, uint64_t value);
  void check_calls(const Flight& flight, uint64_t piece) const;
  void give_up();

  std::shared_ptr<SharedDriver> driver_;
  std::unique_ptr<SharedMemory> memory_;
  size_t rank_;
  std::vector<int> host_ranks_;
  int64_t slot_bytes_;
  std::string place_;
  uint64_t in_ = 0, reduced_ = 0, done_ = 0;  ///< pieces that have completed each stage
  uint64_t front_ = 0;                        ///< number of the first piece of the first flight
  uint64_t issued_ = 0, finished_ = 0;        ///< operations
  bool broken_ = false;                       ///< an operation was dropped
  std::deque<Flight> flights_;
};

}  // namespace trireme
