// The speed of sealing and opening messages on one core: bench_seal [BYTES].
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "parallel/crypto/aead.h"

using namespace trireme::crypto;

int main(int argc, char** argv) {
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 20;
  const std::vector<std::byte> text(bytes, std::byte{7});
  std::vector<std::byte> frame(bytes + kTagBytes), opened(bytes);
  for (const Cipher cipher : {Cipher::kChaCha20Poly1305, Cipher::kAes256Gcm}) {
    if (!is_available(cipher)) continue;
    const Aead aead(cipher, derive({}, "bench"));
    double best[2] = {1e9, 1e9};
    for (uint64_t turn = 0; turn < 30; ++turn) {
      const auto begin = std::chrono::steady_clock::now();
      aead.seal(nonce_of(0, turn), length_of(bytes), text, frame);
      const auto middle = std::chrono::steady_clock::now();
      if (!aead.open(nonce_of(0, turn), length_of(bytes), frame, opened)) return 1;
      const auto end = std::chrono::steady_clock::now();
      best[0] = std::min(best[0], std::chrono::duration<double>(middle - begin).count());
      best[1] = std::min(best[1], std::chrono::duration<double>(end - middle).count());
    }
    std::printf("%s, %zu bytes: seals %.2f GB/s, opens %.2f GB/s\n", name_of(cipher), bytes, static_cast<double>(bytes) / best[0] / 1e9,
                static_cast<double>(bytes) / best[1] / 1e9);
  }
  return 0;
}
