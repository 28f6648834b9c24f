#pragma once
// Ranks as processes, through MPI. Only mpi_types.h includes <mpi.h>.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

struct MpiOptions {
  /// Sends complete only with their receive, as in NCCL: a program that relies on MPI's buffering then deadlocks in its tests, not on a cluster.
  bool synchronous_sends = false;
  /// Maximum element count of one MPI call (MPI counts are int); larger operations are split into several calls or use a larger datatype.
  int64_t max_count = std::numeric_limits<int>::max();
  /// Bytes of the pieces into which `exchange` cuts a message to another host. Over TCP, Open MPI sends a piece without waiting for the receiver (see
  /// MpiEnvironment), from a copy of it. A longer message waits for an acknowledgement, which on a slow link waits in turn behind all that the receiver
  /// sends: the two directions of the link then take turns instead of being used at the same time.
  static constexpr int64_t kPieceBytes = 256 * 1024 - 256;
  static constexpr int64_t kNeverShared = std::numeric_limits<int64_t>::max();
  /// Bytes of the whole buffer from which all_reduce, all_gather, reduce_scatter and all_to_all of a group whose ranks are all on one host go through
  /// shared memory (shared_group.h). Results there have the same bits on every rank and in every run; sums are taken in rank order and, in bf16 and
  /// fp16, rounded once, whereas MPI rounds at every rank. all_to_all_v always uses shared memory, unless this is kNeverShared, because ranks do not
  /// know each other's byte counts.
  int64_t shared_from = 16 * 1024;
  /// Bytes of shared memory per group.
  int64_t shared_bytes = 8 << 20;
};

/// Initialises MPI and finalises it on destruction. Sets Open MPI's limits of a TCP message that needs no acknowledgement to 256 KiB, unless one of
/// OMPI_MCA_btl_tcp_eager_limit, _rndv_eager_limit and _max_send_size is set, and takes short time slices (time_slices.h). For the main thread only
/// (MPI_THREAD_FUNNELED); one per process, outliving its communicators.
/// If an exception destroys it, it aborts the job, because the other ranks would wait for this one indefinitely.
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
  /// World ranks of this host, in order, as the local daemon of the launcher knows them.
  const std::vector<int>& host_ranks() const { return host_ranks_; }
  /// Ends every rank of the job.
  [[noreturn]] void abort(int code) const;

  /// A communicator over all ranks, on a duplicate of MPI_COMM_WORLD; collective. Verbs are nonblocking: the call posts, Work::wait completes. Groups
  /// inherit the options; groups of one rank are SelfCommunicators. MPI errors are InternalErrors that name call, group and rank.
  std::unique_ptr<Communicator> world(const MpiOptions& options = {}) const;

 private:
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  int host_ = 0;  ///< lowest rank on this host
  std::vector<int> host_ranks_;
};

/// Errors: ConfigError in a build without MPI, where MpiEnvironment does not exist either.
void require_mpi();

/// The components by which Open MPI moves messages, such as "btl tcp" and "pml ob1"; empty for other MPI libraries. For the main thread, while an
/// MpiEnvironment exists.
std::vector<std::string> mpi_transports();

/// Name and version of the MPI library, up to the first comma or line end; needs no MpiEnvironment. "no MPI: ..." in a build without it.
std::string mpi_library_version();

}  // namespace trireme
