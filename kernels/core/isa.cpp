#include "kernels/core/isa.h"

#include <array>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace trireme {
namespace {

constexpr std::array<const char*, kIsas> kNames{"portable", "avx2", "avx512", "avx512_bf16", "amx"};

#ifdef __x86_64__
/// Linux grants the 8 KiB of AMX tile state only to processes that request it (Documentation/arch/x86/xstate.rst).
bool tiles_granted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// Conversions of fp16. Clang before 17 does not know this feature by name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

Isa find_best() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2") || !has_f16c()) return Isa::kPortable;
  for (const bool has : {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"), __builtin_cpu_supports("avx512cd"),
                         __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl")})
    if (!has) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24;
  const bool amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
  return amx && tiles_granted() ? Isa::kAmx : Isa::kAvx512Bf16;
}
#else
Isa find_best() { return Isa::kPortable; }
#endif

}  // namespace

const char* name_of(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

std::optional<Isa> parse_isa(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<Isa>(i);
  return std::nullopt;
}

Isa best_isa() {
  static const Isa best = find_best();
  return best;
}

}  // namespace trireme
