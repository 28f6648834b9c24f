#pragma once
// Attention forward. Structure and notation: attention_blocks.h.
#include "kernels/cpu/isa/attention_blocks.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class Engine>
struct ForwardWorkspace {
  using Word = typename Engine::Word;
  ForwardWorkspace(const Layout<Engine>& layout, void* workspace) : carver(workspace) {
    keys = carver.template take<Word>(layout.padded_sequence * layout.head_words);
    values = carver.template take<Word>(layout.blocks * layout.block_words());
    rows = carver.template take<Word>(layout.block_words());
    across = carver.template take<Word>(layout.block_words());
    queries = carver.template take<Word>(layout.block_words());
    scores = carver.template take<float>(kBlock * kBlock);
    probabilities = operand_buffer<Engine>(scores, carver);
    out = carver.template take<float>(layout.padded_head * kBlock);
    out_rows = carver.template take<float>(kBlock * layout.padded_head);
    maxima = carver.template take<float>(kBlock);
    sums = carver.template take<float>(kBlock);
  }
  WorkspaceAllocator carver;
  Word* keys;            ///< [padded_sequence, head words]
  Word* values;          ///< per block [padded_head, key words]
  Word *rows, *across;   ///< staging of a block for `values` or `queries`
  Word* queries;         ///< [head words, queries]
  float* scores;         ///< [keys, queries]
  Word* probabilities;   ///< [key words, queries]
  float* out;            ///< [padded_head, queries]
  float* out_rows;       ///< [queries, padded_head]
  float *maxima, *sums;  ///< per query: maximum of unscaled scores; sum of e^(scale * (score - maximum))
};

/// One step of the online softmax: replaces scores by probabilities relative to the new maxima, and rescales sums and, except in the `first` step,
/// `out`.
template <class Engine>
void softmax(const PairOfBlocks<Engine>& pair, float scale, bool first, const ForwardWorkspace<Engine>& place) {
  const float factor = scale * kLog2E;
  for (int64_t lane = 0; lane < pair.queries; lane += kLanes) {
    const int64_t keys = pair.keys_of(lane);
    const float* const scores = place.scores + lane;
    const Vector before = load(place.maxima + lane);
    Vector even = before, odd = before;
    for (int64_t key = 0; key < keys; key += 2) {
      even = larger(load(scores + key * kBlock), even);
      odd = larger(load(scores + (key + 1) * kBlock), odd);
    }
    const Vector maximum = larger(even, odd);
    const Vector shift = maximum * factor;
    Vector even_sum{}, odd_sum{};
    for (int64_t key = 0; key < keys; key += 2) {
      const Vector p = exp2_of(load(scores + key * kBlock) * factor - shift);
      const Vector q = exp2_of(load(scores + (key + 1) * kBlock) * factor - shift);
      even_sum += p;
      odd_sum += q;
      store_across(place.probabilities, kBlock, key, lane, p, q);
    }
    const Vector decay = exp2_of((before - maximum) * factor);  // exactly 1 for an unchanged maximum; before * factor - shift would not be, fused
    store(place.maxima + lane, maximum);
    store(place.sums + lane, load(place.sums + lane) * decay + (even_sum + odd_sum));
    if (first) continue;
    bool changed = false;
    for (int l = 0; l < kLanes; ++l) changed |= !(decay[l] == 1.0F);
    if (!changed) continue;
    for (int64_t h = 0; h < pair.padded_head; ++h) store(place.out + h * kBlock + lane, load(place.out + h * kBlock + lane) * decay);
  }
}

template <class Engine, class T>
void forward_block(const Layout<Engine>& layout, const T* q, const ForwardWorkspace<Engine>& place, int64_t block, T* out, float* lse) {
  const int64_t rows = layout.rows(block), queries = layout.padded_rows(block), first = block * kBlock, first_other = layout.first_key_block(block);
  pack_rows<Engine>(q + first * layout.columns, layout.columns, rows, layout.head_size, place.rows, queries, layout.padded_head);
  transpose(queries, layout.head_words, place.rows, layout.head_words, place.queries, kBlock);
  for (int64_t query = 0; query < queries; ++query) {
    place.maxima[query] = layout.band.first_maximum();
    place.sums[query] = 0;
  }
  for (int64_t other = first_other; other <= block; ++other) {
    const PairOfBlocks<Engine> pair(layout, block, other);
    pair.scores(place.keys + other * layout.block_words(), place.queries, place.scores);
    pair.mask(place.scores);
    softmax(pair, layout.scale, other == first_other, place);
    pair.over_keys(place.values + other * layout.block_words(), place.probabilities, place.out, other > first_other);
  }
  for (int64_t h = 0; h < layout.padded_head; ++h)
    for (int64_t lane = 0; lane < queries; lane += kLanes)
      store(place.out + h * kBlock + lane, load(place.out + h * kBlock + lane) / load(place.sums + lane));
  transpose(layout.padded_head, queries, place.out, kBlock, place.out_rows, layout.padded_head);
  unpack_rows(place.out_rows, layout.padded_head, 1.0F, rows, layout.head_size, out + first * layout.out_columns, layout.out_columns);
  for (int64_t query = 0; query < rows; ++query) lse[first + query] = layout.scale * place.maxima[query] + __builtin_logf(place.sums[query]);
}

template <class Engine, class T>
void attention_forward(const AttentionForward<T>& p, int64_t begin, int64_t end, void* workspace) {
  [[maybe_unused]] const typename Engine::Session session;
  const Layout<Engine> layout(p.sizes);
  const ForwardWorkspace<Engine> place(layout, workspace);
  const int64_t pairs = (layout.blocks + 1) / 2;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / pairs / p.sizes.kv_heads, kv_head = item / pairs % p.sizes.kv_heads;
    const int64_t row = layout.row(sequence);
    const T* const rows = p.qkv + row * layout.columns;
    if (item == begin || item % pairs == 0) {
      const T* const keys = rows + (p.sizes.heads + kv_head) * layout.head_size;
      pack_rows<Engine>(keys, layout.columns, layout.sequence, layout.head_size, place.keys, layout.padded_sequence, layout.padded_head);
      const T* const values = keys + p.sizes.kv_heads * layout.head_size;
      for (int64_t block = 0; block < layout.blocks; ++block) {
        const int64_t padded = layout.padded_rows(block);
        pack_rows<Engine>(values + block * kBlock * layout.columns, layout.columns, layout.rows(block), layout.head_size, place.rows, padded,
                          layout.padded_head);
        transpose_block(layout, block, place.rows, place.across, place.values);
      }
    }
    const int64_t first = item % pairs, last = layout.blocks - 1 - first;
    for (int64_t head = kv_head * layout.group; head < (kv_head + 1) * layout.group; ++head) {
      const T* const q = rows + head * layout.head_size;
      T* const out = p.out + row * layout.out_columns + head * layout.head_size;
      float* const lse = p.lse + layout.lse(row, head);
      forward_block(layout, q, place, first, out, lse);
      if (last != first) forward_block(layout, q, place, last, out, lse);
    }
  }
}

template <class Engine>
int64_t forward_workspace(const AttentionSizes& sizes) {
  return ForwardWorkspace<Engine>(Layout<Engine>(sizes), nullptr).carver.used();
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
