#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

/// Instructions that the kernels of kernels/cpu use: each level has those before it. Two levels may round differently, so a run keeps to one.
enum class Isa : uint8_t {
  kPortable,    ///< what the compiler makes for every CPU of this architecture
  kAvx2,        ///< with FMA and F16C: x86-64-v3
  kAvx512,      ///< F, BW, CD, DQ, VL: x86-64-v4
  kAvx512Bf16,  ///< dot products of bf16 pairs
  kAmx,         ///< tiles of bf16
};
constexpr int kIsas = 5;

const char* name_of(Isa isa);  ///< "portable", "avx2", "avx512", "avx512_bf16", "amx"
std::optional<Isa> isa_named(const std::string& name);

/// The highest level that this CPU, its operating system and this build have. The first call asks Linux for the use of AMX's tiles, for the whole process.
Isa best_isa();

}  // namespace trireme
