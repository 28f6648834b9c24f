#include "trainer/tokenizer/tokenizer.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/data/build/document_encoder.h"
#include "trainer/tokenizer/oniguruma.h"
#include "trainer/tokenizer/tokenizer_json.h"
#include "trainer/tokenizer/utf8.h"

using namespace trireme;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kGolden = test::in_checkout("tests/golden/tokenizers/");
const std::vector<std::string> kBytePair = {"gpt2.json", "gpt2_prefix.json", "llama3.json", "qwen2.json", "steps.json"};
const std::vector<std::string> kByteFallback = {"llama2.json", "mistral.json", "gemma.json", "metaspace.json"};
const std::vector<std::string> kSentencePiece = {"bpe.model", "bpe_bytes.model", "unigram.model", "unigram_bytes.model"};

class Directory {
 public:
  Directory() {
    std::string pattern = (fs::temp_directory_path() / "trireme-tokenizer-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string path() const { return path_.string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return json::parse(file);
}

const std::vector<std::string>& golden_lines() {
  static const std::vector<std::string> lines = read_json(kGolden + "lines.json").at("lines").get<std::vector<std::string>>();
  return lines;
}

/// All lines concatenated, repeated up to `bytes` bytes.
std::string golden_text(size_t bytes) {
  std::string text;
  while (text.size() < bytes)
    for (const std::string& line : golden_lines()) text += line + "\n";
  return text.substr(0, bytes);
}

/// Empty in a build without the SentencePiece library.
std::optional<Tokenizer> open_golden(const std::string& name) {
  try {
    return Tokenizer::open(kGolden + name);
  } catch (const ConfigError& error) {
    REQUIRE(std::string(error.what()).find("libsentencepiece-dev") != std::string::npos);
    WARN("skipped: " << error.what());
    return std::nullopt;
  }
}

/// 64-bit FNV-1a.
class Fnv {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) state_ = (state_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  }
  void add(int32_t id) {
    for (int shift = 0; shift < 32; shift += 8) state_ = (state_ ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
  }
  std::string str() const {
    std::ostringstream out;
    out << std::hex << std::setw(16) << std::setfill('0') << state_;
    return out.str();
  }

 private:
  uint64_t state_ = 0xCBF29CE484222325u;
};

void check_golden(const std::string& name) {
  INFO(name);
  std::optional<Tokenizer> tokenizer = open_golden(name);
  if (!tokenizer) return;
  const json golden = read_json(kGolden + fs::path(name).stem().string() + ".ids.json");
  const std::vector<std::string>& lines = golden_lines();
  const auto first = golden.at("first").get<std::vector<std::vector<int32_t>>>();
  REQUIRE(lines.size() == 10000);
  REQUIRE(first.size() == 400);
  const auto tied = golden.at("tied").get<std::set<size_t>>();
  CHECK(tied.size() < 300);
  CHECK((tied.empty() || name.starts_with("unigram")));
  for (size_t i = 0; i < first.size(); ++i) {
    if (tied.contains(i)) continue;
    INFO("line " << i << ": " << json(lines[i]).dump());
    REQUIRE(tokenizer->encode(lines[i]) == first[i]);
  }
  for (size_t hundred = 0; hundred < 100; ++hundred) {
    INFO("lines from " << 100 * hundred);
    Fnv ids, texts;
    for (size_t i = 100 * hundred; i < 100 * (hundred + 1); ++i) {
      if (tied.contains(i)) continue;
      const std::vector<int32_t> tokens = tokenizer->encode(lines[i]);
      for (const int32_t token : tokens) ids.add(token);
      ids.add(-1);
      texts.add(tokenizer->decode(tokens));
      texts.add(std::string_view("\0", 1));
    }
    CHECK(ids.str() == golden.at("ids").at(hundred));
    CHECK(texts.str() == golden.at("texts").at(hundred));
  }
}

/// Encodes a text in parts, cut as by a reader that sees `window` bytes at a time. Returns the number of parts.
template <class Any>
int encode_in_parts(Any& tokenizer, const std::string& text, size_t window, std::vector<int32_t>& tokens) {
  int parts = 0;
  std::string_view rest = text;
  for (size_t seen = window; seen < rest.size();) {
    const size_t cut = tokenizer.cut(rest.substr(0, seen), parts == 0);
    if (cut == 0) {
      seen += window;
      continue;
    }
    tokenizer.encode(rest.substr(0, cut), tokens, parts++ == 0);
    rest.remove_prefix(cut);
    seen = window;
  }
  tokenizer.encode(rest, tokens, parts == 0);
  return parts + 1;
}

/// Arbitrary bytes: parts of lines, damaged UTF-8, noise.
std::string random_bytes(std::mt19937& random) {
  std::string text;
  for (auto parts = random() % 6 + 1; parts > 0; --parts) {
    std::string part = golden_lines()[random() % golden_lines().size()].substr(0, random() % 40);
    if (random() % 2 == 0 && !part.empty()) part[random() % part.size()] = static_cast<char>(random());
    if (random() % 3 == 0)
      for (auto noise = random() % 8; noise > 0; --noise) part.push_back(static_cast<char>(random()));
    text += part;
  }
  return text;
}

/// The smallest tokenizer.json: bytes, two merges, one special token.
json small_tokenizer() {
  json vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  vocabulary["th"] = 256;
  vocabulary["the"] = 257;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens",
           {{{"id", 258},
             {"content", "<|end|>"},
             {"single_word", false},
             {"lstrip", false},
             {"rstrip", false},
             {"normalized", false},
             {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", {{"type", "TemplateProcessing"}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"t h", "th e"}}}}};
}

BytePairTokenizer byte_pair(const json& description) { return {parse_tokenizer_json(description.dump(), "t.json"), "t.json"}; }

/// A tokenizer with one regex, which splits text into matches and the text between them.
BytePairTokenizer splitting_at(const std::string& regex) {
  json description = small_tokenizer();
  description["pre_tokenizer"] = {{"type", "Sequence"},
                                  {"pretokenizers",
                                   {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
                                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return byte_pair(description);
}

std::string repeated(const std::string& unit, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += unit;
  return text;
}

/// Checks that the text encoded in parts has the ids of the whole text. Returns the number of parts.
template <class Any>
int check_parts(Any& tokenizer, const std::string& text, size_t window) {
  std::vector<int32_t> parts, whole;
  const int count = encode_in_parts(tokenizer, text, window, parts);
  tokenizer.encode(text, whole, true);
  REQUIRE(parts == whole);
  return count;
}

/// Encodes short random sequences of these units in parts of a few bytes. Returns the number of parts.
template <class Any>
int check_parts_of_units(Any& tokenizer, const std::vector<std::string>& units, int texts) {
  std::mt19937 random(3);
  int parts = 0;
  for (int i = 0; i < texts; ++i) {
    std::string text;
    for (auto count = random() % 16 + 1; count > 0; --count) text += units[random() % units.size()];
    INFO(json(text).dump(-1, ' ', true, json::error_handler_t::replace));
    parts += check_parts(tokenizer, text, random() % 12 + 1);
  }
  return parts;
}

std::vector<int32_t> ids_of(const json& description, const std::string& text) {
  BytePairTokenizer tokenizer = byte_pair(description);
  std::vector<int32_t> tokens;
  tokenizer.encode(text, tokens, true);
  return tokens;
}

template <class Expected>
void check_refused(const std::string& what, const std::function<void()>& act, const std::vector<std::string>& words) {
  INFO(what);
  try {
    act();
    FAIL_CHECK("accepted");
  } catch (const Expected& error) {
    for (const std::string& word : words) CHECK_THAT(error.what(), Catch::Matchers::Contains(word));
  }
}

}  // namespace

TEST_CASE("tokenizers: byte-level BPE gives the ids and texts of the reference library") {
  for (const std::string& name : kBytePair) check_golden(name);
}

TEST_CASE("tokenizers: BPE with byte_fallback gives the ids and texts of the reference library") {
  for (const std::string& name : kByteFallback) {
    check_golden(name);
    Tokenizer tokenizer = Tokenizer::open(kGolden + name);
    CHECK(tokenizer.name() == "bpe");
    CHECK(tokenizer.end_of_text() == 2);
    const json golden = read_json(kGolden + fs::path(name).stem().string() + ".ids.json");
    CHECK(golden.at("odd").size() >= 30);
    for (const json& one : golden.at("odd")) {
      INFO(name << ": " << one.dump(-1, ' ', true).substr(0, 200));
      const auto ids = one.at("ids").get<std::vector<int32_t>>();
      if (one.contains("text")) CHECK(tokenizer.encode(one.at("text").get<std::string>()) == ids);
      CHECK(tokenizer.decode(ids) == one.at("decoded"));
    }
  }
}

TEST_CASE("tokenizers: BPE with byte_fallback counts bytes, takes any bytes, and long lines in linear time") {
  for (const std::string& name : kByteFallback) {
    INFO(name);
    Tokenizer tokenizer = Tokenizer::open(kGolden + name);
    const std::vector<int32_t> counts = tokenizer.token_bytes();
    const std::string text = "It is a truth universally acknowledged, caf\xC3\xA9 \xE5\xA4\xA9";
    size_t bytes = 0;
    for (const int32_t token : tokenizer.encode(text)) bytes += static_cast<size_t>(counts[static_cast<size_t>(token)]);
    CHECK(bytes == text.size() + (name == "gemma.json" ? 0 : 1));  // plus the space that the others insert before the text
    CHECK(counts[2] == 0);
    CHECK(counts[3] == 1);  // <0x00>

    std::vector<int32_t> parts;
    tokenizer.encode("one", parts, true);
    tokenizer.encode("two", parts, false);
    tokenizer.encode(" three", parts, false);
    CHECK(tokenizer.decode(parts) == "onetwo three");  // no space is inserted between two parts

    const std::vector<int32_t> invalid = tokenizer.encode("the\xFF\xE2\x96");
    CHECK(std::vector<int32_t>(invalid.end() - 3, invalid.end()) == std::vector<int32_t>{3 + 0xFF, 3 + 0xE2, 3 + 0x96});
    std::mt19937 random(4);
    for (int i = 0; i < 2000; ++i) {
      const std::string noise = random_bytes(random);
      std::vector<int32_t> in_parts;
      encode_in_parts(tokenizer, noise, random() % 60 + 1, in_parts);
      REQUIRE(in_parts == tokenizer.encode(noise));
    }
    check_parts_of_units(tokenizer,
                         {"</s>", " ", "  ", "\n", "the", "\xE2\x96\x81", "a tool", "tool", "<tool_call>", "\xF0\x9F\x98\x80", "\xFF", "\x01"}, 5000);
    for (const std::string unit : {" ", "a", "\n", "ab ", "\xE2\x96\x81", "\xF0\x9F\x98\x80", "\xFF", "<s"}) {
      INFO(json(unit).dump(-1, ' ', true, json::error_handler_t::replace));
      const std::string line = repeated(unit, 300000);  // minutes if the time were quadratic
      const std::vector<int32_t> ids = tokenizer.encode(line);
      if (unit != "\xFF" && unit != "\xE2\x96\x81" && unit != " ") CHECK(tokenizer.decode(ids) == line);
      CHECK(tokenizer.cut(line, true) <= line.size());
    }
  }
}

TEST_CASE("tokenizers: another shape of byte_fallback is refused, naming what is not supported") {
  struct Case {
    std::string file;
    std::function<void(json&)> damage;
    std::vector<std::string> words;
  };
  const std::string llama = "llama2.json", mistral = "mistral.json", gemma = "gemma.json";
  const std::vector<Case> cases = {
      {llama,
       [](json& t) {
         t["normalizer"]["normalizers"].push_back({{"type", "NFKC"}});
       },
       {"normalizer NFKC with byte_fallback", "Prepend"}},
      {llama, [](json& t) { t["normalizer"]["normalizers"][0]["prepend"] = "_"; }, {"Prepend must prepend"}},
      {llama, [](json& t) { t["normalizer"]["normalizers"][1]["content"] = "_"; }, {"normalizer", "Replace"}},
      {llama, [](json& t) { t["normalizer"]["normalizers"].push_back(t["normalizer"]["normalizers"][0]); }, {"two of Prepend"}},
      {llama, [](json& t) { t["normalizer"] = nullptr; }, {"needs normalizer Replace or pre_tokenizer Metaspace"}},
      {llama,
       [](json& t) {
         t["pre_tokenizer"] = {{"type", "ByteLevel"}};
       },
       {"pre_tokenizer ByteLevel with byte_fallback"}},
      {llama,
       [](json& t) {
         t["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
       },
       {"Prepend together with pre_tokenizer Metaspace"}},
      {llama,
       [](json& t) {
         t["decoder"] = {{"type", "ByteLevel"}};
       },
       {"decoder ByteLevel with byte_fallback"}},
      {llama, [](json& t) { t["decoder"]["decoders"].erase(2); }, {"decoder Replace, ByteFallback, Strip"}},
      {llama, [](json& t) { t["decoder"]["decoders"][3]["start"] = 2; }, {"decoder: Strip must remove one space"}},
      {llama,
       [](json& t) { t["model"]["vocab"]["<0x100>"] = t["model"]["vocab"]["<0x41>"], t["model"]["vocab"].erase("<0x41>"); },
       {"byte 65 (<0x41>) has no token"}},
      {llama, [](json& t) { t["model"]["dropout"] = 0.5; }, {"dropout"}},
      {mistral, [](json& t) { t["pre_tokenizer"]["prepend_scheme"] = "last"; }, {"prepend_scheme", "last"}},
      {mistral, [](json& t) { t["pre_tokenizer"]["replacement"] = "_"; }, {"Metaspace must replace by"}},
      {mistral, [](json& t) { t["pre_tokenizer"]["colour"] = 1; }, {"pre_tokenizer", "unknown key", "colour"}},
      {gemma, [](json& t) { t["pre_tokenizer"]["pattern"]["String"] = "a"; }, {"pre_tokenizer Split with byte_fallback"}},
      {gemma, [](json& t) { t["pre_tokenizer"]["invert"] = true; }, {"invert"}},
  };
  for (const Case& one : cases) {
    json description = read_json(kGolden + one.file);
    parse_tokenizer_json(description.dump(), "t.json");
    one.damage(description);
    std::vector<std::string> words = one.words;
    words.emplace_back("t.json");
    check_refused<DataError>(
        words.front(), [&] { parse_tokenizer_json(description.dump(), "t.json"); }, words);
  }
}

TEST_CASE("tokenizers: BPE with byte_fallback takes a whole piece that is a token, if merges are ignored") {
  json description = read_json(kGolden + "gemma.json");
  const auto ids = [&](const std::string& text) {
    ByteFallbackTokenizer tokenizer(parse_tokenizer_json(description.dump(), "t.json"), "t.json");
    std::vector<int32_t> tokens;
    tokenizer.encode(text, tokens, true);
    CHECK((tokenizer.cut(repeated("the ", 20)) == 0) == description["model"]["ignore_merges"].get<bool>());
    return tokens;
  };
  description["model"]["ignore_merges"] = false;
  CHECK(ids("<0x41>").size() > 1);
  description["model"]["ignore_merges"] = true;
  CHECK(ids("<0x41>") == std::vector<int32_t>{3 + 0x41});
}

TEST_CASE("tokenizers: SentencePiece gives the ids and texts of the reference library") {
  for (const std::string& name : kSentencePiece) check_golden(name);
}

TEST_CASE("tokenizers: a document encoded in parts has the ids of the whole") {
  std::mt19937 random(1);
  std::vector<std::string> names = kBytePair;
  names.insert(names.end(), kByteFallback.begin(), kByteFallback.end());
  names.insert(names.end(), kSentencePiece.begin(), kSentencePiece.end());
  for (const std::string& name : names) {
    INFO(name);
    std::optional<Tokenizer> tokenizer = open_golden(name);
    if (!tokenizer) continue;
    const bool cuttable = !name.starts_with("unigram") && name != "mistral.json" && name != "llama2.json";  // a token has two words
    int parts = 0;
    for (const std::string& line : golden_lines()) {
      INFO(json(line).dump());
      std::vector<int32_t> tokens;
      parts += encode_in_parts(*tokenizer, line, random() % 40 + 1, tokens);
      REQUIRE(tokens == tokenizer->encode(line));
    }
    CHECK(parts >= (cuttable ? 12000 : 10000));
    const std::string text = golden_text(size_t{1} << 20);
    std::vector<int32_t> tokens;
    const int large_parts = encode_in_parts(*tokenizer, text, 10000, tokens);
    CHECK(tokens == tokenizer->encode(text));
    CHECK(large_parts >= (cuttable ? 100 : 1));
  }
}

TEST_CASE("tokenizers: text without line feeds can be cut, with any regex") {
  for (const std::string name : {"llama3.json", "qwen2.json", "steps.json"}) {
    INFO(name);
    Tokenizer tokenizer = Tokenizer::open(kGolden + name);
    std::string text = golden_text(300000);
    for (char& c : text)
      if (c == '\n') c = ' ';
    std::string room;
    text = std::string(to_nfc(text, room));
    std::vector<int32_t> tokens;
    CHECK(encode_in_parts(tokenizer, text, 5000, tokens) >= 50);
    CHECK(tokens == tokenizer.encode(text));
  }
}

TEST_CASE("tokenizers: byte-level BPE round-trips any bytes, at once and in parts") {
  std::mt19937 random(2);
  for (const std::string name : {"gpt2.json", "llama3.json", "steps.json", "qwen2.json"}) {
    INFO(name);
    Tokenizer tokenizer = Tokenizer::open(kGolden + name);
    for (int i = 0; i < 5000; ++i) {
      const std::string text = random_bytes(random);
      INFO(i);
      const std::vector<int32_t> tokens = tokenizer.encode(text);
      std::string room;
      REQUIRE(tokenizer.decode(tokens) == (name == "qwen2.json" ? to_nfc(text, room) : text));
      std::vector<int32_t> in_parts;
      encode_in_parts(tokenizer, text, random() % 60 + 1, in_parts);
      REQUIRE(in_parts == tokens);
    }
  }
}

TEST_CASE("tokenizers: pieces as long as a document") {
  Tokenizer tokenizer = Tokenizer::open(kGolden + "llama3.json");
  for (const std::string unit : {" ", "a", "\n", "\r\n", "!", "1", "ab ", "\xF0\x9F\x98\x80", "\xFF", "<|"}) {
    INFO(json(unit).dump(-1, ' ', true, json::error_handler_t::replace));
    std::string text;
    while (text.size() < 1000000) text += unit;
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}

TEST_CASE("tokenizers: copies work in separate threads") {
  const Tokenizer original = Tokenizer::open(kGolden + "qwen2.json");
  const std::string text = golden_text(200000);
  std::vector<std::vector<int32_t>> tokens(3);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < tokens.size(); ++i) threads.emplace_back([&, i, copy = original]() mutable { tokens[i] = copy.encode(text); });
  Tokenizer third = original;
  tokens[0] = third.encode(text);
  for (std::thread& thread : threads) thread.join();
  CHECK(tokens[0].size() > 10000);
  CHECK(tokens[1] == tokens[0]);
  CHECK(tokens[2] == tokens[0]);
}

TEST_CASE("tokenizers: valid specs and their properties") {
  const Directory directory;
  const Tokenizer bytes = Tokenizer::open("bytes");
  CHECK(bytes.name() == "bytes");
  CHECK(bytes.digest() == "bytes-v1");
  CHECK(bytes.file().empty());
  CHECK(bytes.cut("ab\xFF", true) == 3);
  CHECK(bytes.token_bytes() == std::vector<int32_t>(256, 1));
  check_refused<ConfigError>("name", [] { Tokenizer::open("bpe"); }, {"tokenizer=bpe", "allowed: bytes"});
  check_refused<MissingFileError>("missing", [&] { Tokenizer::open(directory.path() + "/t.json"); }, {"t.json"});
  check_refused<MissingFileError>("empty directory", [&] { Tokenizer::open(directory.path()); }, {directory.path(), "tokenizer.json"});
  check_refused<DataError>("ids", [&] { bytes.decode(std::vector<int32_t>{256}); }, {"token 256", "256"});
  check_refused<DataError>("ids", [&] { bytes.decode(std::vector<int32_t>{-1}); }, {"token -1"});

  json description = small_tokenizer();
  const std::string file = directory.write("tokenizer.json", description.dump());
  Tokenizer tokenizer = Tokenizer::open(directory.path());
  CHECK(tokenizer.name() == "bpe");
  CHECK(tokenizer.file() == file);
  CHECK(tokenizer.vocab_size() == 259);
  CHECK_FALSE(tokenizer.end_of_text());
  CHECK(tokenizer.encode("the<|end|>\xFF") == std::vector<int32_t>{257, 258, 255});
  const std::vector<int32_t> counts = tokenizer.token_bytes();
  CHECK(counts.size() == 259);
  CHECK(counts[65] == 1);
  CHECK(counts[257] == 3);
  CHECK(counts[258] == 0);
  check_refused<DataError>("ids", [&] { tokenizer.decode(std::vector<int32_t>{259}); }, {"token 259"});

  description["added_tokens"][0]["content"] = "</s>";
  directory.write("tokenizer.json", description.dump());
  const Tokenizer other = Tokenizer::open(file);
  CHECK(other.end_of_text() == 258);
  CHECK(other.digest() != tokenizer.digest());
  description["added_tokens"].push_back({{"id", 259}, {"content", "<|im_end|>"}, {"special", true}});
  description["added_tokens"].push_back({{"id", 260}, {"content", "<|end_of_text|>"}, {"special", true}});
  directory.write("tokenizer.json", description.dump());
  CHECK(Tokenizer::open(file).end_of_text() == 260);
  directory.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>", "other": 1})");
  CHECK(Tokenizer::open(file).end_of_text() == 259);
  directory.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>", "special": true}})");
  CHECK(Tokenizer::open(file).end_of_text() == 258);
  directory.write("tokenizer_config.json", R"({"eos_token": null})");
  CHECK(Tokenizer::open(file).end_of_text() == 260);
  directory.write("tokenizer_config.json", R"({"eos_token": "<eos>"})");
  check_refused<DataError>("eos", [&] { Tokenizer::open(file); }, {"tokenizer.json", "<eos>", "tokenizer_config.json"});
}

TEST_CASE("tokenizers: a directory with both files, and invalid SentencePiece models") {
  const Directory directory;
  const std::string model = directory.write("tokenizer.model", "not a model");
  check_refused<Error>("model", [&] { Tokenizer::open(model); }, {"tokenizer.model"});
  directory.write("tokenizer.model", "");
  check_refused<Error>("model", [&] { Tokenizer::open(directory.path()); }, {"tokenizer.model"});
  json description = small_tokenizer();
  directory.write("tokenizer.json", description.dump());
  CHECK(Tokenizer::open(directory.path()).name() == "bpe");
  fs::copy(kGolden + "llama2.json", directory.path() + "/tokenizer.json",
           fs::copy_options::overwrite_existing);  // as converted from a SentencePiece model
  CHECK(Tokenizer::open(directory.path()).file() == directory.path() + "/tokenizer.json");
  description["model"]["type"] = "Other";
  directory.write("tokenizer.json", description.dump());
  check_refused<DataError>("no other choice", [&] { Tokenizer::open(directory.path()); }, {"tokenizer.json: model Other is not supported"});
  if (std::optional<Tokenizer> tokenizer = open_golden("bpe_bytes.model")) {
    CHECK(tokenizer->name() == "sentencepiece");
    CHECK(tokenizer->end_of_text() == 2);
    const std::vector<int32_t> counts = tokenizer->token_bytes();
    CHECK(static_cast<int64_t>(counts.size()) == tokenizer->vocab_size());
    CHECK(counts[0] == 0);
    CHECK(counts[2] == 0);
    CHECK(counts[3] == 1);  // <0x00>
    const std::string text = "It is a truth universally acknowledged, caf\xC3\xA9 \xE5\xA4\xA9";
    size_t bytes = 0;
    for (const int32_t token : tokenizer->encode(text)) bytes += static_cast<size_t>(counts[static_cast<size_t>(token)]);
    CHECK(bytes == text.size() + 1);  // plus the space that the model inserts before the text
  }
}

TEST_CASE("tokenizers: a damaged tokenizer.json is refused, naming the fault") {
  struct Case {
    std::string what;
    std::function<void(json&)> damage;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"part unknown", [](json& t) { t["model"]["merges"].push_back("zq e"); }, {"merge 2", "\"zq\" is not in the vocabulary"}},
      {"result unknown",
       [](json& t) {
         t["model"]["merges"].push_back(json::array({"q", "z"}));
       },
       {"merge 2", "\"qz\" is not in the vocabulary"}},
      {"no pair", [](json& t) { t["model"]["merges"].push_back("the"); }, {"merge 2", "one space"}},
      {"a number", [](json& t) { t["model"]["merges"].push_back(7); }, {"merge 2"}},
      {"twice", [](json& t) { t["model"]["merges"].push_back("t h"); }, {"merge 2", "duplicate", "merge 0"}},
      {"hole", [](json& t) { t["model"]["vocab"]["the"] = 300; }, {"\"the\"", "300", "0 to 258", "gaps"}},
      {"hole in added tokens", [](json& t) { t["added_tokens"][0]["id"] = 259; }, {"<|end|>", "has id 259", "renumber it to 258"}},
      {"one id twice", [](json& t) { t["model"]["vocab"]["the"] = 256; }, {"id 256", "two tokens", "\"th\"", "\"the\""}},
      {"one id twice", [](json& t) { t["added_tokens"][0]["id"] = 0; }, {"<|end|>", "has id 0", "renumber it to 258"}},
      {"negative id", [](json& t) { t["model"]["vocab"]["the"] = -1; }, {"\"the\"", "-1"}},
      {"two ids", [](json& t) { t["added_tokens"][0]["content"] = "the"; }, {"\"the\"", "258", "257"}},
      {"added twice", [](json& t) { t["added_tokens"].push_back(t["added_tokens"][0]); }, {"<|end|>", "duplicate"}},
      {"empty", [](json& t) { t["added_tokens"][0]["content"] = ""; }, {"added_tokens", "empty"}},
      {"no byte", [](json& t) { t["model"]["vocab"].erase("A"), t["model"]["vocab"]["AA"] = 65; }, {"byte 65", "no token"}},
      {"added key", [](json& t) { t["added_tokens"][0]["colour"] = true; }, {"added_tokens", "colour"}},
      {"key", [](json& t) { t["colour"] = 1; }, {"unknown key", "colour"}},
      {"model key", [](json& t) { t["model"]["colour"] = 1; }, {"model", "unknown key", "colour"}},
      {"model", [](json& t) { t["model"]["type"] = "Other"; }, {"model Other", "supported: BPE, WordPiece, Unigram"}},
      {"Unigram without scores", [](json& t) { t["model"]["type"] = "Unigram"; }, {"vocab", "expected a list"}},
      {"unk_token",
       [](json& t) {
         t["model"]["end_of_word_suffix"] = "</w>";
         t["model"]["unk_token"] = "<unk>";
       },
       {"unk_token", "<unk>", "not in the vocabulary"}},
      {"version", [](json& t) { t["version"] = "2.0"; }, {"version", "2.0"}},
      {"dropout", [](json& t) { t["model"]["dropout"] = 0.1; }, {"dropout", "0.1"}},
      {"byte_fallback",
       [](json& t) {  // as in LLaMA 2
         t["model"]["byte_fallback"] = true;
         t["normalizer"] = {{"type", "Prepend"}, {"prepend", "\u2581"}};
         t["pre_tokenizer"] = nullptr;
       },
       {"decoder ByteLevel with byte_fallback"}},
      {"prefix", [](json& t) { t["model"]["continuing_subword_prefix"] = "##"; }, {"merge 0", "\"h\"", "\"##\""}},
      {"normalizer",
       [](json& t) {
         t["normalizer"] = {{"type", "Nmt"}};
       },
       {"normalizer Nmt", "NFC"}},
      {"pre_tokenizer",
       [](json& t) {
         t["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
       },
       {"pre_tokenizer UnicodeScripts"}},
      {"decoder",
       [](json& t) {
         t["decoder"] = {{"type", "CTC"}};
       },
       {"decoder CTC"}},
      {"no vocabulary", [](json& t) { t["model"].erase("vocab"); }, {"vocab", "missing"}},
      {"no merges", [](json& t) { t["model"].erase("merges"); }, {"merges", "missing"}},
  };
  for (const Case& one : cases) {
    json description = small_tokenizer();
    one.damage(description);
    std::vector<std::string> words = one.words;
    words.emplace_back("t.json");
    check_refused<DataError>(
        one.what, [&] { ids_of(description, "the"); }, words);
  }
  check_refused<DataError>("JSON", [] { parse_tokenizer_json("{\"version\": ", "t.json"); }, {"t.json", "not valid JSON"});
  check_refused<DataError>("JSON", [] { parse_tokenizer_json(R"({"version": "1.0", "version": "1.0"})", "t.json"); }, {"t.json", "duplicate key"});

  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto sequence = [](const std::vector<json>& parts) { return json{{"type", "Sequence"}, {"pretokenizers", parts}}; };
  json description = small_tokenizer();
  description["pre_tokenizer"] = sequence({byte_level, split});
  check_refused<DataError>("order", [&] { ids_of(description, "the"); }, {"Split after ByteLevel"});
  json removed = split;
  removed["behavior"] = "Hidden";
  description["pre_tokenizer"] = sequence({removed, byte_level});
  check_refused<DataError>("behavior", [&] { ids_of(description, "the"); }, {"behavior", "Hidden", "allowed Isolated"});
  for (const std::string regex :
       {"(", "[a&&b]", "[[a]b]", "x{,3}", "a{2}+", "(?x)a b", "a*", "\\p{Nonsense}", "\\h", "\\1", "(?<name>a)", "\\xFF", "[a-\\s]", "a\\"}) {
    json odd = split;
    odd["pattern"]["Regex"] = regex;
    description["pre_tokenizer"] = sequence({odd, byte_level});
    check_refused<DataError>(regex, [&] { ids_of(description, "the"); }, {"t.json", regex, "support"});
  }
}

TEST_CASE("tokenizers: equivalent and different forms of tokenizer.json") {
  const std::vector<int32_t> the = {257}, apart = {'t', 'h', 'e'};
  json description = small_tokenizer();
  description["model"]["vocab"]["t e"] = 258;  // in no text, as a space is spelled otherwise
  description["added_tokens"][0]["id"] = 259;
  CHECK(ids_of(description, "t e") == std::vector<int32_t>{'t', ' ', 'e'});
  CHECK(byte_pair(description).decode(std::vector<int32_t>{258}) == "t e");
  description = small_tokenizer();
  CHECK(ids_of(description, "the") == the);
  description["model"]["merges"] = json::array({json::array({"t", "h"}), json::array({"th", "e"})});
  CHECK(ids_of(description, "the") == the);
  description["model"]["merges"] = {"t h"};
  CHECK(ids_of(description, "the") == std::vector<int32_t>{256, 'e'});
  description["model"]["ignore_merges"] = true;
  CHECK(ids_of(description, "the") == the);
  CHECK(ids_of(description, "thex") == std::vector<int32_t>{256, 'e', 'x'});
  description = small_tokenizer();
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  description["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Split"}, {"pattern", {{"String", "h"}}}, {"behavior", "Isolated"}, {"invert", false}}, byte_level}}};
  CHECK(ids_of(description, "the") == apart);
  description["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "."}};
  CHECK(ids_of(description, "the") == the);
  description["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "."}};
  CHECK(ids_of(description, "the") == apart);
  description["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(?<=t)h"}};
  CHECK(ids_of(description, "the") == apart);
  // Needs more than the initial stack of the regex engine.
  description["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(?:x|yy|z)+h"}};
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "xyyz";
  CHECK(ids_of(description, text + "hthe").size() == text.size() + 2);
}

TEST_CASE("tokenizers: no cut before a mark that NFC could combine with the preceding character") {
  json description = small_tokenizer();
  description["added_tokens"] = json::array();
  description["normalizer"] = {{"type", "NFC"}};
  BytePairTokenizer tokenizer(parse_tokenizer_json(description.dump(), "t.json"), "t.json");
  const std::string text = "xe\xCC\xA1\xCC\x81 abc";  // the second mark combines with the letter, across the first
  for (size_t seen = 0; seen <= text.size(); ++seen) {
    INFO(seen);
    const size_t cut = tokenizer.cut(std::string_view(text).substr(0, seen), true);
    std::vector<int32_t> parts, whole;
    if (cut > 0) tokenizer.encode(std::string_view(text).substr(0, cut), parts, true);
    tokenizer.encode(std::string_view(text).substr(cut), parts, cut == 0);
    tokenizer.encode(text, whole, true);
    CHECK(parts == whole);
  }
}

TEST_CASE("tokenizers: no cut that would change the pieces after it") {
  BytePairTokenizer ahead = splitting_at(R"(\s(?=\S))");
  check_parts(ahead, repeated("ab ab  ", 6000), 1000);
  check_parts_of_units(ahead, {"a", " ", "\n"}, 2000);
}

TEST_CASE("tokenizers: no cut that would change the pieces before it") {
  for (const std::string regex : {"^t|x", "x(?=^)|x|\n", "(?:^)(?:t|x)", "\\^|[\\^^]|[^^]x"}) {
    INFO(regex);
    BytePairTokenizer tokenizer = splitting_at(regex);
    check_parts(tokenizer, repeated("xthe", 3000), 1000);
    check_parts_of_units(tokenizer, {"the", "th", "x", "^", "\n"}, 2000);
  }
  BytePairTokenizer lines = splitting_at("^the|the(?=^)");  // no line begins after the last line feed
  std::vector<int32_t> tokens;
  lines.encode("the\nthethe\n", tokens, true);
  CHECK(tokens == std::vector<int32_t>{257, 10, 257, 257, 10});
}

TEST_CASE("tokenizers: text without spaces can be cut under NFC, and at any line end") {
  const std::string text = "\xE5\xA4\xA9\xE5\x9C\xB0\xE7\x8E\x84\xE9\xBB\x84\xEF\xBC\x8C\xE5\xAE\x87\xE5\xAE\x99\xE6\xB4\xAA\xE8\x8D\x92\xE3\x80\x82";
  Tokenizer tokenizer = Tokenizer::open(kGolden + "qwen2.json");
  CHECK(check_parts(tokenizer, repeated(text, 4000), 5000) >= 20);
  CHECK(check_parts(tokenizer, repeated(text + "\r\n", 4000), 5000) >= 20);
  const std::string changed = "\xEF\xA4\x80" + text;  // a compatibility ideograph: can be cut at lines only
  CHECK(check_parts(tokenizer, repeated(changed + "\r\n", 4000), 5000) >= 20);
  CHECK(check_parts(tokenizer, repeated("\xE3\x80\x80\xE3\x80\x80" + changed + "\n", 4000), 5000) >= 20);
  for (const std::string name : {"gpt2.json", "llama3.json", "qwen2.json"}) {
    INFO(name);
    Tokenizer any = Tokenizer::open(kGolden + name);
    CHECK(check_parts_of_units(any,
                               {"\r",
                                "\n",
                                "\r\n",
                                " ",
                                "\xE3\x80\x80",
                                "a",
                                "!",
                                "1",
                                "\xE5\xA4\xA9",
                                "\xEF\xBC\x8C",
                                "\xCC\x81",
                                "\xE3\x81\x8B",
                                "\xE3\x82\x99",
                                "\xE1\x84\x80",
                                "\xE1\x85\xA1",
                                "\xE1\x86\xA8",
                                "\xEA\xB0\x80",
                                "\xE0\xA7\x87",
                                "\xE0\xA6\xBE",
                                "\xD0\xB8",
                                "\xCC\x86",
                                "\xEF\xA4\x80",
                                "\xFF"},
                               20000) >= 30000);
  }
}

TEST_CASE("tokenizers: a leading space is added to a document, not to its later parts") {
  json description = small_tokenizer();
  description["pre_tokenizer"]["add_prefix_space"] = true;
  for (const bool nfc : {false, true}) {
    if (nfc) description["normalizer"] = {{"type", "NFC"}};
    BytePairTokenizer tokenizer = byte_pair(description);
    CHECK(check_parts(tokenizer, repeated("the end.\n", 3000), 1000) >= 20);
    CHECK(check_parts_of_units(tokenizer, {"<|end|>", "\n", " ", "the", "a", "1", "!", "e\xCC\x81", "\xC3\xA9", "\xFF"}, 20000) >= 25000);
  }
}

TEST_CASE("tokenizers: SentencePiece models cut between words of any script") {
  for (const std::string name : {"bpe.model", "bpe_bytes.model"}) {
    INFO(name);
    std::optional<Tokenizer> tokenizer = open_golden(name);
    if (!tokenizer) continue;
    CHECK(check_parts(*tokenizer,
                      repeated("\xD0\xB2\xD1\x81\xD0\xB5 \xD1\x81\xD1\x87\xD0\xB0\xD1\x81\xD1\x82\xD0\xBB\xD0\xB8\xD0\xB2\xD1\x8B\xD0\xB5, ", 2000),
                      2000) >= 20);
    check_parts_of_units(*tokenizer,
                         {" ",
                          " ",
                          " ",
                          "  ",
                          "a",
                          "\xD0\xB9",
                          "\xD0\xB8\xCC\x86",
                          "\xCC\x81",
                          "\xC2\xB4",
                          "\xE2\x96\x81",
                          "\xEF\xBF\xBD",
                          "\xE2\x80\x8B",
                          "\xEF\xBC\x8C",
                          "\xE5\xA4\xA9",
                          "\xEF\xAC\x81",
                          "\t",
                          "\xE3\x80\x80",
                          "\xEF\xBB\xBF",
                          "\xEF\xBF\xA3",
                          "\xE1\x84\x80",
                          "\xE1\x85\xA1",
                          "\xFF"},
                         20000);
  }
}

TEST_CASE("tokenizers: SentencePiece models insert no space between two parts encoded separately") {
  for (const std::string& name : kSentencePiece) {
    INFO(name);
    std::optional<Tokenizer> tokenizer = open_golden(name);
    if (!tokenizer) continue;
    std::vector<int32_t> tokens;
    tokenizer->encode("one", tokens, true);
    tokenizer->encode("two", tokens, false);
    tokenizer->encode(" three", tokens, false);
    CHECK(tokenizer->decode(tokens) == "onetwo three");
  }
}

TEST_CASE("tokenizers: valid and incomplete UTF-8") {
  CHECK(valid_utf8("abc") == 3);
  CHECK(valid_utf8("abcdefghijk\xC3\xA9") == 13);
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5", "\xFF", "\xE2\x82"})
    CHECK(valid_utf8("ab" + bad) == 2);
  CHECK(unfinished_utf8("ab") == 0);
  CHECK(unfinished_utf8("ab\xC3") == 1);
  CHECK(unfinished_utf8("ab\xE2\x82") == 2);
  CHECK(unfinished_utf8("ab\xF0\x9F\x98") == 3);
  CHECK(unfinished_utf8("ab\xF0\x9F\x98\x80") == 0);
  CHECK(unfinished_utf8("ab\xED\xA0") == 0);  // a surrogate, which no continuation makes valid
  CHECK(unfinished_utf8("ab\xC0") == 0);
  CHECK(unfinished_utf8("\xE2") == 1);
  std::string room;
  CHECK(to_nfc("e\xCC\x81"
               "a\xFF"
               "e\xCC\x81",
               room) ==
        "\xC3\xA9"
        "a\xFF"
        "\xC3\xA9");
  CHECK(from_byte_level(to_byte_level("\0 a\xFF\n")) == "\0 a\xFF\n");
  CHECK_FALSE(from_byte_level("a b"));
}

namespace {

/// A tokenizer whose merges are the small one's, in a directory by itself.
std::vector<int32_t> ids_in(const Directory& directory, const std::string& text) { return Tokenizer::open(directory.path()).encode(text); }

std::vector<int32_t> ends_in(const Directory& directory) { return Tokenizer::open(directory.path()).ends(); }

json small_with(const std::vector<std::string>& added) {
  json description = small_tokenizer();
  description["added_tokens"] = json::array();
  for (const std::string& content : added)
    description["added_tokens"].push_back({{"id", 258 + description["added_tokens"].size()}, {"content", content}, {"special", true}});
  return description;
}

}  // namespace

TEST_CASE("tokenizers: each normalizer, pre_tokenizer, model, decoder and flag gives the ids and texts of the reference library") {
  const Directory directory;
  const json golden = read_json(kGolden + "parts.json");
  int texts = 0;
  for (const json& one : golden.at("cases")) {
    json description = golden.at("base");
    description.update(one.at("set"));
    INFO(json(one.at("set")).dump().substr(0, 600));
    Tokenizer tokenizer = Tokenizer::open(directory.write("tokenizer.json", description.dump()));
    for (const auto& [text, ids] : one.at("ids").items()) {
      INFO(json(text).dump());
      const std::vector<int32_t> found = tokenizer.encode(text);
      CHECK(found == ids.get<std::vector<int32_t>>());
      CHECK(tokenizer.decode(found) == one.at("texts").at(text).get<std::string>());
      ++texts;
    }
    CHECK(std::ssize(tokenizer.token_bytes()) == tokenizer.vocab_size());
  }
  CHECK(texts > 600);
}

TEST_CASE("tokenizers: a document of several stretches has a space before its first word alone, where the tokenizer adds one") {
  Tokenizer tokenizer = Tokenizer::open(kGolden + "gpt2_prefix.json");
  std::string text = "the";
  while (text.size() < 100000) text += "\nit a the b";
  std::vector<int32_t> whole;
  tokenizer.encode(text, whole, true);
  Piece piece;
  piece.text = text;
  EncodeBudget turns;
  encode_piece(tokenizer, {}, turns, piece);
  std::vector<int32_t> stretches;
  for (const std::vector<int32_t>& tokens : piece.tokens) stretches.insert(stretches.end(), tokens.begin(), tokens.end());
  CHECK(stretches == whole);
}

TEST_CASE("tokenizers: added tokens that reach over white space, and merged matches, are not divided by a cut") {
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    INFO(key);
    json description = small_tokenizer();
    description["added_tokens"][0][key] = true;
    BytePairTokenizer tokenizer = byte_pair(description);
    CHECK(check_parts_of_units(tokenizer, {"<|end|>", " ", "\n", "the", "a", "\n\n", "_", "<|en", "a the"}, 5000) > 5100);
    json fallback = read_json(kGolden + "metaspace.json");
    for (json& token : fallback["added_tokens"]) token[key] = !token["normalized"].get<bool>();
    ByteFallbackTokenizer other(parse_tokenizer_json(fallback.dump(), "t.json"), "t.json");
    const auto cut_of = [&](const std::string& text) { return other.cut(text); };
    std::mt19937 random(5);
    const std::vector<std::string> units = {"</s>", " ", "the", "a b", "\n", "it "};
    int parts = 0;
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (auto count = random() % 12 + 1; count > 0; --count) text += units[random() % units.size()];
      const size_t window = random() % text.size() + 1, cut = cut_of(text.substr(0, window));
      std::vector<int32_t> whole, split;
      other.encode(text, whole, true);
      if (cut > 0) other.encode(text.substr(0, cut), split, true);
      other.encode(text.substr(cut), split, cut == 0);
      INFO(json(text).dump() << " at " << cut);
      REQUIRE(split == whole);
      parts += cut > 0 ? 1 : 0;
    }
    CHECK(parts > 100);
  }
  json merged = small_tokenizer();
  merged["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"}, {"pattern", {{"String", "t"}}}, {"behavior", "MergedWithNext"}, {"invert", false}},
                               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  BytePairTokenizer tokenizer = byte_pair(merged);
  check_parts_of_units(tokenizer, {"t", "th", "the", "e", " "}, 2000);
}

TEST_CASE("tokenizers: a byte that UTF-8 cannot contain and that has no token is refused where a text has it") {
  json description = small_tokenizer();
  const std::string last = to_byte_level("\xFF");
  description["model"]["vocab"].erase(last);
  description["model"]["vocab"]["th"] = 255;
  description["model"]["vocab"]["the"] = 256;
  description["added_tokens"][0]["id"] = 257;
  CHECK(ids_of(description, "the<|end|>") == std::vector<int32_t>{256, 257});
  check_refused<DataError>("byte", [&] { ids_of(description, "the\xFF"); }, {"byte 255", "not UTF-8"});
}

TEST_CASE("tokenizers: a folder's ends of text come from each file that names them") {
  const Directory directory;
  directory.write("tokenizer.json", small_with({"<pad>", "<eos>", "<turn>", "</s>"}).dump());
  CHECK(ends_in(directory) == std::vector<int32_t>{261});  // by its name
  directory.write("config.json", R"({"model_type": "llama", "eos_token_id": 259, "bos_token_id": 258})");
  CHECK(ends_in(directory) == std::vector<int32_t>{259});
  CHECK(Tokenizer::open(directory.path()).begin_of_text() == 258);
  directory.write("generation_config.json", R"({"eos_token_id": [260, 7, 99999], "bos_token_id": 260})");
  CHECK(ends_in(directory) == std::vector<int32_t>{260, 7, 259});  // a token of text may stop generation, but is not the end of documents
  CHECK(Tokenizer::open(directory.path()).begin_of_text() == 260);
  directory.write("special_tokens_map.json", R"({"eos_token": {"content": "<eos>"}, "bos_token": "<pad>"})");
  CHECK(ends_in(directory) == std::vector<int32_t>{259, 260, 7});
  CHECK(Tokenizer::open(directory.path()).end_of_text() == 259);
  CHECK(Tokenizer::open(directory.path()).begin_of_text() == 258);
  directory.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  CHECK(ends_in(directory) == std::vector<int32_t>{261, 260, 7, 259});
  directory.write("generation_config.json", R"({"eos_token_id": ["<eos>"]})");
  check_refused<DataError>("eos_token_id", [&] { ends_in(directory); }, {"generation_config.json", "eos_token_id"});
  directory.write("generation_config.json", "{}");
  directory.write("special_tokens_map.json", R"({"eos_token": "<none>"})");
  CHECK(ends_in(directory) == std::vector<int32_t>{261, 259});
  directory.write("tokenizer_config.json", "{}");
  check_refused<DataError>("eos_token", [&] { ends_in(directory); }, {"tokenizer.json", "<none>", "special_tokens_map.json"});
  directory.write("special_tokens_map.json", "{}");
  directory.write("config.json", "a file of another program");
  CHECK(ends_in(directory) == std::vector<int32_t>{261});
  directory.write("tokenizer.json", small_with({"<other>"}).dump());
  CHECK(ends_in(directory).empty());
  CHECK_THAT(Tokenizer::open(directory.path()).where_no_end(), Catch::Matchers::Contains("special_tokens_map.json"));
}

TEST_CASE("tokenizers: a folder's added tokens come from each file, and keep their ids or are refused") {
  const Directory directory;
  directory.write("tokenizer.json", small_tokenizer().dump());
  const std::string digest = Tokenizer::open(directory.path()).digest();
  directory.write("added_tokens.json", R"({"<|end|>": 258})");
  CHECK(Tokenizer::open(directory.path()).digest() == digest);  // says nothing new
  directory.write("added_tokens.json", R"({"<b>": 260, "<|end|>": 258, "<a>": 259})");
  Tokenizer tokenizer = Tokenizer::open(directory.path());
  CHECK(tokenizer.encode("the<a><b>") == std::vector<int32_t>{257, 259, 260});
  CHECK(tokenizer.decode(std::vector<int32_t>{259}) == "<a>");
  CHECK(tokenizer.vocab_size() == 261);
  CHECK(tokenizer.digest() != digest);
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {"259": {"content": "<c>", "lstrip": true, "special": true}}})");
  CHECK(ids_in(directory, "the <c><a>") == std::vector<int32_t>{257, 259, '<', 'a', '>'});  // takes precedence, as in transformers
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {"258": {"content": "<c>"}}})");
  check_refused<DataError>("id", [&] { ids_in(directory, ""); }, {"tokenizer.json", "<c>", "has id 258", "renumber it to 259"});
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {"7": {"content": "<|end|>"}}})");
  check_refused<DataError>("id", [&] { ids_in(directory, ""); }, {"<|end|>", "has id 258, but 7 in the files beside it"});
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {"seven": {"content": "<c>"}}})");
  check_refused<DataError>("id", [&] { ids_in(directory, ""); }, {"tokenizer_config.json", "seven"});

  // An id within the vocabulary of a token that the vocabulary lacks, which the library numbers behind all others.
  const Directory other;
  json description = small_tokenizer();
  description["model"]["vocab"].erase("the");
  description["model"]["merges"] = {"t h"};
  description["added_tokens"].push_back({{"id", 257}, {"content", "<|user|>"}, {"special", true}});
  other.write("tokenizer.json", description.dump());
  check_refused<DataError>("renumbered", [&] { ids_in(other, ""); }, {"<|end|>", "has id 258", "renumber it to 257"});
}

TEST_CASE("tokenizers: added tokens beside a SentencePiece model are matched in text") {
  if (!open_golden("bpe_bytes.model")) return;
  const Directory directory;
  fs::copy(kGolden + "bpe_bytes.model", directory.path() + "/tokenizer.model");
  const std::string digest = Tokenizer::open(directory.path()).digest();
  const std::vector<int32_t> a = ids_in(directory, "the truth"), b = ids_in(directory, "a man");
  directory.write("added_tokens.json", R"({"</s>": 2, "<|im_start|>": 1200, "<|im_end|>": 1201})");
  directory.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  Tokenizer tokenizer = Tokenizer::open(directory.path());
  CHECK(tokenizer.vocab_size() == 1202);
  CHECK(tokenizer.digest() != digest);
  CHECK(tokenizer.end_of_text() == 1201);
  std::vector<int32_t> expected = {1200};
  expected.insert(expected.end(), a.begin(), a.end());
  expected.push_back(1201);
  expected.insert(expected.end(), b.begin(), b.end());
  CHECK(tokenizer.encode("<|im_start|>the truth<|im_end|>a man") == expected);  // a space is inserted behind each, as in documents
  CHECK(tokenizer.decode(expected) == "<|im_start|>the truth<|im_end|>a man");
  CHECK(tokenizer.token_bytes().size() == 1202);
  directory.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>", "legacy": false})");
  Tokenizer plain = Tokenizer::open(directory.path());
  const std::vector<int32_t> spaced = plain.encode("<|im_start|> the truth<|im_end|> a man");
  CHECK(spaced == expected);
  CHECK(plain.encode("<|im_start|>the truth") !=
        std::vector<int32_t>(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(a.size()) + 1));
  CHECK(plain.decode(spaced) == "<|im_start|> the truth<|im_end|> a man");
  check_parts_of_units(plain, {"<|im_start|>", " ", "the", " truth", "<|im", "_end|>", "\n", "a man "}, 1500);
  check_parts_of_units(tokenizer, {"<|im_start|>", " ", "the", " truth", "<|im", "_end|>", "\n", "a man "}, 1500);
  directory.write("added_tokens.json", R"({"<|im_start|>": 1201})");
  check_refused<DataError>("gap", [&] { ids_in(directory, ""); }, {"<|im_start|>", "1201", "next id behind the others is 1200"});
  directory.write("added_tokens.json", R"({"<|im_start|>": 40})");
  check_refused<DataError>("piece", [&] { ids_in(directory, ""); }, {"<|im_start|>", "40", "which in the model is"});
}

TEST_CASE("tokenizers: a copy has what the files beside a tokenizer say, and a model's config.json too") {
  const Directory directory, copy;
  directory.write("tokenizer.json", small_with({"<pad>", "<eos>", "<turn>"}).dump());
  directory.write("special_tokens_map.json", R"({"eos_token": "<eos>"})");
  directory.write("added_tokens.json", R"({"<more>": 261})");
  directory.write("generation_config.json", R"({"temperature": 0.5, "eos_token_id": 259})");
  directory.write("config.json", R"({"model_type": "llama", "eos_token_id": [259, 260]})");
  directory.write("weights.bin", "not of the tokenizer");
  const Tokenizer tokenizer = Tokenizer::open(directory.path());
  const std::map<std::string, std::string> texts = tokenizer.copies();
  CHECK(texts.size() == 4);
  CHECK_FALSE(texts.contains("config.json"));
  for (const auto& [name, text] : texts) copy.write(name, text);
  const Tokenizer again = Tokenizer::open(copy.path());
  CHECK(again.digest() == tokenizer.digest());
  CHECK(again.ends() == std::vector<int32_t>{259, 260});
  CHECK(again.sampling().temperature == 0.5);
  CHECK(again.copies() == texts);
  CHECK(Tokenizer::open("bytes").copies().empty());
}

TEST_CASE("tokenizers: sampling defaults of a generation_config.json") {
  const Directory directory;
  directory.write("tokenizer.json", small_tokenizer().dump());
  const auto sampling = [&](const std::string& text) {
    directory.write("generation_config.json", text);
    return Tokenizer::open(directory.path()).sampling();
  };
  const GenerationDefaults all =
      sampling(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05, "min_p": 0.0})");
  CHECK(all.temperature == 0.6);
  CHECK(all.top_k == 20);
  CHECK(all.top_p == 0.9);
  CHECK(all.ignored == std::vector<std::string>{"repetition_penalty"});
  CHECK(sampling(R"({"do_sample": false, "temperature": 0.6})").temperature == 0.0);
  const GenerationDefaults none = sampling(R"({"temperature": null, "top_k": null})");
  CHECK_FALSE((none.temperature || none.top_k || none.top_p || !none.ignored.empty()));
  for (const std::string text :
       {R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_p": 1.5})", R"({"top_k": 2.5})", R"({"do_sample": 1})"})
    check_refused<DataError>(text, [&] { sampling(text); }, {"generation_config.json"});
}

TEST_CASE("tokenizers: files of other formats are named for what they are") {
  struct Case {
    std::string name, text, words;
  };
  const std::vector<Case> cases = {
      {"tokenizer.json", R"({"class_name": "Tokenizer", "config": {"num_words": 10}})", "Keras"},
      {"tokenizer.json", json(R"({"class_name": "Tokenizer", "config": {"num_words": 10}})").dump(), "Keras"},
      {"tekken.json", R"({"config": {"pattern": "x"}, "vocab": [], "special_tokens": []})", "tekken.json of Mistral"},
      {"qwen.tiktoken", "IQ== 0\nIg== 1\n", "tiktoken"},
      {"tokenizer.model", "IQ== 0\nIg== 1\n", "tiktoken"},
      {"vocab.json", R"({"a": 0, "b": 1})", "vocabulary without the merges"},
      {"tokenizer.json", R"({"a": 0, "b": 1})", "vocabulary without the merges"},
      {"vocab.txt", "[PAD]\n[UNK]\n", "WordPiece"},
      {"merges.txt", "#version: 0.2\na b\n", "merges of a BPE"},
      {"tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})", "settings of a tokenizer"},
      {"config.json", R"({"model_type": "llama"})", "model's config.json"},
  };
  for (const Case& one : cases) {
    const Directory directory;
    const std::string file = directory.write(one.name, one.text);
    check_refused<DataError>(one.name + " " + one.text, [&] { Tokenizer::open(file); }, {one.name + ": is ", one.words});
  }
  const Directory directory;
  directory.write("vocab.json", "{}");
  directory.write("merges.txt", "");
  check_refused<MissingFileError>("folder", [&] { Tokenizer::open(directory.path()); },
                                  {"neither tokenizer.json nor tokenizer.model, but merges.txt, vocab.json"});
}
