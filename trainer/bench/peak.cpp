#include "trainer/bench/peak.h"

#include <array>

namespace trireme::bench {
namespace {

struct Peak {
  const char* name;   ///< part of the driver's name; the first match counts
  double bf16, fp32;  ///< TFLOP/s
};

constexpr std::array kPeaks{Peak{"H100 PCIe", 756, 51}, Peak{"H100", 989.4, 66.9}, Peak{"H200", 989.4, 66.9},    Peak{"GH200", 989.4, 66.9},
                            Peak{"A100", 312, 19.5},    Peak{"L40S", 362, 91.6},   Peak{"RTX 4090", 165.2, 82.6}};

}  // namespace

std::optional<double> peak_flops(const std::string& gpu_name, DType dtype) {
  if (dtype != DType::kBF16 && dtype != DType::kF32) return std::nullopt;
  for (const Peak& peak : kPeaks)
    if (gpu_name.find(peak.name) != std::string::npos) return 1e12 * (dtype == DType::kBF16 ? peak.bf16 : peak.fp32);
  return std::nullopt;
}

}  // namespace trireme::bench
