#pragma once
// The communicators of the simulated NCCL: their making, ending and errors, by the names of the product's table.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <set>
#include <string>

#include "tests/cuda_sim/nccl_order.h"

struct ncclComm {
  std::shared_ptr<cuda_sim::nccl::Clique> clique;
  int rank = 0;
  std::set<cudaStream_t> streams;  ///< of its operations
};

namespace cuda_sim::nccl {

/// The result, once its reason is kept for last_error of this thread.
ncclResult_t refuse(ncclResult_t result, const std::string& why);
/// Under mutex().
bool is_live(ncclComm_t comm);

ncclResult_t get_version(int* version);
const char* error_string(ncclResult_t result);
const char* last_error(ncclComm_t comm);
ncclResult_t get_unique_id(ncclUniqueId* id);
ncclResult_t comm_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t comm_async_error(ncclComm_t comm, ncclResult_t* error);
ncclResult_t comm_finalize(ncclComm_t comm);
ncclResult_t comm_destroy(ncclComm_t comm);
ncclResult_t comm_abort(ncclComm_t comm);

}  // namespace cuda_sim::nccl
