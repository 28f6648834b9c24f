#include "trainer/files/sha256_file.h"

#include <algorithm>
#include <vector>

#include "parallel/crypto/sodium.h"
#include "trainer/files/random_access_file.h"

namespace trireme {

std::string sha256_of_file(const std::filesystem::path& path) {
  const RandomAccessFile file(path.string());
  std::vector<std::byte> piece(1 << 20);
  crypto::Sha256 sum;
  for (int64_t at = 0; at < file.bytes();) {
    const int64_t count = std::min(static_cast<int64_t>(piece.size()), file.bytes() - at);
    file.read(at, count, piece.data());
    sum.update(piece.data(), static_cast<size_t>(count));
    at += count;
  }
  return crypto::hex(sum.finish());
}

}  // namespace trireme
