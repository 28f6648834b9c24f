#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cuda_sim {

/// SplitMix64: small, fast, any seed.
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// 0 .. n - 1, n below 2^32.
  size_t below(size_t n) { return static_cast<size_t>(((next() >> 32) * n) >> 32); }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace cuda_sim
