#pragma once
// Causal attention in blocks of queries and keys, forward and backward (Dao 2023, arXiv:2307.08691), on the matrix products of an engine
// (attention_products.h).
//
// All matrices are transposed: scores are [keys, queries]. A query is a SIMD lane, so its maximum, sum, lse and delta are vector elements, and keys
// and values are operands in their stored layout. Scores exist for one pair of blocks at a time. Diagonal blocks are processed in strips of 32
// queries or keys; fully masked strips are skipped, and elements that no product reads are not written. With a window, blocks of keys that no query
// of a block attends to are skipped, and blocks at the lower edge of the band are masked.
//
// Sequences are padded with zeros to a multiple of 32. Padding keys are masked like every key after the query. Padding queries get meaningless
// probabilities in the forward, in lanes of their own that are never stored, and zero probabilities in the backward.
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/attention_operands.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

constexpr int64_t kBlock = kAttentionBlock;
constexpr int64_t kStrip = 32;
constexpr float kLog2E = 1.44269504F;

template <class Engine>
struct Layout {
  explicit Layout(const AttentionSizes& sizes)
      : sequence(sizes.sequence),
        head_size(sizes.head_size),
        group(sizes.heads / sizes.kv_heads),
        columns((sizes.heads + 2 * sizes.kv_heads) * sizes.head_size),
        out_columns(sizes.heads * sizes.head_size),
        padded_head(round_up(sizes.head_size, Engine::kUnit)),
        head_words(padded_head / Engine::kDepth),
        blocks((sizes.sequence + kBlock - 1) / kBlock),
        padded_sequence(round_up(sizes.sequence, kStrip)),
        scale(sizes.scale),
        band(sizes.band),
        first_row(sizes.first_row),
        heads(sizes.heads),
        row_length(sizes.row_length) {}
  /// Row of the first token of a sequence, and the place in lse of that token's head.
  int64_t row(int64_t of_sequence) const { return first_row + of_sequence * sequence; }
  int64_t lse(int64_t of_row, int64_t head) const { return (of_row / row_length * heads + head) * row_length + of_row % row_length; }
  int64_t rows(int64_t block) const { return block + 1 < blocks ? kBlock : sequence - block * kBlock; }
  int64_t padded_rows(int64_t block) const { return block + 1 < blocks ? kBlock : padded_sequence - block * kBlock; }
  /// First block of keys that queries of `block` attend to, and last block of queries that attend to keys of `block`.
  int64_t first_key_block(int64_t block) const { return band.first_key(block * kBlock) / kBlock; }
  int64_t last_query_block(int64_t block) const { return band.last_query(block * kBlock + rows(block) - 1, sequence) / kBlock; }
  int64_t block_words() const { return kBlock * head_words; }  ///< words of a packed operand [kBlock, head] or its transpose

  int64_t sequence, head_size, group, columns, out_columns;
  int64_t padded_head, head_words;
  int64_t blocks, padded_sequence;
  float scale;
  AttentionBand<int64_t> band;
  int64_t first_row, heads, row_length;
};

constexpr int64_t strip_end(int64_t position) { return (position / kStrip + 1) * kStrip; }

/// Matrix products of one pair of blocks that skip masked strips. `queries` and `keys` include the padding; extents along k are in elements.
template <class Engine>
struct PairOfBlocks {
  using Word = typename Engine::Word;
  static constexpr int64_t kDepth = Engine::kDepth;
  static constexpr int64_t kBlockWords = kBlock / kDepth;

  PairOfBlocks(const Layout<Engine>& layout, int64_t query_block, int64_t key_block)
      : queries(layout.padded_rows(query_block)),
        keys(layout.padded_rows(key_block)),
        padded_head(layout.padded_head),
        distance((query_block - key_block) * kBlock),
        diagonal(query_block == key_block),
        band(layout.band) {}
  int64_t queries, keys, padded_head;
  int64_t distance;  ///< tokens from the first key to the first query
  bool diagonal;
  AttentionBand<int64_t> band;

  /// c [keys, queries] = rows [keys, head] across [head, queries]
  void scores(const Word* rows, const Word* across, float* c) const {
    const int64_t words = padded_head / kDepth;
    if (!diagonal) return Engine::product(keys, queries, words, rows, words, across, kBlock, c, kBlock, false);
    for (int64_t s = 0; s < queries; s += kStrip)
      Engine::product(kStrip, queries - s, words, rows + s * words, words, across + s, kBlock, c + s * kBlock + s, kBlock, false);
  }
  /// c [head, queries] = or, with `add`, += rows [head, keys] across [keys, queries]
  void over_keys(const Word* rows, const Word* across, float* c, bool add) const {
    if (!diagonal) return Engine::product(padded_head, queries, keys / kDepth, rows, kBlockWords, across, kBlock, c, kBlock, add);
    for (int64_t s = 0; s < queries; s += kStrip)
      Engine::product(padded_head, kStrip, strip_end(s) / kDepth, rows, kBlockWords, across + s, kBlock, c + s, kBlock, add);
  }
  /// c [keys, head] += rows [keys, queries] across [queries, head]
  void add_over_queries(const Word* rows, const Word* across, float* c) const {
    if (!diagonal) return Engine::product(keys, padded_head, queries / kDepth, rows, kBlockWords, across, padded_head, c, padded_head, true);
    for (int64_t s = 0; s < queries; s += kStrip) {
      const int64_t skipped = s / kDepth;
      Engine::product(kStrip, padded_head, queries / kDepth - skipped, rows + s * kBlockWords + skipped, kBlockWords, across + skipped * padded_head,
                      padded_head, c + s * padded_head, padded_head, true);
    }
  }
  /// Number of keys for which queries [lane, lane + kLanes) have scores: up to the end of their strip.
  int64_t keys_of(int64_t lane) const { return diagonal ? strip_end(lane) : keys; }

  /// Sets the scores of masked keys to -infinity.
  void mask(float* c) const {
    if (diagonal) {
      for (int64_t key = 0; key < keys; ++key)
        for (int64_t query = key / kStrip * kStrip; query < key; ++query) c[key * kBlock + query] = -__builtin_inff();
    }
    if (!band.beyond(distance + queries - 1)) return;
    for (int64_t key = 0; key < keys; ++key) {
      const int64_t seen = band.last_query(key, distance + queries) + 1 - distance;  // the key is outside the window of queries from `seen` on
      for (int64_t query = seen < 0 ? 0 : seen; query < queries; ++query) c[key * kBlock + query] = -__builtin_inff();
    }
  }
};

/// The buffer for a block of sums as operand: in fp32 the sums themselves, otherwise a new array.
template <class Engine>
typename Engine::Word* operand_buffer(float* sums, WorkspaceAllocator& carver) {
  if constexpr (Engine::kDepth == 1) {
    return sums;
  } else {
    return carver.template take<typename Engine::Word>(kBlock * kBlock / Engine::kDepth);
  }
}

/// Block `block` of to, [padded_head, kBlock] in elements = transpose of packed rows [rows, padded_head].
template <class Engine>
void transpose_block(const Layout<Engine>& layout, int64_t block, const typename Engine::Word* rows, typename Engine::Word* spare,
                     typename Engine::Word* to) {
  const int64_t padded = layout.padded_head, count = layout.padded_rows(block);
  spread_across(rows, count, padded, spare);
  transpose(count / Engine::kDepth, padded, across_rows(rows, spare), padded, to + block * layout.block_words(), kBlock / Engine::kDepth);
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
