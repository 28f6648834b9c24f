// Best-fit decreasing, and packed documents as samples: every token once, kept apart, in the same place whatever was read before.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/run_files.h"
#include "trainer/data/dataset.h"
#include "trainer/data/packing.h"
#include "trainer/data/token_writer.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

using Lengths = std::vector<int64_t>;

int64_t opened_bins(const Lengths& bins) { return bins.empty() ? 0 : *std::ranges::max_element(bins) + 1; }

/// The same rule by looking at every bin for every item.
Lengths best_fit_by_search(const Lengths& lengths, int64_t capacity) {
  Lengths bins(lengths.size(), -1), rooms;
  for (size_t placed = 0; placed < lengths.size(); ++placed) {
    size_t item = lengths.size();
    for (size_t i = 0; i < lengths.size(); ++i)
      if (bins[i] < 0 && (item == lengths.size() || lengths[i] > lengths[item])) item = i;
    size_t best = rooms.size();
    for (size_t b = 0; b < rooms.size(); ++b)
      if (rooms[b] >= lengths[item] && (best == rooms.size() || rooms[b] < rooms[best])) best = b;
    if (best == rooms.size()) rooms.push_back(capacity);
    rooms[best] -= lengths[item];
    bins[item] = static_cast<int64_t>(best);
  }
  return bins;
}

double unit_interval(uint64_t key, uint64_t i) { return (static_cast<double>(random_bits(key, i) >> 11) + 0.5) * 0x1p-53; }

/// Length of document i of a distribution, in tokens.
struct Distribution {
  const char* name;
  std::function<int64_t(uint64_t)> length;
};

/// For sequences of 1,024 tokens: log-normal with median 300 and the shape 1, so that one document in nine is longer than a sequence; uniform from 1
/// to 1,024; and four short ones of 32 to 160 for each long one of 513 to 1,024.
std::vector<Distribution> distributions() {
  const uint64_t key = random_key(3, "length"), kind = random_key(3, "kind");
  const auto between = [key](uint64_t i, int64_t first, int64_t last) {
    return first + static_cast<int64_t>(unit_interval(key, i) * static_cast<double>(last - first + 1));
  };
  return {{"log-normal", [key](uint64_t i) { return 1 + static_cast<int64_t>(300 * std::exp(random_normal(key, i))); }},
          {"uniform", [between](uint64_t i) { return between(i, 1, 1024); }},
          {"bimodal", [between, kind](uint64_t i) { return unit_interval(kind, i) < 0.8 ? between(i, 32, 160) : between(i, 513, 1024); }}};
}

/// Documents of the given lengths, whose tokens are numbered from `first`.
std::vector<std::vector<int32_t>> numbered(const Lengths& lengths, int32_t first = 0) {
  std::vector<std::vector<int32_t>> documents;
  for (const int64_t length : lengths) {
    documents.emplace_back(static_cast<size_t>(length));
    std::iota(documents.back().begin(), documents.back().end(), first);
    first += static_cast<int32_t>(length);
  }
  return documents;
}

constexpr int64_t kNumberedVocabulary = 1 << 20;

void write_numbered(const fs::path& path, const std::vector<std::vector<int32_t>>& documents, const Lengths& prompts = {}) {
  TokenIndex index;
  index.tokenizer = "bytes";
  index.tokenizer_digest = "bytes-v1";
  index.vocab_size = kNumberedVocabulary;
  index.prompts = !prompts.empty();
  TokenWriter writer(path.string(), index);
  for (size_t d = 0; d < documents.size(); ++d) {
    writer.append(documents[d]);
    writer.end_document(prompts.empty() ? 0 : prompts[d]);
  }
  writer.commit();
}

DatasetOptions packed_options(int64_t length, int64_t window, std::vector<double> weights = {}) {
  return {length, kNumberedVocabulary, "bytes-v1", true, std::move(weights), window};
}

struct PackedSample {
  std::vector<int32_t> tokens, targets;
  Lengths segments;
  bool operator==(const PackedSample&) const = default;
};

PackedSample sample_of(const Dataset& data, int64_t sample, int64_t length) {
  PackedSample out{std::vector<int32_t>(static_cast<size_t>(length), -7), std::vector<int32_t>(static_cast<size_t>(length), -7), {}};
  data.read(sample, out.tokens.data(), out.targets.data(), out.segments);
  return out;
}

/// Documents of 0 to 25 tokens, and now and then one of up to 120.
Lengths some_lengths(size_t count) {
  Lengths lengths;
  for (size_t d = 0; d < count; ++d) lengths.push_back(static_cast<int64_t>(random_bits(random_key(4, "some"), d) % (d % 17 == 0 ? 121 : 26)));
  return lengths;
}

}  // namespace

TEST_CASE("packing: ten documents fill five sequences, which is the lower bound") {
  const Lengths lengths = {900, 700, 600, 500, 500, 400, 300, 300, 200, 100};
  const Lengths bins = best_fit_decreasing(lengths, 1024);
  CHECK(bins == Lengths{0, 1, 2, 3, 3, 2, 1, 4, 4, 0});
  CHECK(opened_bins(bins) == (std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) + 1023) / 1024);
  CHECK(best_fit_decreasing({}, 1024).empty());
  CHECK(best_fit_decreasing(Lengths{7, 7}, 7) == Lengths{0, 1});
  CHECK_THROWS_AS(best_fit_decreasing(Lengths{1025}, 1024), InternalError);
  CHECK_THROWS_AS(best_fit_decreasing(Lengths{0}, 1024), InternalError);
}

TEST_CASE("packing: the fullest bin that fits, and of equal ones the first, as a search of all bins finds it") {
  for (uint64_t trial = 0; trial < 60; ++trial) {
    const uint64_t key = random_key(trial, "packing");
    const auto capacity = static_cast<int64_t>(4 + random_bits(key, 0) % 40);
    Lengths lengths;
    for (uint64_t i = 0; i < 1 + random_bits(key, 1) % 150; ++i)
      lengths.push_back(1 + static_cast<int64_t>(random_bits(key, 2 + i) % static_cast<uint64_t>(capacity)));
    CAPTURE(trial, capacity, lengths);
    REQUIRE(best_fit_decreasing(lengths, capacity) == best_fit_by_search(lengths, capacity));
  }
}

TEST_CASE("packing: padding is below 1 % of the lower bound for log-normal, uniform and bimodal lengths") {
  constexpr int64_t kLength = 1024, kWindow = 8192, kDocuments = 3 * kWindow;  // the default of data.packing_window
  for (const Distribution& distribution : distributions()) {
    std::vector<TokenFile::Document> documents;
    int64_t tokens = 0;
    for (int64_t d = 0; d < kDocuments; ++d) {
      const int64_t length = distribution.length(static_cast<uint64_t>(d));
      documents.push_back({tokens, tokens + length, tokens});
      tokens += length;
    }
    const auto visit = [&](int64_t first, const std::function<bool(const TokenFile::Document&)>& each) {
      for (auto d = static_cast<size_t>(first); d < documents.size() && each(documents[d]); ++d) {
      }
    };
    const PackedDocuments packed(visit, kDocuments, kLength, kWindow);
    const int64_t bound = (tokens + kLength - 1) / kLength;
    INFO(distribution.name << ": " << packed.sequences() << " sequences, at least " << bound);
    CHECK(packed.sequences() >= bound);
    CHECK(static_cast<double>(packed.sequences()) < 1.01 * static_cast<double>(bound));
  }
}

TEST_CASE("packing: half a million documents are packed, which a comparison of every pair could not do in the time of a test") {
  Lengths lengths;
  for (uint64_t i = 0; i < 500'000; ++i) lengths.push_back(distributions()[1].length(i));
  const int64_t bins = opened_bins(best_fit_decreasing(lengths, 1024));  // comparing every document with every bin would take some 10^11 steps
  CHECK(bins * 1024 >= std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
}

TEST_CASE("packing: every token is in one sequence, and a target once unless it begins a document or belongs to a prompt") {
  constexpr int64_t kLength = 20;
  const Lengths first = some_lengths(150), second = some_lengths(90);
  const int64_t of_first = std::accumulate(first.begin(), first.end(), int64_t{0});
  const int64_t total = of_first + std::accumulate(second.begin(), second.end(), int64_t{0});
  Lengths prompts;
  for (size_t d = 0; d < second.size(); ++d) prompts.push_back(d % 3 == 0 ? second[d] : second[d] / 2);
  const TemporaryDirectory scratch;
  write_numbered(scratch.path / "first", numbered(first));
  write_numbered(scratch.path / "second", numbered(second, static_cast<int32_t>(of_first)), prompts);
  std::set<int32_t> begins, never;  // tokens that begin a document; those and prompts
  int64_t at = 0;
  for (size_t d = 0; d < first.size() + second.size(); ++d) {
    const int64_t length = d < first.size() ? first[d] : second[d - first.size()];
    if (length > 0) begins.insert(static_cast<int32_t>(at)), never.insert(static_cast<int32_t>(at));
    if (d >= first.size())
      for (int64_t t = 0; t < prompts[d - first.size()]; ++t) never.insert(static_cast<int32_t>(at + t));
    at += length;
  }
  for (const int64_t window : {int64_t{1}, int64_t{64}, int64_t{100}, int64_t{4096}}) {
    CAPTURE(window);
    const TokenDataset data({scratch.path / "first", scratch.path / "second"}, packed_options(kLength, window));
    std::map<int32_t, int> tokens, targets;
    int64_t padding = 0;
    for (int64_t s = 0; s < data.sequences(); ++s) {
      const PackedSample sample = sample_of(data, s, kLength);
      REQUIRE(std::accumulate(sample.segments.begin(), sample.segments.end(), int64_t{0}) == kLength);
      const int64_t used = kLength - data.padding(s);
      padding += kLength - used;
      REQUIRE(used > 0);
      size_t row = 0;
      for (const int64_t segment : sample.segments) {
        const bool is_padding = static_cast<int64_t>(row) == used;
        REQUIRE((is_padding ? static_cast<int64_t>(row) + segment == kLength : static_cast<int64_t>(row) + segment <= used));
        for (int64_t t = 0; t < segment; ++t, ++row) {
          const int32_t token = sample.tokens[row], target = sample.targets[row];
          if (is_padding) {
            REQUIRE((token == 0 && target == -1));
            continue;
          }
          ++tokens[token];
          if (t > 0) REQUIRE((token == sample.tokens[row - 1] + 1 && !begins.contains(token)));  // one document, in order
          if (target < 0) continue;
          REQUIRE(target == token + 1);
          ++targets[target];
        }
      }
    }
    CHECK(padding == data.sequences() * kLength - total);
    CHECK(data.padding_share() == Approx(static_cast<double>(padding) / static_cast<double>(data.sequences() * kLength)));
    for (int32_t token = 0; token < total; ++token) {
      CAPTURE(token);
      REQUIRE(tokens[token] == 1);
      REQUIRE(targets[token] == (never.contains(token) ? 0 : 1));
    }
    CHECK(data.padding(-1) == kLength);
  }
}

TEST_CASE("packing: a sequence has the same documents whatever was read before it") {
  constexpr int64_t kLength = 64, kDocuments = 70'000;  // in 1,094 windows, more than are kept
  Lengths lengths;
  for (uint64_t d = 0; d < kDocuments; ++d) lengths.push_back(1 + static_cast<int64_t>(random_bits(random_key(9, "many"), d) % 12));
  const TemporaryDirectory scratch;
  write_numbered(scratch.path / "data", numbered(lengths));
  const TokenDataset forward({scratch.path / "data"}, packed_options(kLength, 64)), other({scratch.path / "data"}, packed_options(kLength, 64));
  REQUIRE(forward.sequences() == other.sequences());
  std::vector<PackedSample> samples;
  for (int64_t s = 0; s < forward.sequences(); ++s) samples.push_back(sample_of(forward, s, kLength));
  for (int64_t i = 0; i < 500; ++i) {
    const auto s = static_cast<int64_t>(random_permutation(1, static_cast<uint64_t>(i), static_cast<uint64_t>(other.sequences())));
    REQUIRE(sample_of(other, s, kLength) == samples[static_cast<size_t>(s)]);
  }
  const TokenDataset wider({scratch.path / "data"}, packed_options(kLength, 8192));
  CHECK(wider.sequences() < forward.sequences());
}

TEST_CASE("packing: documents that change while in use are an error") {
  int64_t length = 9;
  const auto visit = [&](int64_t first, const std::function<bool(const TokenFile::Document&)>& each) {
    for (int64_t d = first; d < 30 && each({d * length, (d + 1) * length, d * length}); ++d) {
    }
  };
  const PackedDocuments packed(visit, 30, 16, 10);
  CHECK(packed.sequences() == 30);
  CHECK(packed.padding(0) == 7);
  length = 4;                     // four documents in a sequence: a window has three
  CHECK(packed.padding(1) == 7);  // still in memory
  check_throws<DataError>([&] { packed.pieces(15); }, {"changed while in use", "number 10"});
}

TEST_CASE("packing: the sources of a blend are packed separately") {
  constexpr int64_t kLength = 32;
  const Lengths first = some_lengths(80), second = some_lengths(40);
  const TemporaryDirectory scratch;
  write_numbered(scratch.path / "first", numbered(first));
  write_numbered(scratch.path / "second", numbered(second, 10'000));
  const std::vector<std::string> paths = {scratch.path / "first", scratch.path / "second"};
  const TokenDataset data(paths, packed_options(kLength, 64, {3, 1}));
  const std::vector<Dataset::Group> groups = data.groups();
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].sequences + groups[1].sequences == data.sequences());
  for (int64_t s = 0; s < data.sequences(); ++s) CHECK((sample_of(data, s, kLength).tokens[0] >= 10'000) == (s >= groups[0].sequences));
  const auto share = [&](const std::string& path) { return TokenDataset({path}, packed_options(kLength, 64)).padding_share(); };
  CHECK(data.padding_share() == Approx((3 * share(paths[0]) + share(paths[1])) / 4));
}

TEST_CASE("packing: data without document boundaries or without a target are refused") {
  const TemporaryDirectory scratch;
  std::ofstream(scratch.path / "ids.bin", std::ios::binary) << std::string(64, '\1');
  check_throws<DataError>([&] { TokenDataset({scratch.path / "ids.bin"}, packed_options(4, 64)); }, {"ids.bin", "document boundaries"});
  write_numbered(scratch.path / "ones", numbered(Lengths(40, 1)));
  check_throws<DataError>([&] { TokenDataset({scratch.path / "ones"}, packed_options(4, 64)); }, {"ones", "no token is a target"});
  write_numbered(scratch.path / "last", numbered({1, 1, 1, 1, 1, 2}));  // its only target is the last token of all
  CHECK(TokenDataset({scratch.path / "last"}, packed_options(4, 64)).sequences() == 2);
  write_numbered(scratch.path / "short", numbered({3}));  // shorter than a sequence
  const TokenDataset one({scratch.path / "short"}, packed_options(8, 64));
  CHECK(one.sequences() == 1);
  CHECK(one.padding(0) == 5);
}

}  // namespace trireme::test
