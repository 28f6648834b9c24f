#pragma once
// Products of a warpgroup and bulk operations that are pending, and the operands of products in shared memory.
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cuda_sim/device_thread.h"

namespace cuda_sim {

struct Fiber;

constexpr size_t kWarpgroup = 128;  // threads
constexpr int kProductRows = 64, kProductDepth = 16;

/// An operand in shared memory: 64 rows of A, or the columns of B, by 16 steps k (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"
/// and "Matrix Descriptor Format"). Only the 128-byte swizzle is supported.
class SharedOperand {
 public:
  SharedOperand(uint64_t descriptor, bool transposed, int extent);
  /// Null if the descriptor is a valid one of this mode, otherwise what is wrong, as in "has an operand PROBLEM".
  const char* problem() const;
  /// The address of row or column `mn`, step `k`. The swizzle exchanges chunks of 16 bytes: bits 4 to 6 of the address are xored with bits 7 to 9.
  uint32_t address(int mn, int k) const {
    const auto at = [](int i) { return static_cast<uint32_t>(i); };
    const uint32_t plain = transposed_ ? start_ + at(mn / 64) * leading_ + at(k / 8) * stride_ + at(k % 8) * 128 + at(mn % 64) * 2
                                       : start_ + at(mn / 8) * stride_ + at(mn % 8) * 128 + at(k) * 2;
    return plain ^ (plain >> 7 & 7) << 4;
  }
  /// Calls body(address) for each chunk of 16 bytes.
  template <class Body>
  void each_chunk(Body&& body) const {
    for (int mn = 0; mn < extent_; mn += transposed_ ? 8 : 1)
      for (int k = 0; k < kProductDepth; k += transposed_ ? 1 : 8) body(address(mn, k));
  }

 private:
  uint64_t descriptor_;
  bool transposed_;
  int extent_;
  uint32_t start_, leading_, stride_;
};

/// Results of products that are pending, in the order of rows. The registers hold NaN while `late` is not 0.
struct Accumulator {
  float* registers[kWarpgroup];
  int columns = 0;
  int late = 0;  // products that have not run
  std::vector<float> sums;
};

struct Product {
  ProductPart part;         // of one thread, without its registers
  std::vector<uint32_t> a;  // registers of all threads
  std::shared_ptr<Accumulator> accumulator;
  int group;
  Site site;
  bool done;
};

/// Four warps, their meeting and their products.
struct Warpgroup {
  Fiber* threads[kWarpgroup];
  size_t arrived = 0;
  Fiber* last = nullptr;  // of those that have arrived
  bool fenced = false;
  int groups = 0;                 // committed
  std::vector<Product> products;  // not waited for
  int registers = 0;              // of each thread
  int raise_to = 0;               // while it waits for registers
};

struct BulkOperation {
  float* global;
  const float* shared;
  int bytes;
  bool add;
  int group;
  Site site;
  bool done;
};

}  // namespace cuda_sim
