#pragma once
// Scaling curves and what limits them.
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

/// Seconds of a step on so many devices; nothing where there is no such layout.
using StepSeconds = std::function<std::optional<double>(int64_t devices)>;

struct ScalingPoint {
  int64_t devices = 1;
  double seconds = 0;
  double speedup = 1;     ///< work a second against the first point's
  double efficiency = 1;  ///< of that, the share of what the added devices promised
};

/// A curve over worlds, the first of which is the measure of all. With n = devices / devices of the first point:
struct ScalingCurve {
  std::vector<ScalingPoint> points;
  double serial_share = 0;  ///< of the first point's time (strong), of each point's (weak); least squares, between 0 and 1
  double limit = 0;         ///< strong: speedup over the first point that no world exceeds, 1 / serial_share; infinite where nothing is serial
};

/// The same step on more devices: efficiency T_1 / (n T_n); the share s is that of T_n = T_1' (s + (1 - s)/n).   Source: Amdahl 1967.
ScalingCurve strong_scaling(const std::vector<int64_t>& devices, const StepSeconds& step_seconds);
/// n times the step on n times the devices: efficiency T_1 / T_n; the share s is that of speedup = n - s (n - 1).   Source: Gustafson 1988, CACM
/// 31(5).
ScalingCurve weak_scaling(const std::vector<int64_t>& devices, const StepSeconds& step_seconds);

/// What a rank sends in a step along one axis, and the compute that it can hide behind.
struct Traffic {
  const char* what = "";
  double bytes = 0;     ///< that the rank sends
  double messages = 0;  ///< one after the other: hops of all its collectives
  double seconds = 0;   ///< of compute while it is under way
};
/// Bytes/s of each rank's link at which the traffic takes as long as the compute beside it.
double required_bandwidth(const Traffic& traffic);
/// Seconds a hop at which messages alone take `share` of a step; infinite where there are none.
double tolerable_latency(const Traffic& traffic, double step_seconds, double share = 0.1);

}  // namespace trireme
