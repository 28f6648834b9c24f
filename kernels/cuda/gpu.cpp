#include "kernels/core/gpu.h"

#include <algorithm>
#include <cstdio>

#include "kernels/core/gpu_uuid.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/gpu_state.h"

namespace trireme::cuda {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr size_t kEvents = 64;  // created at the start; further events are created on demand

std::string version_name(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version;
}

/// Throws the reason why no GPU can be used.
[[noreturn]] void refuse(cudaError_t error) {
  const int driver = driver_version(), runtime = runtime_version();
  if (driver == 0) throw ConfigError("run.device=cuda: no CUDA driver is installed; allowed cpu");
  if (error == cudaErrorInsufficientDriver) {
    throw ConfigError(concat("run.device=cuda: the driver (", version_name(driver), ") is older than this build's CUDA (", version_name(runtime),
                             "); install a newer driver or build for the older CUDA; allowed cpu"));
  }
  if (error == cudaErrorNoDevice)
    throw ConfigError("run.device=cuda: no GPU found (is CUDA_VISIBLE_DEVICES empty, or a Slurm job without --gpus-per-node?); allowed cpu");
  throw ConfigError(concat("run.device=cuda: no usable GPU: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error), "; allowed cpu"));
}

bool passed(Event event) {
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // clears it: otherwise a later cudaGetLastError would report it as an error
    return false;
  }
  check(error, "cudaEventQuery");
  return true;
}

}  // namespace

int gpu_count() {
  int count = 0;  // CUDA does not write it on failure
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    refuse(error);
  }
  if (count == 0) refuse(cudaErrorNoDevice);
  return count;
}

GpuProperties gpu_properties(int index) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, index), "cudaGetDeviceProperties");
  GpuProperties properties;
  properties.name = device.name;
  char pci[32];
  std::snprintf(pci, sizeof pci, "%04x:%02x:%02x", device.pciDomainID, device.pciBusID, device.pciDeviceID);
  properties.pci = pci;
  properties.major = device.major;
  properties.minor = device.minor;
  properties.multiprocessors = device.multiProcessorCount;
  properties.memory = static_cast<int64_t>(device.totalGlobalMem);
  properties.driver = driver_version();
  properties.runtime = runtime_version();
  return properties;
}

std::string gpu_uuid(int index) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, index), "cudaGetDeviceProperties");
  std::string uuid;
  for (const char byte : device.uuid.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    uuid += digits;
  }
  return uuid;
}

void Gpu::State::open() {
  const int count = gpu_count();
  if (index < 0 || index >= count) {
    throw ConfigError(concat("run.device=cuda: GPU ", index, " does not exist: ", count, count == 1 ? " GPU" : " GPUs", " found"));
  }
  properties = gpu_properties(index);
  if (properties.major * 10 + properties.minor < kMinComputeCapability) {
    throw ConfigError(concat("run.device=cuda: GPU ", index, " (", properties.name, ") has compute capability ", properties.major, ".",
                             properties.minor, "; at least ", kMinComputeCapability / 10, ".", kMinComputeCapability % 10,
                             " is required; allowed cpu"));
  }
  // Creates the context, which takes a few hundred MB and fails if another process uses the GPU exclusively.
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess) {
    cudaGetLastError();
    throw ConfigError(concat("run.device=cuda: GPU ", index, " (", properties.name, ") cannot be used: ", cudaGetErrorString(error)));
  }
  int least = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &urgent), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&compute, cudaStreamNonBlocking, least), "cudaStreamCreateWithPriority");
  scratch = allocate(kScratchBytes, "scratch");
  ticket = static_cast<uint32_t*>(allocate(sizeof *ticket, "a counter"));
  check(cudaMemsetAsync(ticket, 0, sizeof *ticket, compute), "cudaMemsetAsync");
  workspace_bytes = (properties.major >= 9 ? 32 : 4) * kMebibyte;  // the defaults of cuBLAS
  workspace = allocate(workspace_bytes, "matrix product workspace");
  uploads.emplace(compute);
  readbacks = std::make_shared<ReadbackPool>(compute);
  while (events.size() < kEvents) {
    Event& event = events.emplace_back(nullptr);
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    free_events.push_back(event);
  }
}

Gpu::State::~State() {  // also runs if open() failed halfway; the failing call has already reported its error
  if (compute != nullptr) cudaStreamSynchronize(compute);
  for (Stream stream : further_streams) cudaStreamSynchronize(stream);
  libraries.clear();
  for (Event event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (Stream stream : further_streams) cudaStreamDestroy(stream);
  if (compute != nullptr) cudaStreamDestroy(compute);
  if (workspace != nullptr) cudaFree(workspace);
  if (ticket != nullptr) cudaFree(ticket);
  if (scratch != nullptr) cudaFree(scratch);
}

void* Gpu::State::allocate(int64_t bytes, const char* purpose) const {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears it: the device is still usable
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw ConfigError(concat("run.device=cuda: GPU ", index, " (", properties.name, ") is out of memory: ", bytes, " bytes requested for ", purpose,
                             ", ", free, " of ", total, " free"));
  }
  check(error, "cudaMalloc");
  return memory;
}

Gpu::Gpu(int index, const GpuOptions& options) : state_(std::make_unique<State>(index, options)) { state_->open(); }
Gpu::~Gpu() = default;

const GpuProperties& Gpu::properties() const { return state_->properties; }
const GpuOptions& Gpu::options() const { return state_->options; }
int Gpu::index() const { return state_->index; }
Stream Gpu::compute() const { return state_->compute; }

void* Gpu::allocate(int64_t bytes) { return state_->allocate(bytes, "tensors"); }
void Gpu::release(void* memory) {  // called by destructors: ignores errors, which the failing call has already reported
  cudaStreamSynchronize(state_->compute);
  cudaFree(memory);
}

void* Gpu::allocate_async(int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)), state_->compute), "cudaMallocAsync");
  return memory;
}
void Gpu::release_async(void* memory) { cudaFreeAsync(memory, state_->compute); }  // ignores errors, as release()

int64_t Gpu::free_bytes() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

void* Gpu::scratch(int64_t bytes) const {
  TRIREME_CHECK(bytes <= kScratchBytes, bytes, " bytes of scratch exceed kScratchBytes");
  return state_->scratch;
}

uint32_t* Gpu::ticket() const { return state_->ticket; }

void Gpu::fill_bytes(void* memory, int value, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(memory, value, static_cast<size_t>(bytes), state_->compute), "cudaMemsetAsync");
}

void Gpu::copy(const void* from, void* to, int64_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, state_->compute), "cudaMemcpyAsync");
}

void Gpu::upload(const void* host, void* device, int64_t bytes) { state_->uploads->upload(host, device, bytes); }

void Gpu::download(const void* device, void* host, int64_t bytes) {
  if (bytes > 0) check(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, state_->compute), "cudaMemcpyAsync");
  synchronize();
}

void Gpu::synchronize() { check(cudaStreamSynchronize(state_->compute), "cudaStreamSynchronize"); }

bool Gpu::Readback::ready() const { return passed(state->slot->copied.get()); }

const void* Gpu::Readback::wait() const {
  check(cudaEventSynchronize(state->slot->copied.get()), "cudaEventSynchronize");
  return state->slot->data;
}

Gpu::Readback Gpu::read_back(const void* device, int64_t bytes) {
  Readback readback;
  readback.state = std::make_shared<Readback::State>(state_->readbacks, state_->readbacks->read_back(device, bytes));
  return readback;
}

Stream Gpu::make_stream() {
  Stream& stream = state_->further_streams.emplace_back(nullptr);
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, state_->urgent), "cudaStreamCreateWithPriority");
  return stream;
}

Event Gpu::record(Stream stream) {
  if (state_->free_events.empty()) {
    Event& fresh = state_->events.emplace_back(nullptr);
    check(cudaEventCreateWithFlags(&fresh, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    state_->free_events.push_back(fresh);
  }
  const Event event = state_->free_events.back();
  check(cudaEventRecord(event, stream), "cudaEventRecord");
  state_->free_events.pop_back();
  return event;
}

void Gpu::order_after(Stream stream, Event event) { check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent"); }

bool Gpu::is_done(Event event) const { return passed(event); }

void Gpu::recycle(Event event) { state_->free_events.push_back(event); }

void Gpu::begin_communication() { ++state_->communications; }
void Gpu::end_communication() { --state_->communications; }
bool Gpu::communicates() const { return state_->communications > 0; }

Event Gpu::record_time(Stream stream) {
  if (state_->free_timers.empty()) {
    Event& fresh = state_->events.emplace_back(nullptr);
    check(cudaEventCreateWithFlags(&fresh, cudaEventDefault), "cudaEventCreateWithFlags");
    state_->free_timers.push_back(fresh);
  }
  const Event event = state_->free_timers.back();
  check(cudaEventRecord(event, stream), "cudaEventRecord");
  state_->free_timers.pop_back();
  return event;
}

double Gpu::seconds_between(Event first, Event last) const {
  for (const Event event : {first, last}) check(cudaEventSynchronize(event), "cudaEventSynchronize");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, first, last), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

void Gpu::recycle_time(Event event) { state_->free_timers.push_back(event); }

}  // namespace trireme::cuda
