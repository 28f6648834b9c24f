#include "trainer/data/dataset.h"

#include <algorithm>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "kernels/core/hash.h"
#include "trainer/files/digest.h"

namespace trireme {
namespace {

constexpr int64_t kFingerprintWhole = 1 << 20;  // tokens; reading them takes milliseconds
constexpr int64_t kFingerprintSample = 4096;    // tokens of a larger source; each may read a page from disk

void check_source(const TokenSource& source, const DatasetOptions& options) {
  if (const std::optional<std::string> digest = source.tokenizer_digest(); digest && *digest != options.tokenizer_digest)
    throw DataError(concat(source.path(), ": made by tokenizer ", *digest, ", but the run uses ", options.tokenizer_digest,
                           "; set data.tokenizer to the tokenizer that made it, or rebuild it with `trireme data build`"));
  int32_t token = 0;
  source.read(0, 1, options.vocab_size, &token);  // throws if the source's vocabulary is larger
  if (options.document_mask && !source.has_document_boundaries())
    throw DataError(concat(source.path(),
                           ": data.document_mask=true needs document boundaries, which this format does not record; allowed a token directory "
                           "or a Megatron dataset, or data.document_mask=false"));
}

void hash_value(int64_t value, uint64_t& hash) { hash = fnv1a({reinterpret_cast<const char*>(&value), sizeof value}, hash); }

/// Number of tokens or documents, out of `count`, that enter a fingerprint.
int64_t looked_at(int64_t count) { return count <= kFingerprintWhole ? count : kFingerprintSample; }

void hash_tokens(const TokenSource& source, int64_t vocab_size, uint64_t& hash) {
  const int64_t count = looked_at(source.tokens()), stride = source.tokens() / count;
  std::vector<int32_t> tokens(static_cast<size_t>(stride == 1 ? std::min<int64_t>(count, 4096) : 1));
  const auto at_once = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < count; i += at_once) {
    const int64_t here = std::min(at_once, count - i);
    source.read(i * stride, here, vocab_size, tokens.data());
    hash = fnv1a({reinterpret_cast<const char*>(tokens.data()), static_cast<size_t>(here) * sizeof(int32_t)}, hash);
  }
}

void hash_documents(const TokenSource& source, uint64_t& hash) {
  const int64_t count = looked_at(source.documents()), stride = source.documents() / count;
  for (int64_t i = 0; i < count;) {
    source.visit_documents(i * stride, [&](const TokenFile::Document& document) {
      hash_value(document.begin, hash);
      hash_value(document.response, hash);
      return ++i < count && stride == 1;
    });
  }
}

}  // namespace

TokenDataset::TokenDataset(const std::vector<std::string>& paths, const DatasetOptions& options) : options_(options) {
  const int64_t length = options.sequence_length;
  const bool apart = !options.weights.empty(), packs = options.packing_window > 0;
  TRIREME_CHECK(length >= 1 && (!apart || options.weights.size() == paths.size()), "sequence_length ", length, ", ", paths.size(), " paths, ",
                options.weights.size(), " weights");
  TRIREME_CHECK(!packs || (options.document_mask && !options.whole), "packed documents are kept apart, and none is left over");
  for (const std::string& path : paths) {
    if (apart || streams_.empty()) streams_.emplace_back();
    Stream& stream = streams_.back();
    const TokenSource& source = stream.sources.emplace_back(path);
    check_source(source, options);
    stream.starts.push_back(stream.tokens);
    stream.tokens += source.tokens();
    tokens_ += source.tokens();
  }
  int64_t sequences = 0;
  for (Stream& stream : streams_) {
    if (packs)
      pack(stream);
    else if (const int64_t shortest = options.whole ? 1 : length; stream.tokens <= shortest)
      throw DataError(concat(stream.sources.front().path(), stream.sources.size() > 1 ? " and the others" : "", ": ", counted(stream.tokens, "token"),
                             ", but one sequence of ", counted(shortest, "token"), " and its last target needs ", shortest + 1));
    stream.first_sample = sequences;
    sequences += sequences_of(stream);
    check_targets(stream);
  }
}

int64_t TokenDataset::sequences_of(const Stream& stream) const {
  if (stream.packed) return stream.packed->sequences();
  const int64_t targets = stream.tokens - 1, length = options_.sequence_length;
  return options_.whole ? (targets + length - 1) / length : targets / length;
}

/// The stream keeps its address when the data set is moved.
void TokenDataset::pack(Stream& stream) const {
  int64_t documents = 0;
  for (const TokenSource& source : stream.sources) documents += source.documents();
  const auto visit = [&stream](int64_t first, const std::function<bool(const TokenFile::Document&)>& each) {
    bool more = true;
    for (size_t s = 0; s < stream.sources.size() && more; ++s) {
      const int64_t start = stream.starts[s];
      stream.sources[s].visit_documents(std::min(first, stream.sources[s].documents()), [&](const TokenFile::Document& document) {
        more = each({start + document.begin, start + document.end, start + document.response});
        return more;
      });
      first = std::max<int64_t>(0, first - stream.sources[s].documents());
    }
  };
  stream.packed = std::make_unique<PackedDocuments>(visit, documents, options_.sequence_length, options_.packing_window);
}

/// Stops at the first target, which is almost always in the first document.
void TokenDataset::check_targets(const Stream& stream) const {
  // Tokens 1 to `last` of the stream are targets of a sequence.
  const int64_t last = stream.packed ? stream.tokens - 1 : std::min(stream.tokens - 1, sequences_of(stream) * options_.sequence_length);
  bool found = false;
  for (size_t s = 0; s < stream.sources.size() && !found; ++s) {
    const TokenSource& source = stream.sources[s];
    if (!documents_matter(source)) return;
    const int64_t start = stream.starts[s];
    source.visit_documents(0, [&](const TokenFile::Document& document) {
      const int64_t unmasked = std::max(document.response, document.begin + (options_.document_mask ? 1 : 0));
      const int64_t first = std::max<int64_t>(start + unmasked, 1);
      found = first < start + document.end && first <= last;
      return !found && start + document.end <= last;
    });
  }
  if (found) return;
  throw DataError(concat(stream.sources.front().path(), stream.sources.size() > 1 ? " and the others" : "",
                         ": no token is a target, so there is no loss to compute; prompt tokens are never targets",
                         options_.document_mask ? ", nor is the first token of a document with data.document_mask=true" : ""));
}

int64_t TokenDataset::sequences() const { return streams_.empty() ? 0 : streams_.back().first_sample + sequences_of(streams_.back()); }

std::vector<Dataset::Group> TokenDataset::groups() const {
  if (options_.weights.empty()) return Dataset::groups();
  std::vector<Group> groups;
  for (size_t s = 0; s < streams_.size(); ++s) groups.push_back({sequences_of(streams_[s]), options_.weights[s]});
  return groups;
}

void TokenDataset::read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const {
  const int64_t length = options_.sequence_length;
  if (sample == -1) {
    std::fill_n(tokens, length, 0);
    std::fill_n(targets, length, -1);
    segments.push_back(length);
    return;
  }
  const Stream& stream = stream_of(sample);
  if (stream.packed) return read_packed(stream, sample - stream.first_sample, tokens, targets, segments);
  const int64_t begin = (sample - stream.first_sample) * length, count = std::min(length, stream.tokens - 1 - begin);
  read_stream(stream, begin, count, tokens);
  std::copy_n(tokens + 1, count - 1, targets);
  read_stream(stream, begin + count, 1, targets + count - 1);
  mark_documents(stream, begin, begin + count, targets, segments);
  pad(count, tokens, targets, segments);
}

/// Makes padding of what follows the first `filled` positions of a sample. It is a segment of its own if documents are kept apart; otherwise it
/// belongs to the only segment, because attention is causal: what follows a token does not change it.
void TokenDataset::pad(int64_t filled, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const {
  const int64_t missing = options_.sequence_length - filled;
  if (missing == 0) return;
  std::fill_n(tokens + filled, missing, 0);
  std::fill_n(targets + filled, missing, -1);
  if (options_.document_mask)
    segments.push_back(missing);
  else
    segments.back() += missing;
}

const TokenDataset::Stream& TokenDataset::stream_of(int64_t sample) const {
  TRIREME_CHECK(sample >= 0 && sample < sequences(), "sample ", sample, " of ", sequences());
  const auto after =
      std::upper_bound(streams_.begin(), streams_.end(), sample, [](int64_t s, const Stream& stream) { return s < stream.first_sample; });
  return *(after - 1);
}

int64_t TokenDataset::padding(int64_t sample) const {
  if (sample == -1) return options_.sequence_length;
  const Stream& stream = stream_of(sample);
  if (stream.packed) return stream.packed->padding(sample - stream.first_sample);
  return std::max<int64_t>(0, (sample - stream.first_sample + 1) * options_.sequence_length - (stream.tokens - 1));
}

int64_t TokenDataset::positions(int64_t sequences) const { return std::min(sequences * options_.sequence_length, tokens_ - 1); }

double TokenDataset::padding_share() const {
  double share = 0, weights = 0;
  for (size_t s = 0; s < streams_.size(); ++s) {
    const Stream& stream = streams_[s];
    if (!stream.packed) return 0;
    const double weight = options_.weights.empty() ? 1 : options_.weights[s];
    share += weight * (1 - static_cast<double>(stream.tokens) / static_cast<double>(sequences_of(stream) * options_.sequence_length));
    weights += weight;
  }
  return share / weights;
}

void TokenDataset::read_packed(const Stream& stream, int64_t sequence, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const {
  int64_t row = 0;
  for (const PackedDocuments::Piece& piece : stream.packed->pieces(sequence)) {
    const int64_t count = piece.end - piece.begin;
    read_stream(stream, piece.begin, count, tokens + row);
    std::copy_n(tokens + row + 1, count - 1, targets + row);
    targets[row + count - 1] = -1;
    if (piece.continues) read_stream(stream, piece.end, 1, targets + row + count - 1);
    const int64_t prompt = std::clamp<int64_t>(piece.response - piece.begin - 1, 0, count);  // the target of row r is token begin + r + 1
    std::fill_n(targets + row, prompt, -1);
    segments.push_back(count);
    row += count;
  }
  pad(row, tokens, targets, segments);
}

size_t TokenDataset::source_at(const Stream& stream, int64_t token) {
  return static_cast<size_t>(std::upper_bound(stream.starts.begin(), stream.starts.end(), token) - stream.starts.begin() - 1);
}

void TokenDataset::read_stream(const Stream& stream, int64_t begin, int64_t count, int32_t* out) const {
  for (size_t s = source_at(stream, begin); count > 0; ++s) {
    const int64_t offset = begin - stream.starts[s];
    const int64_t here = std::min(count, stream.sources[s].tokens() - offset);
    stream.sources[s].read(offset, here, options_.vocab_size, out);
    begin += here;
    out += here;
    count -= here;
  }
}

/// The targets of the window are tokens [begin + 1, end]. Masks those in a prompt and, with a document mask, the first token of each document.
void TokenDataset::mark_documents(const Stream& stream, int64_t begin, int64_t end, int32_t* targets, std::vector<int64_t>& segments) const {
  const auto mask = [&](int64_t first, int64_t last) {
    for (int64_t token = std::max(first, begin + 1); token < std::min(last, end + 1); ++token) targets[token - begin - 1] = -1;
  };
  int64_t segment = begin;
  for (size_t s = source_at(stream, begin); s < stream.sources.size() && stream.starts[s] <= end; ++s) {
    const TokenSource& source = stream.sources[s];
    if (!documents_matter(source)) continue;
    const int64_t start = stream.starts[s];
    source.visit_documents(source.document_at(std::max<int64_t>(0, begin - start)), [&](const TokenFile::Document& document) {
      const int64_t first = start + document.begin;
      if (first > end) return false;
      mask(first, start + document.response);
      if (!options_.document_mask) return true;
      mask(first, first + 1);
      if (first <= segment || first >= end) return true;
      segments.push_back(first - segment);
      segment = first;
      return true;
    });
  }
  segments.push_back(end - segment);
}

std::vector<std::string> TokenDataset::suspicions() const {
  std::vector<std::string> found;
  for (const Stream& stream : streams_)
    for (const TokenSource& source : stream.sources)
      if (std::string one = source.suspicion(); !one.empty()) found.push_back(std::move(one));
  return found;
}

std::vector<std::string> TokenDataset::files() const {
  std::vector<std::string> files;
  for (const Stream& stream : streams_)
    for (const TokenSource& source : stream.sources) files.push_back(source.file());
  return files;
}

uint64_t TokenDataset::fingerprint() const {
  uint64_t hash = kFnv1aStart;
  for (const Stream& stream : streams_)
    for (const TokenSource& source : stream.sources) {
      hash = fnv1a(source.description(), hash);
      hash_tokens(source, options_.vocab_size, hash);
      if (documents_matter(source)) hash_documents(source, hash);
    }
  return hash;
}

std::string TokenDataset::identity() const {
  const std::string sampled = std::to_string(fingerprint());
  Digest all;
  for (const Stream& stream : streams_)
    for (const TokenSource& source : stream.sources) {
      const std::optional<std::string> digest = source.digest(documents_matter(source));
      if (!digest) return sampled;
      all.update(*digest);
    }
  return concat(sampled, " ", all.str());
}

bool same_data(const std::string& a, const std::string& b) {
  const size_t a_end = a.find(' '), b_end = b.find(' ');
  if (a.substr(0, a_end) != b.substr(0, b_end)) return false;
  return a_end == a.npos || b_end == b.npos || a.substr(a_end) == b.substr(b_end);
}

}  // namespace trireme
