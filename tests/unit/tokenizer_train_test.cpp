// Training byte-level BPE: compared with Hugging Face tokenizers and a naive trainer; the result depends on the text alone.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/tokenizer/count_pieces.h"
#include "trainer/tokenizer/text_chunk_reader.h"
#include "trainer/tokenizer/train.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

const std::string kGoldenTraining = in_checkout("tests/golden/bpe_training/");

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

const NamedPattern& pattern_of(const std::string& name) {
  for (const NamedPattern& pattern : kNamedPatterns)
    if (pattern.name == name) return pattern;
  FAIL("no pattern " << name);
  throw;
}

/// A temporary file.
class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_(fs::temp_directory_path() / ("trireme-text-" + std::to_string(::getpid()) + "-" + std::to_string(++made))) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TextFile() { fs::remove(path_); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  std::string path() const { return path_; }

 private:
  static inline int made = 0;
  fs::path path_;
};

/// The place where two texts differ, for a readable message.
std::string first_difference(const std::string& a, const std::string& b) {
  const size_t at = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin()).first - a.begin());
  const size_t from = at < 60 ? 0 : at - 60;
  return a == b ? "" : concat("byte ", at, ": ", a.substr(from, 120), "\nagainst ", b.substr(from, 120));
}

/// Recounts all pairs of all words for every merge.
std::vector<std::pair<std::string, std::string>> merges_by_recounting(const PieceCounts& pieces, size_t merges) {
  std::vector<std::string> tokens;
  std::map<std::string, int> ids;
  // The bytes used here map to themselves in the byte-level alphabet, so the ids are in byte order.
  for (char c = '!'; c <= '~'; ++c) {
    ids[{c}] = static_cast<int>(tokens.size());
    tokens.push_back({c});
  }
  std::vector<std::pair<std::vector<int>, int64_t>> words;
  for (const auto& [piece, count] : pieces) {
    words.push_back({{}, count});
    for (const char c : piece) words.back().first.push_back(ids.at({c}));
  }
  std::vector<std::pair<std::string, std::string>> result;
  for (const size_t before = tokens.size(); tokens.size() < before + merges;) {
    std::map<std::pair<int, int>, int64_t> counts;
    for (const auto& [word, count] : words)
      for (size_t i = 0; i + 1 < word.size(); ++i) counts[{word[i], word[i + 1]}] += count;
    auto best = counts.begin();
    for (auto pair = counts.begin(); pair != counts.end(); ++pair)
      if (pair->second > best->second) best = pair;
    if (best == counts.end()) break;
    const auto [left, right] = best->first;
    const std::pair parts(tokens[static_cast<size_t>(left)], tokens[static_cast<size_t>(right)]);
    const auto [entry, is_new] = ids.emplace(parts.first + parts.second, static_cast<int>(tokens.size()));
    if (is_new) tokens.push_back(entry->first);
    if (std::find(result.begin(), result.end(), parts) == result.end()) result.push_back(parts);
    for (auto& [word, count] : words)
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] = entry->second;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> merges_of(const BytePairVocabulary& vocabulary) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& [left, right] : vocabulary.merges)
    merges.emplace_back(vocabulary.tokens.at(static_cast<size_t>(left)), vocabulary.tokens.at(static_cast<size_t>(right)));
  return merges;
}

}  // namespace

TEST_CASE("tokenizer training: the file that Hugging Face tokenizers writes, byte for byte") {
  const auto golden = nlohmann::json::parse(read_file(kGoldenTraining + "cases.json"));
  REQUIRE(golden["cases"].size() >= 7);
  for (const auto& one : golden["cases"]) {
    const auto name = one["name"].get<std::string>();
    INFO(name);
    const auto special = one["special"].get<std::vector<std::string>>();
    const NamedPattern& pattern = pattern_of(one["pattern"]);
    const PieceCounts pieces = count_pieces({kGoldenTraining + one["text"].get<std::string>()}, pattern, 2);
    int64_t made = 0;
    const BytePairVocabulary vocabulary = train_byte_pairs(pieces, one["vocab_size"], special, [&] { ++made; });
    CHECK(made + 256 + static_cast<int64_t>(special.size()) == static_cast<int64_t>(vocabulary.tokens.size()));
    const std::string written = tokenizer_json(vocabulary, pattern, special.size());
    CHECK(first_difference(written, read_file(kGoldenTraining + name + ".json")) == "");
  }
}

TEST_CASE("tokenizer training: merges of random words match those of a trainer that recounts every time") {
  std::mt19937_64 random(5);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int round = 0; round < 300; ++round) {
    INFO(round);
    const size_t letters = 1 + below(4), longest = 2 + below(20);
    PieceCounts pieces;
    for (size_t words = 1 + below(30); words > 0; --words) {
      std::string word(1 + below(longest), ' ');
      for (char& c : word) c = static_cast<char>('a' + below(letters));
      pieces[word] += static_cast<int64_t>(1 + below(3));
    }
    const size_t merges = below(60);
    const auto expected = merges_by_recounting(pieces, merges);
    CHECK(merges_of(train_byte_pairs(pieces, static_cast<int64_t>(256 + merges), {})) == expected);
  }
}

TEST_CASE("tokenizer training: the result depends neither on threads nor on the order and number of files") {
  const std::string text = read_file(kGoldenTraining + "mixed.txt");
  std::string whole;
  while (whole.size() < (5u << 20)) whole += text + "\n";
  const size_t half = whole.find('\n', whole.size() / 2) + 1;
  const size_t letter = whole.find_first_not_of(" \r\n\t", half);
  const TextFile one(whole), first(whole.substr(0, letter)), second(whole.substr(letter)), empty("");
  for (const NamedPattern& pattern : kNamedPatterns) {
    INFO(pattern.name);
    int64_t bytes = 0;
    std::mutex mutex;
    const PieceCounts expected = count_pieces({one.path()}, pattern, 1);
    const auto count = [&](const std::vector<std::string>& files, int threads) {
      bytes = 0;
      return count_pieces(files, pattern, threads, [&](int64_t more) {
        const std::lock_guard lock(mutex);
        bytes += more;
      });
    };
    CHECK(count({one.path()}, 3) == expected);
    CHECK(bytes == static_cast<int64_t>(whole.size()));
    int64_t total = 0;
    for (const auto& [piece, times] : expected) total += times * static_cast<int64_t>(piece.size());
    if (!pattern.nfc) CHECK(total == bytes);
    CHECK(count({second.path(), empty.path(), first.path()}, 2) == count({first.path(), second.path()}, 1));
    CHECK(count({empty.path()}, 2).empty());
  }
}

TEST_CASE("tokenizer training: bytes that are not UTF-8 are separate pieces") {
  const TextFile file("a\xFF\xC3 b\xC3\xA9\xE2\x82");
  const PieceCounts counts = count_pieces({file.path()}, pattern_of("gpt2"), 1);
  CHECK(counts == PieceCounts{{"a", 1}, {"\xFF", 1}, {"\xC3", 1}, {" b\xC3\xA9", 1}, {"\xE2", 1}, {"\x82", 1}});
  const BytePairVocabulary vocabulary = train_byte_pairs(counts, 300, {});
  CHECK(vocabulary.merges.size() == 3);
}

TEST_CASE("tokenizer training: invalid options are refused by name") {
  CHECK_THROWS_WITH(train_byte_pairs({}, 256, {"<|endoftext|>"}),
                    Contains("--vocab-size=256") && Contains("256 bytes and 1 special tokens need 257"));
  CHECK(train_byte_pairs({}, 257, {"<|endoftext|>"}).tokens.size() == 257);
  CHECK_THROWS_WITH(train_byte_pairs({}, 400, {"<a>", "<b>", "<a>"}), Contains("--special=<a>: given twice"));
  for (const char* token : {"", "\xFF", "<a\tb>", "\x7F\x7F"})
    CHECK_THROWS_WITH(train_byte_pairs({}, 400, {token}), Contains("--special: a token is empty, has control"));
  CHECK_THROWS_WITH(train_byte_pairs({}, 400, {"a"}), Contains("--special=a: represents a byte"));
  CHECK_THROWS_WITH(train_byte_pairs({}, 400, {"<é>"}), Contains("--special=<é>: its characters represent other bytes"));
}

TEST_CASE("tokenizer training: pairs that occur billions of times are counted without overflow") {
  const PieceCounts pieces = {{"ab", 3'000'000'000}, {"cd", 2'000'000'000}, {"ce", 1'500'000'000}, {"fe", 2'200'000'000}, {"xce", 1'500'000'000}};
  using Merges = std::vector<std::pair<std::string, std::string>>;
  CHECK(merges_of(train_byte_pairs(pieces, 256 + 4, {})) == Merges{{"a", "b"}, {"c", "e"}, {"f", "e"}, {"c", "d"}});
}

TEST_CASE("tokenizer training: text that spells a special token is never merged into it") {
  const PieceCounts pieces = {{"the", 100}, {"then", 10}};
  const BytePairVocabulary vocabulary = train_byte_pairs(pieces, 400, {"the"});
  CHECK(vocabulary.tokens.front() == "the");
  for (const auto& [left, right] : merges_of(vocabulary)) CHECK(left + right != "the");
  CHECK(std::count(vocabulary.tokens.begin(), vocabulary.tokens.end(), "the") == 1);
}

TEST_CASE("text stretches: the text, cut at allowed places only") {
  std::string text;
  for (int i = 0; text.size() < (5u << 20); ++i) text += std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  text += "end";
  const TextFile file(text);
  const auto behind_newline = [](std::string_view part) { return part.find_last_of('\n') + 1; };
  TextChunkReader stretches(file.path(), behind_newline);
  std::string joined;
  int count = 0;
  for (std::string part = stretches.next(); !part.empty(); part = stretches.next(), ++count) {
    joined += part;
    CHECK((part.back() == '\n' || joined.size() == text.size()));
    CHECK(part.size() <= (1u << 20));
  }
  CHECK(joined == text);
  CHECK(count >= 5);
  CHECK(stretches.next().empty());

  const std::string rest(2 << 20, 'y');
  const TextFile long_line(std::string(3 << 20, 'x') + "\n" + rest);
  TextChunkReader two(long_line.path(), behind_newline);
  CHECK(two.next().size() == (3u << 20) + 1);
  CHECK(two.next() == rest);
  CHECK(two.next().empty());

  CHECK_THROWS_AS(TextChunkReader("/nowhere/text", behind_newline), MissingFileError);
  CHECK_THROWS_AS(TextChunkReader("/tmp", behind_newline).next(), IoError);
}

TEST_CASE("text stretches: 64 MiB without a place to cut are refused with their position") {
  const TextFile file("first\n" + std::string((64 << 20) + 1, 'x'));
  TextChunkReader stretches(file.path(), [](std::string_view part) { return part.find_last_of('\n') + 1; });
  CHECK(stretches.next() == "first\n");
  CHECK_THROWS_WITH(stretches.next(), Contains("the 64 MiB after byte 6 contain no place to split the text"));
}

}  // namespace trireme::test
