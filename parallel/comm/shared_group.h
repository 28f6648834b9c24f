#pragma once
// Collectives between processes of one host through memory they share.
//
// An operation is cut into pieces that fit a slot. A piece goes through three stages on every rank, each over when the rank's counter of that stage says so:
//   in       the rank copies what others need into its slot, once all ranks are done with the piece that was there before;
//   reduced  once all are in: the rank reduces its own share of the piece, in rank order, reading its own part where it lies (transfer.h says how sums
//            are carried);
//   done     once all have reduced: the rank copies the shares of the others out.
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

  /// An all_reduce, all_gather or reduce_scatter with its arguments as communicator.h has them; not empty.
  /// Errors, from a wait: InternalError if ranks called different things.
  static Work start(const std::shared_ptr<SharedGroup>& group, const Call& call, const Tensor& in, const Tensor& out);

  /// As far as it goes now; false: no further than before.
  bool advance();
  bool busy() const { return !flights_.empty(); }  ///< operations in flight

 private:
  class Operation;
  /// A piece of an operation, where it lies.
  struct Piece {
    const Call& call;
    uint64_t number;      ///< among all pieces of the group
    int64_t step;         ///< elements between the parts in a slot
    int64_t begin, size;  ///< elements, of the buffer or of each part
    const std::byte* in;
    std::byte* out;
  };
  struct Flight {
    Call call;
    const std::byte* in;
    std::byte* out;
    uint64_t first;  ///< number of its first piece
    uint64_t end;
    int64_t step;  ///< elements in a piece
    uint64_t tag;  ///< of what was called
  };
  struct Counters;
  static constexpr uint64_t kSlots = 2;

  Counters& counters(size_t rank) const;
  std::byte* slot(size_t rank, uint64_t piece) const;
  Flight* flight_of(uint64_t piece);
  static Piece piece_of(const Flight& flight, uint64_t number);
  void copy_in(const Piece& piece);
  void reduce(const Piece& piece);
  void copy_out(const Piece& piece);
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
  uint64_t in_ = 0, reduced_ = 0, done_ = 0, issued_ = 0;
  bool broken_ = false;  ///< an operation was dropped
  std::deque<Flight> flights_;
};

}  // namespace trireme
