#include "trainer/plan/analysis/scaling.h"

#include <algorithm>
#include <limits>

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// `work(n)`: work of a step on n times the devices, relative to the first point.
std::vector<ScalingPoint> points_of(const std::vector<int64_t>& devices, const StepSeconds& step_seconds,
                                    const std::function<double(double n)>& work) {
  std::vector<ScalingPoint> points;
  for (const int64_t count : devices) {
    const std::optional<double> seconds = step_seconds(count);
    if (!seconds) continue;
    const ScalingPoint first = points.empty() ? ScalingPoint{count, *seconds} : points.front();
    const double n = static_cast<double>(count) / static_cast<double>(first.devices);
    const double speedup = work(n) * first.seconds / *seconds;
    points.push_back({count, *seconds, speedup, speedup / n});
  }
  return points;
}

double times_of(const ScalingPoint& point, const std::vector<ScalingPoint>& points) {
  return static_cast<double>(point.devices) / static_cast<double>(points.front().devices);
}

/// Serial share of seconds = serial + parallel / n, by least squares of relative errors: absolute errors would let the long steps of small worlds
/// dominate.
double amdahl_share(const std::vector<ScalingPoint>& points) {
  double ss = 0, sp = 0, pp = 0, s = 0, p = 0;
  for (const ScalingPoint& point : points) {
    const double of_serial = 1 / point.seconds, of_parallel = of_serial / times_of(point, points);
    ss += of_serial * of_serial;
    sp += of_serial * of_parallel;
    pp += of_parallel * of_parallel;
    s += of_serial;
    p += of_parallel;
  }
  const double determinant = ss * pp - sp * sp;
  if (points.size() < 2 || determinant <= 0) return 0;
  const double serial = (s * pp - p * sp) / determinant, parallel = (p * ss - s * sp) / determinant;
  if (serial <= 0) return 0;  // superlinear speedup
  return parallel <= 0 ? 1 : serial / (serial + parallel);
}

double gustafson_share(const std::vector<ScalingPoint>& points) {
  double missing = 0, all = 0;
  for (const ScalingPoint& point : points) {
    const double n = times_of(point, points);
    missing += (n - 1) * (n - point.speedup);
    all += (n - 1) * (n - 1);
  }
  return all > 0 ? std::clamp(missing / all, 0.0, 1.0) : 0;
}

}  // namespace

ScalingCurve strong_scaling(const std::vector<int64_t>& devices, const StepSeconds& step_seconds) {
  ScalingCurve curve{points_of(devices, step_seconds, [](double) { return 1.0; })};
  curve.serial_share = amdahl_share(curve.points);
  curve.limit = curve.serial_share > 0 ? 1 / curve.serial_share : kInfinity;
  return curve;
}

ScalingCurve weak_scaling(const std::vector<int64_t>& devices, const StepSeconds& step_seconds) {
  ScalingCurve curve{points_of(devices, step_seconds, [](double n) { return n; })};
  curve.serial_share = gustafson_share(curve.points);
  curve.limit = kInfinity;
  return curve;
}

double required_bandwidth(const Traffic& traffic) { return traffic.bytes / traffic.seconds; }

double tolerable_latency(const Traffic& traffic, double step_seconds, double share) {
  return traffic.messages > 0 ? share * step_seconds / traffic.messages : kInfinity;
}

}  // namespace trireme
