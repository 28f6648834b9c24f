#include "kernels/cuda/compress.h"

#include <cfloat>
#include <cmath>

#include "kernels/cuda/compress.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rng.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;

// ---- codes in blocks that share a scale ----

/// integer_scale of kernels/reference/compress.h from the largest magnitude. What is not finite stays so: the GPU's own NaN has all bits set, and
/// rounding it up would make it zero.
__device__ __forceinline__ float integer_scale(unsigned largest, int limit) {
  const float scale = __uint_as_float(largest) / static_cast<float>(limit);
  if (scale < FLT_MIN) return 0;
  if (!(scale <= FLT_MAX)) return scale;
  return __uint_as_float((__float_as_uint(scale) + 0x7FU) & ~0x7FU);
}

/// The code of a value: for 1 bit 1 or -1, else the nearest multiple of the scale, ties to even.
template <int kBits>
__device__ __forceinline__ int code_of(float v, float scale) {
  if constexpr (kBits == 1) {
    return v >= 0 ? 1 : -1;
  } else {
    if (!(scale > 0 && scale <= FLT_MAX)) return 0;
    constexpr auto kLimit = static_cast<float>(kBits == 8 ? 127 : 7);
    const float code = rintf(v / scale);
    return static_cast<int>(fminf(fmaxf(code, -kLimit), kLimit));
  }
}

/// Bytes that one thread, or for 1 bit eight threads, write at once.
template <int kBits, int N>
__host__ __device__ constexpr int unit_bytes() {
  if (N == 1) return 1;
  return kBits == 1 ? 4 : N * kBits / 8;
}

/// Writes the codes of N elements from `first`, of which `left` exist. All lanes of a warp must call, with consecutive elements.
template <int kBits, int N>
__device__ __forceinline__ void store_codes(uint8_t* codes, int64_t first, int64_t left, const int (&code)[N]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kBits == 8) {
    if (left <= 0) return;
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) word |= static_cast<uint32_t>(code[k] & 0xFF) << (8 * k);
    if constexpr (N == 1) {
      codes[first] = static_cast<uint8_t>(word);
    } else {
      *reinterpret_cast<uint32_t*>(codes + first) = word;  // missing elements have code 0
    }
  } else if constexpr (kBits == 4) {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) word |= k < left ? static_cast<uint32_t>(code[k] + 8) << (4 * k) : 0U;
    if constexpr (N == 1) {
      word |= __shfl_down_sync(0xFFFFFFFFU, word, 1) << 4;
      if (lane % 2 == 0 && left > 0) codes[first / 2] = static_cast<uint8_t>(word);
    } else {
      if (left > 0) *reinterpret_cast<uint16_t*>(codes + first / 2) = static_cast<uint16_t>(word);
    }
  } else if constexpr (N == 1) {
    const unsigned word = __ballot_sync(0xFFFFFFFFU, left > 0 && code[0] > 0);
    const int64_t warp_left = left + lane;  // elements from the first one of this warp
    if (lane < 4 && 8 * lane < warp_left) codes[(first - lane) / 8 + lane] = static_cast<uint8_t>(word >> (8 * lane));
  } else {
    uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) word |= k < left && code[k] > 0 ? 1U << (lane % 8 * N + k) : 0U;
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) word |= __shfl_xor_sync(0xFFFFFFFFU, word, distance);
    if (lane % 8 == 0 && left > 0) *reinterpret_cast<uint32_t*>(codes + first / 8) = word;
  }
}

/// The codes of N elements from `first`, of which at least one exists.
template <int kBits, int N>
__device__ __forceinline__ void load_codes(const uint8_t* codes, int64_t first, int (&code)[N]) {
  uint32_t word;
  if constexpr (kBits == 1 && N > 1) {
    word = *reinterpret_cast<const uint32_t*>(codes + first / 32 * 4) >> (first % 32);
  } else if constexpr (kBits == 1) {
    word = static_cast<uint32_t>(codes[first / 8]) >> (first % 8);
  } else if constexpr (kBits == 4 && N == 1) {
    word = static_cast<uint32_t>(codes[first / 2]) >> (first % 2 * 4);
  } else if constexpr (kBits == 4) {
    word = *reinterpret_cast<const uint16_t*>(codes + first / 2);
  } else if constexpr (N == 1) {
    word = codes[first];
  } else {
    word = *reinterpret_cast<const uint32_t*>(codes + first);
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (kBits == 8) code[k] = static_cast<int8_t>(word >> (8 * k));
    if constexpr (kBits == 4) code[k] = static_cast<int>(word >> (4 * k) & 15) - 8;
    if constexpr (kBits == 1) code[k] = (word >> k & 1) != 0 ? 1 : -1;
  }
}

struct BlockCodes {
  int64_t count, block, blocks;
  float* scales;
  uint8_t* codes;
};

/// A row of the thread block is a team of blockDim.x threads and encodes one block of elements. The first eight elements of a thread stay in registers
/// between the scale and the codes, so blocks of up to 8 * kTeam elements are read once; what is longer is read again.
template <int kBits, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) encode_blocks_kernel(EncoderInput in, BlockCodes out, float* next_error) {
  constexpr int kKept = 8 / N;
  constexpr int64_t kStep = kTeam * N;
  const int64_t b = int64_t{blockIdx.x} * (kBlock / kTeam) + threadIdx.y;
  if (b >= out.blocks) return;
  const int64_t begin = b * out.block, size = out.count - begin < out.block ? out.count - begin : out.block;
  const int64_t own = int64_t{threadIdx.x} * N;
  float kept[kKept][N];
#pragma unroll
  for (int c = 0; c < kKept; ++c) in.load(begin + c * kStep + own, size - c * kStep - own, kept[c]);

  float scale;
  if constexpr (kBits == 1) {
    double sum = 0;
    const auto add = [&](const float(&v)[N]) {
#pragma unroll
      for (int k = 0; k < N; ++k) sum += static_cast<double>(fabsf(v[k]));
    };
#pragma unroll
    for (int c = 0; c < kKept; ++c) add(kept[c]);
    for (int64_t first = kKept * kStep + own; first < size; first += kStep) {
      float v[N];
      in.load(begin + first, size - first, v);
      add(v);
    }
    scale = static_cast<float>(block_sum(sum) / static_cast<double>(size));
  } else {
    unsigned largest = 0;  // magnitudes order as integers, and a NaN is larger than every number
    const auto compare = [&](const float(&v)[N]) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const unsigned magnitude = __float_as_uint(v[k]) & 0x7FFFFFFFU;
        largest = magnitude > largest ? magnitude : largest;
      }
    };
#pragma unroll
    for (int c = 0; c < kKept; ++c) compare(kept[c]);
    for (int64_t first = kKept * kStep + own; first < size; first += kStep) {
      float v[N];
      in.load(begin + first, size - first, v);
      compare(v);
    }
    scale = integer_scale(block_max(largest, 0U), kBits == 8 ? 127 : 7);
  }
  if (threadIdx.x == 0) out.scales[b] = scale;

  uint8_t* const codes = out.codes + begin * kBits / 8;
  const auto write = [&](int64_t first, float(&v)[N]) {
    int code[N];
#pragma unroll
    for (int k = 0; k < N; ++k) code[k] = code_of<kBits>(v[k], scale);
    store_codes<kBits>(codes, first, size - first, code);
    if (next_error == nullptr) return;
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] -= scale * static_cast<float>(code[k]);  // the product is exact
    store_vector(next_error + begin + first, size - first, v);
  };
#pragma unroll
  for (int c = 0; c < kKept; ++c) write(c * kStep + own, kept[c]);
  for (int64_t step = kKept * kStep; step < size; step += kStep) {  // of the whole team
    float v[N];
    in.load(begin + step + own, size - step - own, v);
    write(step + own, v);
  }
  if (b + 1 < out.blocks) return;
  constexpr int kUnit = unit_bytes<kBits, N>();
  const int64_t bytes = (out.count * kBits + 7) / 8, written = (bytes + kUnit - 1) / kUnit * kUnit;
  if (written + threadIdx.x < (bytes + 3) / 4 * 4) out.codes[written + threadIdx.x] = 0;  // what pads the message
}

template <int kBits, int N, int kTeam>
__global__ void __launch_bounds__(kBlock) decode_blocks_kernel(BlockCodes in, float* out) {
  constexpr int64_t kStep = kTeam * N;
  const int64_t b = int64_t{blockIdx.x} * (kBlock / kTeam) + threadIdx.y;
  if (b >= in.blocks) return;
  const int64_t begin = b * in.block, size = in.count - begin < in.block ? in.count - begin : in.block;
  const float scale = in.scales[b];
  const uint8_t* const codes = in.codes + begin * kBits / 8;
  for (int64_t first = int64_t{threadIdx.x} * N; first < size; first += kStep) {
    float sum[N];
    int code[N];
    load_vector(out + begin + first, size - first, sum);
    load_codes<kBits>(codes, first, code);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += scale * static_cast<float>(code[k]);
    store_vector(out + begin + first, size - first, sum);
  }
}

/// Calls body(bits, elements per access, threads of a team), each as a constant. `vectors`: 16-byte accesses of elements are possible.
template <class Body>
void dispatch_blocks(const EncodingOptions& options, bool vectors, Body&& body) {
  constexpr int64_t kWarpElements = 256;  // that stay in the registers of a warp
  const auto with_team = [&]<int kBits, int N>(std::integral_constant<int, kBits> bits, std::integral_constant<int, N> width) {
    if (options.block <= kWarpElements) return body(bits, width, std::integral_constant<int, kWarp>{});
    body(bits, width, std::integral_constant<int, kBlock>{});
  };
  const auto with_width = [&]<int kBits>(std::integral_constant<int, kBits> bits) {
    const bool words = kBits > 1 || options.block % 32 == 0;  // eight threads share a word of signs
    if (vectors && words) return with_team(bits, std::integral_constant<int, kVector<float>>{});
    with_team(bits, std::integral_constant<int, 1>{});
  };
  switch (options.encoding) {
    case Encoding::kInt8: return with_width(std::integral_constant<int, 8>{});
    case Encoding::kInt4: return with_width(std::integral_constant<int, 4>{});
    default: return with_width(std::integral_constant<int, 1>{});
  }
}

BlockCodes block_codes(const EncodingOptions& options, const Tensor& message, int64_t count) {
  const int64_t blocks = ceil_div(count, options.block);
  return {count, options.block, blocks, reinterpret_cast<float*>(message.data<uint8_t>()), message.data<uint8_t>() + blocks * 4};
}

Shape3 teams(int64_t blocks, int team) {
  return {dim3(static_cast<unsigned>(ceil_div(blocks, kBlock / team))), dim3(static_cast<unsigned>(team), static_cast<unsigned>(kBlock / team))};
}

void encode_blocks(const Context& ctx, const EncodingOptions& options, const EncoderInput& in, int64_t count, const Tensor& message,
                   float* next_error) {
  const BlockCodes out = block_codes(options, message, count);
  dispatch_blocks(
      options, aligned_16(in.gradient, in.error, next_error),
      [&]<int kBits, int N, int kTeam>(std::integral_constant<int, kBits>, std::integral_constant<int, N>, std::integral_constant<int, kTeam>) {
        launch(ctx, encode_blocks_kernel<kBits, N, kTeam>, teams(out.blocks, kTeam), in, out, next_error);
      });
}

void decode_blocks(const Context& ctx, const EncodingOptions& options, const Tensor& message, const Tensor& out) {
  const BlockCodes in = block_codes(options, message, out.numel());
  dispatch_blocks(
      options, aligned_16(out.data<float>()),
      [&]<int kBits, int N, int kTeam>(std::integral_constant<int, kBits>, std::integral_constant<int, N>, std::integral_constant<int, kTeam>) {
        launch(ctx, decode_blocks_kernel<kBits, N, kTeam>, teams(in.blocks, kTeam), in, out.data<float>());
      });
}

// ---- elements as they are ----

template <int N>
__global__ void __launch_bounds__(kBlock) encode_exactly_kernel(EncoderInput in, int64_t count, float* message, float* next_error) {
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float v[N];
    in.load(i, count - i, v);
    store_vector(message + i, count - i, v);
    if (next_error == nullptr) continue;
    const float nothing[N] = {};
    store_vector(next_error + i, count - i, nothing);
  }
}

template <int N>
__global__ void __launch_bounds__(kBlock) decode_exactly_kernel(const float* message, int64_t count, float* out) {
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float sum[N], v[N];
    load_vector(out + i, count - i, sum);
    load_vector(message + i, count - i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] += v[k];
    store_vector(out + i, count - i, sum);
  }
}

/// Calls body(N) for 16-byte accesses or for single elements.
template <class Body>
void dispatch_width(bool vectors, Body&& body) {
  if (vectors) return body(std::integral_constant<int, kVector<float>>{});
  body(std::integral_constant<int, 1>{});
}

// ---- drawn elements ----

struct Drawn {
  int64_t element, length;  ///< and the length of its stretch
};

/// for_drawn of kernels/reference/compress.h: the element of the j-th stretch.
__device__ __forceinline__ Drawn drawn(const EncodingDraw& draw, int64_t count, int64_t kept, int64_t j) {
  const int64_t begin = j * count / kept, length = (j + 1) * count / kept - begin;
  const double u = random_uniform(draw.key, static_cast<uint64_t>(j), draw.draw);
  const auto place = static_cast<int64_t>(u * static_cast<double>(length));
  return {begin + (place < length - 1 ? place : length - 1), length};
}

/// next_error := what is to be sent, unless null. broken[block] := 1 if an element of the block is not finite.
template <int N>
__global__ void __launch_bounds__(kBlock) sum_drawn_kernel(EncoderInput in, int64_t count, float* next_error, unsigned* broken) {
  unsigned found = 0;
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float v[N];
    in.load(i, count - i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) found |= fabsf(v[k]) <= FLT_MAX ? 0U : 1U;
    if (next_error != nullptr) store_vector(next_error + i, count - i, v);
  }
  found = block_max(found, 0U);
  if (threadIdx.x == 0) broken[blockIdx.x] = found;
}

/// Sends the drawn elements and takes them from next_error. The first value is NaN if an element of any block of sum_drawn_kernel is not finite.
__global__ void __launch_bounds__(kBlock) encode_drawn_kernel(EncodingDraw draw, bool unbiased, EncoderInput in, int64_t count, int64_t kept,
                                                              const unsigned* broken, int summing_blocks, float* values, float* next_error) {
  unsigned found = 0;
  if (blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < summing_blocks; i += kBlock) found |= broken[i];
    found = block_max(found, 0U);
  }
  for (int64_t j = thread_index(); j < kept; j += thread_count()) {
    const auto [element, length] = drawn(draw, count, kept, j);
    float v[1];
    if (next_error != nullptr) {
      v[0] = next_error[element];
    } else {
      in.load(element, 1, v);
    }
    float value = unbiased ? v[0] * static_cast<float>(length) : v[0];
    if (j == 0 && found != 0) value = __uint_as_float(0x7FC00000U);
    values[j] = value;
    if (next_error != nullptr) next_error[element] = v[0] - value;
  }
}

__global__ void __launch_bounds__(kBlock) decode_drawn_kernel(EncodingDraw draw, const float* values, int64_t count, int64_t kept, float* out) {
  for (int64_t j = thread_index(); j < kept; j += thread_count()) out[drawn(draw, count, kept, j).element] += values[j];
}

void encode_drawn(const Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const EncoderInput& in, int64_t count, float* values,
                  float* next_error) {
  const int64_t kept = kept_elements(options, count);
  dispatch_width(aligned_16(in.gradient, in.error, next_error), [&]<int N>(std::integral_constant<int, N>) {
    const dim3 grid = stride_grid(ctx, ceil_div(count, N), kBlock);
    auto* const broken = static_cast<unsigned*>(ctx.gpu->scratch(int64_t{grid.x} * static_cast<int64_t>(sizeof(unsigned))));
    launch(ctx, sum_drawn_kernel<N>, {grid, dim3(kBlock)}, in, count, next_error, broken);
    launch(ctx, encode_drawn_kernel, {stride_grid(ctx, kept, kBlock), dim3(kBlock)}, draw, options.unbiased, in, count, kept, broken,
           static_cast<int>(grid.x), values, next_error);
  });
}

// ---- the largest elements ----

/// Several indices that are not those of elements write NaN to one place, in any order.
__global__ void __launch_bounds__(kBlock)
    decode_largest_kernel(const int32_t* indices, const float* values, int64_t kept, int64_t count, float* out) {
  for (int64_t j = thread_index(); j < kept; j += thread_count()) {
    const int32_t index = indices[j];
    if (index >= 0 && index < count)
      out[index] += values[j];
    else
      out[0] = NAN;
  }
}

float* floats_of(const Tensor& message) {
  TRIREME_CHECK(reinterpret_cast<uintptr_t>(message.raw()) % 4 == 0, "a message of encoded gradients begins within a word");
  return reinterpret_cast<float*>(message.data<uint8_t>());
}

}  // namespace

void encode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& gradient, const Tensor& error,
            const Tensor& message, const Tensor& next_error) {
  TRIREME_CHECK(gradient.dtype() == DType::kF32, "gradients on a GPU are fp32, not ", name_of(gradient.dtype()));
  const EncoderInput in{gradient.data<float>(), floats_or_null(error)};
  float* const values = floats_of(message);
  float* const next = floats_or_null(next_error);
  const int64_t count = gradient.numel();
  switch (options.encoding) {
    case Encoding::kNone:
      return dispatch_width(aligned_16(in.gradient, in.error, values, next), [&]<int N>(std::integral_constant<int, N>) {
        launch(ctx, encode_exactly_kernel<N>, {stride_grid(ctx, ceil_div(count, N), kBlock), dim3(kBlock)}, in, count, values, next);
      });
    case Encoding::kRandomK: return encode_drawn(ctx, options, draw, in, count, values, next);
    case Encoding::kTopK: return encode_largest(ctx, kept_elements(options, count), gradient, error, message, next_error);
    default: return encode_blocks(ctx, options, in, count, message, next);
  }
}

void decode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& message, const Tensor& out) {
  TRIREME_CHECK(out.dtype() == DType::kF32, "gradients on a GPU are fp32, not ", name_of(out.dtype()));
  const float* const values = floats_of(message);
  float* const sum = out.data<float>();
  const int64_t count = out.numel(), kept = kept_elements(options, count);
  switch (options.encoding) {
    case Encoding::kNone:
      return dispatch_width(aligned_16(values, sum), [&]<int N>(std::integral_constant<int, N>) {
        launch(ctx, decode_exactly_kernel<N>, {stride_grid(ctx, ceil_div(count, N), kBlock), dim3(kBlock)}, values, count, sum);
      });
    case Encoding::kRandomK: return launch(ctx, decode_drawn_kernel, {stride_grid(ctx, kept, kBlock), dim3(kBlock)}, draw, values, count, kept, sum);
    case Encoding::kTopK:
      return launch(ctx, decode_largest_kernel, {stride_grid(ctx, kept, kBlock), dim3(kBlock)}, reinterpret_cast<const int32_t*>(values),
                    values + kept, kept, count, sum);
    default: return decode_blocks(ctx, options, message, out);
  }
}

}  // namespace trireme::cuda
