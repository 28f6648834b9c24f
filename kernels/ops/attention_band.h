#pragma once
// The band of a causal attention mask: which keys a query sees, and which queries see a key. Every engine asks here, for whole tiles and for single
// elements. Code for the CPU's levels of instructions and for GPUs includes this file, so it uses no standard library.
#include <cstdint>

namespace trireme {

/// A query at token i sees the keys j with i - window < j <= i; with window 0 all j <= i. Token is int64_t, or int to save a GPU's registers.
template <class Token>
struct AttentionBand {
  Token window;

  /// The same band of a sequence: without a window where that is no shorter than the sequence.
  constexpr AttentionBand within(Token sequence) const { return {window < sequence ? window : 0}; }
  /// First key that the query sees. The last is the query's own.
  constexpr Token first_key(Token query) const { return window == 0 || query < window ? 0 : query - window + 1; }
  /// Last query of a sequence that sees the key. The first is the key's own.
  constexpr Token last_query(Token key, Token sequence) const { return window == 0 || sequence - key <= window ? sequence - 1 : key + window - 1; }
  /// Whether a key that lies `distance` tokens before a query is too far away to be seen; never for one that is not before it.
  constexpr bool beyond(Token distance) const { return window != 0 && distance >= window; }
  /// Start of a running maximum of scores. Under a window the first tile may hold no key that a query sees: its weights e^(-infinity - maximum) are
  /// 0 if the maximum is finite, and NaN if it is -infinity.
  constexpr float first_maximum() const { return window == 0 ? -__builtin_inff() : -__FLT_MAX__; }
};

}  // namespace trireme
