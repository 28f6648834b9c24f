#pragma once
// Included before device code that is compiled as plain C++: supplies nvcc's built-ins.
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

// Where the calls of device code go: to the machine, or through the recorder of tests/trace, which passes them on.
#ifdef CUDA_SIM_TRACED
#include "tests/trace/device_calls.h"
namespace device_calls = ::cuda_trace;
#else
#include "tests/cuda_sim/device_thread.h"
namespace device_calls = ::cuda_sim;
#endif

#define threadIdx (::cuda_sim::this_thread->index)
#define blockIdx (::cuda_sim::this_thread->shape->index)
#define blockDim (::cuda_sim::this_thread->shape->block)
#define gridDim (::cuda_sim::this_thread->shape->grid)

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

#define TRIREME_SHARED(type, name)                                              \
  static char name##_tag;                                                       \
  ::cuda_sim::Identity<type>& name = *static_cast<::cuda_sim::Identity<type>*>( \
      ::cuda_sim::static_shared(&name##_tag, sizeof(::cuda_sim::Identity<type>), alignof(::cuda_sim::Identity<type>)))
#define TRIREME_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::cuda_sim::dynamic_shared())
#define TRIREME_PANEL_SHARED TRIREME_DYNAMIC_SHARED

// The hardware's approximations, exact but for Options::hardware_rounding. They are macros because the C library uses these names itself.
#define __expf(x) (::cuda_sim::fast_exp(x))
#define __logf(x) logf(x)

#define CUDA_SIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace cuda_sim {

template <class T>
using Identity = T;

template <class... Parameters>
class Call final : public KernelCall {
 public:
  Call(void (*kernel)(Parameters...), Parameters... arguments) : kernel_(kernel), arguments_(arguments...) {
    entry = reinterpret_cast<const void*>(kernel);
    (add_pointer(arguments), ...);
  }
  void operator()() const override {
    [[maybe_unused]] const device_calls::ThreadScope thread(*this);
    std::apply(kernel_, arguments_);
  }

 private:
  template <class T>
  void add_pointer(const T& argument) {
    if constexpr (std::is_pointer_v<T>) pointers.push_back(argument);
  }
  void (*kernel_)(Parameters...);
  std::tuple<Parameters...> arguments_;
};

/// A number up to two units in the last place from `x` > 0, which depends on x alone.
inline float perturbed(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const auto bits = __builtin_bit_cast(uint32_t, x);
  return __builtin_bit_cast(float, bits + (bits * 2654435761U >> 16) % 5 - 2);
}
/// ex2.approx.ftz.f32, which is exact at 0 (PTX ISA, "ex2").
inline float exp2_approx(float x) {
  const float exact = x < -126 ? 0.0F : exp2f(x);
  return hardware_rounding && x != 0 ? perturbed(exact) : exact;
}
inline float fast_exp(float x) { return hardware_rounding ? exp2_approx(x * 1.4426950408889634F) : expf(x); }

template <class T>
T shuffle_as(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) <= 8 && std::is_arithmetic_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = device_calls::shuffle(mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_sim

/// The launch of CUDA's C++ API, which is chosen over the runtime's own because it knows the kernel's parameters. Queues the kernel. Errors:
/// cudaErrorInvalidConfiguration for a shape that no GPU supports, cudaErrorInvalidValue for more dynamic shared memory than 48 KB or than
/// cudaFuncSetAttribute has allowed for the kernel, and the errors of any call.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream) {
  auto call = [&]<size_t... I>(std::index_sequence<I...>) {
    return std::make_shared<cuda_sim::Call<Parameters...>>(kernel, *static_cast<Parameters*>(arguments[I])...);
  }
  (std::index_sequence_for<Parameters...>());
  call->grid = grid;
  call->block = block;
  call->dynamic_shared = shared_bytes;
  return cuda_sim::queue_kernel(std::move(call), stream);
}

namespace cuda_sim {

/// For kernels of the tests: the launch of a kernel with these arguments.
template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   std::type_identity_t<Parameters>... arguments) {
  void* pointers[sizeof...(Parameters) + 1] = {&arguments...};
  return cudaLaunchKernel(kernel, grid, block, pointers, shared_bytes, stream);
}

}  // namespace cuda_sim

inline void __syncthreads(CUDA_SIM_SITE) { ::device_calls::sync_block({file, line}); }
inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_SIM_SITE) { ::device_calls::sync_warp(mask, {file, line}); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// A lane whose source lies outside its segment of `width` lanes keeps its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_SIM_SITE) {
  const int lane = static_cast<int>(::cuda_sim::lane_id());
  return ::cuda_sim::shuffle_as(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), {file, line});
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_SIM_SITE) {
  const int lane = static_cast<int>(::cuda_sim::lane_id()), source = lane - static_cast<int>(delta);
  return ::cuda_sim::shuffle_as(mask, value, source < (lane & ~(width - 1)) ? lane : source, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_SIM_SITE) {
  const int lane = static_cast<int>(::cuda_sim::lane_id()), source = lane + static_cast<int>(delta);
  return ::cuda_sim::shuffle_as(mask, value, source > (lane | (width - 1)) ? lane : source, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUDA_SIM_SITE) {
  const int lane = static_cast<int>(::cuda_sim::lane_id()), source = lane ^ lanes;
  return ::cuda_sim::shuffle_as(mask, value, source > (lane | (width - 1)) ? lane : source, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_SIM_SITE) { return ::device_calls::vote(mask, predicate != 0, {file, line}); }
inline int __any_sync(unsigned mask, int predicate, CUDA_SIM_SITE) { return ::device_calls::vote(mask, predicate != 0, {file, line}) != 0; }
inline int __all_sync(unsigned mask, int predicate, CUDA_SIM_SITE) { return ::device_calls::vote(mask, predicate != 0, {file, line}) == mask; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

// The blocks of a launch run one after another, and threads one at a time, so plain arithmetic is atomic among them.
inline int atomicAdd(int* address, int value) {
  [[maybe_unused]] const device_calls::AtomicScope atomic;
  const int old = *address;
  *address = old + value;
  return old;
}
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  [[maybe_unused]] const device_calls::AtomicScope atomic;
  const unsigned old = *address;
  *address = old + value;
  return old;
}
/// Adds one, or sets zero if the value has reached `last`.
inline unsigned atomicInc(unsigned* address, unsigned last) {
  [[maybe_unused]] const device_calls::AtomicScope atomic;
  const unsigned old = *address;
  *address = old >= last ? 0 : old + 1;
  return old;
}

template <class T>
T __ldg(const T* address) {
  return *address;
}
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }

inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }

/// Exact at multiples of a half: the argument is reduced before the multiplication by pi.
inline void sincospi(double x, double* sine, double* cosine) {
  const double quarters = std::nearbyint(2 * x), rest = (x - quarters / 2) * 3.14159265358979323846;
  const double s = std::sin(rest), c = std::cos(rest);
  switch (static_cast<int>(std::fmod(quarters, 4)) & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
  }
}

// The functions of kernels/cuda/ptx.cuh.
namespace trireme::cuda {

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], CUDA_SIM_SITE) {
  ::device_calls::mma(d, a, b, [](uint16_t bits) { return static_cast<float>(__builtin_bit_cast(T, bits)); }, {file, line});
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, CUDA_SIM_SITE) { ::device_calls::ldmatrix(r, row, false, {file, line}); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, CUDA_SIM_SITE) { ::device_calls::ldmatrix(r, row, true, {file, line}); }
inline void cp_async_16(void* shared, const void* global, bool valid, CUDA_SIM_SITE) {
  ::device_calls::async_copy(shared, global, valid, {file, line});
}
inline void cp_async_commit() { ::device_calls::async_commit(); }
template <int N>
void cp_async_wait() {
  ::device_calls::async_wait(N);
}
inline void wait_for_value(const uint32_t* counter, uint32_t value, CUDA_SIM_SITE) { ::device_calls::wait_for_value(counter, value, {file, line}); }
inline void release_value(uint32_t* counter, uint32_t value, CUDA_SIM_SITE) { ::device_calls::release_value(counter, value, {file, line}); }

// The functions of kernels/cuda/warpgroup.cuh.
inline uint32_t shared_address(const void* shared, CUDA_SIM_SITE) { return ::cuda_sim::shared_address(shared, {file, line}); }
template <class T, int N, bool kTransposedA, bool kTransposedB>
void wgmma(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool add, CUDA_SIM_SITE) {
  static_assert(N == 64 || N == 128);
  const auto widen = [](uint16_t bits) { return static_cast<float>(__builtin_bit_cast(T, bits)); };
  ::device_calls::wgmma({d[0], nullptr, a, b, N, kTransposedA, kTransposedB, add, widen}, {file, line});
}
template <class T, int N, bool kTransposedB>
void wgmma(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, bool add, CUDA_SIM_SITE) {
  static_assert(N == 64 || N == 128);
  const auto widen = [](uint16_t bits) { return static_cast<float>(__builtin_bit_cast(T, bits)); };
  ::device_calls::wgmma({d[0], a, 0, b, N, false, kTransposedB, add, widen}, {file, line});
}
inline void wgmma_fence(CUDA_SIM_SITE) { ::device_calls::wgmma_fence({file, line}); }
inline void wgmma_commit(CUDA_SIM_SITE) { ::device_calls::wgmma_commit({file, line}); }
template <int N>
void wgmma_wait(CUDA_SIM_SITE) {
  ::device_calls::wgmma_wait(N, {file, line});
}
template <int N>
void pin(float (&/*d*/)[N][4]) {}
inline void fence_proxy_async() { ::device_calls::fence_proxy_async(); }
inline void bulk_add(float* global, const float* shared, int bytes, CUDA_SIM_SITE) {
  ::device_calls::bulk_operation(global, shared, bytes, true, {file, line});
}
inline void bulk_store(float* global, const float* shared, int bytes, CUDA_SIM_SITE) {
  ::device_calls::bulk_operation(global, shared, bytes, false, {file, line});
}
inline void bulk_commit() { ::device_calls::bulk_commit(); }
template <int N>
void bulk_wait() {
  ::device_calls::bulk_wait(N);
}

inline void barrier_sync(int id, int threads, CUDA_SIM_SITE) { ::device_calls::barrier_sync(id, threads, {file, line}); }
inline void barrier_arrive(int id, int threads, CUDA_SIM_SITE) { ::device_calls::barrier_arrive(id, threads, {file, line}); }
template <int N>
void raise_registers(CUDA_SIM_SITE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  ::device_calls::raise_registers(N, {file, line});
}
template <int N>
void lower_registers(CUDA_SIM_SITE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  ::device_calls::lower_registers(N, {file, line});
}

inline float exp2_fast(float x) { return ::cuda_sim::exp2_approx(x); }
inline int reread_thread() { return static_cast<int>(threadIdx.x); }

}  // namespace trireme::cuda
