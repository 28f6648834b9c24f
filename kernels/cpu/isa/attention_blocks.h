#pragma once
// Causal attention in blocks of queries and keys, forward and backward (Dao 2023, arXiv:2307.08691), on the products of an engine.
//
// Everything is transposed, scores are [keys, queries]: a query is a lane, its maximum, sum, lse and delta are elements of vectors, and keys and
// values are operands as they lie. Scores exist for one pair of blocks at a time. Blocks on the diagonal are worked in strips of 32 queries or keys,
// without the strips that the mask clears; what no product reads is not even written. Under a window, blocks of keys that no query of a block sees
// are skipped, and those at the band's lower edge are masked.
//
// Queries and keys beyond the sequence are zeros up to the next multiple of 32. Such keys are masked like every key after the query; such queries get
// probabilities of no meaning in the forward, which are lanes of their own and never stored, and of zero in the backward.
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
        scale(1.0F / __builtin_sqrtf(static_cast<float>(sizes.head_size))),
        band(sizes.band) {}
  int64_t rows(int64_t block) const { return block + 1 < blocks ? kBlock : sequence - block * kBlock; }
  int64_t padded_rows(int64_t block) const { return block + 1 < blocks ? kBlock : padded_sequence - block * kBlock; }
  /// First block of keys that a query of the block sees, and last block of queries that see a key of it.
  int64_t first_key_block(int64_t block) const { return band.first_key(block * kBlock) / kBlock; }
  int64_t last_query_block(int64_t block) const { return band.last_query(block * kBlock + rows(block) - 1, sequence) / kBlock; }
  int64_t block_words() const { return kBlock * head_words; }  ///< of a packed operand [kBlock, head], or its transpose

  int64_t sequence, head_size, group, columns, out_columns;
  int64_t padded_head, head_words;
  int64_t blocks, padded_sequence;
  float scale;
  AttentionBand<int64_t> band;
};

constexpr int64_t strip_end(int64_t position) { return (position / kStrip + 1) * kStrip; }

/// Products of one pair of blocks that know of the mask. `queries` and `keys` are padded; k down or along queries and keys is in elements.
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
  int64_t distance;  ///< from the first key to the first query, in tokens
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
  /// Keys that queries [lane, lane + kLanes) have scores of: all up to the end of their strip.
  int64_t keys_of(int64_t lane) const { return diagonal ? strip_end(lane) : keys; }

  /// Scores of keys that their query does not see become -infinity.
  void mask(float* c) const {
    if (diagonal) {
      for (int64_t key = 0; key < keys; ++key)
        for (int64_t query = key / kStrip * kStrip; query < key; ++query) c[key * kBlock + query] = -__builtin_inff();
    }
    if (!band.beyond(distance + queries - 1)) return;
    for (int64_t key = 0; key < keys; ++key) {
      const int64_t seen = band.last_query(key, distance + queries) + 1 - distance;  // queries of the block from `seen` on are too far from the key
      for (int64_t query = seen < 0 ? 0 : seen; query < queries; ++query) c[key * kBlock + query] = -__builtin_inff();
    }
  }
};

/// The place of a block's sums when they have become an operand: fp32 stays where it is.
template <class Engine>
typename Engine::Word* operand_place(float* sums, Carver& carver) {
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
