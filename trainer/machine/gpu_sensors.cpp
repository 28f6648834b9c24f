#include "trainer/machine/gpu_sensors.h"

#include <dlfcn.h>
#include <pthread.h>

#include <chrono>
#include <optional>
#include <utility>

namespace trireme {
namespace {

using nlohmann::ordered_json;

/// The functions of NVML that are read, as nvml.h declares them. Its headers are not needed for building.
struct Nvml {
  using Status = int;  ///< 0: success
  using DeviceHandle = void*;

  Status (*init)();
  Status (*device)(const char* pci, DeviceHandle* device);
  Status (*clock)(DeviceHandle, int type, unsigned* megahertz);
  Status (*power)(DeviceHandle, unsigned* milliwatts);
  Status (*temperature)(DeviceHandle, int sensor, unsigned* celsius);
  Status (*throttle_reasons)(DeviceHandle, unsigned long long* bits);
  Status (*ecc_errors)(DeviceHandle, int type, int counter, unsigned long long* count);
};

template <class Function>
bool find(void* library, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, symbol));
  return function != nullptr;
}

/// The library stays open, as the driver's threads may outlive this one.
std::optional<Nvml> load_nvml(const std::string& name) {
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  Nvml nvml;
  const bool complete = find(library, "nvmlInit_v2", nvml.init) && find(library, "nvmlDeviceGetHandleByPciBusId_v2", nvml.device) &&
                        find(library, "nvmlDeviceGetClockInfo", nvml.clock) && find(library, "nvmlDeviceGetPowerUsage", nvml.power) &&
                        find(library, "nvmlDeviceGetTemperature", nvml.temperature) &&
                        find(library, "nvmlDeviceGetCurrentClocksThrottleReasons", nvml.throttle_reasons) &&
                        find(library, "nvmlDeviceGetTotalEccErrors", nvml.ecc_errors);
  if (!complete || nvml.init() != 0) return std::nullopt;
  return nvml;
}

ordered_json read_sensors(const Nvml& nvml, Nvml::DeviceHandle device) {
  constexpr int kSmClock = 1, kMemoryClock = 2, kGpuTemperature = 0, kSinceDriverLoad = 0;
  ordered_json figures = ordered_json::object();
  unsigned value = 0;
  unsigned long long wide = 0;
  if (nvml.clock(device, kSmClock, &value) == 0) figures["gpu_sm_clock_mhz"] = value;
  if (nvml.clock(device, kMemoryClock, &value) == 0) figures["gpu_memory_clock_mhz"] = value;
  if (nvml.power(device, &value) == 0) figures["gpu_power_watts"] = value / 1e3;
  if (nvml.temperature(device, kGpuTemperature, &value) == 0) figures["gpu_temperature_celsius"] = value;
  if (nvml.throttle_reasons(device, &wide) == 0) figures["gpu_throttle_reasons"] = wide;
  for (const auto& [type, key] : {std::pair(0, "gpu_ecc_corrected"), std::pair(1, "gpu_ecc_uncorrected")})
    if (nvml.ecc_errors(device, type, kSinceDriverLoad, &wide) == 0) figures[key] = wide;
  return figures;
}

}  // namespace

GpuSensors::GpuSensors(std::string pci, std::string library) : pci_(std::move(pci)), library_(std::move(library)) {
  thread_ = std::thread([this] { run(); });
}

GpuSensors::~GpuSensors() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

ordered_json GpuSensors::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

void GpuSensors::run() {
  ::pthread_setname_np(::pthread_self(), "gpu sensors");
  const std::optional<Nvml> nvml = load_nvml(library_);
  Nvml::DeviceHandle device = nullptr;
  if (!nvml || nvml->device((pci_ + ".0").c_str(), &device) != 0) return;
  for (bool ending = false; !ending;) {
    ordered_json figures = read_sensors(*nvml, device);
    std::unique_lock lock(mutex_);
    latest_ = std::move(figures);
    wake_.wait_for(lock, std::chrono::seconds(1), [this] { return ending_; });
    ending = ending_;
  }
}

}  // namespace trireme
