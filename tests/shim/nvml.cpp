// NVML of a machine with one GPU at 0000:65:00.0, for GpuSensors. Its temperature rises by a degree at each reading; it has no memory with ECC.
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, void** device) {
  static int gpu;
  *device = &gpu;
  return std::strcmp(pci, "0000:65:00.0") == 0 ? 0 : 6;
}

int nvmlDeviceGetClockInfo(void*, int type, unsigned* megahertz) {
  if (type != 1 && type != 2) return 2;
  *megahertz = type == 1 ? 1980 : 2619;
  return 0;
}

int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 698500;
  return 0;
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  static unsigned now = 60;
  if (sensor != 0) return 2;
  *celsius = now++;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) {
  *bits = 0x44;  // by the limit of power, and thermally by hardware
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long*) { return 3; }  // not supported
}
