#include "trainer/data/dataset.h"

#include <algorithm>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/hash.h"

namespace trireme {
namespace {

constexpr int64_t kFingerprintWhole = 1 << 20;  // tokens; read in milliseconds
constexpr int64_t kFingerprintSample = 4096;    // of more: each may cost a page from a cold disk

}  // namespace

TokenDataset::TokenDataset(const std::vector<std::string>& directories, int64_t sequence_length, int64_t vocab_size,
                           const std::string& tokenizer_digest)
    : sequence_length_(sequence_length) {
  TRIREME_CHECK(sequence_length >= 1 && !directories.empty(), "sequence_length ", sequence_length, ", ", directories.size(), " directories");
  for (const std::string& directory : directories) {
    const TokenIndex& index = files_.emplace_back(directory).index();
    if (index.tokenizer_digest != tokenizer_digest)
      throw DataError(
          concat(directory, ": made by tokenizer ", index.tokenizer, " (", index.tokenizer_digest, "), but the run's is ", tokenizer_digest));
    if (index.vocab_size > vocab_size)
      throw DataError(concat(directory, ": its vocabulary of ", index.vocab_size, " exceeds the model's vocab_size of ", vocab_size));
    starts_.push_back(tokens_);
    tokens_ += index.tokens;
  }
  if (tokens_ <= sequence_length)
    throw DataError(concat(directories.front(), directories.size() > 1 ? " and the others" : "", ": ", tokens_, " tokens, but one sequence of ",
                           sequence_length, " tokens and its last target need ", sequence_length + 1));
}

void TokenDataset::read(int64_t sample, int32_t* tokens, int32_t* targets) const {
  const int64_t length = sequence_length_;
  if (sample == -1) {
    std::fill_n(tokens, length, 0);
    std::fill_n(targets, length, -1);
    return;
  }
  TRIREME_CHECK(sample >= 0 && sample < sequences(), "sample ", sample, " of ", sequences());
  read_stream(sample * length, length, tokens);
  std::copy_n(tokens + 1, length - 1, targets);
  read_stream((sample + 1) * length, 1, targets + length - 1);
}

void TokenDataset::read_stream(int64_t begin, int64_t count, int32_t* out) const {
  auto file = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) - starts_.begin() - 1);
  for (; count > 0; ++file) {
    const int64_t offset = begin - starts_[file];
    const int64_t here = std::min(count, files_[file].tokens() - offset);
    files_[file].read(offset, here, out);
    begin += here;
    out += here;
    count -= here;
  }
}

uint64_t TokenDataset::fingerprint() const {
  uint64_t hash = kFnv1aStart;
  for (const TokenFile& file : files_) {
    hash = fnv1a(file.index().to_json(), hash);
    const int64_t count = file.tokens() <= kFingerprintWhole ? file.tokens() : kFingerprintSample;
    const int64_t stride = file.tokens() / count;
    for (int64_t i = 0; i < count; ++i) {
      int32_t token = 0;
      file.read(i * stride, 1, &token);
      hash = fnv1a({reinterpret_cast<const char*>(&token), sizeof token}, hash);
    }
  }
  return hash;
}

}  // namespace trireme
