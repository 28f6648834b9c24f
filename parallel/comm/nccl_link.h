#pragma once
// The NCCL communicators of one rank, for nccl.cpp.
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/gpu.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl.h"
#include "parallel/comm/nccl_library.h"

namespace trireme {

class NcclLink;

/// What the links of a rank share. After an error none of them is used any more, because its GPU may wait in any of them for a rank that has given up.
///
/// Nothing is aborted before the last group and operation are destroyed: ncclCommAbort blocks until the communicator's stream is idle, and the rank must
/// be able to report its error first. The destructor aborts all communicators in one NCCL group, which raises all abort flags before it waits: the stream
/// of one communicator may wait for an operation of another. By then the CUDA graphs that contain operations are gone, for which an abort waits, too.
class NcclLinks {
 public:
  NcclLinks(cuda::Gpu& of_gpu, const NcclOptions& with_options) : gpu(of_gpu), options(with_options) {}
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  bool given_up() const { return given_up_; }
  void give_up() { given_up_ = true; }
  /// Keeps the buffers of an abandoned operation until the abort, because NCCL may still use them. Queues nothing: a full stream would block.
  void keep(std::vector<Tensor> buffers);
  /// Throws the first asynchronous error of any link, after give_up(). Errors: InternalError.
  void raise_errors();

  /// Memory of ncclMemAlloc for one reserve of an arena, deregistered from all links before it is freed. Null, with the reason for register_memory(),
  /// if NCCL has none.
  static std::shared_ptr<void> allocate(const std::shared_ptr<NcclLinks>& links, int64_t bytes);
  /// Registers that memory with all links, or with none if a rank of the world cannot: NCCL requires that the ranks of a communicator agree. Collective
  /// over `world`; returns the reason of the first rank that cannot.
  std::string register_memory(Communicator& world);

  cuda::Gpu& gpu;
  const NcclOptions options;

 private:
  friend class NcclLink;
  void deregister_memory();
  void forget_memory();

  std::vector<std::weak_ptr<NcclLink>> made_;
  std::vector<ncclComm_t> abandoned_;  ///< to be aborted
  std::vector<Tensor> buffers_;        ///< of abandoned operations
  void* memory_ = nullptr;             ///< allocate() made it; null without
  int64_t bytes_ = 0;
  std::string refusal_;  ///< why allocate() has failed
  bool given_up_ = false;
};

/// One NCCL communicator with its stream. Groups with the same ranks in the same order share it. Other groups do not come from ncclCommSplit: a child
/// that shares its parent's resources, which is what would save memory, runs its operations one after another with its parent's, so that a tensor-parallel
/// sum would wait for a reduction of gradients.
class NcclLink {
 public:
  /// The link of `members`, the world ranks of `host` in their order: that of an existing group, or a new one. Collective over `host`, whose ranks must
  /// make and destroy their groups in the same order. Errors: InternalError from NCCL, or if only a part of the ranks still has the existing group.
  static std::shared_ptr<NcclLink> join(const std::shared_ptr<NcclLinks>& links, Communicator& host, std::vector<int> members);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  NcclLinks& all() const { return *links_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  /// Throws InternalError unless the call succeeded.
  void check(ncclResult_t result, const char* call) const;
  /// The asynchronous error of the communicator, on this rank or another; "" if none.
  std::string async_error() const;
  const std::string& place() const { return place_; }
  /// Throws InternalError if other buffers of this link are registered and this one is not.
  void check_registered(const Tensor& buffer) const;

 private:
  friend class NcclLinks;
  NcclLink(std::shared_ptr<NcclLinks> links, Communicator& host, std::vector<int> members, const ncclUniqueId& id);
  void deregister_memory();

  std::shared_ptr<NcclLinks> links_;
  std::string place_;  ///< of the group that made it
  std::vector<int> members_;
  ncclUniqueId id_;
  cuda::Stream stream_;
  ncclComm_t comm_ = nullptr;
  void* registration_ = nullptr;  ///< of NcclLinks::memory_
};

}  // namespace trireme
