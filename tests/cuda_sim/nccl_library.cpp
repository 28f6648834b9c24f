// The functions of the simulated NCCL, in the product's function table.
#include "parallel/comm/nccl_library.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "kernels/core/check.h"
#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/nccl.h"
#include "tests/cuda_sim/nccl_communicator.h"
#include "tests/cuda_sim/nccl_operation.h"

namespace {

using namespace cuda_sim::nccl;
using trireme::Call;
using trireme::concat;
using trireme::DType;
using trireme::ReduceOp;
using trireme::Verb;

const std::map<ncclDataType_t, DType> kTypes = {{ncclFloat64, DType::kF64}, {ncclFloat32, DType::kF32}, {ncclBfloat16, DType::kBF16},
                                                {ncclFloat16, DType::kF16}, {ncclInt64, DType::kI64},   {ncclInt32, DType::kI32},
                                                {ncclUint8, DType::kU8}};
const std::map<ncclRedOp_t, ReduceOp> kReductions = {{ncclSum, ReduceOp::kSum}, {ncclMax, ReduceOp::kMax}, {ncclMin, ReduceOp::kMin}};

/// A part to be issued on its stream.
struct Request {
  ncclComm_t comm;
  cudaStream_t stream;
  std::shared_ptr<Part> part;
};

std::atomic<int64_t> g_registered, g_others;
thread_local int t_depth = 0;               ///< nesting depth of group_start
thread_local std::vector<Request> t_group;  ///< issued by the outermost group_end
thread_local ncclResult_t t_group_error = ncclSuccess;
thread_local std::vector<ncclComm_t> t_finalized;  ///< the outermost group_end waits for these
thread_local std::vector<ncclComm_t> t_released;   ///< the outermost group_end waits for these and frees them

ncclResult_t issue(const Request& request) {
  {
    const std::lock_guard lock(mutex());
    request.comm->streams.insert(request.stream);
    if (request.part->clique->error != ncclSuccess) return request.part->clique->error;
  }
  const cudaError_t error = enqueue(request.stream, request.part);
  return error == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, concat("CUDA error ", static_cast<int>(error), " at launch"));
}

ncclResult_t group_start() {
  if (t_depth++ == 0) t_group_error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (t_depth == 0) return refuse(ncclInvalidUsage, "group_end without group_start");
  if (--t_depth > 0) return ncclSuccess;
  ncclResult_t first = t_group_error;
  const auto perform = [&](const auto& calls, const auto& call) {
    for (const auto& one : calls)
      if (const ncclResult_t result = call(one); first == ncclSuccess) first = result;
  };
  const std::vector<Request> requests = std::exchange(t_group, {});
  if (first == ncclSuccess) perform(requests, [&](const Request& request) { return first == ncclSuccess ? issue(request) : first; });
  perform(std::exchange(t_finalized, {}), await_streams);
  perform(std::exchange(t_released, {}), release);
  return first;
}

ncclResult_t comm_finalize(ncclComm_t comm) {
  if (t_depth == 0) return await_streams(comm);
  t_finalized.push_back(comm);
  return ncclSuccess;
}

ncclResult_t comm_destroy(ncclComm_t comm) {
  if (t_depth == 0) return release(comm);
  t_released.push_back(comm);
  return ncclSuccess;
}

/// In a group, the flags of all communicators are raised before the first wait.
ncclResult_t comm_abort(ncclComm_t comm) {
  const ncclResult_t result = raise_abort_flag(comm);
  return result == ncclSuccess ? comm_destroy(comm) : result;
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
  if (mate->stream != request.stream) return t_group_error = refuse(ncclInvalidUsage, "the messages of one group are on different streams");
  for (MessageEnd message : request.part->ends) {
    message.region += mate->part->regions.size();
    mate->part->ends.push_back(std::move(message));
  }
  for (Region& region : request.part->regions) mate->part->regions.push_back(std::move(region));
  return ncclSuccess;
}

/// Checks the arguments that all operations have, and adds the part that `fill` completes.
template <class Fill>
ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type, ncclRedOp_t op, const Fill& fill) {
  Request request{comm, stream, std::make_shared<Part>()};
  Part& part = *request.part;
  int device = -1;
  {
    const std::lock_guard lock(mutex());
    if (!is_live(comm)) return t_group_error = refuse(ncclInvalidArgument, "not a communicator");
    part.clique = comm->clique;
    part.rank = comm->rank;
    device = part.device();
  }
  if (!kTypes.contains(type) || !kReductions.contains(op))
    return t_group_error = refuse(ncclInvalidArgument, "this type or reduction is not simulated");
  fill(part, kTypes.at(type), kReductions.at(op));
  if (cuda_sim::device_of(stream) != device)
    return t_group_error = refuse(ncclInvalidArgument, concat(part.str(), ": the stream belongs to another device"));
  for (const Region& region : part.regions)
    if (!cuda_sim::is_device_memory(region.memory, region.bytes, device))
      return t_group_error = refuse(ncclInvalidArgument, concat(part.str(), ": a buffer is not memory of the device"));
  {
    const std::lock_guard lock(mutex());
    part.registered = !comm->registrations.empty();
    for (const Region& region : part.regions)
      if (part.registered && !is_registered(*comm, region.memory, region.bytes))
        return t_group_error = refuse(ncclInvalidUsage, concat(part.str(), ": a buffer is not registered, and other memory is"));
  }
  ++(part.registered ? g_registered : g_others);
  return add(request);
}

std::byte* bytes_of(const void* memory) { return static_cast<std::byte*>(const_cast<void*>(memory)); }

Call call_of(Verb verb, DType dtype, size_t count, ReduceOp op = ReduceOp::kSum, int root = 0) {
  return {verb, dtype, static_cast<int64_t>(count), op, root};
}

/// Sets the buffers of a collective whose `in` and `out` are either disjoint or identical.
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
    // If in place, the other parts of the input are unspecified afterwards.
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

cuda_sim::IssuedOperations cuda_sim::issued_operations() { return {g_registered, g_others}; }

const trireme::Nccl& trireme::nccl() {
  static const Nccl table = {get_version,     error_string, last_error, get_unique_id, comm_init,  comm_async_error,
                             comm_finalize,   comm_destroy, comm_abort, mem_alloc,     mem_free,   comm_register,
                             comm_deregister, group_start,  group_end,  all_reduce,    all_gather, reduce_scatter,
                             broadcast,       send,         recv};
  return table;
}
