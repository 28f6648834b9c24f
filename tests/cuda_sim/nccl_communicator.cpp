#include "tests/cuda_sim/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/core/check.h"
#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/nccl.h"

namespace cuda_sim {
namespace nccl {
namespace {

using trireme::concat;

constexpr std::chrono::seconds kInitTimeout{60};

/// Further state guarded by mutex(). Never destroyed, like all state of this library.
struct Registry {
  std::map<std::string, std::shared_ptr<CommunicatorState>> forming;  ///< by id
  std::condition_variable joined;
  std::set<ncclComm*> live;
  int64_t ids = 0;
  std::map<const std::byte*, size_t> allocations;  ///< of mem_alloc
  int handles = 0;
  Registration registration = Registration::kWorks;
  int registration_device = -1;
  bool mem_alloc_fails = false;
};
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

thread_local std::string t_error;  ///< error of the last failing call

/// Returns why these ranks cannot form a communicator; "" if they can.
std::string find_conflict(const CommunicatorState& clique) {
  for (size_t rank = 0; rank < clique.devices.size(); ++rank) {
    const bool one_gpu = cuda_sim::has_mig();  // NCCL compares PCI addresses
    const auto first = one_gpu ? clique.devices.begin() : std::find(clique.devices.begin(), clique.devices.end(), clique.devices[rank]);
    const auto other = static_cast<size_t>(first - clique.devices.begin());
    if (other != rank) return concat("Duplicate GPU detected : rank ", rank, " and rank ", other, " both on CUDA device ", clique.devices[rank]);
  }
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (order != nullptr && std::strcmp(order, "1") == 0) return "";
  for (const ncclComm* comm : registry().live)
    for (const int device : clique.devices)
      if (comm->clique->devices[static_cast<size_t>(comm->rank)] == device)
        return concat("device ", device, " has two communicators, whose operations are unordered without NCCL_LAUNCH_ORDER_IMPLICIT=1");
  return "";
}

}  // namespace

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
  t_error = why;
  return result;
}

bool is_live(ncclComm_t comm) { return registry().live.contains(comm); }

ncclResult_t get_version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* error_string(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* last_error(ncclComm_t comm) {
  const std::lock_guard lock(mutex());
  if (comm != nullptr && registry().live.contains(comm) && comm->clique->error != ncclSuccess) return comm->clique->reason.c_str();
  return t_error.c_str();
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::lock_guard lock(mutex());
  std::memset(id->internal, 0, sizeof(id->internal));
  const std::string text = concat("simulated ", ++registry().ids);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t comm_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return refuse(ncclInvalidArgument, concat("rank ", rank, " of ", ranks));
  if (config->size != sizeof(ncclConfig_t) || config->blocking == 0) return refuse(ncclInvalidArgument, "only blocking communicators are simulated");
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && (config->maxCTAs < 1 || config->maxCTAs > 64))
    return refuse(ncclInvalidArgument, concat("maxCTAs ", config->maxCTAs));
  const int device = current_device();
  std::unique_lock lock(mutex());
  std::shared_ptr<CommunicatorState>& slot = registry().forming[std::string(id.internal)];
  if (slot == nullptr) {
    slot = std::make_shared<CommunicatorState>();
    slot->name = config->commName == nullptr ? "" : config->commName;
    slot->max_blocks = config->maxCTAs;
    slot->devices.assign(static_cast<size_t>(ranks), -1);
    slot->left.resize(static_cast<size_t>(ranks));
    slot->calls.resize(static_cast<size_t>(ranks));
  }
  const std::shared_ptr<CommunicatorState> clique = slot;
  const auto self = static_cast<size_t>(rank);
  if (clique->devices.size() != static_cast<size_t>(ranks) || clique->devices[self] != -1)
    return refuse(ncclInvalidArgument,
                  concat("rank ", rank, " of ", ranks, " joins a communicator of ", clique->devices.size(), " ranks twice or with a different size"));
  if (clique->max_blocks != config->maxCTAs)
    return refuse(ncclInvalidArgument, concat("rank ", rank, " has maxCTAs ", config->maxCTAs, ", another rank ", clique->max_blocks));
  clique->devices[self] = device;
  const auto complete = [&] { return std::count(clique->devices.begin(), clique->devices.end(), -1) == 0; };
  if (complete()) {
    clique->reason = find_conflict(*clique);
    if (!clique->reason.empty()) clique->error = ncclInvalidUsage;
    registry().forming.erase(std::string(id.internal));
    registry().joined.notify_all();
  } else if (!registry().joined.wait_for(lock, kInitTimeout, complete)) {
    return refuse(ncclSystemError, concat("communicator '", clique->name, "': timeout waiting for the other ranks"));
  }
  if (clique->error != ncclSuccess) return refuse(clique->error, clique->reason);
  *comm = new ncclComm{clique, rank, {}, false, {}};
  registry().live.insert(*comm);
  return ncclSuccess;
}

ncclResult_t mem_alloc(void** memory, size_t bytes) {
  {
    const std::lock_guard lock(mutex());
    if (registry().mem_alloc_fails) return refuse(ncclUnhandledCudaError, "ncclMemAlloc fails as a test has asked for");
  }
  if (cudaMalloc(memory, bytes) != cudaSuccess) {
    cudaGetLastError();
    return refuse(ncclUnhandledCudaError, "out of memory");
  }
  const std::lock_guard lock(mutex());
  registry().allocations[static_cast<const std::byte*>(*memory)] = bytes;
  return ncclSuccess;
}

ncclResult_t mem_free(void* memory) {
  int device = -1;
  std::string trouble;
  {
    const std::lock_guard lock(mutex());
    const auto found = registry().allocations.find(static_cast<const std::byte*>(memory));
    if (found == registry().allocations.end()) return refuse(ncclInvalidUsage, "not memory of ncclMemAlloc");
    for (const ncclComm* comm : registry().live)
      if (is_registered(*comm, memory, 1)) {
        device = comm->clique->devices[static_cast<size_t>(comm->rank)];
        trouble = concat("memory was freed while it is registered with communicator '", comm->clique->name, "' on rank ", comm->rank);
      }
    registry().allocations.erase(found);
  }
  if (!trouble.empty()) fail(device, cudaErrorInvalidValue, "NCCL: " + trouble);
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, "cudaFree");
}

bool is_registered(const ncclComm& comm, const void* memory, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(memory);
  return std::any_of(comm.registrations.begin(), comm.registrations.end(), [&](const auto& one) {
    const auto& [first, size] = one.second;
    return begin >= first && begin + bytes <= first + size;
  });
}

ncclResult_t comm_register(ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  const std::lock_guard lock(mutex());
  if (!registry().live.contains(comm)) return refuse(ncclInvalidArgument, "not a communicator");
  const int device = comm->clique->devices[static_cast<size_t>(comm->rank)];
  const auto found = registry().allocations.find(static_cast<const std::byte*>(memory));
  if (found == registry().allocations.end() || bytes > found->second || device_of_memory(memory) != device)
    return refuse(ncclInvalidArgument, "registered memory is not of ncclMemAlloc on the communicator's device");
  if (registry().registration_device < 0 || registry().registration_device == device) {
    if (registry().registration == Registration::kFails) return refuse(ncclSystemError, "registration fails as a test has asked for");
    *handle = nullptr;
    if (registry().registration == Registration::kSkipped) return ncclSuccess;
  }
  const auto made = comm->registrations.emplace(++registry().handles, std::pair(static_cast<const std::byte*>(memory), bytes)).first;
  *handle = const_cast<int*>(&made->first);
  return ncclSuccess;
}

ncclResult_t comm_deregister(ncclComm_t comm, void* handle) {
  const std::lock_guard lock(mutex());
  if (!registry().live.contains(comm)) return refuse(ncclInvalidArgument, "not a communicator");
  const auto found = std::find_if(comm->registrations.begin(), comm->registrations.end(), [&](const auto& one) { return &one.first == handle; });
  if (found == comm->registrations.end()) return refuse(ncclInvalidUsage, "Deregister: Could not find handle");
  if (is_busy(*comm->clique, comm->rank))
    break_clique(*comm->clique, ncclInvalidUsage, concat("memory was deregistered while communicator '", comm->clique->name, "' uses it"));
  comm->registrations.erase(found);
  return ncclSuccess;
}

ncclResult_t comm_async_error(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(mutex());
  if (!registry().live.contains(comm)) return refuse(ncclInvalidArgument, "not a communicator");
  *error = comm->clique->error;
  return ncclSuccess;
}

ncclResult_t raise_abort_flag(ncclComm_t comm) {
  {
    const std::lock_guard lock(mutex());
    if (!registry().live.contains(comm)) return refuse(ncclInvalidArgument, "not a communicator");
    comm->aborted = true;
    leave(*comm->clique, comm->rank, true);
  }
  changed();
  return ncclSuccess;
}

ncclResult_t await_streams(ncclComm_t comm) {
  std::set<cudaStream_t> streams;
  {
    const std::lock_guard lock(mutex());
    if (!registry().live.contains(comm)) return refuse(ncclInvalidArgument, "not a communicator");
    streams = comm->streams;
  }
  for (const cudaStream_t stream : streams)
    if (cudaStreamSynchronize(stream) != cudaSuccess) return refuse(ncclUnhandledCudaError, "the stream of the communicator failed");
  return ncclSuccess;
}

ncclResult_t release(ncclComm_t comm) {
  const ncclResult_t result = await_streams(comm);
  std::string trouble;
  int device = -1;
  {
    const std::lock_guard lock(mutex());
    if (registry().live.erase(comm) == 0) return refuse(ncclInvalidArgument, "not a communicator");
    if (!comm->aborted && !comm->registrations.empty())
      trouble = concat("communicator '", comm->clique->name, "' was destroyed with registered memory");
    device = comm->clique->devices[static_cast<size_t>(comm->rank)];
    if (!comm->aborted) leave(*comm->clique, comm->rank, false);
    delete comm;
  }
  changed();
  if (!trouble.empty()) fail(device, cudaErrorInvalidValue, "NCCL: " + trouble);
  return result;
}

}  // namespace nccl

void break_communicators(const std::string& name) {
  {
    const std::lock_guard lock(nccl::mutex());
    for (const ncclComm* comm : nccl::registry().live)
      if (comm->clique->name == name)
        nccl::break_clique(*comm->clique, ncclSystemError, trireme::concat("the links of communicator '", name, "' are broken"));
  }
  changed();
}

std::set<int> communicator_blocks() {
  const std::lock_guard lock(nccl::mutex());
  std::set<int> blocks;
  for (const ncclComm* comm : nccl::registry().live) blocks.insert(comm->clique->max_blocks);
  return blocks;
}

void set_registration(Registration behaviour, int device) {
  const std::lock_guard lock(nccl::mutex());
  nccl::registry().registration = behaviour;
  nccl::registry().registration_device = device;
}

void set_mem_alloc_fails(bool fails) {
  const std::lock_guard lock(nccl::mutex());
  nccl::registry().mem_alloc_fails = fails;
}

int live_registrations() {
  const std::lock_guard lock(nccl::mutex());
  size_t registrations = 0;
  for (const ncclComm* comm : nccl::registry().live) registrations += comm->registrations.size();
  return static_cast<int>(registrations);
}

int live_communicators() {
  const std::lock_guard lock(nccl::mutex());
  return static_cast<int>(nccl::registry().live.size());
}

}  // namespace cuda_sim
