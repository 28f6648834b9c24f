#include "trainer/files/digest.h"

#include <xxhash.h>

#include <cstdio>
#include <new>

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

}  // namespace trireme
