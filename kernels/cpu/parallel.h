#pragma once
// Threads of the CPU kernels: each computes contiguous ranges of independent outputs. Every output is computed by one thread in an order that depends
// only on the sizes, so results do not depend on the number of threads.
#include <algorithm>
#include <cstdint>

#include "kernels/core/context.h"

namespace trireme::cpu {

/// Minimum number of elements per thread: below it the fork costs more than it saves. A multiple of 16, so that ranges begin on cache lines.
constexpr int64_t kElementsPerThread = 16384;

/// Minimum number of items per thread, of `elements_per_item` elements each.
inline int64_t grain_of(int64_t elements_per_item) { return std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, elements_per_item)); }

/// Minimum number of columns per thread, of `rows` rows each: whole cache lines, and runs long enough for the prefetcher.
inline int64_t column_grain(int64_t rows) { return (grain_of(rows) + 63) / 64 * 64; }

/// One compiled copy of a body for both branches of parallel_for: inlined twice, it could be vectorised in two ways that round differently.
template <class Body>
[[gnu::noinline]] void run_range(Body body, int64_t begin, int64_t end) {
  body(begin, end);
}

/// Calls body(begin, end) for [0, count), split into at most ctx.threads contiguous ranges; inner boundaries are multiples of `grain`.
/// A single range runs on the calling thread, outside any parallel region: eight ranks on two cores must not become sixteen threads.
template <class Body>
void parallel_for(const Context& ctx, int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t ranges = std::min<int64_t>(ctx.threads, grains);
  if (ranges <= 1) {
    run_range(body, 0, count);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(ranges))
  for (int64_t r = 0; r < ranges; ++r) {
    run_range(body, grains * r / ranges * grain, std::min(count, grains * (r + 1) / ranges * grain));
  }
}

/// For an implementation that serves both CPU devices: calls body(begin, end) for [0, count), on Device::kReference as one range, else by
/// parallel_for.
template <class Body>
void for_ranges(const Context& ctx, int64_t count, int64_t grain, const Body& body) {
  if (ctx.device == Device::kReference) {
    body(0, count);
  } else {
    parallel_for(ctx, count, grain, body);
  }
}
template <class Body>
void for_elements(const Context& ctx, int64_t count, const Body& body) {
  for_ranges(ctx, count, kElementsPerThread, body);
}

}  // namespace trireme::cpu
