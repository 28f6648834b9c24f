#pragma once
// Reads token ids of any width as int32.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "kernels/core/check.h"
#include "trainer/files/random_access_file.h"

namespace trireme {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read without conversion");

struct ValidIds {
  int64_t vocab_size;  ///< ids in [0, vocab_size) are valid
  const char* advice;  ///< appended to the error message
};

/// Reads tokens [begin, begin + count) of a file with consecutive ids of type Id from byte `first_byte`.
/// Errors: those of RandomAccessFile::read; DataError naming file and position of an id outside [0, vocab_size).
template <class Id>
void read_ids(const RandomAccessFile& file, int64_t first_byte, int64_t begin, int64_t count, const ValidIds& valid, int32_t* out) {
  std::array<Id, 2048> block;
  constexpr int64_t kBlock = block.size(), kBytes = sizeof(Id);
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t here = std::min(kBlock, count - done);
    file.read(first_byte + (begin + done) * kBytes, here * kBytes, block.data());
    for (int64_t i = 0; i < here; ++i) {
      const auto id = static_cast<int64_t>(block[static_cast<size_t>(i)]);
      if (id < 0 || id >= valid.vocab_size)
        throw DataError(
            concat(file.path(), ": token ", begin + done + i, " is ", id, ", outside the vocabulary of ", valid.vocab_size, valid.advice));
      out[done + i] = static_cast<int32_t>(id);
    }
  }
}

}  // namespace trireme
