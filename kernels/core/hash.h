#pragma once
#include <cstdint>
#include <string_view>

namespace trireme {

constexpr uint64_t kFnv1aStart = 0xCBF29CE484222325;

/// 64-bit FNV-1a, continued from `hash`. Detects different data; it is not a cryptographic hash.
constexpr uint64_t fnv1a(std::string_view bytes, uint64_t hash = kFnv1aStart) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return hash;
}

}  // namespace trireme
