#include "trainer/bench/peak.h"

#include <array>

namespace trireme::bench {
namespace {

struct Peak {
  const char* name;     ///< substring of the driver's name; the first match is used
  double narrow, fp32;  ///< TFLOP/s; narrow: bf16 and fp16
};

constexpr std::array kPeaks{Peak{"H100 PCIe", 756, 51}, Peak{"H100", 989.4, 66.9}, Peak{"H200", 989.4, 66.9},    Peak{"GH200", 989.4, 66.9},
                            Peak{"A100", 312, 19.5},    Peak{"L40S", 362, 91.6},   Peak{"RTX 4090", 165.2, 82.6}};

}  // namespace

std::optional<double> peak_flops(const std::string& gpu_name, DType dtype) {
  if (dtype == DType::kF64) return std::nullopt;  // no fp64 kernels on GPUs
  for (const Peak& peak : kPeaks)
    if (gpu_name.find(peak.name) != std::string::npos) return 1e12 * (size_of(dtype) == 2 ? peak.narrow : peak.fp32);
  return std::nullopt;
}

}  // namespace trireme::bench
