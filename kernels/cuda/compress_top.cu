// The k elements with the largest magnitudes, of equal ones the first. The k-th magnitude is found digit by digit: a histogram of one digit tells in
// which of its values the k-th element lies, and the next digit is counted only there. Sums are of integers, so that atomic additions repeat to the bit. The
// elements are then written in their order: each block counts those of its own range and adds up the counts of the blocks before it.
#include "kernels/cuda/compress.cuh"
#include "kernels/cuda/compress.h"
#include "kernels/cuda/reduce.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kDigits = 3;
constexpr int kBins = 2048;            ///< of the first digit, of 11 bits; the others have 10
constexpr int64_t kMostRanges = 1024;  ///< blocks that write elements

__host__ __device__ constexpr int bits_of_digit(int digit) { return digit == 0 ? 11 : 10; }
__host__ __device__ constexpr int bits_below(int digit) { return 20 - 10 * digit; }

/// What is known of the k-th magnitude.
struct Selection {
  unsigned prefix;     ///< its digits so far, as the upper bits of a magnitude
  unsigned remaining;  ///< elements to be taken of those with these digits
};

/// Device memory of one selection.
struct Scratch {
  unsigned histogram[kDigits][kBins];
  Selection after[kDigits];  ///< each digit
  uint2 found[kMostRanges];  ///< elements of a range above the k-th magnitude, and equal to it
};

/// The elements among which is chosen. After the first pass next_error contains gradient + error, if there is one.
struct Candidates {
  EncoderInput in;
  float* next_error;
  int64_t count;

  template <int N>
  __device__ __forceinline__ void load(int64_t i, float (&v)[N]) const {
    if (next_error == nullptr) return in.load(i, count - i, v);
    load_vector(next_error + i, count - i, v);
  }
};

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }

/// The sum of the `value`s of the threads before this one, and of all. All threads of the block must call; calls may follow directly.
__device__ __forceinline__ unsigned block_scan(unsigned value, unsigned& total) {
  TRIREME_SHARED(unsigned[kBlock / kWarp], sums);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  unsigned inclusive = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const unsigned before = __shfl_up_sync(kAllLanes, inclusive, distance);
    if (lane >= distance) inclusive += before;
  }
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  unsigned offset = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kBlock / kWarp; ++w) {
    const unsigned sum = sums[w];
    offset += w < warp ? sum : 0;
    total += sum;
  }
  __syncthreads();  // before the next call writes `sums`
  return offset + inclusive - value;
}

/// The selection after `digit`, from its histogram. `bins`: [padded(kBins)] of the block, which may be overwritten after a barrier.
__device__ __forceinline__ Selection select(const Scratch& scratch, int digit, unsigned k, unsigned* bins) {
  TRIREME_SHARED(Selection, selected);
  const Selection before = digit == 0 ? Selection{0, k} : scratch.after[digit - 1];
  const int all = 1 << bits_of_digit(digit), own = all / kBlock;  // bins of a thread, from the largest down
  for (int bin = static_cast<int>(threadIdx.x); bin < all; bin += kBlock) bins[padded(all - 1 - bin)] = scratch.histogram[digit][bin];
  __syncthreads();
  const int first = static_cast<int>(threadIdx.x) * own;
  unsigned sum = 0, total;
  for (int i = 0; i < own; ++i) sum += bins[padded(first + i)];
  unsigned above = block_scan(sum, total);
  if (above < before.remaining && before.remaining <= above + sum) {
    for (int i = 0; i < own; ++i) {
      const unsigned here = bins[padded(first + i)];
      if (before.remaining <= above + here) {
        const auto value = static_cast<unsigned>(all - 1 - first - i);
        selected = {before.prefix | value << bits_below(digit), before.remaining - above};
        break;
      }
      above += here;
    }
  }
  __syncthreads();
  return selected;
}

/// Counts the values of a digit among the elements whose higher digits are those of the selection. The first digit also sums gradient and error.
template <int kDigit, int N>
__global__ void __launch_bounds__(kBlock) count_digit_kernel(Candidates candidates, unsigned k, Scratch* scratch) {
  TRIREME_SHARED(unsigned[padded(kBins)], bins);
  constexpr int kAll = 1 << bits_of_digit(kDigit);
  unsigned prefix = 0;
  if constexpr (kDigit > 0) {
    const Selection selection = select(*scratch, kDigit - 1, k, bins);
    if (blockIdx.x == 0 && threadIdx.x == 0) scratch->after[kDigit - 1] = selection;
    prefix = selection.prefix;
  }
  for (int bin = static_cast<int>(threadIdx.x); bin < kAll; bin += kBlock) bins[bin] = 0;
  __syncthreads();
  for (int64_t i = thread_index() * N; i < candidates.count; i += thread_count() * N) {
    float v[N];
    if constexpr (kDigit == 0) {
      candidates.in.load(i, candidates.count - i, v);
      if (candidates.next_error != nullptr) store_vector(candidates.next_error + i, candidates.count - i, v);
    } else {
      candidates.load(i, v);
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const unsigned m = magnitude(v[e]);
      const bool among = kDigit == 0 || m >> bits_below(kDigit - 1) == prefix >> bits_below(kDigit - 1);
      if (i + e < candidates.count && among) atomicAdd(&bins[m >> bits_below(kDigit) & (kAll - 1)], 1U);
    }
  }
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < kAll; bin += kBlock) {
    const unsigned sum = bins[bin];
    if (sum > 0) atomicAdd(&scratch->histogram[kDigit][bin], sum);
  }
}

/// Counts the elements of each block's range that are above and equal to the k-th magnitude. Ranges have `length` elements, a multiple of kBlock * N.
template <int N>
__global__ void __launch_bounds__(kBlock) count_found_kernel(Candidates candidates, unsigned k, int64_t length, Scratch* scratch) {
  TRIREME_SHARED(unsigned[padded(kBins)], bins);
  const Selection selection = select(*scratch, kDigits - 1, k, bins);
  if (blockIdx.x == 0 && threadIdx.x == 0) scratch->after[kDigits - 1] = selection;
  const int64_t begin = int64_t{blockIdx.x} * length, end = begin + length < candidates.count ? begin + length : candidates.count;
  unsigned found[2] = {0, 0};
  for (int64_t i = begin + static_cast<int>(threadIdx.x) * N; i < end; i += kBlock * N) {
    float v[N];
    candidates.load(i, v);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const unsigned m = magnitude(v[e]);
      found[0] += i + e < end && m > selection.prefix ? 1U : 0U;
      found[1] += i + e < end && m == selection.prefix ? 1U : 0U;
    }
  }
  block_sum(found);
  if (threadIdx.x == 0) scratch->found[blockIdx.x] = {found[0], found[1]};
}

/// Writes the chosen elements of each block's range, and takes them from next_error.
template <int N>
__global__ void __launch_bounds__(kBlock)
    write_found_kernel(Candidates candidates, int64_t length, const Scratch* scratch, int32_t* indices, float* values) {
  const Selection selection = scratch->after[kDigits - 1];
  unsigned before[2] = {0, 0};  // elements of earlier ranges above and equal to the k-th magnitude
  for (unsigned r = threadIdx.x; r < blockIdx.x; r += kBlock) {
    const uint2 found = scratch->found[r];
    before[0] += found.x, before[1] += found.y;
  }
  block_sum(before);
  const int64_t begin = int64_t{blockIdx.x} * length, end = begin + length < candidates.count ? begin + length : candidates.count;
  for (int64_t tile = begin; tile < end; tile += kBlock * N) {
    const int64_t i = tile + static_cast<int>(threadIdx.x) * N;
    float v[N];
    candidates.load(i, v);
    unsigned above = 0, equal = 0;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const unsigned m = magnitude(v[e]);
      above += i + e < end && m > selection.prefix ? 1U : 0U;
      equal += i + e < end && m == selection.prefix ? 1U : 0U;
    }
    unsigned total;  // both counts of a tile fit 16 bits
    const unsigned scanned = block_scan(above | equal << 16, total);
    unsigned seen_above = before[0] + (scanned & 0xFFFFU), seen_equal = before[1] + (scanned >> 16);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const unsigned m = magnitude(v[e]);
      const bool exists = i + e < end, is_above = exists && m > selection.prefix, is_equal = exists && m == selection.prefix;
      if (is_above || (is_equal && seen_equal < selection.remaining)) {
        const unsigned place = seen_above + (seen_equal < selection.remaining ? seen_equal : selection.remaining);
        indices[place] = static_cast<int32_t>(i + e);
        values[place] = v[e];
        if (candidates.next_error != nullptr) candidates.next_error[i + e] = v[e] - v[e];  // NaN where the element is not finite
      }
      seen_above += is_above ? 1U : 0U;
      seen_equal += is_equal ? 1U : 0U;
    }
    before[0] += total & 0xFFFFU;
    before[1] += total >> 16;
  }
}

template <int N>
void queue_selection(Context& ctx, int64_t kept, const Candidates& candidates, int32_t* indices) {
  auto* const scratch = static_cast<Scratch*>(ctx.gpu->scratch(sizeof(Scratch)));
  const auto k = static_cast<unsigned>(kept);
  const dim3 block(kBlock), grid = stride_grid(ctx, ceil_div(candidates.count, N), kBlock);
  ctx.gpu->fill_bytes(scratch->histogram, 0, sizeof scratch->histogram);
  launch(ctx, count_digit_kernel<0, N>, {grid, block}, candidates, k, scratch);
  launch(ctx, count_digit_kernel<1, N>, {grid, block}, candidates, k, scratch);
  launch(ctx, count_digit_kernel<2, N>, {grid, block}, candidates, k, scratch);
  const int64_t tiles = ceil_div(candidates.count, kBlock * N), length = ceil_div(tiles, std::min(tiles, kMostRanges)) * kBlock * N;
  const dim3 ranges(static_cast<unsigned>(ceil_div(candidates.count, length)));
  launch(ctx, count_found_kernel<N>, {ranges, block}, candidates, k, length, scratch);
  launch(ctx, write_found_kernel<N>, {ranges, block}, candidates, length, scratch, indices, reinterpret_cast<float*>(indices + kept));
}

}  // namespace

void encode_largest(Context& ctx, int64_t kept, const Tensor& gradient, const Tensor& error, const Tensor& message, const Tensor& next_error) {
  TRIREME_CHECK(gradient.numel() < int64_t{1} << 31, "top-k of ", gradient.numel(), " elements, whose indices do not fit 32 bits");
  const Candidates candidates{{gradient.data<float>(), floats_or_null(error)}, floats_or_null(next_error), gradient.numel()};
  auto* const indices = reinterpret_cast<int32_t*>(message.data<uint8_t>());
  if (aligned_16(candidates.in.gradient, candidates.in.error, candidates.next_error))
    return queue_selection<kVector<float>>(ctx, kept, candidates, indices);
  queue_selection<1>(ctx, kept, candidates, indices);
}

}  // namespace trireme::cuda
