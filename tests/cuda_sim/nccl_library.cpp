// The functions of the simulated NCCL, in the product's table.
#include "parallel/comm/nccl_library.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <set>

#include "kernels/core/check.h"
#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/nccl.h"
#include "tests/cuda_sim/nccl_operation.h"

struct ncclComm {
  std::shared_ptr<cuda_sim::nccl::Clique> clique;
  int rank = 0;
  std::set<cudaStream_t> streams;
};

namespace {

using namespace cuda_sim::nccl;
using trireme::Call;
using trireme::concat;
using trireme::DType;
using trireme::ReduceOp;
using trireme::Verb;

constexpr std::chrono::seconds kInitTimeout{60};

/// What else is guarded by mutex(). Never destroyed, as everything of this library.
struct Registry {
  std::map<std::string, std::shared_ptr<Clique>> forming;  ///< by id
  std::condition_variable joined;
  std::set<ncclComm*> live;
  int64_t ids = 0;
};
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

thread_local std::string t_error;  ///< the last one of a call

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
  t_error = why;
  return result;
}

// ---- communicators ----

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

/// Why the ranks that have come together cannot be a communicator; "" if they can.
std::string objection(const Clique& clique) {
  for (size_t rank = 0; rank < clique.devices.size(); ++rank) {
    const auto first = std::find(clique.devices.begin(), clique.devices.end(), clique.devices[rank]);
    const auto other = static_cast<size_t>(first - clique.devices.begin());
    if (other != rank) return concat("Duplicate GPU detected : rank ", rank, " and rank ", other, " both on CUDA device ", clique.devices[rank]);
  }
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (order != nullptr && std::strcmp(order, "1") == 0) return "";
  for (const ncclComm* comm : registry().live)
    for (const int device : clique.devices)
      if (comm->clique->devices[static_cast<size_t>(comm->rank)] == device)
        return concat("device ", device, " has two communicators, whose operations have no order without NCCL_LAUNCH_ORDER_IMPLICIT=1");
  return "";
}

ncclResult_t comm_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return refuse(ncclInvalidArgument, concat("rank ", rank, " of ", ranks));
  if (config->size != sizeof(ncclConfig_t) || config->blocking == 0) return refuse(ncclInvalidArgument, "only blocking communicators are simulated");
  const int device = cuda_sim::current_device();
  std::unique_lock lock(mutex());
  std::shared_ptr<Clique>& slot = registry().forming[std::string(id.internal)];
  if (slot == nullptr) {
    slot = std::make_shared<Clique>();
    slot->name = config->commName == nullptr ? "" : config->commName;
    slot->devices.assign(static_cast<size_t>(ranks), -1);
    slot->left.resize(static_cast<size_t>(ranks));
    slot->calls.resize(static_cast<size_t>(ranks));
  }
  const std::shared_ptr<Clique> clique = slot;
  const auto self = static_cast<size_t>(rank);
  if (clique->devices.size() != static_cast<size_t>(ranks) || clique->devices[self] != -1)
    return refuse(ncclInvalidArgument,
                  concat("rank ", rank, " of ", ranks, " joins a communicator of ", clique->devices.size(), " twice or wrongly"));
  clique->devices[self] = device;
  const auto complete = [&] { return std::count(clique->devices.begin(), clique->devices.end(), -1) == 0; };
  if (complete()) {
    clique->reason = objection(*clique);
    if (!clique->reason.empty()) clique->error = ncclInvalidUsage;
    registry().forming.erase(std::string(id.internal));
    registry().joined.notify_all();
  } else if (!registry().joined.wait_for(lock, kInitTimeout, complete)) {
    return refuse(ncclSystemError, concat("communicator '", clique->name, "': other ranks never came"));
  }
  if (clique->error != ncclSuccess) return refuse(clique->error, clique->reason);
  *comm = new ncclComm{clique, rank, {}};
  registry().live.insert(*comm);
  return ncclSuccess;
}

ncclResult_t comm_async_error(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(mutex());
  if (!registry().live.contains(comm)) return refuse(ncclInvalidArgument, "not a communicator");
  *error = comm->clique->error;
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t comm) {
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

ncclResult_t end(ncclComm_t comm, bool abort) {
  {
    const std::lock_guard lock(mutex());
    if (registry().live.erase(comm) == 0) return refuse(ncclInvalidArgument, "not a communicator");
    leave(*comm->clique, comm->rank, abort);
    delete comm;
  }
  cuda_sim::changed();
  return ncclSuccess;
}
ncclResult_t comm_destroy(ncclComm_t comm) { return end(comm, false); }
ncclResult_t comm_abort(ncclComm_t comm) { return end(comm, true); }

// ---- operations ----

const std::map<ncclDataType_t, DType> kTypes = {
    {ncclFloat64, DType::kF64}, {ncclFloat32, DType::kF32}, {ncclBfloat16, DType::kBF16}, {ncclInt32, DType::kI32}, {ncclUint8, DType::kU8}};
const std::map<ncclRedOp_t, ReduceOp> kReductions = {{ncclSum, ReduceOp::kSum}, {ncclMax, ReduceOp::kMax}, {ncclMin, ReduceOp::kMin}};

/// A part to be, on its stream.
struct Request {
  ncclComm_t comm;
  cudaStream_t stream;
  std::shared_ptr<Part> part;
};

thread_local int t_depth = 0;               ///< of group_start
thread_local std::vector<Request> t_group;  ///< issued by the outermost group_end
thread_local ncclResult_t t_group_error = ncclSuccess;

ncclResult_t issue(const Request& request) {
  {
    const std::lock_guard lock(mutex());
    request.comm->streams.insert(request.stream);
    if (request.part->clique->error != ncclSuccess) return request.part->clique->error;
  }
  const cudaError_t error = enqueue(request.stream, request.part);
  return error == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, concat("CUDA error ", static_cast<int>(error), " at the launch"));
}

ncclResult_t group_start() {
  if (t_depth++ == 0) t_group_error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (t_depth == 0) return refuse(ncclInvalidUsage, "group_end without group_start");
  if (--t_depth > 0) return ncclSuccess;
  const std::vector<Request> requests = std::exchange(t_group, {});
  if (t_group_error != ncclSuccess) return t_group_error;
  for (const Request& request : requests)
    if (const ncclResult_t result = issue(request); result != ncclSuccess) return result;
  return ncclSuccess;
}

/// All messages of a communicator in one group progress together.
ncclResult_t add(const Request& request) {
  if (t_depth == 0) return issue(request);
  const auto mate = std::find_if(t_group.begin(), t_group.end(), [&](const Request& other) {
    return other.comm == request.comm && !other.part->is_collective && !request.part->is_collective;
  });
  if (mate == t_group.end()) {
    t_group.push_back(request);
    return ncclSuccess;
  }
  if (mate->stream != request.stream) return t_group_error = refuse(ncclInvalidUsage, "messages of one group on different streams");
  for (MessageEnd message : request.part->ends) {
    message.region += mate->part->regions.size();
    mate->part->ends.push_back(std::move(message));
  }
  for (Region& region : request.part->regions) mate->part->regions.push_back(std::move(region));
  return ncclSuccess;
}

/// Checks what all operations have and adds the part that `fill` completes.
template <class Fill>
ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type, ncclRedOp_t op, const Fill& fill) {
  Request request{comm, stream, std::make_shared<Part>()};
  Part& part = *request.part;
  int device = -1;
  {
    const std::lock_guard lock(mutex());
    if (!registry().live.contains(comm)) return t_group_error = refuse(ncclInvalidArgument, "not a communicator");
    part.clique = comm->clique;
    part.rank = comm->rank;
    device = part.device();
  }
  if (!kTypes.contains(type) || !kReductions.contains(op)) return t_group_error = refuse(ncclInvalidArgument, "a type or reduction not simulated");
  fill(part, kTypes.at(type), kReductions.at(op));
  if (cuda_sim::device_of(stream) != device) return t_group_error = refuse(ncclInvalidArgument, concat(part.str(), ": a stream of another device"));
  for (const Region& region : part.regions)
    if (!cuda_sim::is_device_memory(region.memory, region.bytes, device))
      return t_group_error = refuse(ncclInvalidArgument, concat(part.str(), ": a buffer is no memory of the device"));
  return add(request);
}

std::byte* bytes_of(const void* memory) { return static_cast<std::byte*>(const_cast<void*>(memory)); }

Call call_of(Verb verb, DType dtype, size_t count, ReduceOp op = ReduceOp::kSum, int root = 0) {
  return {verb, dtype, static_cast<int64_t>(count), op, root};
}

/// `in` and `out` of a collective that are apart or the same.
void set_buffers(Part& part, const void* in, size_t in_bytes, void* out, size_t out_bytes) {
  part.is_collective = true;
  part.out = bytes_of(out);
  part.regions = {{bytes_of(in), in_bytes, true, in == out}};
  if (in != out) part.regions.push_back({bytes_of(out), out_bytes, false, true});
}

ncclResult_t all_reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, stream, type, op, [&](Part& part, DType dtype, ReduceOp reduction) {
    part.call = call_of(Verb::kAllReduce, dtype, count, reduction);
    const size_t bytes = count * static_cast<size_t>(size_of(dtype));
    set_buffers(part, in, bytes, out, bytes);
  });
}

ncclResult_t all_gather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, stream, type, ncclSum, [&](Part& part, DType dtype, ReduceOp) {
    part.call = call_of(Verb::kAllGather, dtype, count);
    const size_t bytes = count * static_cast<size_t>(size_of(dtype)), ranks = part.clique->devices.size();
    set_buffers(part, in, bytes, out, bytes * ranks);
    const auto before = static_cast<size_t>(part.rank) * bytes;
    if (in != bytes_of(out) + before) return;
    part.regions = {{bytes_of(in), bytes, true, false},
                    {bytes_of(out), before, false, true},
                    {bytes_of(out) + before + bytes, (ranks - 1) * bytes - before, false, true}};
  });
}

ncclResult_t reduce_scatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, stream, type, op, [&](Part& part, DType dtype, ReduceOp reduction) {
    part.call = call_of(Verb::kReduceScatter, dtype, count, reduction);
    const size_t bytes = count * static_cast<size_t>(size_of(dtype)), ranks = part.clique->devices.size();
    set_buffers(part, in, bytes * ranks, out, bytes);
    // In place, the other parts of the input are unspecified afterwards.
    if (bytes_of(out) == bytes_of(in) + static_cast<size_t>(part.rank) * bytes) part.regions = {{bytes_of(in), bytes * ranks, true, true}};
  });
}

ncclResult_t broadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, stream, type, ncclSum, [&](Part& part, DType dtype, ReduceOp) {
    part.call = call_of(Verb::kBroadcast, dtype, count, ReduceOp::kSum, root);
    const size_t bytes = count * static_cast<size_t>(size_of(dtype));
    set_buffers(part, in, bytes, out, bytes);
    if (part.rank != root) part.regions = {{bytes_of(out), bytes, false, true}};
    if (part.rank == root && in == out) part.regions = {{bytes_of(in), bytes, true, false}};
  });
}

ncclResult_t message(bool is_send, void* memory, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return launch(comm, stream, type, ncclSum, [&](Part& part, DType dtype, ReduceOp) {
    part.ends = {{is_send, peer, call_of(Verb::kMessage, dtype, count), 0}};
    part.regions = {{bytes_of(memory), count * static_cast<size_t>(size_of(dtype)), is_send, !is_send}};
  });
}
ncclResult_t send(const void* memory, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return message(true, const_cast<void*>(memory), count, type, peer, comm, stream);
}
ncclResult_t recv(void* memory, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return message(false, memory, count, type, peer, comm, stream);
}

}  // namespace

namespace cuda_sim {

void break_communicators(const std::string& name) {
  {
    const std::lock_guard lock(nccl::mutex());
    for (const ncclComm* comm : registry().live)
      if (comm->clique->name == name) nccl::break_clique(*comm->clique, ncclSystemError, concat("the links of communicator '", name, "' are broken"));
  }
  changed();
}

int live_communicators() {
  const std::lock_guard lock(nccl::mutex());
  return static_cast<int>(registry().live.size());
}

}  // namespace cuda_sim

const trireme::Nccl& trireme::nccl() {
  static const Nccl table = {get_version,   error_string,   last_error, get_unique_id, comm_init, comm_async_error,
                             comm_finalize, comm_destroy,   comm_abort, group_start,   group_end, all_reduce,
                             all_gather,    reduce_scatter, broadcast,  send,          recv};
  return table;
}
