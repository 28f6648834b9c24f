// Attention of single queries: one pass over the keys and values of a head, block by block with a running maximum (online softmax).
#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/math.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

constexpr int64_t kBlock = 64;  // keys per update of the running maximum

template <class T>
float dot(const T* a, const T* b, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t h = 0; h < count; ++h) sum += static_cast<float>(a[h]) * static_cast<float>(b[h]);
  return sum;
}

/// weights := e^(scores - highest), in place; returns their sum.
float exponentials(float highest, int64_t count, float* scores) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = simd_exp(scores[j] - highest);
    sum += scores[j];
  }
  return sum;
}

void multiply(float factor, int64_t count, float* x) {
#pragma omp simd
  for (int64_t h = 0; h < count; ++h) x[h] *= factor;
}

template <class T>
void add_weighted(float weight, const T* v, int64_t count, float* sums) {
#pragma omp simd
  for (int64_t h = 0; h < count; ++h) sums[h] += weight * static_cast<float>(v[h]);
}

template <class T>
void store_normalised(const float* sums, float denominator, int64_t count, T* out) {
#pragma omp simd
  for (int64_t h = 0; h < count; ++h) out[h] = rounded<T>(sums[h] / denominator);
}

/// Keys and values of one head, in a ring buffer of `room` rows.
template <class T>
struct Ring {
  const T *keys, *values;
  int64_t room, stride;
  int64_t next(int64_t row) const { return row + 1 == room ? 0 : row + 1; }
};

/// Attends to `count` tokens from `token` on.
template <class T>
void attend(const T* q, const Ring<T>& ring, int64_t head_size, int64_t token, int64_t count, float scale, float* sums, T* out) {
  float scores[kBlock];
  float highest = -__builtin_inff();
  float denominator = 0;
  for (int64_t h = 0; h < head_size; ++h) sums[h] = 0;
  int64_t key = token % ring.room, value = key;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t block = count - first < kBlock ? count - first : kBlock;
    for (int64_t j = 0; j < block; ++j, key = ring.next(key)) scores[j] = scale * dot(q, ring.keys + key * ring.stride, head_size);
    const float before = highest;
    const float largest = max_of(scores, block);
    highest = largest > before ? largest : before;
    if (highest > before) {
      const float factor = simd_exp(before - highest);
      multiply(factor, head_size, sums);
      denominator *= factor;
    }
    denominator += exponentials(highest, block, scores);
    for (int64_t j = 0; j < block; ++j, value = ring.next(value)) add_weighted(scores[j], ring.values + value * ring.stride, head_size, sums);
  }
  store_normalised(sums, denominator, head_size, out);
}

}  // namespace

template <class T>
void attention_decode(const AttentionDecode<T>& p, int64_t begin, int64_t end) {
  const int64_t size = p.head_size;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / p.heads;
    const int64_t head = item % p.heads;
    const int64_t kv = head / (p.heads / p.kv_heads) * size;
    const int64_t token = p.position + row, first = p.band.first_key(token);
    attend(p.qkv + row * (p.heads + 2 * p.kv_heads) * size + head * size, Ring<T>{p.keys + kv, p.values + kv, p.room, p.kv_heads * size}, size, first,
           token + 1 - first, p.scale, p.sums + item * size, p.out + item * size);
  }
}

TRIREME_INSTANCES(attention_decode, AttentionDecode);

}  // namespace trireme::cpu::TRIREME_ISA
