#pragma once
// The communicators of the simulated NCCL: creation, destruction and errors, with the names of the product's function table.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tests/cuda_sim/nccl_order.h"

struct ncclComm {
  std::shared_ptr<cuda_sim::nccl::CommunicatorState> clique;
  int rank = 0;
  std::set<cudaStream_t> streams;  ///< streams of its operations
  bool aborted = false;
  /// Registered memory by its handle, the address of the entry's key.
  std::map<int, std::pair<const std::byte*, size_t>> registrations;
};

namespace cuda_sim::nccl {

/// Stores the reason for this thread's last_error and returns `result`.
ncclResult_t refuse(ncclResult_t result, const std::string& why);
/// Requires mutex().
bool is_live(ncclComm_t comm);

ncclResult_t get_version(int* version);
const char* error_string(ncclResult_t result);
const char* last_error(ncclComm_t comm);
ncclResult_t get_unique_id(ncclUniqueId* id);
ncclResult_t comm_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t mem_alloc(void** memory, size_t bytes);
ncclResult_t mem_free(void* memory);
ncclResult_t comm_register(ncclComm_t comm, void* memory, size_t bytes, void** handle);
ncclResult_t comm_deregister(ncclComm_t comm, void* handle);
/// True if one of the communicator's registrations covers the bytes. Requires mutex().
bool is_registered(const ncclComm& comm, const void* memory, size_t bytes);
ncclResult_t comm_async_error(ncclComm_t comm, ncclResult_t* error);

/// Raises the abort flag of this rank: its operations end where they are. Never blocks.
ncclResult_t raise_abort_flag(ncclComm_t comm);
/// Blocks until all that is queued on the communicator's streams is over, which may include waits for other communicators.
ncclResult_t await_streams(ncclComm_t comm);
/// await_streams(), then frees the communicator.
ncclResult_t release(ncclComm_t comm);

}  // namespace cuda_sim::nccl
