#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

/// Instruction-set levels of kernels/cpu; each level includes those before it. Two levels may round differently, so a run uses only one.
enum class Isa : uint8_t {
  kPortable,    ///< baseline: runs on every CPU of this architecture
  kAvx2,        ///< with FMA and F16C: x86-64-v3
  kAvx512,      ///< F, BW, CD, DQ, VL: x86-64-v4
  kAvx512Bf16,  ///< dot products of bf16 pairs
  kAmx,         ///< bf16 tiles
};
constexpr int kIsas = 5;

const char* name_of(Isa isa);  ///< "portable", "avx2", "avx512", "avx512_bf16", "amx"
std::optional<Isa> parse_isa(const std::string& name);

/// The highest level supported by this CPU, its operating system and this build. The first call requests permission to use AMX tiles from Linux, for
/// the whole process.
Isa best_isa();

}  // namespace trireme
