#pragma once
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace trireme {

/// Clocks, power, temperature, throttle reasons and memory errors of a GPU, read once a second on a thread of its own through NVML, which a driver
/// brings along. Without it, and for what a GPU does not report, there are no figures; nothing fails.
class GpuSensors {
 public:
  /// `pci`: "0000:65:00". `library`: for tests.
  explicit GpuSensors(std::string pci, std::string library = "libnvidia-ml.so.1");
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  /// gpu_sm_clock_mhz, gpu_memory_clock_mhz, gpu_power_watts, gpu_temperature_celsius, gpu_throttle_reasons (the bits of nvmlClocksThrottleReason*),
  /// gpu_ecc_corrected and gpu_ecc_uncorrected (errors since the driver was loaded); those that were read last.
  nlohmann::ordered_json latest() const;

 private:
  void run();

  const std::string pci_, library_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  nlohmann::ordered_json latest_ = nlohmann::ordered_json::object();
  std::thread thread_;
};

}  // namespace trireme
