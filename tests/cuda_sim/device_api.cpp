// cudart: devices, errors, memory.
#include <algorithm>
#include <cstring>

#include "tests/cuda_sim/api.h"
#include "tests/cuda_sim/block.h"

namespace cuda_sim {
namespace {
thread_local int device_of_thread = 0;
thread_local int only_device = -1;  // the one that this thread sees; -1: all
thread_local cudaError_t last_error = cudaSuccess;
}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
int current_device() { return device_of_thread; }
void show_only(int device) { only_device = device; }
bool has_mig() { return machine().options.mig; }
size_t shared_optin(const Options& options) {
  if (options.major >= 9) return kSharedLimit;
  return size_t{options.minor == 0 || options.minor == 7 ? 163U : 99U} << 10;
}

namespace {

/// The device with this index among those that the thread sees; -1: there is none.
int device_at(const Machine& m, int index) {
  if (only_device >= 0) return index == 0 ? only_device : -1;
  return index >= 0 && index < static_cast<int>(m.devices.size()) ? index : -1;
}

cudaError_t allocate_host(void** memory, size_t bytes) {
  return call([&](Machine& m, Lock&) {
    if (memory == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
    *memory = bytes == 0 ? nullptr : m.memory.pinned().allocate(bytes);
    return *memory == nullptr && bytes > 0 ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t allocate_device(Machine& m, void** memory, size_t bytes, bool stream_ordered) {
  if (memory == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  Arena& arena = m.memory.device(current_device());
  if (++m.mallocs == m.options.failing_malloc || bytes > m.options.memory || arena.used() + bytes > m.options.memory)
    return cudaErrorMemoryAllocation;
  *memory = arena.allocate(bytes, stream_ordered);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

/// Damage is an error of `device`.
cudaError_t release(Machine& m, Arena& arena, void* memory, int device) {
  std::string damage;
  if (!arena.release(memory, &damage)) return cudaErrorInvalidValue;
  if (!damage.empty()) m.fail(device, cudaErrorIllegalAddress, damage);
  return cudaSuccess;
}

}  // namespace
}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (m.options.driver_version / 1000 < CUDART_VERSION / 1000) return remember(cudaErrorInsufficientDriver);  // newer minor versions are fine
  if (m.devices.empty()) return remember(cudaErrorNoDevice);
  *count = only_device >= 0 ? 1 : static_cast<int>(m.devices.size());
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  const int seen = device_at(m, device);
  if (seen < 0) return remember(cudaErrorInvalidDevice);
  device_of_thread = seen;
  return remember(m.devices[static_cast<size_t>(seen)].error);
}

cudaError_t cudaGetDevice(int* device) {
  *device = only_device >= 0 ? 0 : device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (device_at(m, device) < 0) return remember(cudaErrorInvalidDevice);
  *properties = {};
  std::strncpy(properties->name, "Simulated GPU", sizeof properties->name - 1);
  properties->major = m.options.major;
  properties->minor = m.options.minor;
  properties->totalGlobalMem = m.options.memory;
  properties->multiProcessorCount = m.options.multiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  const int block[] = {1024, 1024, 64}, grid[] = {0x7fffffff, 65535, 65535};
  std::copy(std::begin(block), std::end(block), properties->maxThreadsDim);
  std::copy(std::begin(grid), std::end(grid), properties->maxGridSize);
  properties->sharedMemPerBlock = kSharedDefault;
  properties->sharedMemPerBlockOptin = shared_optin(m.options);
  properties->regsPerBlock = 65536;
  properties->l2CacheSize = 1 << 20;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 2;
  properties->concurrentKernels = 1;
  properties->pciBusID = m.options.mig ? 1 : device_at(m, device) + 1;
  properties->uuid.bytes[0] = static_cast<char>(0xa0 + device_at(m, device));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  Machine& m = machine();
  const Lock lock(m.mutex);
  if (device_at(m, device) < 0) return remember(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = m.options.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = m.options.minor; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = m.options.multiprocessors; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = 32; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(kSharedDefault); return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(shared_optin(m.options)); return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(shared_optin(m.options)) + 1024;
      return cudaSuccess;  // CUDA takes 1 KB of each block
    default: return remember(cudaErrorNotSupported);
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine().options.driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  Machine& m = machine();
  const Lock lock(m.mutex);
  const auto device = static_cast<size_t>(device_of_thread);
  return device < m.devices.size() && m.devices[device].error != cudaSuccess ? m.devices[device].error : last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
#define CUDA_SIM_NAME(name) \
  case name: return #name
  switch (error) {
    CUDA_SIM_NAME(cudaSuccess);
    CUDA_SIM_NAME(cudaErrorInvalidValue);
    CUDA_SIM_NAME(cudaErrorMemoryAllocation);
    CUDA_SIM_NAME(cudaErrorInvalidConfiguration);
    CUDA_SIM_NAME(cudaErrorInvalidDevice);
    CUDA_SIM_NAME(cudaErrorNoDevice);
    CUDA_SIM_NAME(cudaErrorInsufficientDriver);
    CUDA_SIM_NAME(cudaErrorInvalidResourceHandle);
    CUDA_SIM_NAME(cudaErrorInvalidMemcpyDirection);
    CUDA_SIM_NAME(cudaErrorInvalidDeviceFunction);
    CUDA_SIM_NAME(cudaErrorNotReady);
    CUDA_SIM_NAME(cudaErrorNotSupported);
    CUDA_SIM_NAME(cudaErrorIllegalAddress);
    CUDA_SIM_NAME(cudaErrorMisalignedAddress);
    CUDA_SIM_NAME(cudaErrorLaunchFailure);
    CUDA_SIM_NAME(cudaErrorLaunchTimeout);
    CUDA_SIM_NAME(cudaErrorStreamCaptureUnsupported);
    CUDA_SIM_NAME(cudaErrorStreamCaptureInvalidated);
    CUDA_SIM_NAME(cudaErrorStreamCaptureUnmatched);
    CUDA_SIM_NAME(cudaErrorStreamCaptureUnjoined);
    CUDA_SIM_NAME(cudaErrorStreamCaptureIsolation);
    CUDA_SIM_NAME(cudaErrorStreamCaptureImplicit);
    CUDA_SIM_NAME(cudaErrorStreamCaptureWrongThread);
    CUDA_SIM_NAME(cudaErrorCapturedEvent);
    default: return "cudaErrorUnknown";
  }
#undef CUDA_SIM_NAME
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return "error of the simulated machine; see stderr";
  }
}

/// An attribute holds for the current device only.
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return call([&](Machine& m, Lock&) {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
    if (value < 0 || static_cast<size_t>(value) > shared_optin(m.options)) return cudaErrorInvalidValue;
    m.dynamic_shared[{current_device(), function}] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return call([&](Machine& m, Lock&) { return allocate_device(m, memory, bytes, false); });
}

/// The memory is there at once, but no other stream may rely on that: it is freed in the order of the stream.
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  return call([&](Machine& m, Lock&) {
    const auto target = m.find_stream(stream);
    if (target == nullptr || target->device != current_device()) return cudaErrorInvalidResourceHandle;
    return allocate_device(m, memory, bytes, true);
  });
}

/// Frees the memory when the operations queued before on the stream are over. Operations that access it later are errors.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return call([&](Machine& m, Lock& lock) {
    if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
    const auto target = m.find_stream(stream);
    if (target == nullptr) return cudaErrorInvalidResourceHandle;
    const int owner = m.memory.device_of(key(memory));
    const Allocation* const found = owner < 0 ? nullptr : m.memory.device(owner).find(key(memory));
    if (found == nullptr || found->begin != key(memory) || !found->stream_ordered) return cudaErrorInvalidValue;
    queue(*target, make_simple("free of " + std::to_string(found->bytes) + " bytes", [=] {
      const Lock inner(machine().mutex);
      if (release(machine(), machine().memory.device(owner), memory, owner) != cudaSuccess)
        machine().fail(owner, cudaErrorInvalidValue, "memory is freed twice: " + machine().memory.describe(key(memory)));
    }));
    m.maybe_run(lock);
    return cudaSuccess;
  });
}

/// Does not wait: operations still queued on the memory are errors of the caller, and are reported.
cudaError_t cudaFree(void* memory) {
  return call([&](Machine& m, Lock&) {
    if (memory == nullptr) return cudaSuccess;
    if (const cudaError_t error = refuse_while_capturing(); error != cudaSuccess) return error;
    const int owner = m.memory.device_of(key(memory));
    return owner < 0 ? cudaErrorInvalidValue : release(m, m.memory.device(owner), memory, owner);
  });
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) { return allocate_host(memory, bytes); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned int) { return allocate_host(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) {
  return call([&](Machine& m, Lock&) {
    if (memory == nullptr) return cudaSuccess;
    return m.memory.pinned().holds(key(memory)) ? release(m, m.memory.pinned(), memory, current_device()) : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return call([&](Machine& m, Lock&) {
    *total = m.options.memory;
    *free_bytes = m.options.memory - std::min(m.options.memory, m.memory.device(current_device()).used());
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call([&](Machine& m, Lock&) {
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    const int device = m.memory.device_of(key(pointer));
    if (device >= 0 && m.memory.device(device).find(key(pointer)) != nullptr) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = device;
      attributes->devicePointer = const_cast<void*>(pointer);
    } else if (m.memory.pinned().find(key(pointer)) != nullptr) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = current_device();
      attributes->devicePointer = attributes->hostPointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
  });
}

}  // extern "C"
