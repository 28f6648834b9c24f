#include "parallel/crypto/secure_sum_masks.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace trireme::crypto {
namespace {

constexpr size_t kBlockValues = 8;    ///< words of 64 bits in a block of ChaCha20
constexpr size_t kChunkValues = 512;  ///< drawn at a time: 4 KiB, so that values and stream stay in the first-level cache
static_assert(std::endian::native == std::endian::little, "a stream's bytes are words in little-endian order");

using Chunk = std::array<uint64_t, kChunkValues>;

void add_words(std::span<uint64_t> values, const uint64_t* words, bool subtracted) {
  if (subtracted)
    for (size_t i = 0; i < values.size(); ++i) values[i] -= words[i];
  else
    for (size_t i = 0; i < values.size(); ++i) values[i] += words[i];
}

}  // namespace

void MaskKeys::add(uint64_t first, std::span<uint64_t> values) const {
  alignas(64) Chunk chunk;
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(chunk.data()), sizeof chunk);
  while (!values.empty()) {
    const size_t skipped = static_cast<size_t>(first % kBlockValues);
    const std::span<uint64_t> part = values.first(std::min(values.size(), kChunkValues - skipped));
    for (const Stream& stream : streams_) {
      keystream(stream.key, 0, first / kBlockValues, bytes.first((skipped + part.size()) * sizeof(uint64_t)));
      add_words(part, chunk.data() + skipped, stream.subtracted);
    }
    first += part.size();
    values = values.subspan(part.size());
  }
  wipe(bytes);
}

Key derive_for(const SumRound& round, const Key& key, std::string_view purpose, std::span<const uint8_t> also) {
  std::string text = concat("trireme secure sum: ", purpose, ": ");
  text.append(reinterpret_cast<const char*>(round.digest().data()), round.digest().size());
  return derive(key, text.append(reinterpret_cast<const char*>(also.data()), also.size()));
}

bool pair_mask_key(const SumRound& round, const Key& secret, const Point& own, const Point& other, Key& key) {
  Key product;
  if (!multiply(secret, other, product)) return false;
  std::array<uint8_t, 2 * kPointBytes> points;
  std::ranges::copy(std::max(own, other), std::ranges::copy(std::min(own, other), points.begin()).out);
  key = derive_for(round, product, "mask of a pair", points);
  return true;
}

Key self_mask_key(const SumRound& round, const Key& seed) { return derive_for(round, seed, "self mask"); }
Key self_mask_commitment(const SumRound& round, const Key& seed) { return derive_for(round, seed, "commitment to the self mask"); }

}  // namespace trireme::crypto
