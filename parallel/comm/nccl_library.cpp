#include "parallel/comm/nccl_library.h"

#include "kernels/core/check.h"
#include "kernels/cuda/loader.h"

namespace trireme {
namespace {

/// `version`: as ncclGetVersion gives it, 10000 major + 100 minor + patch since 2.9, before it 1000 major + 100 minor + patch.
std::string version_text(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000, rest = version < 10000 ? version % 1000 : version % 10000;
  return concat(major, ".", rest / 100);
}

std::string refusal_of(const cuda::SharedLibrary& library) {
  decltype(&::ncclGetVersion) get_version = nullptr;
  library.load(get_version, "ncclGetVersion");
  int version = 0;
  get_version(&version);
  return version >= kOldestNccl ? "" : concat("version ", version_text(version), " is too old; at least ", version_text(kOldestNccl), " is needed");
}

Nccl load() {
  const cuda::SharedLibrary library("NCCL", {"libnccl.so.2"}, refusal_of);
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
  library.load(table.mem_alloc, "ncclMemAlloc");
  library.load(table.mem_free, "ncclMemFree");
  library.load(table.comm_register, "ncclCommRegister");
  library.load(table.comm_deregister, "ncclCommDeregister");
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
