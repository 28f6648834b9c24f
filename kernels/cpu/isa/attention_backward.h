#pragma once
// Attention backward: recomputes the probabilities from lse. Structure and notation: attention_blocks.h.
#include "kernels/cpu/isa/attention_blocks.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class Engine>
struct BackwardWorkspace {
  using Word = typename Engine::Word;
  BackwardWorkspace(const Layout<Engine>& layout, void* workspace) : carver(workspace) {
    const int64_t words = layout.block_words(), sums = layout.padded_sequence * layout.padded_head;
    keys = carver.template take<Word>(layout.padded_sequence * layout.head_words);
    values = carver.template take<Word>(layout.padded_sequence * layout.head_words);
    keys_across = carver.template take<Word>(layout.blocks * words);
    dkeys = carver.template take<float>(sums);
    dvalues = carver.template take<float>(sums);
    query_rows = carver.template take<Word>(words);
    dout_rows = carver.template take<Word>(words);
    query_spare = carver.template take<Word>(words);
    dout_spare = carver.template take<Word>(words);
    queries = carver.template take<Word>(words);
    douts = carver.template take<Word>(words);
    scores = carver.template take<float>(kBlock * kBlock);
    dscores = carver.template take<float>(kBlock * kBlock);
    p_along = operand_buffer<Engine>(scores, carver);
    ds_along = operand_buffer<Engine>(dscores, carver);
    ds_across = operand_buffer<Engine>(dscores, carver);
    dqueries = carver.template take<float>(layout.padded_head * kBlock);
    dquery_rows = carver.template take<float>(layout.padded_head * kBlock);
    lse = carver.template take<float>(kBlock);
    delta = carver.template take<float>(kBlock);
  }
  WorkspaceAllocator carver;
  // For the whole sequence, indexed by key.
  Word *keys, *values;     ///< [padded_sequence, head words]
  Word* keys_across;       ///< per block [padded_head, key words]
  float *dkeys, *dvalues;  ///< [padded_sequence, padded_head]; dkeys without the factor `scale`
  // For one block of queries, indexed by query.
  Word *query_rows, *dout_rows;    ///< [queries, head words]
  Word *query_spare, *dout_spare;  ///< [query words, padded_head]; unused if that is the same layout
  Word *queries, *douts;           ///< [head words, queries]
  float *dqueries, *dquery_rows;   ///< [padded_head, queries], without the factor `scale`, and its transpose
  float *lse, *delta;              ///< per query: lse in base 2; dout . out
  // For one pair of blocks.
  float *scores, *dscores;   ///< [keys, queries]
  Word *p_along, *ds_along;  ///< [keys, query words]
  Word* ds_across;           ///< [key words, queries]
};

/// One query head of one sequence.
template <class T>
struct BackwardHead {
  const T *q, *out, *dout;
  const float* lse;
  T* dq;
};

template <class Engine, class T>
void pack_queries(const Layout<Engine>& layout, const BackwardHead<T>& head, int64_t block, const BackwardWorkspace<Engine>& place) {
  const int64_t rows = layout.rows(block), padded = layout.padded_rows(block), first = block * kBlock;
  const int64_t head_size = layout.head_size, stride = layout.out_columns;
  pack_rows<Engine>(head.q + first * layout.columns, layout.columns, rows, head_size, place.query_rows, padded, layout.padded_head);
  pack_rows<Engine>(head.dout + first * stride, stride, rows, head_size, place.dout_rows, padded, layout.padded_head);
  transpose(padded, layout.head_words, place.query_rows, layout.head_words, place.queries, kBlock);
  transpose(padded, layout.head_words, place.dout_rows, layout.head_words, place.douts, kBlock);
  for (int64_t query = 0; query < rows; ++query) {
    const T* const out = head.out + (first + query) * stride;
    const T* const dout = head.dout + (first + query) * stride;
    float delta = 0;
#pragma omp simd reduction(+ : delta)
    for (int64_t h = 0; h < head_size; ++h) delta += static_cast<float>(dout[h]) * static_cast<float>(out[h]);
    place.delta[query] = delta;
    place.lse[query] = head.lse[first + query] * kLog2E;
  }
  for (int64_t query = rows; query < padded; ++query) {
    place.delta[query] = 0;
    place.lse[query] = __builtin_inff();  // probabilities of 0
  }
}

/// Replaces scores by probabilities P, and dP by dS = P * (dP - delta).
template <class Engine>
void softmax_backward(const PairOfBlocks<Engine>& pair, float scale, const BackwardWorkspace<Engine>& place) {
  constexpr int64_t kWords = kBlock / Engine::kDepth;
  const float factor = scale * kLog2E;
  for (int64_t lane = 0; lane < pair.queries; lane += kLanes) {
    const Vector lse = load(place.lse + lane), delta = load(place.delta + lane);
    const int64_t keys = pair.keys_of(lane);
    for (int64_t key = 0; key < keys; key += 2) {
      Vector p[2], ds[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int64_t at = (key + i) * kBlock + lane;
        p[i] = exp2_of(load(place.scores + at) * factor - lse);
        ds[i] = p[i] * (load(place.dscores + at) - delta);
        store_along(place.p_along, kWords, key + i, lane, p[i]);
        if constexpr (Engine::kDepth > 1) store_along(place.ds_along, kWords, key + i, lane, ds[i]);
      }
      store_across(place.ds_across, kBlock, key, lane, ds[0], ds[1]);
    }
  }
}

/// Adds the contribution of one pair of blocks to the gradients of its keys and values (`of_keys`), of its queries (`of_queries`), or of both. Each
/// sum has the same terms in the same order for any choice.
template <class Engine>
void backward_pair(const Layout<Engine>& layout, int64_t query_block, int64_t key_block, bool of_keys, bool of_queries,
                   const BackwardWorkspace<Engine>& place) {
  const PairOfBlocks<Engine> pair(layout, query_block, key_block);
  const int64_t words = key_block * layout.block_words(), sums = key_block * kBlock * layout.padded_head;
  pair.scores(place.keys + words, place.queries, place.scores);
  pair.mask(place.scores);
  pair.scores(place.values + words, place.douts, place.dscores);
  softmax_backward(pair, layout.scale, place);
  if (of_keys) {
    pair.add_over_queries(place.p_along, across_rows(place.dout_rows, place.dout_spare), place.dvalues + sums);
    pair.add_over_queries(place.ds_along, across_rows(place.query_rows, place.query_spare), place.dkeys + sums);
  }
  if (of_queries) pair.over_keys(place.keys_across + words, place.ds_across, place.dqueries, key_block > layout.first_key_block(query_block));
}

template <class Engine, class T>
class Backward {
 public:
  Backward(const AttentionBackward<T>& p, void* workspace) : p_(p), layout_(p.sizes), place_(layout_, workspace) {}

  /// Runs the items [begin, end) of AttentionBackward.
  void run(int64_t begin, int64_t end) {
    const int64_t parts = p_.split ? layout_.blocks : 1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t part = item % parts;
      if (item == begin || part == 0) begin_task(item / parts / p_.sizes.kv_heads, item / parts % p_.sizes.kv_heads);
      if (p_.split) {
        block(part);
      } else {
        all();
      }
    }
  }

 private:
  void begin_task(int64_t sequence, int64_t kv_head) {
    row_ = layout_.row(sequence);
    kv_head_ = kv_head;
    key_column_ = (p_.sizes.heads + kv_head) * layout_.head_size;
    value_column_ = key_column_ + p_.sizes.kv_heads * layout_.head_size;
    rows_ = row_ * layout_.columns;
    const int64_t padded = layout_.padded_sequence, head = layout_.padded_head;
    pack_rows<Engine>(p_.qkv + rows_ + key_column_, layout_.columns, layout_.sequence, layout_.head_size, place_.keys, padded, head);
    pack_rows<Engine>(p_.qkv + rows_ + value_column_, layout_.columns, layout_.sequence, layout_.head_size, place_.values, padded, head);
    for (int64_t b = 0; b < layout_.blocks; ++b)
      transpose_block(layout_, b, place_.keys + b * layout_.block_words(), place_.query_spare, place_.keys_across);
  }

  BackwardHead<T> head(int64_t i) const {
    const int64_t n = kv_head_ * layout_.group + i;
    const int64_t out = row_ * layout_.out_columns + n * layout_.head_size, q = rows_ + n * layout_.head_size;
    return {p_.qkv + q, p_.out + out, p_.dout + out, p_.lse + layout_.lse(row_, n), p_.dqkv + q};
  }

  /// Packs a block of queries in every layout that a pair of blocks needs.
  void begin_queries(const BackwardHead<T>& of, int64_t query_block) {
    pack_queries(layout_, of, query_block, place_);
    spread_across(place_.query_rows, layout_.padded_rows(query_block), layout_.padded_head, place_.query_spare);
    spread_across(place_.dout_rows, layout_.padded_rows(query_block), layout_.padded_head, place_.dout_spare);
  }

  void all() {
    clear(0, layout_.blocks);
    for (int64_t i = 0; i < layout_.group; ++i) {
      for (int64_t query_block = 0; query_block < layout_.blocks; ++query_block) {
        begin_queries(head(i), query_block);
        for (int64_t key_block = layout_.first_key_block(query_block); key_block <= query_block; ++key_block)
          backward_pair(layout_, query_block, key_block, true, true, place_);
        end_queries(head(i), query_block);
      }
    }
    end_keys(0, layout_.blocks);
  }

  void block(int64_t part) {
    clear(part, part + 1);
    for (int64_t i = 0; i < layout_.group; ++i) {
      for (int64_t query_block = part; query_block <= layout_.last_query_block(part); ++query_block) {
        begin_queries(head(i), query_block);
        backward_pair(layout_, query_block, part, true, false, place_);
      }
    }
    end_keys(part, part + 1);
    for (int64_t i = 0; i < layout_.group; ++i) {
      begin_queries(head(i), part);
      for (int64_t key_block = layout_.first_key_block(part); key_block <= part; ++key_block)
        backward_pair(layout_, part, key_block, false, true, place_);
      end_queries(head(i), part);
    }
  }

  void clear(int64_t first_block, int64_t last_block) {
    const int64_t head = layout_.padded_head, last = (last_block - 1) * kBlock + layout_.padded_rows(last_block - 1);
    for (int64_t i = first_block * kBlock * head; i < last * head; ++i) place_.dkeys[i] = place_.dvalues[i] = 0;
  }

  void end_queries(const BackwardHead<T>& of, int64_t query_block) {
    const int64_t head = layout_.padded_head;
    transpose(head, layout_.padded_rows(query_block), place_.dqueries, kBlock, place_.dquery_rows, head);
    unpack_rows(place_.dquery_rows, head, layout_.scale, layout_.rows(query_block), layout_.head_size, of.dq + query_block * kBlock * layout_.columns,
                layout_.columns);
  }

  void end_keys(int64_t first_block, int64_t last_block) {
    const int64_t head = layout_.padded_head, first = first_block * kBlock;
    const int64_t rows = (last_block - 1) * kBlock + layout_.rows(last_block - 1) - first;
    T* const to = p_.dqkv + rows_ + first * layout_.columns;
    unpack_rows(place_.dkeys + first * head, head, layout_.scale, rows, layout_.head_size, to + key_column_, layout_.columns);
    unpack_rows(place_.dvalues + first * head, head, 1.0F, rows, layout_.head_size, to + value_column_, layout_.columns);
  }

  const AttentionBackward<T>& p_;
  const Layout<Engine> layout_;
  const BackwardWorkspace<Engine> place_;
  // The current task.
  int64_t row_ = 0, kv_head_ = 0;  ///< first row of its sequence
  int64_t rows_ = 0;               ///< offset of that row in qkv, in elements
  int64_t key_column_ = 0, value_column_ = 0;
};

template <class Engine, class T>
void attention_backward(const AttentionBackward<T>& p, int64_t begin, int64_t end, void* workspace) {
  [[maybe_unused]] const typename Engine::Session session;
  Backward<Engine, T>(p, workspace).run(begin, end);
}

template <class Engine>
int64_t backward_workspace(const AttentionSizes& sizes) {
  return BackwardWorkspace<Engine>(Layout<Engine>(sizes), nullptr).carver.used();
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
