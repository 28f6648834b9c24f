#pragma once
// Counter-based random numbers: a value is a function of (seed, purpose, index) only, not of the rank or the time at which it is computed. So initial
// weights and dropout masks are the same in every layout. Everything below is specified bit by bit, for scripts that reproduce it (arithmetic is
// unsigned and wraps).
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

/// Philox4x32-10: four 32-bit words from a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// The key of the stream of a seed and a purpose ("init:blocks.0.mlp.up.weight", "dropout:embedding", "shuffle"):
/// splitmix64(splitmix64(seed) ^ fnv1a(purpose)), where
///   fnv1a: h = 0xCBF29CE484222325; for each byte c of the purpose: h = (h ^ c) * 0x100000001B3
///   splitmix64(x): x += 0x9E3779B97F4A7C15; x = (x ^ x>>30) * 0xBF58476D1CE4E5B9; x = (x ^ x>>27) * 0x94D049BB133111EB; x ^ x>>31
uint64_t random_key(uint64_t seed, std::string_view purpose);

/// 64 random bits for `index` of stream `key`: word1 << 32 | word0 of philox4x32({index lo, index hi, sub lo, sub hi}, {key lo, key hi}),
/// lo and hi being the lower and upper 32 bits.
uint64_t random_bits(uint64_t key, uint64_t index, uint64_t sub = 0);

/// In [0, 1): (random_bits >> 11) * 2^-53.
double random_uniform(uint64_t key, uint64_t index, uint64_t sub = 0);

/// In [0, 1), of a stream whose elements share calls, four each: word index % 4 of
/// philox4x32({index / 4 lo, index / 4 hi, sub lo, sub hi}, {key lo, key hi}), times 2^-32.
double random_uniform32(uint64_t key, uint64_t index, uint64_t sub = 0);

/// Standard normal, Box-Muller in double from one philox call with sub = 0: sqrt(-2 ln u1) * cos(2 pi u2), where
/// u1 = (((word1 << 32 | word0) >> 11) + 1) * 2^-53, in (0, 1], and u2 = ((word3 << 32 | word2) >> 11) * 2^-53, in [0, 1).
double random_normal(uint64_t key, uint64_t index);

/// A bijection of [0, n): the position of `index` < n in the pseudo-random order of stream `key`. O(1) memory and expected time: a four-round Feistel
/// network over 2b bits, with the smallest b that can represent n - 1, iterated until the result is below n (cycle walking). A round r = 0..3 turns
/// the b-bit halves (left, right) into (right, left ^ low b bits of random_bits(key, right, r)).
uint64_t random_permutation(uint64_t key, uint64_t index, uint64_t n);

}  // namespace trireme
