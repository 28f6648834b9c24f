#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/token_source.h"

namespace trireme {

/// One of the four virtual seams: numbered samples of one sequence length, readable in any order by any rank.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t sequences() const = 0;  ///< distinct samples
  /// tokens and targets are [sequence_length]; target t is what follows tokens 0..t, -1 where it does not count for the loss.
  /// Sample -1 is padding: tokens 0, every target -1.
  /// `segments` += the lengths, sequence_length in sum, of the stretches whose tokens attend to each other: one where documents are not kept apart.
  virtual void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const = 0;
  /// Groups of consecutive samples, and the share of each in training; no shares: one group, every sample once an epoch.
  struct Group {
    int64_t sequences;
    double weight;
  };
  virtual std::vector<Group> groups() const { return {{sequences(), 1.0}}; }
};

/// How entries of the configuration become samples.
struct DatasetOptions {
  int64_t sequence_length = 0;
  int64_t vocab_size = 0;            ///< the model's
  std::string tokenizer_digest;      ///< the run's
  bool document_mask = false;        ///< a segment for each document of a sequence, and no target across their borders
  std::vector<double> weights = {};  ///< of the sources; empty: all as one stream
};

/// Token sources as sequences. Without weights they are one stream, one after the other, and sample i is the window of T+1 tokens from i*T, so every token but
/// the first is a target once; with weights each source is a stream of its own and a group of samples. Prompts of instruction data are never targets.
/// Errors: those of TokenSource; DataError where a source's tokenizer is not the run's, its vocabulary exceeds the model's, a stream holds fewer than T+1 tokens, or
/// none of its tokens is a target.
class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::vector<std::string>& paths, const DatasetOptions& options);

  int64_t sequences() const override;
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override;
  std::vector<Group> groups() const override;

  int64_t tokens() const { return tokens_; }
  std::vector<std::string> files() const;  ///< TokenSource::file() of each source
  /// Equal for equal data: a hash of the description, the tokens and, where they matter, the documents of each source. Of more than 1,048,576 tokens (or
  /// documents) it reads 4,096 spread over them, so it can miss a change.
  uint64_t fingerprint() const;
  /// What a checkpoint keeps of its data: fingerprint() as text and, where every source is a token directory with digests, a space and a digest of the
  /// digests that the build recorded. The files themselves are not read for it: `data inspect --verify` does that.
  std::string identity() const;

 private:
  /// Sources read one after the other.
  struct Stream {
    std::vector<TokenSource> sources;
    std::vector<int64_t> starts;  ///< where each source begins, in tokens of the stream
    int64_t tokens = 0;
    int64_t first_sample = 0;
  };

  int64_t sequences_of(const Stream& stream) const { return (stream.tokens - 1) / options_.sequence_length; }
  bool documents_matter(const TokenSource& source) const { return options_.document_mask || source.prompts(); }
  void check_targets(const Stream& stream) const;
  static size_t source_at(const Stream& stream, int64_t token);
  void read_stream(const Stream& stream, int64_t begin, int64_t count, int32_t* out) const;
  void mark_documents(const Stream& stream, int64_t begin, int32_t* targets, std::vector<int64_t>& segments) const;

  DatasetOptions options_;
  std::vector<Stream> streams_;
  int64_t tokens_ = 0;
};

/// Whether two TokenDataset::identity() may be of the same data: the fingerprints are equal, and so are the digests where both have one.
bool same_data(const std::string& a, const std::string& b);

}  // namespace trireme
