#include "kernels/cuda/elementwise.h"

#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rng.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kUnroll = 2;  // vectors per operand that a thread reads before it computes: enough bytes in flight to hide memory latency

// ---- to = map(from...), element by element, in fp32 ----

/// Maps one vector, of which `left` elements exist.
template <int N, class Map, class To, class... From>
__device__ __forceinline__ void map_vector(const Map& map, int64_t i, int64_t left, To* to, const From*... from) {
  float in[sizeof...(From)][N], out[N];
  int operand = 0;
  (load_vector(from + i, left, in[operand++]), ...);
  map(i, in, out);
  store_vector(to + i, left, out);
}

/// `to` may alias one of `from`.
template <int N, class Map, class To, class... From>
__global__ void __launch_bounds__(kBlock) map_kernel(Map map, int64_t count, To* to, const From*... from) {
  const int64_t stride = thread_count() * N;
  int64_t i = thread_index() * N;
  for (; i + stride * (kUnroll - 1) + N <= count; i += stride * kUnroll) {
    float in[kUnroll][sizeof...(From)][N];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      int operand = 0;
      (load_vector(from + i + u * stride, in[u][operand++]), ...);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float out[N];
      map(i + u * stride, in[u], out);
      store_vector(to + i + u * stride, out);
    }
  }
  for (; i < count; i += stride) map_vector<N>(map, i, count - i, to, from...);
}

/// `vectors` false: one element at a time, whatever the alignment.
template <class Map, class To, class... From>
void map(const Context& ctx, const Map& function, bool vectors, int64_t count, To* to, const From*... from) {
  constexpr int kWidth = std::min({kVector<To>, kVector<From>...});  // 16 bytes of the widest type; 8 bytes of a 16-bit type mixed with fp32
  const auto queue = [&]<int N>(std::integral_constant<int, N>) {
    launch(ctx, map_kernel<N, Map, To, From...>, {stride_grid(ctx, ceil_div(count, N * kUnroll), kBlock), dim3(kBlock)}, function, count, to,
           from...);
  };
  if (vectors && aligned_16(to, from...)) return queue(std::integral_constant<int, kWidth>{});
  queue(std::integral_constant<int, 1>{});
}

struct Converted {
  template <int N>
  __device__ void operator()(int64_t /*first*/, const float (&in)[1][N], float (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = in[0][i];
  }
};

struct Sum {
  template <int N>
  __device__ void operator()(int64_t /*first*/, const float (&in)[2][N], float (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = in[0][i] + in[1][i];
  }
};

struct Scaled {
  float factor;
  template <int N>
  __device__ void operator()(int64_t /*first*/, const float (&in)[1][N], float (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = in[0][i] * factor;
  }
};

/// The mask of kernels/core/rng.h's random_uniform32. With N > 1 the first index must be a multiple of 4: a call then serves four elements.
struct Dropped {
  uint64_t key, step, first_index;
  uint64_t least;  ///< the element is kept if its word is at least this
  float scale;

  __device__ __forceinline__ float kept(float x, uint32_t word) const { return word >= least ? x * scale : 0.0F; }

  template <int N>
  __device__ void operator()(int64_t first, const float (&in)[1][N], float (&out)[N]) const {
    const uint64_t index = first_index + static_cast<uint64_t>(first);
    if constexpr (N == 1) {
      const uint4 words = random_words(key, index / 4, step);
      const uint32_t low = index % 2 == 0 ? words.x : words.y, high = index % 2 == 0 ? words.z : words.w;
      out[0] = kept(in[0][0], index % 4 < 2 ? low : high);
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const uint4 words = random_words(key, (index + i) / 4, step);
        out[i] = kept(in[0][i], words.x), out[i + 1] = kept(in[0][i + 1], words.y);
        out[i + 2] = kept(in[0][i + 2], words.z), out[i + 3] = kept(in[0][i + 3], words.w);
      }
    }
  }
};

// ---- conversions that involve double: a few scalars of a step ----

template <bool kAdd, class From, class To>
__global__ void __launch_bounds__(kBlock) convert_kernel(int64_t count, const From* from, To* to) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const auto value = static_cast<double>(from[i]);
    to[i] = static_cast<To>(kAdd ? static_cast<double>(to[i]) + value : value);
  }
}

template <bool kAdd, class From, class To>
void convert(const Context& ctx, const Tensor& from, const Tensor& to) {
  const int64_t count = from.numel();
  if constexpr (std::is_same_v<From, double> || std::is_same_v<To, double>) {
    launch(ctx, convert_kernel<kAdd, From, To>, {stride_grid(ctx, count, kBlock), dim3(kBlock)}, count, from.data<From>(), to.data<To>());
  } else if constexpr (kAdd) {
    map(ctx, Sum{}, true, count, to.data<To>(), to.data<To>(), from.data<From>());
  } else {
    map(ctx, Converted{}, true, count, to.data<To>(), from.data<From>());
  }
}

// ---- the largest magnitude ----

/// The bits of a float without its sign are ordered as magnitudes are, with NaN above infinity.
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

template <int N, class T>
__global__ void __launch_bounds__(kBlock) magnitude_kernel(int64_t count, const T* x, unsigned* partial) {
  unsigned most = 0;
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    float in[N];
    load_vector(x + i, count - i, in);
#pragma unroll
    for (int k = 0; k < N; ++k) most = larger(most, magnitude(in[k]));
  }
  most = block_max(most, 0U);
  if (threadIdx.x == 0) partial[blockIdx.x] = most;
}

__global__ void __launch_bounds__(kBlock) largest_partial_kernel(int64_t count, const unsigned* partial, double* largest) {
  unsigned most = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlock) most = larger(most, partial[i]);
  most = block_max(most, 0U);
  if (threadIdx.x != 0) return;
  const auto found = static_cast<double>(__uint_as_float(most));
  if (found != found || found > *largest) *largest = found;  // false for a NaN that is there already
}

// ---- fill ----

/// Stores `words`, 16 bytes of repeated `word`, `vectors` times, and the remaining elements one by one.
template <class Word>
__global__ void __launch_bounds__(kBlock) fill_kernel(Word word, uint4 words, int64_t vectors, int64_t count, Word* out) {
  constexpr int kWords = kVector<Word>;
  for (int64_t i = thread_index(); i < vectors; i += thread_count()) store_words(out + i * kWords, words);
  for (int64_t i = vectors * kWords + thread_index(); i < count; i += thread_count()) out[i] = word;
}

template <class Word>
void fill_words(const Context& ctx, Word word, const Tensor& out) {
  constexpr int kWords = kVector<Word>;
  Word repeated[kWords];
  std::fill_n(repeated, kWords, word);
  uint4 words;
  std::memcpy(&words, repeated, sizeof words);
  auto* const to = static_cast<Word*>(out.raw());
  const int64_t count = out.numel(), vectors = aligned_16(to) ? count / kWords : 0;
  const int64_t items = std::max(vectors, count - vectors * kWords);
  launch(ctx, fill_kernel<Word>, {stride_grid(ctx, items, kBlock), dim3(kBlock)}, word, words, vectors, count, to);
}

// ---- normally distributed values ----

template <class T>
__global__ void __launch_bounds__(kBlock)
    normal_kernel(uint64_t key, double standard_deviation, int64_t global_columns, int64_t first, int64_t columns, int64_t count, T* out) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int64_t row = i / columns, column = i - row * columns;
    out[i] = static_cast<T>(standard_deviation * random_normal(key, static_cast<uint64_t>(first + row * global_columns + column)));
  }
}

}  // namespace

void fill(Context& ctx, double value, const Tensor& out) {
  if (out.numel() == 0) return;
  if (value == 0 && !std::signbit(value)) return ctx.gpu->fill_bytes(out.raw(), 0, out.bytes());
  switch (out.dtype()) {
    case DType::kF64: return fill_words(ctx, std::bit_cast<uint64_t>(value), out);
    case DType::kF32: return fill_words(ctx, std::bit_cast<uint32_t>(static_cast<float>(value)), out);
    case DType::kBF16: return fill_words(ctx, bfloat16(value).bits, out);
    case DType::kF16: return fill_words(ctx, float16(value).bits, out);
    case DType::kI64: return fill_words(ctx, static_cast<uint64_t>(static_cast<int64_t>(value)), out);
    case DType::kI32: return fill_words(ctx, static_cast<uint32_t>(static_cast<int32_t>(value)), out);
    case DType::kU8: return fill_words(ctx, static_cast<uint8_t>(value), out);
  }
}

void copy(Context& ctx, const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) {
    if (from.bytes() > 0 && from.raw() != to.raw()) ctx.gpu->copy(from.raw(), to.raw(), from.bytes());
    return;
  }
  dispatch_float(from.dtype(), [&]<class From>(From) {
    dispatch_float(to.dtype(), [&]<class To>(To) {
      if constexpr (!std::is_same_v<From, To>) convert<false, From, To>(ctx, from, to);
    });
  });
}

void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_gpu_float(out.dtype(), [&]<class T>(T) { map(ctx, Sum{}, true, out.numel(), out.data<T>(), a.data<T>(), b.data<T>()); });
}

void scale(Context& ctx, const Tensor& x, double factor, const Tensor& y) {
  dispatch_gpu_float(y.dtype(), [&]<class T>(T) { map(ctx, Scaled{static_cast<float>(factor)}, true, y.numel(), y.data<T>(), x.data<T>()); });
}

void accumulate(Context& ctx, const Tensor& x, const Tensor& out) {
  dispatch_float(x.dtype(), [&]<class From>(From) {
    dispatch_float(out.dtype(), [&]<class To>(To) {
      if constexpr (sizeof(From) <= sizeof(To)) convert<true, From, To>(ctx, x, out);
    });
  });
}

void max_absolute(Context& ctx, const Tensor& x, const Tensor& largest) {
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const int64_t count = x.numel();
    const T* const from = x.data<T>();
    const auto queue = [&]<int N>(std::integral_constant<int, N>) {
      const dim3 grid = stride_grid(ctx, ceil_div(count, N), kBlock);
      auto* const partial = static_cast<unsigned*>(ctx.gpu->scratch(int64_t{grid.x} * static_cast<int64_t>(sizeof(unsigned))));
      launch(ctx, magnitude_kernel<N, T>, {grid, dim3(kBlock)}, count, from, partial);
      launch(ctx, largest_partial_kernel, {dim3(1), dim3(kBlock)}, int64_t{grid.x}, static_cast<const unsigned*>(partial), largest.data<double>());
    };
    if (aligned_16(from)) return queue(std::integral_constant<int, kVector<T>>{});
    queue(std::integral_constant<int, 1>{});
  });
}

void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y) {
  // Equals word * 2^-32 >= p without doubles on the device: scaling p by a power of two is exact.
  const auto least = static_cast<uint64_t>(std::ceil(std::ldexp(mask.probability, 32)));
  const Dropped function{mask.key, mask.step, mask.first_index, least, static_cast<float>(1 / (1 - mask.probability))};
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) { map(ctx, function, mask.first_index % 4 == 0, x.numel(), y.data<T>(), x.data<T>()); });
}

void fill_normal(Context& ctx, uint64_t key, double standard_deviation, int64_t global_columns, int64_t row_begin, int64_t column_begin,
                 const Tensor& out) {
  const int64_t columns = out.dim(out.shape().dims() - 1), first = row_begin * global_columns + column_begin;
  dispatch_float(out.dtype(), [&]<class T>(T) {
    launch(ctx, normal_kernel<T>, {stride_grid(ctx, out.numel(), kBlock), dim3(kBlock)}, key, standard_deviation, global_columns, first, columns,
           out.numel(), out.data<T>());
  });
}

}  // namespace trireme::cuda
