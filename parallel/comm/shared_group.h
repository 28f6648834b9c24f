#pragma once
// Collectives between processes of one host through memory they share.
//
// An operation is cut into pieces that fit a slot. A piece goes through three stages on every rank, each over when the rank's counter of that stage says so:
//   in       the rank copies what others need into its slot, once all ranks are done with the piece that was there before;
//   reduced  once all are in: the rank reduces its own share of the piece, in rank order, reading its own part where it lies (transfer.h says how sums
//            are carried);
//   done     once all have reduced: the rank copies the shares of the others out.
// In an all_to_all a rank cuts its whole input, one part behind the other, into pieces; each other rank copies its own part out of them. The first piece of
// an all_to_all_v begins with the rank's counts, from which every rank learns how many pieces there are; until then the pieces of later operations have no
// numbers.
//
// Counters run over all pieces of all operations of a group, so operations of a group follow each other without a barrier between them, and a rank that
// is done may leave: what others still read of it lies in shared memory. Nobody reads or writes another process's own memory.
//
// Nobody waits while an operation is started: it begins as far as its slots are free. Afterwards it moves whenever its rank waits for anything, a message of
// MPI too, as every wait drives all operations in flight; so ranks that wait for several operations in different orders do not block each other as
// long as all of them issue in one order: of the operations that are not over, the first in that order has been issued by all its ranks or by one that will,
// and every rank that waits moves it. A rank that computes instead holds the others up until its next wait, as with large messages of MPI.
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

/// One rank's end of a group.
class SharedGroup {
 public:
  static int64_t bytes(int ranks, int64_t slot_bytes);
  /// `memory` is of the group, `host_ranks` are its ranks among those of the driver. `place` is for messages: "group 'tensor', rank 1 of 2".
  SharedGroup(std::shared_ptr<SharedDriver> driver, std::unique_ptr<SharedMemory> memory, int rank, std::vector<int> host_ranks, int64_t slot_bytes,
              std::string place);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  /// An all_reduce, all_gather, reduce_scatter or all_to_all with its arguments as communicator.h has them, not empty, or an all_to_all_v, which alone has
  /// counts and may be empty.
  /// Errors, from a wait, on every rank: InternalError if ranks called different things, or if counts differ between sender and receiver.
  static Work start(const std::shared_ptr<SharedGroup>& group, const Call& call, const Tensor& in, const Tensor& out,
                    std::span<const int64_t> send_counts = {}, std::span<const int64_t> receive_counts = {});

  /// As far as it goes now; false: no further than before.
  bool advance();
  bool busy() const { return !flights_.empty(); }  ///< operations in flight

 private:
  class Operation;
  struct Part {
    int64_t begin = 0, count = 0;  ///< elements
  };
  struct Flight {
    Call call;
    const std::byte* in;
    std::byte* out;
    int64_t length;       ///< elements of what is cut into pieces: the buffer, or each part; of an all_to_all all of `in`
    int64_t step;         ///< elements in a piece
    uint64_t tag;         ///< of what was called
    uint64_t pieces;      ///< at least; how many there are if `counted`
    bool counted = true;  ///< false for an all_to_all_v until the counts of all ranks are known
    uint64_t first = 0;   ///< number of its first piece, once flight_of has come by
    std::vector<int64_t> send_counts{}, receive_counts{};  ///< of an all_to_all_v
    std::vector<Part> from{};                              ///< of an all_to_all, by rank: the part of its `in` that is for this rank
    std::vector<Part> to{};                                ///< and where that lies in `out`
  };
  /// A piece of an operation, where it lies.
  struct Piece {
    const Flight& flight;
    const Call& call;
    uint64_t number;      ///< among all pieces of the group
    int64_t step;         ///< elements between the parts in a slot
    int64_t begin, size;  ///< elements, of what is cut into pieces
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
  uint64_t in_ = 0, reduced_ = 0, done_ = 0;  ///< pieces
  uint64_t front_ = 0;                        ///< number of the first piece of the first flight
  uint64_t issued_ = 0, finished_ = 0;        ///< operations
  bool broken_ = false;                       ///< an operation was dropped
  std::deque<Flight> flights_;
};

}  // namespace trireme
