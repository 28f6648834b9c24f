#pragma once
// Table of NCCL's functions with the signatures of nccl.h, loaded from libnccl on first use. The tests' simulated machine links its own
// nccl_library.cpp.
#include <nccl.h>

namespace trireme {

constexpr int kOldestNccl = 22600;  ///< 2.26, the first with NCCL_LAUNCH_ORDER_IMPLICIT

struct Nccl {
  decltype(&::ncclGetVersion) get_version;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRankConfig) comm_init;
  decltype(&::ncclCommGetAsyncError) comm_async_error;
  decltype(&::ncclCommFinalize) comm_finalize;
  decltype(&::ncclCommDestroy) comm_destroy;
  decltype(&::ncclCommAbort) comm_abort;
  decltype(&::ncclMemAlloc) mem_alloc;
  decltype(&::ncclMemFree) mem_free;
  decltype(&::ncclCommRegister) comm_register;
  decltype(&::ncclCommDeregister) comm_deregister;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
};

/// Errors: ConfigError naming the library and why it could not be loaded.
const Nccl& nccl();

}  // namespace trireme
