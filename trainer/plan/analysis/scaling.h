#pragma once
// Strong and weak scaling curves, and requirements on links.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

/// Step time in seconds on `devices` devices; nullopt if there is no such layout.
using StepSeconds = std::function<std::optional<double>(int64_t devices)>;

struct ScalingPoint {
  int64_t devices = 1;
  double seconds = 0;
  double speedup = 1;     ///< throughput relative to the first point
  double efficiency = 1;  ///< speedup divided by the increase in devices
};

/// A curve over world sizes, relative to the first point. Below, n = devices / devices of the first point.
struct ScalingCurve {
  std::vector<ScalingPoint> points;
  double serial_share = 0;  ///< share of the first point's time (strong) or of each point's (weak); least squares, in [0, 1]
  double limit = 0;         ///< strong: highest possible speedup over the first point, 1 / serial_share; infinite if serial_share is 0
};

/// The same step on more devices: efficiency T_1 / (n T_n); serial share s from T_n = T_1' (s + (1 - s)/n).   Source: Amdahl 1967.
ScalingCurve strong_scaling(const std::vector<int64_t>& devices, const StepSeconds& step_seconds);
/// n times the work on n times the devices: efficiency T_1 / T_n; serial share s from speedup = n - s (n - 1).
/// Source: Gustafson 1988, CACM 31(5).
ScalingCurve weak_scaling(const std::vector<int64_t>& devices, const StepSeconds& step_seconds);

/// Traffic of a rank per step along one mesh axis, and the compute that it can overlap with.
struct Traffic {
  const char* what = "";
  double bytes = 0;     ///< bytes that the rank sends
  double messages = 0;  ///< sequential messages: hops of all its collectives
  double seconds = 0;   ///< seconds of compute that the traffic overlaps with
};
/// Bandwidth of each rank's link, in bytes/s, at which the traffic takes as long as the compute it overlaps with.
double required_bandwidth(const Traffic& traffic);
/// Latency per hop, in seconds, at which the messages alone take `share` of a step; infinite if there are no messages.
double tolerable_latency(const Traffic& traffic, double step_seconds, double share = 0.1);

}  // namespace trireme
