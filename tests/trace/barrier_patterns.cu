#include "tests/trace/barrier_patterns.h"

#include "kernels/cuda/warpgroup.cuh"

namespace barrier_patterns {
namespace {

using namespace trireme::cuda;

// Every item has barriers of its own, so that no warp arrives twice in one phase where an order is missing.
constexpr int kItems = 4;
enum : int { kFull = 1, kFree = kFull + kItems };  // + item

__global__ void ring_kernel(const float* x, float* y, Lack lack, bool by_copies) {
  TRIREME_SHARED(float4[2][16], buffers);
  const int thread = static_cast<int>(threadIdx.x);
  for (int item = 0; item < kItems; ++item) {
    auto* const buffer = reinterpret_cast<float*>(buffers[item % 2]);
    const auto wait_for_buffer = [&] {
      if (item >= 2 && lack != Lack::kRead) barrier_sync(kFree + item - 2, 128);
    };
    const auto free_buffer = [&] {
      if (item + 2 < kItems && lack != Lack::kRead) barrier_arrive(kFree + item, 128);
    };
    if (thread < 64) {
      if (lack != Lack::kWritesFirst) wait_for_buffer();
      if (lack == Lack::kArrivesFirst) barrier_arrive(kFull + item, 128);
      if (!by_copies)
        buffer[thread] = x[item * 64 + thread];
      else if (thread < 16)
        cp_async_16(buffer + thread * 4, x + item * 64 + thread * 4, true);
      cp_async_commit();
      cp_async_wait<0>();
      if (lack == Lack::kWritesFirst) wait_for_buffer();
      if (lack != Lack::kArrivesFirst) barrier_arrive(kFull + item, 128);
    } else {
      if (lack == Lack::kArrivesInstead)
        barrier_arrive(kFull + item, 128);
      else
        barrier_sync(kFull + item, 128);
      if (lack == Lack::kReadsLast) free_buffer();
      y[item * 64 + thread - 64] = buffer[127 - thread];
      if (lack != Lack::kReadsLast) free_buffer();
    }
  }
}

__global__ void pairs_kernel(float* y, Between between) {
  TRIREME_SHARED(float[2][32], values);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto read = [&](int of) { y[threadIdx.x] = values[of][31 - lane]; };
  const bool chain = between == Between::kChain || between == Between::kBroken;
  switch (warp) {
    case 0:
      values[0][lane] = 1;
      barrier_arrive(1, 64);
      if (between == Between::kArriving) read(0);
      break;
    case 1:
      if (between == Between::kSameWarp) values[1][lane] = 1;
      if (between == Between::kBroken)
        barrier_arrive(1, 64);
      else
        barrier_sync(1, 64);
      if (between == Between::kOwn) read(0);
      if (between == Between::kSameWarp) read(1);
      if (chain) barrier_arrive(2, 64);
      break;
    case 2:
      if (chain) barrier_sync(2, 64);
      barrier_arrive(3, 64);
      break;
    default:
      barrier_sync(3, 64);
      if (between == Between::kOther || chain) read(0);
  }
}

__global__ void readers_kernel(float* y, int forgotten) {
  TRIREME_SHARED(float[32], values);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, arriving = forgotten == 0 ? 160 : 128;
  if (warp == 0) {
    values[lane] = 1;
    barrier_arrive(1, 160);
    barrier_sync(2, arriving);
    values[lane] = 2;
  } else {
    barrier_sync(1, 160);
    y[threadIdx.x] = values[lane] + values[31 - lane];
    if (warp != forgotten) barrier_arrive(2, arriving);
  }
}

__global__ void in_turn_kernel(float* x, uint32_t* counters, Turn turn) {
  TRIREME_SHARED(uint32_t, place);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) place = atomicAdd(&counters[0], 1U);
  __syncthreads();
  if (threadIdx.x < 32) {
    if (lane == 0 && turn != Turn::kNoWait) wait_for_value(&counters[1], place);
    __syncwarp();
    barrier_arrive(1, 64);
    barrier_sync(2, 64);
    if (lane == 0) release_value(&counters[1], place + 1);
  } else {
    if (turn == Turn::kLoadsBeforeBarrier) x[31 - lane] += 1;
    barrier_sync(1, 64);
    if (turn == Turn::kArrivesBeforeStore) barrier_arrive(2, 64);
    if (turn != Turn::kLoadsBeforeBarrier) x[31 - lane] += 1;
    if (turn != Turn::kArrivesBeforeStore) barrier_arrive(2, 64);
  }
}

}  // namespace

using cuda_sim::launch;

cudaError_t ring(const float* x, float* y, Lack lack, bool by_copies, cudaStream_t stream) {
  return launch(ring_kernel, dim3(1), dim3(128), 0, stream, x, y, lack, by_copies);
}
cudaError_t pairs(float* y, Between between, cudaStream_t stream) { return launch(pairs_kernel, dim3(1), dim3(128), 0, stream, y, between); }
cudaError_t readers(float* y, int forgotten, cudaStream_t stream) { return launch(readers_kernel, dim3(1), dim3(160), 0, stream, y, forgotten); }
cudaError_t in_turn(float* x, uint32_t* counters, Turn turn, unsigned blocks, cudaStream_t stream) {
  return launch(in_turn_kernel, dim3(blocks), dim3(64), 0, stream, x, counters, turn);
}

}  // namespace barrier_patterns
