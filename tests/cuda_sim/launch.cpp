// Kernel launches, and the functions of machine.h for the simulated libraries.
#include <algorithm>

#include "tests/cuda_sim/api.h"
#include "tests/cuda_sim/block.h"

namespace cuda_sim {
namespace {

cudaError_t check_shape(const KernelCall& call) {
  auto within = [](dim3 size, unsigned x, unsigned y, unsigned z) {
    return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= x && size.y <= y && size.z <= z;
  };
  if (!within(call.grid, 0x7fffffff, 65535, 65535) || !within(call.block, 1024, 1024, 64) || call.block.x * call.block.y * call.block.z > 1024)
    return cudaErrorInvalidConfiguration;
  return cudaSuccess;
}

/// Sets the limit of shared memory. Without opt-in it is 48 KB, static memory included.
cudaError_t check_shared(KernelCall& call, int device) {
  const Lock lock(machine().mutex);
  const auto optin = machine().dynamic_shared.find({device, call.entry});
  const bool opted_in = optin != machine().dynamic_shared.end();
  call.shared_limit = opted_in ? shared_optin(machine().options) : kSharedDefault;
  return call.dynamic_shared > (opted_in ? optin->second : kSharedDefault) ? cudaErrorInvalidValue : cudaSuccess;
}

class Kernel final : public Operation {
 public:
  Kernel(std::shared_ptr<const KernelCall> call, int device) : call_(std::move(call)), device_(device) {}
  std::string name() const override { return "kernel " + name_of_function(call_->entry); }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Kernel>(call_, device_); }
  void run() override {
    uint64_t seed = 0;
    int sampled_blocks = 0, capability = 0;
    {
      const Lock lock(machine().mutex);
      const std::vector<int64_t>& sampled = machine().options.sampled_launches;
      const int64_t number = machine().launches[call_->entry]++;
      if (!sampled.empty() && std::find(sampled.begin(), sampled.end(), number) == sampled.end()) return;
      seed = machine().random.next();
      sampled_blocks = machine().options.sampled_blocks;
      capability = 10 * machine().options.major + machine().options.minor;
      if (const std::string text = bad_argument(); !text.empty()) {
        machine().fail(device_, cudaErrorIllegalAddress, name() + ": " + text);
        return;
      }
    }
    auto runner = take_runner();
    const int64_t switches = runner->switches(), copies = runner->copies();
    const KernelFault fault = runner->run(*call_, seed, sampled_blocks, capability);
    const std::string place = fault.place != nullptr ? " at " + source_of(fault.place) : "";
    {
      const Lock lock(machine().mutex);
      ++machine().statistics.kernels;
      size_t& shared = machine().launched_shared[call_->entry];
      shared = std::max(shared, call_->dynamic_shared);
      machine().statistics.switches += runner->switches() - switches;
      machine().statistics.copies += runner->copies() - copies;
      if (fault.error != cudaSuccess) {
        std::string text = name() + ": " + fault.text + place;
        if (fault.address != 0) text += ": " + machine().memory.describe(fault.address);
        machine().fail(device_, fault.error, text);
      }
    }
    give_runner(std::move(runner));
  }

 private:
  /// A GPU cannot dereference a pointer to pageable memory, nor (without peer access) one into another GPU.
  std::string bad_argument() const {
    for (const void* pointer : call_->pointers) {
      const auto address = reinterpret_cast<uintptr_t>(pointer);
      if (address == 0 || machine().memory.pinned().holds(address)) continue;
      const int owner = machine().memory.device_of(address);
      if (owner < 0) return "an argument points to pageable host memory";
      if (owner != device_)
        return "an argument points into " + machine().memory.describe(address) + ", but the kernel runs on device " + std::to_string(device_);
    }
    return {};
  }
  std::shared_ptr<const KernelCall> call_;
  int device_;
};

class Simple final : public Operation {
 public:
  Simple(std::string name, std::shared_ptr<const std::function<void()>> body) : name_(std::move(name)), body_(std::move(body)) {}
  std::string name() const override { return name_; }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<Simple>(name_, body_); }
  void run() override { (*body_)(); }

 private:
  std::string name_;
  std::shared_ptr<const std::function<void()>> body_;
};

}  // namespace

cudaError_t queue_kernel(std::shared_ptr<KernelCall> call, cudaStream_t stream) {
  const int device = device_of(stream);
  if (device < 0) return remember(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = check_shape(*call); error != cudaSuccess) return remember(error);
  if (const cudaError_t error = check_shared(*call, device); error != cudaSuccess) return remember(error);
  return remember(enqueue(stream, std::make_unique<Kernel>(std::move(call), device)));
}

std::unique_ptr<Operation> make_simple(std::string name, std::function<void()> body) {
  return std::make_unique<Simple>(std::move(name), std::make_shared<const std::function<void()>>(std::move(body)));
}

cudaError_t enqueue(cudaStream_t stream, std::unique_ptr<Operation> operation) {
  Lock lock(machine().mutex);
  const auto target = machine().find_stream(stream);
  if (target == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = machine().devices[static_cast<size_t>(target->device)].error; error != cudaSuccess) return error;
  queue(*target, std::move(operation));
  machine().maybe_run(lock);
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, const std::string& name, std::function<void()> body) {
  return enqueue(stream, make_simple(name, std::move(body)));
}

bool is_refused_at_random() {
  const Lock lock(machine().mutex);
  return machine().options.refused_products > 0 && machine().random.chance(machine().options.refused_products);
}

int device_of(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  const auto target = machine().find_stream(stream);
  return target == nullptr ? -1 : target->device;
}

bool is_capturing(cudaStream_t stream) {
  const Lock lock(machine().mutex);
  const auto target = machine().find_stream(stream);
  return target != nullptr && target->capture != nullptr;
}

bool is_device_memory(const void* memory, size_t bytes, int device) {
  Lock lock(machine().mutex, std::defer_lock);
  if (!is_in_callback()) lock.lock();
  return device >= 0 && device < static_cast<int>(machine().devices.size()) &&
         machine().memory.device(device).contains(reinterpret_cast<uintptr_t>(memory), bytes);
}

int device_of_memory(const void* memory) {
  Lock lock(machine().mutex, std::defer_lock);
  if (!is_in_callback()) lock.lock();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const int device = machine().memory.device_of(address);
  return device >= 0 && machine().memory.device(device).find(address) != nullptr ? device : -1;
}

void fail(int device, cudaError_t error, const std::string& what) {
  Lock lock(machine().mutex, std::defer_lock);
  if (!is_in_callback()) lock.lock();
  machine().fail(device, error, what);
}

std::mutex& machine_mutex() { return machine().mutex; }
void changed() { machine().changed_outside(); }

void reset(uint64_t seed, const Options& options) {
  const Lock lock(machine().mutex);
  machine().reset(seed, options);
}
Options options() {
  const Lock lock(machine().mutex);
  return machine().options;
}
void change_options(const Options& options) {
  const Lock lock(machine().mutex);
  machine().set_options(options);
}
void fill_with_copies(void* memory, size_t bytes, const std::vector<unsigned char>& pattern) {
  const Lock lock(machine().mutex);
  machine().memory.device(machine().memory.device_of(key(memory))).fill_with_copies(key(memory), bytes, pattern);
}
std::vector<size_t> written_pages(const void* memory, size_t bytes) {
  const Lock lock(machine().mutex);
  return Arena::written_pages(key(memory), bytes);
}
void set_seed(uint64_t seed) {
  const Lock lock(machine().mutex);
  machine().seed(seed);
}
std::vector<std::string> errors() {
  const Lock lock(machine().mutex);
  return machine().messages;
}
Statistics statistics() {
  const Lock lock(machine().mutex);
  Statistics result = machine().statistics;
  for (size_t i = 0; i < machine().devices.size(); ++i) {
    result.allocations += machine().memory.device(static_cast<int>(i)).live();
    result.allocated += static_cast<int64_t>(machine().memory.device(static_cast<int>(i)).used());
  }
  return result;
}

std::map<std::string, int64_t> launched_kernels() {
  const Lock lock(machine().mutex);
  std::map<std::string, int64_t> kernels;
  for (const auto& [entry, bytes] : machine().launched_shared) kernels[name_of_function(entry)] = static_cast<int64_t>(bytes);
  return kernels;
}

}  // namespace cuda_sim
