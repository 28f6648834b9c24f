#include "trainer/files/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <vector>

#include "trainer/files/random_access_file.h"

namespace trireme {

void Digest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Digest::Digest() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}

void Digest::update(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(state_.get(), data, bytes);
}

std::string Digest::str() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  char text[42];
  std::snprintf(text, sizeof text, "xxh3-128:%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

std::string digest_of(std::string_view text) {
  Digest digest;
  digest.update(text);
  return digest.str();
}

void update_from(const RandomAccessFile& file, int64_t bytes, Digest& digest) {
  std::vector<char> block(size_t{1} << 20);
  const auto most = static_cast<int64_t>(block.size());
  for (int64_t at = 0; at < bytes; at += most) {
    const int64_t count = std::min(most, bytes - at);
    file.read(at, count, block.data());
    digest.update(block.data(), static_cast<size_t>(count));
  }
}

std::string digest_of(const RandomAccessFile& file) {
  Digest digest;
  update_from(file, file.bytes(), digest);
  return digest.str();
}

bool is_digest(std::string_view text) {
  constexpr std::string_view kBegin = "xxh3-128:";
  constexpr size_t kDigits = 32;
  return text.starts_with(kBegin) && text.size() == kBegin.size() + kDigits && text.find_first_not_of("0123456789abcdef", kBegin.size()) == text.npos;
}

}  // namespace trireme
