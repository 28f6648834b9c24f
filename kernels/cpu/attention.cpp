#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/small_gemm.h"
#include "kernels/cpu/widen.h"

namespace trireme::cpu {
namespace {

constexpr int64_t kQueryBlock = 32;

/// Extents padded for small_gemm. Padding is zero in every packed operand.
struct Layout {
  explicit Layout(const AttentionShape& shape)
      : sequence(shape.sequence),
        head_size(shape.head_size),
        group(shape.heads / shape.kv_heads),
        columns(shape.columns()),
        padded_head(round_up(head_size)),
        stride(odd_stride(sequence)),
        scale(1.0f / std::sqrt(static_cast<float>(head_size))) {}
  int64_t sequence, head_size, group, columns;
  int64_t padded_head;  ///< columns of a packed [*,H] matrix
  int64_t stride;       ///< columns of a [*,T] matrix
  float scale;
};

/// Cuts one thread's workspace into matrices.
class Carver {
 public:
  explicit Carver(float* begin) : next_(begin) {}
  float* take(int64_t rows, int64_t columns) {
    float* const taken = next_;
    next_ += rows * columns;
    return taken;
  }

 private:
  float* next_;
};

/// to [rows, padded_head] = from [rows, H] at a stride.
void pack(const Layout& layout, int64_t rows, const float* from, int64_t from_stride, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = to + r * layout.padded_head;
    std::copy_n(from + r * from_stride, layout.head_size, row);
    std::fill(row + layout.head_size, row + layout.padded_head, 0.0f);
  }
}

/// to [H, stride] = transpose of from [T, H] at a stride.
void pack_transposed(const Layout& layout, const float* from, int64_t from_stride, float* to) {
  for (int64_t h = 0; h < layout.head_size; ++h) {
    float* const row = to + h * layout.stride;
    for (int64_t t = 0; t < layout.sequence; ++t) row[t] = from[t * from_stride + h];
    std::fill(row + layout.sequence, row + layout.stride, 0.0f);
  }
}

/// to [rows, H] at a stride = factor * from [rows, padded_head].
void unpack(const Layout& layout, int64_t rows, const float* from, float factor, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* const source = from + r * layout.padded_head;
    float* const row = to + r * to_stride;
#pragma omp simd
    for (int64_t h = 0; h < layout.head_size; ++h) row[h] = source[h] * factor;
  }
}

/// Runs task(sequence index, kv head, workspace) for each of the B*K tasks; `workspace_floats` a thread.
template <class Task>
void for_tasks(Context& ctx, const AttentionShape& shape, int64_t workspace_floats, const Task& task) {
  const int64_t tasks = shape.batch * shape.kv_heads;
  const int64_t workers = std::min<int64_t>(ctx.threads, tasks);
  if (workers == 0 || shape.sequence == 0) return;
  const Tensor workspace = Tensor::empty(ctx, {workers, workspace_floats}, DType::kF32, MemoryCategory::kWorkspace);
  float* const memory = workspace.data<float>();
  parallel_for(ctx, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t i = tasks * worker / workers; i < tasks * (worker + 1) / workers; ++i) {
        task(i / shape.kv_heads, i % shape.kv_heads, Carver(memory + worker * workspace_floats));
      }
    }
  });
}

/// Row `query` of a block of scores becomes e^(scale * score - its maximum) up to the diagonal, 0 up to `width`; `inverse_sum` normalises it.
/// Returns the log-sum-exp of the scaled scores.
float softmax_row(const Layout& layout, int64_t query, int64_t width, float* row, float* inverse_sum) {
  const float scale = layout.scale;
  const float shift = scale * max_of(row, query + 1);
  const int64_t whole = round_up(query + 1);  // whole vectors: what lies beyond the diagonal is computed and cleared
#pragma omp simd
  for (int64_t t = 0; t < whole; ++t) row[t] = simd_exp(scale * row[t] - shift);
  std::fill(row + query + 1, row + width, 0.0f);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t t = 0; t < whole; ++t) sum += row[t];
  *inverse_sum = 1.0f / sum;
  return shift + std::log(sum);
}

/// One query head: q [T,H] at stride `columns`, out [T,H] at `out_stride`, lse [T].
void forward_head(const Layout& layout, const float* q, const float* keys_t, const float* values, Carver carver, float* out, int64_t out_stride,
                  float* lse) {
  float* const scores = carver.take(kQueryBlock, layout.stride);
  float* const block_out = carver.take(kQueryBlock, layout.padded_head);
  for (int64_t first = 0; first < layout.sequence; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, layout.sequence - first);
    const int64_t width = round_up(first + rows);
    small_gemm(rows, width, layout.head_size, {q + first * layout.columns, layout.columns, 1}, keys_t, layout.stride, scores, layout.stride, false);
    float inverse_sums[kQueryBlock];
    for (int64_t r = 0; r < rows; ++r) lse[first + r] = softmax_row(layout, first + r, width, scores + r * layout.stride, &inverse_sums[r]);
    small_gemm(rows, layout.padded_head, first + rows, {scores, layout.stride, 1}, values, layout.padded_head, block_out, layout.padded_head, false);
    for (int64_t r = 0; r < rows; ++r) {
      unpack(layout, 1, block_out + r * layout.padded_head, inverse_sums[r], out + (first + r) * out_stride, out_stride);
    }
  }
}

/// The packed operands of one task of the backward, shared by its query heads.
struct BackwardTask {
  const float* keys;      ///< [T, padded_head]
  const float* keys_t;    ///< [H, stride]
  const float* values_t;  ///< [H, stride]
  float* dkeys;           ///< [T, padded_head], without the factor `scale`
  float* dvalues;         ///< [T, padded_head]
};

/// Scores become probabilities P, and dP becomes dS = P * (dP - delta), both 0 beyond the diagonal.
void softmax_backward_row(const Layout& layout, int64_t query, int64_t width, float lse, float delta, float* p_row, float* ds_row) {
  const float scale = layout.scale;
  const int64_t whole = round_up(query + 1);
#pragma omp simd
  for (int64_t t = 0; t < whole; ++t) {
    const float p = simd_exp(scale * p_row[t] - lse);
    p_row[t] = p;
    ds_row[t] = p * (ds_row[t] - delta);
  }
  std::fill(p_row + query + 1, p_row + width, 0.0f);
  std::fill(ds_row + query + 1, ds_row + width, 0.0f);
}

float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

/// One query head: q, dq [T,H] at stride `columns`; out, dout [T,H] at `out_stride`; lse [T].
void backward_head(const Layout& layout, const BackwardTask& task, const float* q, const float* out, const float* dout, int64_t out_stride,
                   const float* lse, Carver carver, float* dq) {
  const int64_t stride = layout.stride;
  const int64_t padded = layout.padded_head;
  float* const p = carver.take(kQueryBlock, stride);
  float* const ds = carver.take(kQueryBlock, stride);
  float* const q_block = carver.take(kQueryBlock, padded);
  float* const dout_block = carver.take(kQueryBlock, padded);
  float* const dq_block = carver.take(kQueryBlock, padded);
  for (int64_t first = 0; first < layout.sequence; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, layout.sequence - first);
    const int64_t keys = first + rows;
    const int64_t width = round_up(keys);
    pack(layout, rows, q + first * layout.columns, layout.columns, q_block);
    pack(layout, rows, dout + first * out_stride, out_stride, dout_block);
    small_gemm(rows, width, layout.head_size, {q_block, padded, 1}, task.keys_t, stride, p, stride, false);
    small_gemm(rows, width, layout.head_size, {dout_block, padded, 1}, task.values_t, stride, ds, stride, false);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t offset = (first + r) * out_stride;
      const float delta = dot(dout + offset, out + offset, layout.head_size);
      softmax_backward_row(layout, first + r, width, lse[first + r], delta, p + r * stride, ds + r * stride);
    }
    small_gemm(keys, padded, rows, {p, 1, stride}, dout_block, padded, task.dvalues, padded, true);
    small_gemm(keys, padded, rows, {ds, 1, stride}, q_block, padded, task.dkeys, padded, true);
    small_gemm(rows, padded, keys, {ds, stride, 1}, task.keys, padded, dq_block, padded, false);
    unpack(layout, rows, dq_block, layout.scale, dq + first * layout.columns, layout.columns);
  }
}

}  // namespace

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse) {
  if (qkv.dtype() == DType::kBF16) {
    const Tensor wide_out = scratch_f32(out.shape());
    cpu::attention_forward(ctx, widen(ctx, qkv), shape, wide_out, lse);
    return round_to(ctx, wide_out, out);
  }
  const Layout layout(shape);
  const int64_t head_size = layout.head_size;
  const int64_t out_stride = shape.heads * head_size;
  const int64_t floats = (head_size + kQueryBlock) * layout.stride + (layout.sequence + kQueryBlock) * layout.padded_head;
  const float* const in = qkv.data<float>();
  float* const result = out.data<float>();
  float* const log_sums = lse.data<float>();
  for_tasks(ctx, shape, floats, [&](int64_t b, int64_t kv_head, Carver carver) {
    const float* const rows = in + b * layout.sequence * layout.columns;
    float* const keys_t = carver.take(head_size, layout.stride);
    float* const values = carver.take(layout.sequence, layout.padded_head);
    pack_transposed(layout, rows + (shape.heads + kv_head) * head_size, layout.columns, keys_t);
    pack(layout, layout.sequence, rows + (shape.heads + shape.kv_heads + kv_head) * head_size, layout.columns, values);
    for (int64_t head = kv_head * layout.group; head < (kv_head + 1) * layout.group; ++head) {
      forward_head(layout, rows + head * head_size, keys_t, values, carver, result + b * layout.sequence * out_stride + head * head_size, out_stride,
                   log_sums + (b * shape.heads + head) * layout.sequence);
    }
  });
}

void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv) {
  if (qkv.dtype() == DType::kBF16) {
    const Tensor wide_dqkv = scratch_f32(dqkv.shape());
    cpu::attention_backward(ctx, widen(ctx, dout), widen(ctx, qkv), widen(ctx, out), lse, shape, wide_dqkv);
    return round_to(ctx, wide_dqkv, dqkv);
  }
  const Layout layout(shape);
  const int64_t head_size = layout.head_size;
  const int64_t sequence = layout.sequence;
  const int64_t out_stride = shape.heads * head_size;
  const int64_t floats = 2 * (head_size + kQueryBlock) * layout.stride + 3 * (sequence + kQueryBlock) * layout.padded_head;
  for_tasks(ctx, shape, floats, [&](int64_t b, int64_t kv_head, Carver carver) {
    const int64_t key_column = (shape.heads + kv_head) * head_size;
    const int64_t value_column = (shape.heads + shape.kv_heads + kv_head) * head_size;
    const int64_t out_rows = b * sequence * out_stride;
    const float* const rows = qkv.data<float>() + b * sequence * layout.columns;
    float* const drows = dqkv.data<float>() + b * sequence * layout.columns;
    float* const keys = carver.take(sequence, layout.padded_head);
    float* const keys_t = carver.take(head_size, layout.stride);
    float* const values_t = carver.take(head_size, layout.stride);
    float* const dkeys = carver.take(sequence, layout.padded_head);
    float* const dvalues = carver.take(sequence, layout.padded_head);
    pack(layout, sequence, rows + key_column, layout.columns, keys);
    pack_transposed(layout, rows + key_column, layout.columns, keys_t);
    pack_transposed(layout, rows + value_column, layout.columns, values_t);
    std::fill_n(dkeys, sequence * layout.padded_head, 0.0f);
    std::fill_n(dvalues, sequence * layout.padded_head, 0.0f);
    const BackwardTask task{keys, keys_t, values_t, dkeys, dvalues};
    for (int64_t head = kv_head * layout.group; head < (kv_head + 1) * layout.group; ++head) {
      const int64_t offset = out_rows + head * head_size;
      backward_head(layout, task, rows + head * head_size, out.data<float>() + offset, dout.data<float>() + offset, out_stride,
                    lse.data<float>() + (b * shape.heads + head) * sequence, carver, drows + head * head_size);
    }
    unpack(layout, sequence, dkeys, layout.scale, drows + key_column, layout.columns);
    unpack(layout, sequence, dvalues, 1.0f, drows + value_column, layout.columns);
  });
}

}  // namespace trireme::cpu
