#include "trainer/checkpoint/non_finite.h"

#include <cstddef>
#include <cstring>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"

namespace trireme {
namespace {

/// Counts elements whose exponent bits are all set. Tests bits because a compiler that assumes finite math may remove isfinite().
template <class Bits, Bits kExponent>
int64_t count_exponents(const void* data, int64_t count) {
  const auto* next = static_cast<const std::byte*>(data);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i, next += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, next, sizeof bits);
    found += (bits & kExponent) == kExponent ? 1 : 0;
  }
  return found;
}

}  // namespace

int64_t count_non_finite(DType dtype, const void* data, int64_t count) {
  switch (dtype) {
    case DType::kF64: return count_exponents<uint64_t, uint64_t{0x7ff} << 52>(data, count);
    case DType::kF32: return count_exponents<uint32_t, uint32_t{0xff} << 23>(data, count);
    case DType::kBF16: return count_exponents<uint16_t, uint16_t{0x7f80}>(data, count);
    case DType::kF16: return count_exponents<uint16_t, uint16_t{0x7c00}>(data, count);
    default: return 0;
  }
}

void refuse_non_finite(const std::string& where, const NonFinite& tensors) {
  if (!tensors.empty()) throw DataError(concat(where, ": contains non-finite values: ", to_string(tensors), "; no training can start from it"));
}

std::string to_string(const NonFinite& tensors) {
  constexpr size_t kShown = 5;
  std::string text;
  size_t shown = 0;
  for (const auto& [name, count] : tensors) {
    if (shown == kShown) break;
    text += concat(shown++ > 0 ? ", " : "", name, " (", counted(count, "value"), ")");
  }
  return tensors.size() > kShown ? concat(text, " and ", tensors.size() - kShown, " more") : text;
}

}  // namespace trireme
