#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/packing.h"
#include "trainer/data/token_source.h"

namespace trireme {

/// Numbered samples of one sequence length, readable in any order by any rank.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t sequences() const = 0;  ///< distinct samples
  /// `tokens` and `targets` are [sequence_length]; target t is the token after token t, or -1 if it is masked out of the loss.
  /// Sample -1 is padding: every token is 0, every target -1.
  /// Appends to `segments` the lengths of the runs of tokens that attend to each other; they sum to sequence_length. One run without a document mask.
  virtual void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const = 0;
  /// Positions at the end of a sample that hold no token of the data: their tokens are 0, their targets -1, and they are the last segment.
  virtual int64_t padding(int64_t /*sample*/) const { return 0; }
  /// Groups of consecutive samples with their sampling weights. The default is one group: every sample once per epoch.
  struct Group {
    int64_t sequences;
    double weight;
  };
  virtual std::vector<Group> groups() const { return {{sequences(), 1.0}}; }
};

struct DatasetOptions {
  int64_t sequence_length = 0;
  int64_t vocab_size = 0;            ///< of the model
  std::string tokenizer_digest;      ///< of the run's tokenizer
  bool document_mask = false;        ///< each document of a sequence is a segment, and no target crosses a document boundary
  std::vector<double> weights = {};  ///< one per source; empty: all sources form one stream
  int64_t packing_window = 0;        ///< documents that are packed together, see PackedDocuments; 0: no packing. Needs document_mask
  bool whole = false;                ///< the last sequence of a stream may be short, so that every token but the first is a target; not with packing
};

/// Samples of T = sequence_length tokens from token sources; none without a source. Without weights the sources are concatenated into one stream, and sample i is the
/// window of T+1 tokens from token i*T: every token but the first is a target once, but for those of a last window that is short, which only `whole` data have, padded. With weights each source is a separate stream and a group of
/// samples. Prompt tokens of instruction data are never targets.
/// With packing, a sample is a sequence of PackedDocuments, one for each stream. Every token is then in one sample, and a target once if it is neither
/// the first token of a document nor in a prompt.
/// Errors: those of TokenSource; DataError if a source was encoded with a different tokenizer or its vocabulary exceeds the model's, if a source has no
/// document boundaries and they are needed, or if a stream has no target or, without packing, fewer than T+1 tokens (2 of `whole` data).
class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::vector<std::string>& paths, const DatasetOptions& options);

  int64_t sequences() const override;
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override;
  std::vector<Group> groups() const override;
  int64_t padding(int64_t sample) const override;

  int64_t tokens() const { return tokens_; }
  int64_t positions(int64_t sequences) const;   ///< of tokens in the first sequences, without padding; not with packing or weights
  double padding_share() const;                 ///< of the positions of many samples, by the weights; 0 without packing
  std::vector<std::string> suspicions() const;  ///< of its sources, see TokenSource::suspicion
  std::vector<std::string> files() const;       ///< TokenSource::file() of each source
  /// Hash of each source's description and tokens and, if they affect samples, its document boundaries. Equal data have equal fingerprints. A source
  /// of more than 1,048,576 tokens (or documents) is sampled at 4,096 evenly spaced ones, so a change can go unnoticed.
  uint64_t fingerprint() const;
  /// Recorded in checkpoints: fingerprint() in decimal and, if every source is a token directory with digests, a space and a digest of the digests in
  /// their index.json. Does not hash the files themselves; `data inspect --verify` does.
  std::string identity() const;

 private:
  /// Concatenated sources.
  struct Stream {
    std::vector<TokenSource> sources;
    std::vector<int64_t> starts;  ///< offset of each source in the stream, in tokens
    int64_t tokens = 0;
    int64_t first_sample = 0;
    std::unique_ptr<PackedDocuments> packed = {};  ///< null: no packing
  };

  int64_t sequences_of(const Stream& stream) const;
  bool documents_matter(const TokenSource& source) const { return options_.document_mask || source.prompts(); }
  const Stream& stream_of(int64_t sample) const;
  void pack(Stream& stream) const;
  void check_targets(const Stream& stream) const;
  static size_t source_at(const Stream& stream, int64_t token);
  void read_stream(const Stream& stream, int64_t begin, int64_t count, int32_t* out) const;
  void read_packed(const Stream& stream, int64_t sequence, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const;
  void mark_documents(const Stream& stream, int64_t begin, int64_t end, int32_t* targets, std::vector<int64_t>& segments) const;
  void pad(int64_t filled, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const;

  DatasetOptions options_;
  std::vector<Stream> streams_;
  int64_t tokens_ = 0;
};

/// True if two TokenDataset::identity() strings can denote the same data: equal fingerprints and, if both have digests, equal digests.
bool same_data(const std::string& a, const std::string& b);

}  // namespace trireme
