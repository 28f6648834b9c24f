#pragma once
// The band of a causal attention mask: which keys a query attends to, and which queries attend to a key. Every engine uses it, for whole tiles and
// for single elements. Code for every instruction-set level and for GPUs includes this file, so it uses no standard library.
#include <cstdint>

namespace trireme {

/// A query at token i attends to the keys j with i - window < j <= i; with window 0 to all j <= i. Token is int64_t, or int to save GPU registers.
template <class Token>
struct AttentionBand {
  Token window;

  /// The equivalent band for a sequence: without the window if that is not shorter than the sequence.
  constexpr AttentionBand within(Token sequence) const { return {window < sequence ? window : 0}; }
  /// First key that the query attends to. The last one is its own token.
  constexpr Token first_key(Token query) const { return window == 0 || query < window ? 0 : query - window + 1; }
  /// Last query of a sequence that attends to the key. The first one is its own token.
  constexpr Token last_query(Token key, Token sequence) const { return window == 0 || sequence - key <= window ? sequence - 1 : key + window - 1; }
  /// Whether a key `distance` tokens before a query is outside the window; false for distance <= 0.
  constexpr bool beyond(Token distance) const { return window != 0 && distance >= window; }
  /// Initial value of a running maximum of scores. With a window the first tile may contain only masked keys of a query: their weights
  /// e^(-infinity - maximum) are 0 if the maximum is finite, but NaN if it is -infinity.
  constexpr float first_maximum() const { return window == 0 ? -__builtin_inff() : -__FLT_MAX__; }
};

}  // namespace trireme
