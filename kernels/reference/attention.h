#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops/attention.h"

namespace trireme::reference {

/// Keys or values of one head: token j is in row j % rows; rows are `stride` elements apart.
template <class T>
struct AttentionRows {
  const T* first;
  int64_t rows, stride;
  const T* operator[](int64_t j) const { return first + j % rows * stride; }
};

/// scores[j] = scale q . k_j for the keys j = first..t.
template <class T>
void attention_scores(const T* q, const AttentionRows<T>& k, int64_t head_size, double scale, int64_t first, int64_t t, std::vector<double>& scores) {
  for (int64_t j = first; j <= t; ++j) {
    double sum = 0;
    for (int64_t h = 0; h < head_size; ++h) sum += static_cast<double>(q[h]) * k[j][h];
    scores[j] = sum * scale;
  }
}

/// One row of attention: out = sum_j p_j v_j, p_j = exp(s_j - lse), lse = log sum_j exp(s_j), first <= j <= t; returns lse.
template <class T>
double attention_row(const T* q, const AttentionRows<T>& k, const AttentionRows<T>& v, int64_t head_size, double scale, int64_t first, int64_t t,
                     std::vector<double>& scores, T* out) {
  attention_scores(q, k, head_size, scale, first, t, scores);
  const double highest = *std::max_element(scores.begin() + first, scores.begin() + t + 1);
  double denominator = 0;
  for (int64_t j = first; j <= t; ++j) denominator += std::exp(scores[j] - highest);
  const double lse = highest + std::log(denominator);
  std::vector<double> sums(static_cast<size_t>(head_size));
  for (int64_t j = first; j <= t; ++j) {
    const double p = std::exp(scores[j] - lse);
    for (int64_t h = 0; h < head_size; ++h) sums[h] += p * v[j][h];
  }
  for (int64_t h = 0; h < head_size; ++h) out[h] = static_cast<T>(sums[h]);
  return lse;
}

/// First key that token t of sequence b attends to. `starts`: of Documents, or null.
inline int64_t first_key(const AttentionShape& shape, const int32_t* starts, int64_t b, int64_t t) {
  return std::max<int64_t>(shape.band().first_key(t), starts == nullptr ? 0 : starts[b * shape.sequence + t]);
}

template <class T>
void attention_forward(const T* qkv, const AttentionShape& shape, const int32_t* starts, T* out, Accumulator<T>* lse) {
  const auto [batch, sequence, heads, kv_heads, head_size, window, score_scale] = shape;
  const int64_t columns = shape.columns();
  std::vector<double> scores(static_cast<size_t>(sequence));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t n = 0; n < heads; ++n) {
      const T* q = qkv + b * sequence * columns + n * head_size;
      const AttentionRows<T> k{qkv + b * sequence * columns + (heads + n / (heads / kv_heads)) * head_size, sequence, columns};
      const AttentionRows<T> v{k.first + kv_heads * head_size, sequence, columns};
      for (int64_t t = 0; t < sequence; ++t) {
        T* out_t = out + (b * sequence + t) * heads * head_size + n * head_size;
        const double lse_t = attention_row(q + t * columns, k, v, head_size, shape.scale(), first_key(shape, starts, b, t), t, scores, out_t);
        lse[(b * heads + n) * sequence + t] = static_cast<Accumulator<T>>(lse_t);
      }
    }
  }
}

/// keys, values: ring buffers of `room` rows.
template <class T>
void attention_decode(const T* qkv, const T* keys, const T* values, int64_t room, int64_t position, const AttentionShape& shape, T* out) {
  const auto [batch, rows, heads, kv_heads, head_size, window, score_scale] = shape;
  std::vector<double> scores(static_cast<size_t>(position + rows));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < heads; ++n) {
      const int64_t kv = n / (heads / kv_heads) * head_size, t = position + r;
      const AttentionRows<T> k{keys + kv, room, kv_heads * head_size}, v{values + kv, room, kv_heads * head_size};
      attention_row(qkv + r * shape.columns() + n * head_size, k, v, head_size, shape.scale(), shape.band().first_key(t), t, scores,
                    out + (r * heads + n) * head_size);
    }
  }
}

/// dv_j = sum_t p_tj dout_t;   ds_tj = p_tj (dout_t . v_j - dout_t . out_t);   dq_t = scale sum_j ds_tj k_j;   dk_j = scale sum_t ds_tj q_t
template <class T>
void attention_backward(const T* dout, const T* qkv, const T* out, const Accumulator<T>* lse, const AttentionShape& shape, const int32_t* starts,
                        T* dqkv) {
  const auto [batch, sequence, heads, kv_heads, head_size, window, score_scale] = shape;
  const int64_t columns = shape.columns();
  const double scale = shape.scale();
  std::vector<double> scores(static_cast<size_t>(sequence));
  std::vector<double> sums(static_cast<size_t>(sequence * columns));  // dqkv of one sequence
  for (int64_t b = 0; b < batch; ++b) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t n = 0; n < heads; ++n) {
      const int64_t q_column = n * head_size;
      const int64_t k_column = (heads + n / (heads / kv_heads)) * head_size;
      const int64_t v_column = k_column + kv_heads * head_size;
      const T* rows = qkv + b * sequence * columns;
      for (int64_t t = 0; t < sequence; ++t) {
        const T* q = rows + t * columns + q_column;
        const T* dout_t = dout + (b * sequence + t) * heads * head_size + q_column;
        const T* out_t = out + (b * sequence + t) * heads * head_size + q_column;
        const double lse_t = lse[(b * heads + n) * sequence + t];
        const int64_t first = first_key(shape, starts, b, t);
        attention_scores(q, {rows + k_column, sequence, columns}, head_size, scale, first, t, scores);
        double delta = 0;
        for (int64_t h = 0; h < head_size; ++h) delta += static_cast<double>(dout_t[h]) * out_t[h];
        for (int64_t j = first; j <= t; ++j) {
          const T* k = rows + j * columns + k_column;
          const T* v = rows + j * columns + v_column;
          const double p = std::exp(scores[j] - lse_t);
          double dp = 0;
          for (int64_t h = 0; h < head_size; ++h) dp += static_cast<double>(dout_t[h]) * v[h];
          const double ds = p * (dp - delta) * scale;
          for (int64_t h = 0; h < head_size; ++h) {
            sums[t * columns + q_column + h] += ds * k[h];
            sums[j * columns + k_column + h] += ds * q[h];
            sums[j * columns + v_column + h] += p * dout_t[h];
          }
        }
      }
    }
    for (int64_t i = 0; i < sequence * columns; ++i) dqkv[b * sequence * columns + i] = static_cast<T>(sums[i]);
  }
}

}  // namespace trireme::reference
