#pragma once
// Ranks as processes, through MPI. mpi.h itself stays in mpi_types.h.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace trireme {

struct MpiOptions {
  /// Sends end only with their receive, as in NCCL: a program that counts on MPI's buffering deadlocks where it is tested, not on a cluster.
  bool synchronous_sends = false;
  /// Elements one MPI call may count (its counts are int); larger operations are cut into several calls or counted in larger units.
  int64_t max_count = std::numeric_limits<int>::max();
  static constexpr int64_t kNeverShared = std::numeric_limits<int64_t>::max();
  /// Bytes of the whole buffer from which all_reduce, all_gather, reduce_scatter and all_to_all of a group whose ranks all live on one host go through
  /// memory that they share (shared_group.h): the same bits on every rank and in every run, sums taken in rank order and, in bf16 and fp16, rounded once,
  /// where MPI rounds at every rank. all_to_all_v always goes through it, unless this is kNeverShared, because ranks do not know the bytes of the others.
  int64_t shared_from = 16 * 1024;
  /// Of that memory for each group.
  int64_t shared_bytes = 8 << 20;
};

/// MPI from construction to destruction, for the main thread only (MPI_THREAD_FUNNELED); one per process, outliving its communicators.
/// Left by an exception it aborts the job, as the other ranks would wait for this one for ever.
class MpiEnvironment {
 public:
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  ///< among the ranks of this host
  int local_size() const { return local_size_; }  ///< ranks of this host
  /// Ends every rank of the job.
  [[noreturn]] void abort(int code) const;

  /// All ranks, over a communicator of its own; collective. Verbs are nonblocking: start posts, Work::wait completes. Groups of one rank are
  /// SelfCommunicators, groups inherit the options. Errors of MPI are InternalErrors that name call, group and rank.
  std::unique_ptr<Communicator> world(const MpiOptions& options = {}) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  int host_ = 0;  ///< first rank of this one's host
};

/// First line of what the MPI library calls itself; needs no MpiEnvironment.
std::string mpi_library_version();

}  // namespace trireme
