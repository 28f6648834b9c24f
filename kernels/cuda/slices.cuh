#pragma once
// Batches many slices of memory into one launch: their pointers are passed as a kernel parameter, and each block processes one chunk of one slice.
// Internal to the optimizer kernels.
#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace trireme::cuda {

/// The slices of one launch. Kernel parameters are limited to 4 KB.
template <class Slice, int kSlices, int64_t kChunkElements>
struct Batch {
  static constexpr int kMost = kSlices;
  static constexpr int64_t kChunk = kChunkElements;
  int slices;
  int blocks;
  int first_block[kSlices];
  Slice slice[kSlices];
};

/// Elements [begin, end) of a slice. `begin` is 16-byte aligned unless the slice's head is kNoVectors. The first chunk also covers the first `head`
/// elements of the slice.
struct Chunk {
  int slice;
  int64_t begin, end;
  int head;
};

template <class Slice, int kSlices, int64_t kChunk>
__device__ __forceinline__ Chunk chunk_of(const Batch<Slice, kSlices, kChunk>& batch) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = batch.slices;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (batch.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t chunk = block - batch.first_block[low], count = batch.slice[low].count;
  const int head = batch.slice[low].head > 0 ? batch.slice[low].head : 0;
  const int64_t begin = head + chunk * kChunk;
  return {low, begin, begin + kChunk < count ? begin + kChunk : count, chunk == 0 ? head : 0};
}

constexpr int kNoVectors = -1;

/// Number of elements before the first 16-byte boundary; kNoVectors if the arrays differ in it.
template <class T, class... Others>
int head_of(int64_t count, const T* first, const Others*... others) {
  const auto past = [](const void* address) { return static_cast<int>(reinterpret_cast<uintptr_t>(address) % 16); };
  if (((past(others) != past(first)) || ...)) return kNoVectors;
  return static_cast<int>(std::min<int64_t>(count, (16 - past(first)) % 16 / static_cast<int>(sizeof(T))));
}

/// Packs consecutive slices into batches and calls queue(batch) for each batch.
template <class Batch, class Slices, class ToSlice, class Queue>
void for_each_batch(const Slices& slices, ToSlice&& to_slice, Queue&& queue) {
  Batch batch;
  batch.slices = batch.blocks = 0;
  const auto flush = [&] {
    if (batch.slices > 0) queue(batch);
    batch.slices = batch.blocks = 0;
  };
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto slice = to_slice(slices[i], static_cast<int>(i));
    if (slice.count == 0) continue;
    batch.first_block[batch.slices] = batch.blocks;
    batch.slice[batch.slices++] = slice;
    batch.blocks += static_cast<int>(std::max<int64_t>(1, ceil_div(slice.count - std::max(slice.head, 0), Batch::kChunk)));
    if (batch.slices == Batch::kMost) flush();
  }
  flush();
}

}  // namespace trireme::cuda
