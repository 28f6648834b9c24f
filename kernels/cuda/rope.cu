#include "kernels/cuda/rope.h"

#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kHeads = 4;  // rotated by one thread with the same angles

/// Each thread rotates N pairs (element i, element i + half) in each of kHeads heads that are `groups` apart, so that neighbouring threads read
/// neighbouring memory. Elements from 2 * half on are not touched. The launch begins at row `first_row` of the tensor; `qkv` and `starts` point to row 0.
template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    rotate_kernel(const float* __restrict__ table, uint32_t positions, int half, int heads, int head_size, float direction,
                  const int32_t* __restrict__ starts, T* qkv, uint32_t first_row, uint32_t items, uint32_t groups, int64_t columns) {
  const uint32_t item = blockIdx.x * kBlock + threadIdx.x;
  if (item >= items) return;
  const uint32_t accesses = static_cast<uint32_t>(half) / N;
  const uint32_t i = item % accesses * N, group = item / accesses % groups;
  const uint32_t row = first_row + item / accesses / groups;
  T* const first_head = qkv + row * columns + i;
  Packed<T, N> left[kHeads], right[kHeads];
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const int64_t head = group + int64_t{k} * groups;
    if (head >= heads) continue;
    left[k].load(first_head + head * head_size);
    right[k].load(first_head + head * head_size + half);
  }
  float cosine[N], sine[N];
  const uint32_t position = row % positions - (starts != nullptr ? static_cast<uint32_t>(starts[row]) : 0);
  const float* const angles = table + int64_t{position} * 2 * half + i;
  load_vector(angles, cosine);
  load_vector(angles + half, sine);
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const int64_t head = group + int64_t{k} * groups;
    if (head >= heads) continue;
    float a[N], b[N];
    left[k].get(a);
    right[k].get(b);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float s = direction * sine[j], turned = a[j] * cosine[j] - b[j] * s;
      b[j] = b[j] * cosine[j] + a[j] * s;
      a[j] = turned;
    }
    store_vector(first_head + head * head_size, a);
    store_vector(first_head + head * head_size + half, b);
  }
}

void rotate(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, float direction, const int32_t* starts, const Tensor& qkv) {
  const int64_t rows = qkv.dim(0), columns = qkv.dim(1), positions = table.dim(0), half = table.dim(1) / 2;
  if (rows == 0 || heads == 0 || half == 0) return;
  TRIREME_CHECK(rows <= UINT32_MAX && positions <= UINT32_MAX, "rope: ", rows, " rows and ", positions, " positions must each be below 2^32");
  dispatch_gpu_float(qkv.dtype(), [&]<class T>(T) {
    const float* const angles = table.data<float>();
    T* const values = qkv.data<T>();
    const bool aligned = aligned_rows(columns, values) && aligned_rows(half, values, angles) && aligned_rows(head_size, values);
    const int64_t groups = ceil_div(heads, kHeads), row_items = groups * (aligned ? half / kVector<T> : half);
    const auto kernel = aligned ? rotate_kernel<T, kVector<T>> : rotate_kernel<T, 1>;
    for_row_ranges(rows, row_items, [&](int64_t first, int64_t count) {
      launch(ctx, kernel, {dim3(static_cast<unsigned>(ceil_div(count * row_items, kBlock))), dim3(kBlock)}, angles, positions, half, heads, head_size,
             direction, starts, values, first, count * row_items, groups, columns);
    });
  });
}

}  // namespace

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& qkv) {
  rotate(ctx, table, heads, head_size, 1, starts, qkv);
}
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& dqkv) {
  rotate(ctx, table, heads, head_size, -1, starts, dqkv);
}

}  // namespace trireme::cuda
