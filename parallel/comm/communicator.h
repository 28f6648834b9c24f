#pragma once
// One of the four virtual interfaces: a group of ranks that exchange tensors. In a group of one rank every verb is at most a local copy, so callers
// need no special case.
//
// Every verb (collective or exchange) starts an operation and returns it as Work; its buffers belong to the operation until Work::wait. All ranks of
// a group call the same verbs in the same order. The order of summation is fixed for a group, so a rerun gives the same bits.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace trireme {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };
const char* name_of(ReduceOp op);

/// An operation in flight. Move-only. It must be waited for: debug builds abort if an unwaited one is destroyed.
class Work {
 public:
  /// What an implementation provides. `wait` is called exactly once.
  struct Operation {
    virtual ~Operation() = default;
    virtual void wait(Context& ctx) = 0;
    /// As Work::ready. The default is an InternalError: only transports that a StepwiseCommunicator may run on need it.
    virtual bool ready();
  };

  Work() = default;  ///< nothing in flight: wait returns immediately
  explicit Work(std::unique_ptr<Operation> operation);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  bool pending() const { return operation_ != nullptr; }
  Operation* operation() const { return operation_.get(); }  ///< for the implementation that made it
  /// True if wait() would not wait for another rank. Progresses the operation and never blocks; an error is left to wait().
  bool ready() { return operation_ == nullptr || operation_->ready(); }
  /// Afterwards, whatever `ctx` computes next may read the results and reuse the buffers.
  void wait(Context& ctx);

 private:
  std::unique_ptr<Operation> operation_;
};

struct PointToPoint {
  enum class Kind : uint8_t { kSend, kRecv } kind;
  Tensor buffer;
  int peer;         ///< rank in the group
  int channel = 0;  ///< below kChannels; each channel has an order of its own. NCCL has only channel 0
};
inline constexpr int kChannels = 1024;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  ///< "tensor", "shard", ...: for messages, records and hashes

  /// Reduces `buffer` in place over all ranks.                      Wire: 2(n-1)/n * bytes per rank (ring).
  [[nodiscard]] virtual Work all_reduce(Context& ctx, const Tensor& buffer, ReduceOp op) = 0;
  /// out = inputs in rank order; out has n times the elements of in. in may be this rank's own part of out.   Wire: (n-1)/n * bytes of out.
  [[nodiscard]] virtual Work all_gather(Context& ctx, const Tensor& in, const Tensor& out) = 0;
  /// out = this rank's part of the reduction of in over ranks; in has n times the elements of out. out may be this rank's own part of in,
  /// whose other parts are then unspecified.                        Wire: (n-1)/n * bytes of in.
  [[nodiscard]] virtual Work reduce_scatter(Context& ctx, const Tensor& in, const Tensor& out, ReduceOp op) = 0;
  /// Each rank sends an equal part to each rank: part r of in goes to rank r, part s of out comes from rank s. in and out have the same number of
  /// elements, a multiple of n, and do not overlap.                 Wire: (n-1)/n * bytes of in.
  [[nodiscard]] virtual Work all_to_all(Context& ctx, const Tensor& in, const Tensor& out) = 0;
  /// all_to_all with parts of different lengths. send_counts[r] elements of in go to rank r, receive_counts[s] elements of out come from rank s; one
  /// count for each rank of the group, in elements. in and out are 1-D, hold exactly these parts, contiguous in rank order, and do not overlap. A
  /// count may be 0; a rank that sends and receives nothing must still call. The counts are copied before the call returns. send_counts[r] of rank s
  /// must equal receive_counts[s] of rank r. If they differ, ranks that are threads or share memory on one host throw an InternalError that names
  /// both ranks and both counts, as does the receiver of an MPI message. NCCL does not detect it.
  ///                                                                Wire: bytes of in without this rank's own part.
  [[nodiscard]] virtual Work all_to_all_v(Context& ctx, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                                          std::span<const int64_t> receive_counts) = 0;
  /// Copies `buffer` from `root` to all ranks.                      Wire: bytes.
  [[nodiscard]] virtual Work broadcast(Context& ctx, const Tensor& buffer, int root) = 0;
  /// Sends and receives that progress together. Between two ranks, messages of a channel match in order of issue.   Wire: bytes sent.
  [[nodiscard]] virtual Work exchange(Context& ctx, std::span<const PointToPoint> messages) = 0;
  virtual void barrier() = 0;
  /// Throws an asynchronous error since the last call that no verb has reported (for example a link that failed while a GPU waits), in any group of
  /// this world. For a host that waits for its device.
  virtual void raise_errors() {}
  /// Progresses the operations in flight in this world that need this thread: MPI moves large messages only inside its calls. Never blocks.
  virtual void advance() {}
  /// Returns once at least one of `works`, operations in flight of this world, is ready(). The default asks them in turn, and lets other threads
  /// run in between.
  virtual void wait_any(std::span<Work* const> works);

  /// Reserves memory of the arena of `ctx`. A transport between GPUs may take it from an allocator of its own.
  virtual void reserve_memory(Context& ctx, int64_t bytes) { ctx.arena->reserve(bytes); }
  /// Registers the memory of reserve_memory() with the transport, for this world and all groups made so far. From then on the buffers of their verbs
  /// must lie in it. Returns why it is not registered, the same on all ranks; "" if it is, or if the transport has no use for it. Collective; call it
  /// once, while nothing is in flight.
  virtual std::string register_memory() { return ""; }

  /// Makes a communicator over `ranks` (ranks of this one, in that order). Exactly those ranks must call it; all must make groups in the same order.
  virtual std::unique_ptr<Communicator> group(const std::vector<int>& ranks, const std::string& name) = 0;
  /// Like group(), for tensors in host memory only (host helpers below): takes no memory of a GPU. There, a tensor in GPU memory is an InternalError.
  virtual std::unique_ptr<Communicator> host_group(const std::vector<int>& ranks, const std::string& name) { return group(ranks, name); }

 protected:
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

 private:
  int rank_;
  int size_;
  std::string name_;
};

/// Host helpers built on the verbs above, for set-up and metrics, not for the hot path of a step. They allocate host memory on any device.
std::vector<std::string> all_gather_strings(Communicator& comm, const std::string& mine);
double all_reduce_scalar(Communicator& comm, double value, ReduceOp op);
std::vector<double> all_reduce_scalars(Communicator& comm, const std::vector<double>& values, ReduceOp op);
/// Integer sum: exact unless it overflows.
int64_t all_reduce_count(Communicator& comm, int64_t count);
/// Sums several counts in one all-reduce, each as all_reduce_count does.
std::vector<int64_t> all_reduce_counts(Communicator& comm, const std::vector<int64_t>& counts);

}  // namespace trireme
