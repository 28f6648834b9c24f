#include "trainer/tokenizer/train.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <set>

#include "kernels/core/check.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace trireme {
namespace {

/// Two adjacent tokens as one number, the left id in the upper half, so that pairs are ordered by their ids.
using Pair = uint64_t;

Pair packed(int32_t left, int32_t right) { return static_cast<Pair>(left) << 32 | static_cast<Pair>(right); }
int32_t left_of(Pair pair) { return static_cast<int32_t>(pair >> 32); }
int32_t right_of(Pair pair) { return static_cast<int32_t>(pair & 0xFFFFFFFF); }

/// The distinct pieces as tokens, with an index of the pieces that contain each adjacent pair.
class Neighbours {
 public:
  Neighbours(const PieceCounts& pieces, const std::array<int32_t, 256>& byte_ids) {
    for (const auto& [piece, count] : pieces) {
      if (piece.size() < 2) continue;
      const auto index = static_cast<uint32_t>(words_.size());
      words_.push_back({tokens_.size(), piece.size(), count});
      for (const char byte : piece) tokens_.push_back(byte_ids[static_cast<unsigned char>(byte)]);
      for (size_t i = tokens_.size() - piece.size(); i + 1 < tokens_.size(); ++i) appear(packed(tokens_[i], tokens_[i + 1]), index);
    }
    for (const auto& [pair, use] : uses_) queue_.push({use.count, pair});
  }

  /// Removes the most frequent pair from the queue; nullopt if the queue is empty.
  std::optional<Pair> take_most_frequent() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto use = uses_.find(top.pair);
      if (use == uses_.end()) continue;
      if (use->second.count == top.count) return top.pair;
      // Counts only fall while a pair is queued, so an entry is an upper bound.
      if (use->second.count > 0)
        queue_.push({use->second.count, top.pair});
      else
        uses_.erase(use);
    }
    return std::nullopt;
  }

  /// Replaces every occurrence of `pair` by `token`.
  void merge(Pair pair, int32_t token) {
    const std::vector<uint32_t> words = std::move(uses_.at(pair).words);
    fresh_.clear();
    for (const uint32_t index : words) merge_in(index, pair, token);
    uses_.erase(pair);
    std::sort(fresh_.begin(), fresh_.end());
    fresh_.erase(std::unique(fresh_.begin(), fresh_.end()), fresh_.end());
    for (const Pair with_token : fresh_)
      if (const int64_t count = uses_.at(with_token).count; count > 0) queue_.push({count, with_token});
  }

 private:
  struct Word {
    size_t begin;   ///< index in tokens_
    size_t length;  ///< in tokens; decreases with every merge
    int64_t count;
  };
  struct Use {
    int64_t count = 0;            ///< occurrences in the text
    std::vector<uint32_t> words;  ///< words in which it appeared; it may have been merged away since
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
  };

  void appear(Pair pair, uint32_t word) {
    Use& use = uses_[pair];
    use.count += words_[word].count;
    if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
  }

  /// Merges from left to right: in "aaa", the first two.
  void merge_in(uint32_t index, Pair pair, int32_t token) {
    Word& word = words_[index];
    int32_t* const tokens = &tokens_[word.begin];
    const auto vanish = [&](int32_t left, int32_t right) { uses_.at(packed(left, right)).count -= word.count; };
    const auto emerge = [&](int32_t left, int32_t right) {
      fresh_.push_back(packed(left, right));
      appear(fresh_.back(), index);
    };
    size_t kept = 0;
    for (size_t i = 0; i < word.length; ++kept) {
      if (i + 1 == word.length || packed(tokens[i], tokens[i + 1]) != pair) {
        tokens[kept] = tokens[i++];
        continue;
      }
      if (kept > 0) {
        vanish(tokens[kept - 1], left_of(pair));
        emerge(tokens[kept - 1], token);
      }
      if (i + 2 < word.length) {
        vanish(right_of(pair), tokens[i + 2]);
        emerge(token, tokens[i + 2]);
      }
      tokens[kept] = token;
      i += 2;
    }
    word.length = kept;
  }

  std::vector<int32_t> tokens_;  ///< of all words, concatenated
  std::vector<Word> words_;
  std::unordered_map<Pair, Use> uses_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> fresh_;  ///< pairs created by the current merge
};

/// The characters of the byte-level alphabet in code point order (the same as UTF-8 byte order), each with its byte.
std::vector<std::pair<std::string, uint8_t>> byte_alphabet() {
  std::vector<std::pair<std::string, uint8_t>> alphabet;
  for (int byte = 0; byte < 256; ++byte) alphabet.emplace_back(to_byte_level(std::string(1, static_cast<char>(byte))), static_cast<uint8_t>(byte));
  std::sort(alphabet.begin(), alphabet.end());
  return alphabet;
}

using Ids = std::unordered_map<std::string, int32_t>;

void check_special(const std::string& token) {
  const bool control = std::any_of(token.begin(), token.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (token.empty() || control || valid_utf8(token) < token.size())
    throw ConfigError("--special: a token is empty, has control characters or is not UTF-8; must be one line of text");
  if (from_byte_level(token).value_or(token) != token)
    throw ConfigError(concat("--special=", token, ": its characters represent other bytes in the byte-level alphabet; name one in ASCII"));
}

/// Adds the special tokens and the 256 bytes to the vocabulary.
Ids first_ids(int64_t vocab_size, const std::vector<std::string>& special, BytePairVocabulary& vocabulary, std::array<int32_t, 256>& byte_ids) {
  const auto alphabet = byte_alphabet();
  const int64_t least = static_cast<int64_t>(alphabet.size() + special.size());
  if (vocab_size < least)
    throw ConfigError(concat("--vocab-size=", vocab_size, ": too small: 256 bytes and ", special.size(), " special tokens need ", least, " entries"));
  Ids ids;
  const auto add = [&](const std::string& token) {
    const auto [entry, is_new] = ids.emplace(token, static_cast<int32_t>(vocabulary.tokens.size()));
    if (is_new) vocabulary.tokens.push_back(token);
    return is_new ? std::optional(entry->second) : std::nullopt;
  };
  for (const std::string& token : special) {
    check_special(token);
    if (!add(token)) throw ConfigError(concat("--special=", token, ": given twice"));
  }
  for (const auto& [character, byte] : alphabet) {
    const auto id = add(character);
    if (!id) throw ConfigError(concat("--special=", character, ": represents a byte in the byte-level alphabet; name a longer one"));
    byte_ids[byte] = *id;
  }
  return ids;
}

nlohmann::ordered_json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

/// "ByteLevel" has the regex of GPT-2 built in; "use_regex" must be false for any other pattern.
nlohmann::ordered_json pre_tokenizer_of(const NamedPattern& pattern) {
  if (pattern.name == "gpt2") return byte_level(false, true);
  const nlohmann::ordered_json split = {
      {"type", "Split"}, {"pattern", {{"Regex", std::string(pattern.regex)}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false, false)}}};
}

}  // namespace

BytePairVocabulary train_byte_pairs(const PieceCounts& pieces, int64_t vocab_size, const std::vector<std::string>& special,
                                    const std::function<void()>& made) {
  BytePairVocabulary vocabulary;
  std::array<int32_t, 256> byte_ids{};
  Ids ids = first_ids(vocab_size, special, vocabulary, byte_ids);
  Neighbours neighbours(pieces, byte_ids);
  std::set<Pair> merged;
  while (static_cast<int64_t>(vocabulary.tokens.size()) < vocab_size) {
    const std::optional<Pair> pair = neighbours.take_most_frequent();
    if (!pair) break;
    const int32_t left = left_of(*pair), right = right_of(*pair);
    const std::string text = vocabulary.tokens[static_cast<size_t>(left)] + vocabulary.tokens[static_cast<size_t>(right)];
    const auto [entry, is_new] = ids.emplace(text, static_cast<int32_t>(vocabulary.tokens.size()));
    const int32_t token = entry->second;
    if (token < static_cast<int32_t>(special.size())) continue;  // text that spells a special token is not merged into it
    if (is_new) {
      vocabulary.tokens.push_back(text);
      made();
    }
    // Different merges can produce the same token, so a pair can reappear after it was merged. Its first merge covers both.
    if (merged.insert(*pair).second) vocabulary.merges.emplace_back(left, right);
    neighbours.merge(*pair, token);
  }
  return vocabulary;
}

std::string tokenizer_json(const BytePairVocabulary& vocabulary, const NamedPattern& pattern, size_t special) {
  using nlohmann::ordered_json;
  ordered_json added = ordered_json::array(), merges = ordered_json::array();
  for (size_t id = 0; id < special; ++id)
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  ordered_json::object_t ids;  // appended directly: every other insertion of ordered_json searches all existing keys
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids.emplace_back(vocabulary.tokens[id], id);
  for (const auto& [left, right] : vocabulary.merges)
    merges.push_back({vocabulary.tokens[static_cast<size_t>(left)], vocabulary.tokens[static_cast<size_t>(right)]});
  const ordered_json normalizer = pattern.nfc ? ordered_json{{"type", "NFC"}} : ordered_json();
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", added},
                             {"normalizer", normalizer},
                             {"pre_tokenizer", pre_tokenizer_of(pattern)},
                             {"post_processor", nullptr},
                             {"decoder", byte_level(true, true)},
                             {"model",
                              {{"type", "BPE"},
                               {"dropout", nullptr},
                               {"unk_token", nullptr},
                               {"continuing_subword_prefix", nullptr},
                               {"end_of_word_suffix", nullptr},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"ignore_merges", false},
                               {"vocab", std::move(ids)},
                               {"merges", merges}}}};
  return file.dump(2);
}

}  // namespace trireme
