#include "tests/cuda_sim/warpgroup_kernels.h"

#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace warpgroup_kernels {
namespace {

using trireme::bfloat16, trireme::float16;
using namespace trireme::cuda;

constexpr int kDepth = 64, kPanelBytes = 64 * kPanelRowBytes;

/// Element (row, column) of panels of 64 rows.
__device__ uint16_t& panel_element(unsigned char* panels, int row, int column) {
  return *reinterpret_cast<uint16_t*>(panels + column / kPanelColumns * kPanelBytes + panel_offset(row, column % kPanelColumns / 8) + column % 8 * 2);
}

template <class T, int N, bool kRegisters, bool kTransposedA, bool kTransposedB>
__global__ void product_kernel(const void* a, const uint16_t* b, float* d, bool add) {
  TRIREME_DYNAMIC_SHARED(unsigned char, shared_a);
  unsigned char* const shared_b = shared_a + kPanelBytes;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; !kRegisters && i < 64 * kDepth; i += threads) {
    const int row = i / kDepth, k = i % kDepth;
    panel_element(shared_a, kTransposedA ? k : row, kTransposedA ? row : k) = static_cast<const uint16_t*>(a)[i];
  }
  for (int i = thread; i < kDepth * N; i += threads) {
    const int k = i / N, column = i % N;
    if (kTransposedB)
      panel_element(shared_b, k, column) = b[i];
    else
      panel_element(shared_b + column / 64 * kPanelBytes, column % 64, k) = b[i];
  }
  fence_proxy_async();
  __syncthreads();
  float sums[N / 8][4];
  for (int i = 0; i < N / 2; ++i) sums[i / 4][i % 4] = d[thread * N / 2 + i];
  const uint32_t at_a = shared_address(shared_a), at_b = shared_address(shared_b);
  wgmma_fence();
  for (int step = 0; step < kDepth / 16; ++step) {
    const auto offset = [step](bool transposed) { return static_cast<uint32_t>(step * (transposed ? 16 * kPanelRowBytes : 32)); };
    const uint64_t operand_b = wgmma_operand(at_b + offset(kTransposedB), kPanelBytes);
    if constexpr (kRegisters) {
      uint32_t fragment[4];
      for (int i = 0; i < 4; ++i) fragment[i] = static_cast<const uint32_t*>(a)[(step * 128 + thread % 128) * 4 + i];
      wgmma<T, N, kTransposedB>(sums, fragment, operand_b, add || step > 0);
    } else {
      wgmma<T, N, kTransposedA, kTransposedB>(sums, wgmma_operand(at_a + offset(kTransposedA)), operand_b, add || step > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) d[thread * N / 2 + i] = sums[i / 4][i % 4];
}

using ProductKernel = void (*)(const void*, const uint16_t*, float*, bool);

template <class T, int N>
ProductKernel kernel_of(const Form& form) {
  if (form.registers) return form.transposed_b ? product_kernel<T, N, true, false, true> : product_kernel<T, N, true, false, false>;
  if (form.transposed_a) return form.transposed_b ? product_kernel<T, N, false, true, true> : product_kernel<T, N, false, true, false>;
  return form.transposed_b ? product_kernel<T, N, false, false, true> : product_kernel<T, N, false, false, false>;
}

constexpr int kTileBytes = 2 * kPanelBytes;  // of wrong_kernel: an operand A and an operand B

__device__ void store_results(float* d, const float (&sums)[8][4]) {
  for (int i = 0; i < 32; ++i) d[static_cast<int>(threadIdx.x) * 32 + i] = sums[i / 4][i % 4];
}

__device__ void fill(unsigned char* shared, float value) {
  const uint32_t pair = bfloat16(value).bits * 0x10001U;
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes / 16; i += static_cast<int>(blockDim.x))
    store_words(shared + i * 16, uint4{pair, pair, pair, pair});
}

/// The whole product, with a defect in one thread or all.
__device__ void multiply(Defect wrong, float (&sums)[8][4], unsigned char* shared) {
  const unsigned thread = threadIdx.x;
  const uint32_t a = shared_address(shared), b = a + kPanelBytes;
  if (wrong != Defect::kNoWgmmaFence) wgmma_fence();
  for (uint32_t k = 0; k < 4; ++k) {
    uint64_t operand_a = wgmma_operand(a + k * 32), operand_b = wgmma_operand(b + k * 32);
    bool add = k > 0;
    switch (wrong) {
      case Defect::kOtherOperand:
        if (thread == 77) operand_a += 2;
        break;
      case Defect::kOtherAdd:
        if (thread == 77) add = true;
        break;
      case Defect::kOtherSwizzle: operand_a ^= uint64_t{3} << 62; break;
      case Defect::kBaseOffset: operand_a |= uint64_t{1} << 49; break;
      case Defect::kSecondRow: operand_b += kPanelRowBytes >> 4; break;
      case Defect::kAcrossRow: operand_a += 1; break;
      case Defect::kStride: operand_b -= uint64_t{512 >> 4} << 32; break;
      case Defect::kBehindShared: operand_b += kPanelBytes >> 4; break;
      case Defect::kNoSecondFence:
        if (k == 2) wgmma_commit(), wgmma_wait<0>();
        break;
      default: break;
    }
    wgmma<bfloat16, 64, false, false>(sums, operand_a, operand_b, add);
  }
}

__global__ void wrong_kernel(Defect wrong, float* d) {
  TRIREME_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned thread = threadIdx.x;
  float sums[8][4] = {};
  if (wrong == Defect::kStaticOperand) {
    TRIREME_SHARED(float[4], fixed);
    d[0] = static_cast<float>(shared_address(fixed));
  }
  fill(shared, 1);
  fence_proxy_async();
  __syncthreads();
  const uint64_t a = wgmma_operand(shared_address(shared)), b = wgmma_operand(shared_address(shared + kPanelBytes));
  switch (wrong) {
    case Defect::kReturned:
      if (thread == 5) return;
      __syncthreads();
      break;
    case Defect::kReturnsMeanwhile:
      if (thread == 5) {
        for (int i = 0; i < 3; ++i) __syncwarp(1U << 5);
        return;
      }
      break;
    case Defect::kTwoPlaces:
      if (thread < 64)
        wgmma_fence();
      else
        wgmma_fence();
      break;
    case Defect::kBarrierInstead:
      if (thread < 32) __syncthreads();
      break;
    case Defect::kOtherShape: {
      float wide[16][4];
      wgmma_fence();
      wgmma<bfloat16, 128, false, false>(wide, a, a, false);
      wgmma<bfloat16, 64, false, false>(reinterpret_cast<float(&)[8][4]>(wide), a, b, true);
      break;
    }
    default: break;
  }
  multiply(wrong, sums, shared);
  if (wrong == Defect::kNoCommit) return;
  wgmma_commit();
  if (wrong == Defect::kNoWait) return;
  if (wrong == Defect::kWaitTooWeak) return wgmma_wait<1>();
  if (wrong == Defect::kReadsEarly) store_results(d, sums);
  if (wrong == Defect::kWritesResults) sums[3][1] = 7;
  if (wrong == Defect::kScalesResults) sums[3][1] *= 2;
  if (wrong == Defect::kWritesOperand) {
    __syncthreads();
    fill(shared, 3);
    __syncthreads();
  }
  wgmma_wait<0>();
  if (wrong != Defect::kReadsEarly) store_results(d, sums);
}

__global__ void two_groups_kernel(float* first, float* second, float* both) {
  TRIREME_DYNAMIC_SHARED(unsigned char, shared);
  fill(shared, 1);
  fence_proxy_async();
  __syncthreads();
  float sums[8][4], other_sums[8][4];
  multiply(Defect::kNothing, sums, shared);
  wgmma_commit();
  multiply(Defect::kNothing, other_sums, shared);
  wgmma_commit();
  wgmma_wait<1>();
  store_results(first, sums);
  store_results(second, other_sums);
  wgmma_wait<0>();
  for (int i = 0; i < 32; ++i) sums[i / 4][i % 4] += other_sums[i / 4][i % 4];
  store_results(both, sums);
}

__global__ void wrong_bulk_kernel(Defect wrong, float* d) {
  TRIREME_DYNAMIC_SHARED(float, shared);
  if (threadIdx.x == 0) {
    switch (wrong) {
      case Defect::kBulkSize: bulk_add(d, shared, 20); break;
      case Defect::kBulkGlobal: bulk_add(d + 1, shared, 16); break;
      case Defect::kBulkShared: bulk_store(d, shared + 2, 16); break;
      case Defect::kBulkOutside: bulk_add(d, shared + kTileBytes / 4 - 4, 32); break;
      default: bulk_add(d, shared, 16);
    }
    if (wrong != Defect::kBulkNoCommit) bulk_commit();
    if (wrong == Defect::kBulkNoCommit) bulk_wait<0>();
  }
}

__global__ void bulk_kernel(float* x, bool add, int* early) {
  TRIREME_SHARED(float4[16], shared);
  auto* const values = reinterpret_cast<float*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  values[thread] = static_cast<float>(thread);
  fence_proxy_async();
  __syncthreads();
  if (thread == 0) {
    bulk_store(x, values, 128);
    bulk_store(x + 32, values + 32, 128);
    bulk_commit();
    for (int i = 1; i < 64; ++i) *early += x[i] == static_cast<float>(i);
    bulk_wait<0>();
  }
  __syncthreads();
  if (thread % 32 == 0 && add) {
    bulk_add(x, values, 256);
    bulk_commit();
    bulk_wait<0>();
  }
}

__global__ void barriers_kernel(BarrierDefect wrong) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  switch (wrong) {
    case BarrierDefect::kNumber0: return barrier_sync(0, 128);
    case BarrierDefect::kNumber16: return barrier_arrive(16, 128);
    case BarrierDefect::kNoThreads: return barrier_sync(3, 0);
    case BarrierDefect::kPartOfAWarp: return barrier_sync(3, 100);
    case BarrierDefect::kOutside: return barrier_sync(3, 160);
    case BarrierDefect::kOtherCount: return barrier_sync(3, warp == 1 ? 96 : 128);
    case BarrierDefect::kOtherNumber: return barrier_sync(lane == 7 ? 4 : 3, 128);
    case BarrierDefect::kTwoPlaces:
      if (lane < 16)
        barrier_sync(3, 128);
      else
        barrier_sync(3, 128);
      return;
    case BarrierDefect::kLaneReturned:
      if (lane != 5) barrier_sync(3, 128);
      return;
    case BarrierDefect::kArrivesTwice:
      if (warp == 2)
        for (int i = 0; i < 2; ++i) barrier_arrive(3, 128);
      return;
    case BarrierDefect::kIncomplete:
      if (warp == 2)
        __syncthreads();
      else
        barrier_sync(3, 128);
      return;
    case BarrierDefect::kAllReturned:
      if (warp != 2) barrier_sync(3, 128);
      return;
    case BarrierDefect::kStaysOpen:
      if (warp == 2) barrier_arrive(3, 128);
      break;
    default: break;
  }
  for (int i = 0; i < 3; ++i) barrier_sync(15, 128);
}

__global__ void ring_kernel(const float* x, float* y, bool reuses_early) {
  enum : int { kFull = 1, kEmpty = 3 };  // + buffer
  TRIREME_SHARED(float[2][64], buffers);
  const int thread = static_cast<int>(threadIdx.x);
  for (int item = 0; item < kRingItems / 64; ++item) {
    const int buffer = item % 2;
    if (thread < 64) {
      if (reuses_early) buffers[buffer][thread] = x[item * 64 + thread];
      if (item >= 2) barrier_sync(kEmpty + buffer, 128);
      if (!reuses_early) buffers[buffer][thread] = x[item * 64 + thread];
      barrier_arrive(kFull + buffer, 128);
    } else {
      barrier_sync(kFull + buffer, 128);
      const int i = 127 - thread;  // of the other warp's
      __syncwarp();
      y[item * 64 + i] = 2 * buffers[buffer][i];
      if (item + 2 < kRingItems / 64) barrier_arrive(kEmpty + buffer, 128);
    }
  }
}

__global__ void barrier_beside_kernel(int* y) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == 0) return;
  if (warp == 1)
    barrier_arrive(1, 96);
  else
    barrier_sync(1, 96);
  __syncthreads();
  if (warp == 1) barrier_sync(2, 32);
  __syncthreads();
  y[threadIdx.x - 32] = 1;
}

__global__ void registers_kernel(RegistersDefect wrong, int* y) {
  TRIREME_SHARED(int, begun);
  if (threadIdx.x == 0) begun = 0;
  __syncthreads();
  if (threadIdx.x >= 256) {
    if (wrong == RegistersDefect::kLowersUp) lower_registers<176>();
    for (int i = 0; i < 4; ++i) barrier_sync(1, 128);
    begun = 1;
    if (wrong == RegistersDefect::kPartOfGroup && threadIdx.x < 288) return;
    lower_registers<56>();
  } else {
    if (wrong == RegistersDefect::kRaisesDown) raise_registers<160>();
    if (wrong == RegistersDefect::kTooMany)
      raise_registers<232>();
    else
      raise_registers<224>();
    y[threadIdx.x] = begun;
  }
}

}  // namespace

using cuda_sim::launch;

cudaError_t product(const Form& form, const void* a, const uint16_t* b, float* d, int groups, cudaStream_t stream) {
  ProductKernel kernel = nullptr;
  if (form.half)
    kernel = form.columns == 64 ? kernel_of<float16, 64>(form) : kernel_of<float16, 128>(form);
  else
    kernel = form.columns == 64 ? kernel_of<bfloat16, 64>(form) : kernel_of<bfloat16, 128>(form);
  const auto panels = static_cast<size_t>(1 + form.columns / 64);
  return launch(kernel, dim3(1), dim3(static_cast<unsigned>(groups) * 128), panels * kPanelBytes, stream, a, b, d, form.add);
}
cudaError_t launch_defective(Defect wrong, float* d, cudaStream_t stream) {
  if (wrong >= Defect::kBulkSize) return launch(wrong_bulk_kernel, dim3(1), dim3(32), kTileBytes, stream, wrong, d);
  return launch(wrong_kernel, dim3(1), dim3(wrong == Defect::kHalfAWarpgroup ? 192 : 128), kTileBytes, stream, wrong, d);
}
cudaError_t two_groups(float* first, float* second, float* both, cudaStream_t stream) {
  return launch(two_groups_kernel, dim3(1), dim3(128), kTileBytes, stream, first, second, both);
}
cudaError_t bulk(float* x, bool add, int* early, cudaStream_t stream) { return launch(bulk_kernel, dim3(1), dim3(64), 0, stream, x, add, early); }
cudaError_t launch_barriers(BarrierDefect wrong, cudaStream_t stream) { return launch(barriers_kernel, dim3(1), dim3(128), 0, stream, wrong); }
cudaError_t ring(const float* x, float* y, bool reuses_early, cudaStream_t stream) {
  return launch(ring_kernel, dim3(1), dim3(128), 0, stream, x, y, reuses_early);
}
cudaError_t barrier_beside(int* y, cudaStream_t stream) { return launch(barrier_beside_kernel, dim3(1), dim3(128), 0, stream, y); }
cudaError_t registers(RegistersDefect wrong, int* y, cudaStream_t stream) {
  return launch(registers_kernel, dim3(1), dim3(384), 0, stream, wrong, y);
}

}  // namespace warpgroup_kernels
