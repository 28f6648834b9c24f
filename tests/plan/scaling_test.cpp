#include "trainer/plan/analysis/scaling.h"

#include <cmath>

#include "tests/support/catch.h"

namespace trireme {
namespace {

const std::vector<int64_t> kWorlds{8, 16, 32, 64, 128, 256};

TEST_CASE("strong scaling recovers the serial share of its input") {
  for (const double share : {0.0, 0.02, 0.3, 1.0}) {
    const ScalingCurve curve =
        strong_scaling(kWorlds, [&](int64_t devices) { return 12 * (share + (1 - share) * 8 / static_cast<double>(devices)); });
    REQUIRE(curve.points.size() == kWorlds.size());
    CHECK(curve.serial_share == Approx(share).margin(1e-9));
    if (share > 0) CHECK(curve.limit == Approx(1 / share));
    if (share == 0) CHECK(curve.limit > 1e9);
    for (const ScalingPoint& point : curve.points) {
      const double n = static_cast<double>(point.devices) / 8;
      CHECK(point.speedup == Approx(1 / (share + (1 - share) / n)));
      CHECK(point.efficiency == Approx(curve.points.front().seconds / (n * point.seconds)));
    }
  }
}

TEST_CASE("weak scaling recovers the serial share of Gustafson's law") {
  for (const double share : {0.0, 0.1, 1.0}) {
    const ScalingCurve curve = weak_scaling(kWorlds, [&](int64_t devices) {
      const double n = static_cast<double>(devices) / 8;
      return 3 * n / (n - share * (n - 1));
    });
    CHECK(curve.serial_share == Approx(share).margin(1e-9));
    for (const ScalingPoint& point : curve.points) CHECK(point.efficiency == Approx(curve.points.front().seconds / point.seconds));
  }
}

TEST_CASE("the serial share of a noisy curve minimises relative errors, and lies between 0 and 1") {
  int sign = 1;
  const ScalingCurve noisy = strong_scaling(kWorlds, [&](int64_t devices) {
    sign = -sign;
    return (0.05 + 0.95 * 8 / static_cast<double>(devices)) * (1 + 0.01 * sign);
  });
  CHECK(noisy.serial_share == Approx(0.05).epsilon(0.03));
  const ScalingCurve faster = strong_scaling(kWorlds, [](int64_t devices) { return 1 / std::pow(static_cast<double>(devices), 1.1); });
  CHECK(faster.serial_share == 0);
  const ScalingCurve slower = strong_scaling(kWorlds, [](int64_t devices) { return static_cast<double>(devices); });
  CHECK(slower.serial_share == 1);
}

TEST_CASE("world sizes without a layout are skipped, and the first with one is the reference") {
  const ScalingCurve curve = strong_scaling(
      {1, 2, 4, 8}, [](int64_t devices) { return devices == 1 || devices == 4 ? std::nullopt : std::optional(8.0 / static_cast<double>(devices)); });
  REQUIRE(curve.points.size() == 2);
  CHECK(curve.points[0].devices == 2);
  CHECK(curve.points[0].efficiency == 1);
  CHECK(curve.points[1].speedup == Approx(4));
  CHECK(curve.points[1].efficiency == Approx(1));
  CHECK(strong_scaling({1}, [](int64_t) { return std::nullopt; }).points.empty());
}

TEST_CASE("MegaScale's and Megatron's published strong scaling") {
  // Jiang et al. 2024, arXiv:2402.15627, Table 2: batch 6144 on 3072, 6144 and 12288 GPUs, so efficiency is the ratio of MFUs.
  const auto curve = [](double a, double b, double c) {
    return strong_scaling({3072, 6144, 12288}, [=](int64_t devices) { return devices == 3072 ? a : devices == 6144 ? b : c; });
  };
  const ScalingCurve megatron = curve(29.02, 14.78, 8.57), megascale = curve(23.66, 12.21, 6.34);
  CHECK(megatron.points[2].efficiency == Approx(41.2 / 48.7).epsilon(0.003));
  CHECK(megascale.points[1].efficiency == Approx(57.3 / 59.1).epsilon(0.003));
  CHECK(megascale.points[2].efficiency == Approx(55.2 / 59.1).epsilon(0.003));
  CHECK(megascale.serial_share < megatron.serial_share);
}

TEST_CASE("bandwidth and latency required to hide traffic") {
  const Traffic traffic{"gradients", 6e9, 300, 0.25};
  CHECK(required_bandwidth(traffic) == Approx(24e9));
  CHECK(tolerable_latency(traffic, 3) == Approx(1e-3));
  CHECK(tolerable_latency(traffic, 3, 0.2) == Approx(2e-3));
  CHECK(std::isinf(tolerable_latency({"none", 0, 0, 1}, 3)));
}

}  // namespace
}  // namespace trireme
