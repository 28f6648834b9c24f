#include "parallel/comm/nccl_library.h"

#include "kernels/cuda/loader.h"

namespace trireme {
namespace {

Nccl load() {
  const cuda::SharedLibrary library("NCCL", {"libnccl.so.2"});
  Nccl table{};
  library.load(table.get_version, "ncclGetVersion");
  library.load(table.error_string, "ncclGetErrorString");
  library.load(table.last_error, "ncclGetLastError");
  library.load(table.get_unique_id, "ncclGetUniqueId");
  library.load(table.comm_init, "ncclCommInitRankConfig");
  library.load(table.comm_async_error, "ncclCommGetAsyncError");
  library.load(table.comm_finalize, "ncclCommFinalize");
  library.load(table.comm_destroy, "ncclCommDestroy");
  library.load(table.comm_abort, "ncclCommAbort");
  library.load(table.group_start, "ncclGroupStart");
  library.load(table.group_end, "ncclGroupEnd");
  library.load(table.all_reduce, "ncclAllReduce");
  library.load(table.all_gather, "ncclAllGather");
  library.load(table.reduce_scatter, "ncclReduceScatter");
  library.load(table.broadcast, "ncclBroadcast");
  library.load(table.send, "ncclSend");
  library.load(table.recv, "ncclRecv");
  return table;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl table = load();
  return table;
}

}  // namespace trireme
