#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/scratch.h"
#include "trainer/data/token_writer.h"
#include "trainer/files/digest.h"
#include "trainer/tokenizer/tokenizer.h"

using namespace trireme;
using test::check_throws, test::Scratch, test::slurp;
namespace fs = std::filesystem;

namespace {

TokenIndex identity(int64_t vocab_size) { return {"bytes", "bytes-v1", vocab_size}; }

void make_tokens(const std::string& output, int64_t vocab_size, const std::vector<std::vector<int32_t>>& documents) {
  TokenWriter writer(output, identity(vocab_size));
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.commit();
}

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.tokens()));
  file.read(0, file.tokens(), tokens.data());
  return tokens;
}

}  // namespace

TEST_CASE("the bytes tokenizer round-trips every byte and refuses invalid ids", "[data]") {
  Tokenizer tokenizer = Tokenizer::open("bytes");
  std::string text;
  for (int c = 0; c < 256; ++c) text.push_back(static_cast<char>(c));
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  REQUIRE(tokens.size() == 256);
  CHECK(tokens[255] == 255);
  CHECK(tokenizer.decode(tokens) == text);
  CHECK_THROWS_AS(tokenizer.decode(std::vector<int32_t>{256}), DataError);
  CHECK_THROWS_AS(tokenizer.decode(std::vector<int32_t>{-1}), DataError);
  check_throws<ConfigError>([] { Tokenizer::open("bpe"); }, {"tokenizer=bpe", "allowed: bytes"});
}

TEST_CASE("tokens and documents round-trip in every width", "[data]") {
  const Scratch scratch;
  for (const auto& [vocab_size, token_bytes] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {256, 1}, {257, 2}, {65536, 2}, {65537, 4}, {1 << 30, 4}}) {
    CAPTURE(vocab_size);
    const auto last = static_cast<int32_t>(vocab_size - 1);
    const std::string path = scratch / ("v" + std::to_string(vocab_size));
    make_tokens(path, vocab_size, {{0, last, 1}, {last}});
    const TokenFile file(path);
    CHECK(read_all(file) == std::vector<int32_t>{0, last, 1, last});
    CHECK(static_cast<int64_t>(fs::file_size(path + "/tokens.bin")) == 4 * token_bytes);
    CHECK(file.index().token_bytes() == token_bytes);
    CHECK(file.index().documents == 2);
    CHECK(file.document(0).end == 3);
    CHECK(file.document(1).begin == 3);
    CHECK(file.document(1).end == 4);
  }
}

TEST_CASE("a writer refuses an id outside the vocabulary and leaves nothing behind", "[data]") {
  const Scratch scratch;
  for (const int32_t token : {-1, 300, 1 << 20})
    check_throws<DataError>([&] { make_tokens(scratch / "a/b/tokens", 300, {{1, token}}); }, {"token 1 is"});
  CHECK_THROWS_AS(make_tokens(scratch / "empty", 300, {{}}), DataError);
  CHECK(scratch.names().empty());
}

TEST_CASE("an existing output is kept if identical, refused otherwise", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "tokens";
  fs::create_directory(path);  // an empty directory is replaced
  make_tokens(path, 256, {{1, 2, 3}});
  TokenWriter again(path + "/", identity(256));
  again.append(std::vector<int32_t>{1, 2, 3});
  again.end_document();
  CHECK(again.commit() == TokenWriter::Outcome::kUnchanged);
  check_throws<ConfigError>([&] { make_tokens(path, 256, {{1, 2, 4}}); }, {path, "exists"});
  check_throws<ConfigError>([&] { make_tokens(path, 256, {{1}, {2, 3}}); }, {path, "exists"});
  CHECK(read_all(TokenFile(path)) == std::vector<int32_t>{1, 2, 3});
  CHECK(scratch.names() == std::vector<std::string>{"tokens"});

  scratch.write("file", "mine");
  check_throws<ConfigError>([&] { make_tokens(scratch / "file", 256, {{1}}); }, {"exists"});
  check_throws<IoError>([&] { make_tokens(scratch / "file/below", 256, {{1}}); }, {"cannot create"});
  CHECK(slurp(scratch / "file") == "mine");
}

TEST_CASE("a damaged token directory is reported with the expected values", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "tokens";
  make_tokens(path, 1000, {{1, 2, 3}, {4, 999}});
  const std::string index = slurp(path + "/index.json");
  const auto open = [&] { TokenFile file(path); };
  const auto with_index = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json json = nlohmann::json::parse(index);
    json[key] = value;
    std::ofstream(path + "/index.json") << json;
  };
  open();

  SECTION("truncated tokens") {
    fs::resize_file(path + "/tokens.bin", 7);
    check_throws<DataError>(open, {"tokens.bin", "truncated", "7 bytes", "= 10 bytes"});
  }
  SECTION("empty tokens") {
    fs::resize_file(path + "/tokens.bin", 0);
    check_throws<DataError>(open, {"tokens.bin", "truncated", "0 bytes"});
  }
  SECTION("tokens too long") {
    fs::resize_file(path + "/tokens.bin", 12);
    check_throws<DataError>(open, {"tokens.bin", "too long", "12 bytes"});
  }
  SECTION("truncated documents") {
    fs::resize_file(path + "/documents.bin", 16);
    check_throws<DataError>(open, {"documents.bin", "16 bytes", "= 24 bytes"});
  }
  SECTION("documents that do not cover the tokens") {
    std::ofstream(path + "/documents.bin", std::ios::binary) << std::string(24, '\0');
    check_throws<DataError>(open, {"documents.bin", "cover"});
  }
  SECTION("documents beyond the end of the file") {
    std::fstream(path + "/documents.bin", std::ios::binary | std::ios::in | std::ios::out).seekp(8).write("\x77", 1);
    check_throws<DataError>(open, {"documents.bin", "document 0"});
  }
  SECTION("prompts") {
    with_index("prompts", 1);
    check_throws<DataError>(open, {"index.json", "prompts"});
    with_index("prompts", true);
    check_throws<DataError>(open, {"index.json", "prompts_digest", "missing"});
    nlohmann::json with_digest = nlohmann::json::parse(index);
    with_digest["prompts"] = true;
    with_digest["prompts_digest"] = with_digest["tokens_digest"];
    std::ofstream(path + "/index.json") << with_digest;
    check_throws<MissingFileError>(open, {"prompts.bin"});
    const auto put = [&](const std::vector<uint64_t>& prompts) {
      std::ofstream(path + "/prompts.bin", std::ios::binary)
          .write(reinterpret_cast<const char*>(prompts.data()), static_cast<std::streamsize>(8 * prompts.size()));
    };
    put({1});
    check_throws<DataError>(open, {"prompts.bin", "truncated", "8 bytes", "= 16 bytes"});
    put({3, 1});
    const TokenFile file(path);
    CHECK(file.document(0).response == 3);
    CHECK(file.document(1).begin == 3);
    CHECK(file.document(1).response == 4);
    put({4, 1});
    check_throws<DataError>(open, {"prompts.bin", "document 0 has 3 tokens", "prompt of 4"});
    put({1, uint64_t{1} << 63});
    check_throws<DataError>(open, {"prompts.bin", "document 1", "prompt of 9223372036854775808"});
  }
  SECTION("an id outside the vocabulary") {
    std::fstream(path + "/tokens.bin", std::ios::binary | std::ios::in | std::ios::out).seekp(6).write("\xe8\x03", 2);
    const TokenFile file(path);
    std::vector<int32_t> tokens(5);
    file.read(0, 3, tokens.data());
    check_throws<DataError>([&] { file.read(2, 3, tokens.data()); }, {"tokens.bin", "token 3 is 1000", "vocabulary of 1000"});
  }
  SECTION("values of the index") {
    for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{{"version", 3},
                                                                                        {"tokens", -5},
                                                                                        {"tokens", 5.0},
                                                                                        {"tokens", "5"},
                                                                                        {"tokens", 18446744073709551615ULL},
                                                                                        {"token_bytes", 4},
                                                                                        {"vocab_size", 0},
                                                                                        {"vocab_size", 1LL << 40},
                                                                                        {"documents", nullptr},
                                                                                        {"tokenizer", 1},
                                                                                        {"tokens_digest", 1},
                                                                                        {"tokens_digest", "xxh3-128:1"},
                                                                                        {"documents_digest", nullptr},
                                                                                        {"compression", "none"}}) {
      with_index(key, value);
      check_throws<DataError>(open, {"index.json", key});
    }
    with_index("tokens", 0);
    check_throws<DataError>(open, {"contains no tokens"});
    with_index("format", "other");
    check_throws<DataError>(open, {"trireme-tokens"});
  }
  SECTION("a missing key") {
    nlohmann::json json = nlohmann::json::parse(index);
    json.erase("vocab_size");
    std::ofstream(path + "/index.json") << json;
    check_throws<DataError>(open, {"vocab_size", "missing"});
  }
  SECTION("no JSON") {
    for (const char* text : {"", "{", "[]", "null", "\xff\xfe"}) {
      std::ofstream(path + "/index.json") << text;
      check_throws<DataError>(open, {"index.json"});
    }
  }
  SECTION("missing files") {
    for (const char* name : {"tokens.bin", "documents.bin", "index.json"}) {
      fs::rename(path + "/" + name, scratch / "aside");
      check_throws<MissingFileError>(open, {name});
      fs::rename(scratch / "aside", path + "/" + name);
    }
    check_throws<MissingFileError>([&] { TokenFile file(scratch / "nowhere"); }, {"nowhere"});
  }
  SECTION("not files at all") {
    check_throws<DataError>([&] { TokenFile file(path + "/index.json"); }, {"not a token directory"});
    fs::remove(path + "/tokens.bin");
    REQUIRE(::mkfifo((path + "/tokens.bin").c_str(), 0600) == 0);
    check_throws<DataError>(open, {"tokens.bin", "not a regular file"});
  }
}

TEST_CASE("a token directory truncated while open is reported", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "tokens";
  make_tokens(path, 1000, {std::vector<int32_t>(10000, 7), {4, 999}});
  const TokenFile file(path);
  std::vector<int32_t> tokens(10002);
  file.read(0, 10002, tokens.data());
  fs::resize_file(path + "/tokens.bin", 12000);
  file.read(0, 6000, tokens.data());
  check_throws<DataError>([&] { file.read(0, 10002, tokens.data()); }, {"tokens.bin", "truncated while in use", "12000 bytes", "20004"});
  fs::resize_file(path + "/tokens.bin", 0);
  check_throws<DataError>([&] { file.read(5, 1, tokens.data()); }, {"tokens.bin", "truncated while in use", "0 bytes", "20004"});
  fs::resize_file(path + "/documents.bin", 8);
  check_throws<DataError>([&] { file.document(0); }, {"documents.bin", "truncated while in use", "8 bytes", "24"});
}

TEST_CASE("the index of a token directory contains digests of all its files", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "tokens";
  TokenIndex instruction = identity(1000);
  instruction.prompts = true;
  TokenWriter writer(path, instruction);
  writer.append(std::vector<int32_t>(300000, 7));  // more than a block of the digest
  writer.end_document(5);
  writer.commit();
  const TokenIndex index = TokenFile(path).index();
  CHECK(index.tokens_digest == digest_of(slurp(path + "/tokens.bin")));
  CHECK(index.documents_digest == digest_of(slurp(path + "/documents.bin")));
  CHECK(index.prompts_digest == digest_of(slurp(path + "/prompts.bin")));
  TokenFile(path).verify();
  for (const std::string name : {"tokens.bin", "documents.bin", "prompts.bin"}) {
    CAPTURE(name);
    const std::string bytes = slurp(path + "/" + name);
    std::string changed = bytes;
    changed[changed.size() - 2] ^= 1;  // in the tokens, no check of sizes or ranges detects this
    std::ofstream(path + "/" + name, std::ios::binary) << changed;
    if (name == "tokens.bin")
      check_throws<DataError>([&] { TokenFile(path).verify(); }, {name, "changed", index.tokens_digest});
    else
      CHECK_THROWS_AS(TokenFile(path).verify(), DataError);
    std::ofstream(path + "/" + name, std::ios::binary) << bytes;
  }
  TokenFile(path).verify();
}

TEST_CASE("a token directory without digests, from an earlier version, is read and kept", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "tokens";
  make_tokens(path, 256, {{1, 2, 3}});
  const std::string old =
      "{\n  \"format\": \"trireme-tokens\",\n  \"version\": 1,\n  \"tokenizer\": \"bytes\",\n  \"tokenizer_digest\": \"bytes-v1\",\n"
      "  \"vocab_size\": 256,\n  \"token_bytes\": 1,\n  \"tokens\": 3,\n  \"documents\": 1\n}\n";
  std::ofstream(path + "/index.json") << old;
  const TokenFile file(path);
  CHECK_FALSE(file.index().has_digests());
  CHECK(file.index().to_json() == old);
  CHECK(read_all(file) == std::vector<int32_t>{1, 2, 3});
  check_throws<ConfigError>([&] { file.verify(); }, {"--verify", path, "no digests"});

  TokenWriter again(path, identity(256));
  again.append(std::vector<int32_t>{1, 2, 3});
  again.end_document();
  CHECK(again.commit() == TokenWriter::Outcome::kUnchanged);
  CHECK(slurp(path + "/index.json") == old);
  check_throws<ConfigError>([&] { make_tokens(path, 256, {{1, 2, 4}}); }, {path, "exists"});
}
