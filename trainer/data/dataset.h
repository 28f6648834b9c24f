#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/token_file.h"

namespace trireme {

/// One of the three virtual seams: numbered samples of one sequence length, readable in any order by any rank.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t sequences() const = 0;  ///< distinct samples
  /// tokens and targets are [sequence_length]; target t is what follows tokens 0..t, -1 where it does not count for the loss.
  /// Sample -1 is padding: tokens 0, every target -1.
  virtual void read(int64_t sample, int32_t* tokens, int32_t* targets) const = 0;
};

/// Token directories one after the other as one stream; sample i is the window of T+1 tokens from i*T, so every token but the first is a target once.
/// Errors: those of TokenFile; DataError where a directory's tokenizer is not `tokenizer_digest`, its vocabulary exceeds `vocab_size` (the model's),
/// or all together hold fewer than T+1 tokens.
class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::vector<std::string>& directories, int64_t sequence_length, int64_t vocab_size, const std::string& tokenizer_digest);

  int64_t sequences() const override { return (tokens_ - 1) / sequence_length_; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets) const override;

  int64_t tokens() const { return tokens_; }
  /// Equal on ranks that see the same data: a hash of the indices and of the tokens of each directory; of more than a million,
  /// 4096 spread over them.
  uint64_t fingerprint() const;

 private:
  void read_stream(int64_t begin, int64_t count, int32_t* out) const;

  std::vector<TokenFile> files_;
  std::vector<int64_t> starts_;  ///< where each file begins in the stream, in tokens
  int64_t sequence_length_;
  int64_t tokens_ = 0;
};

}  // namespace trireme
