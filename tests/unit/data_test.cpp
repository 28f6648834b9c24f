#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/commands/data_command.h"
#include "trainer/data/dataset.h"
#include "trainer/data/token_writer.h"
#include "trainer/data/tokenizer.h"

using namespace trireme;
namespace fs = std::filesystem;

namespace {

/// A directory that goes with the test.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "trireme-data-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return *this / name;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  fs::path path_;
};

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TokenIndex identity(int64_t vocab_size) { return {"bytes", "bytes-v1", vocab_size}; }

void make_tokens(const std::string& output, int64_t vocab_size, const std::vector<std::vector<int32_t>>& documents) {
  TokenWriter writer(output, identity(vocab_size));
  for (const auto& document : documents) {
    writer.begin_document();
    writer.append(document);
  }
  writer.commit();
}

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> tokens(static_cast<size_t>(file.tokens()));
  file.read(0, file.tokens(), tokens.data());
  return tokens;
}

/// Runs `body`, which must throw `Failure` with every one of `parts` in its message.
template <class Failure, class Body>
void check_throws(Body&& body, const std::vector<std::string>& parts) {
  try {
    body();
  } catch (const Failure& error) {
    for (const std::string& part : parts) {
      CAPTURE(error.what(), part);
      CHECK(std::string(error.what()).find(part) != std::string::npos);
    }
    return;
  }
  FAIL("nothing was thrown");
}

/// As `trireme data ...`: what it printed on standard output; what it says for people is kept off the test's own output.
std::string data_command(std::vector<std::string> arguments) {
  CLI::App app;
  int exit_code = -1;
  add_data_command(app, exit_code);
  arguments.insert(arguments.begin(), "data");
  std::reverse(arguments.begin(), arguments.end());
  std::ostringstream out;
  std::ostringstream err;
  std::streambuf* out_before = std::cout.rdbuf(out.rdbuf());
  std::streambuf* err_before = std::cerr.rdbuf(err.rdbuf());
  try {
    app.parse(arguments);
  } catch (...) {
    std::cout.rdbuf(out_before);
    std::cerr.rdbuf(err_before);
    throw;
  }
  std::cout.rdbuf(out_before);
  std::cerr.rdbuf(err_before);
  REQUIRE(exit_code == 0);
  return out.str() + err.str();
}

}  // namespace

TEST_CASE("the bytes tokenizer round-trips every byte and refuses what is none", "[data]") {
  const Tokenizer tokenizer = make_tokenizer("bytes");
  std::string text;
  for (int c = 0; c < 256; ++c) text.push_back(static_cast<char>(c));
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  REQUIRE(tokens.size() == 256);
  CHECK(tokens[255] == 255);
  CHECK(tokenizer.decode(tokens) == text);
  CHECK_THROWS_AS(tokenizer.decode(std::vector<int32_t>{256}), DataError);
  CHECK_THROWS_AS(tokenizer.decode(std::vector<int32_t>{-1}), DataError);
  check_throws<ConfigError>([] { make_tokenizer("bpe"); }, {"tokenizer=bpe", "allowed: bytes"});
}

TEST_CASE("tokens and documents survive the round trip in every width", "[data]") {
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

TEST_CASE("an output is written once: identical work is kept, other work refused", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "tokens";
  fs::create_directory(path);  // an empty directory is taken
  make_tokens(path, 256, {{1, 2, 3}});
  TokenWriter again(path + "/", identity(256));
  again.begin_document();
  again.append(std::vector<int32_t>{1, 2, 3});
  CHECK(again.commit() == TokenWriter::Outcome::kUnchanged);
  check_throws<ConfigError>([&] { make_tokens(path, 256, {{1, 2, 4}}); }, {path, "exists"});
  check_throws<ConfigError>([&] { make_tokens(path, 256, {{1}, {2, 3}}); }, {path, "exists"});
  CHECK(read_all(TokenFile(path)) == std::vector<int32_t>{1, 2, 3});
  CHECK(scratch.names() == std::vector<std::string>{"tokens"});

  scratch.write("file", "mine");
  check_throws<ConfigError>([&] { make_tokens(scratch / "file", 256, {{1}}); }, {"exists"});
  check_throws<IoError>([&] { make_tokens(scratch / "file/below", 256, {{1}}); }, {"cannot write"});
  CHECK(slurp(scratch / "file") == "mine");
}

TEST_CASE("a damaged token directory is named, with what was expected", "[data]") {
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
  SECTION("documents that leave the file") {
    std::fstream(path + "/documents.bin", std::ios::binary | std::ios::in | std::ios::out).seekp(8).write("\x77", 1);
    check_throws<DataError>(open, {"documents.bin", "document 0"});
  }
  SECTION("an id outside the vocabulary") {
    std::fstream(path + "/tokens.bin", std::ios::binary | std::ios::in | std::ios::out).seekp(6).write("\xe8\x03", 2);
    const TokenFile file(path);
    std::vector<int32_t> tokens(5);
    file.read(0, 3, tokens.data());
    check_throws<DataError>([&] { file.read(2, 3, tokens.data()); }, {"tokens.bin", "token 3 is 1000", "vocabulary of 1000"});
  }
  SECTION("values of the index") {
    for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{{"version", 2},
                                                                                        {"tokens", -5},
                                                                                        {"tokens", 5.0},
                                                                                        {"tokens", "5"},
                                                                                        {"tokens", 18446744073709551615ULL},
                                                                                        {"token_bytes", 4},
                                                                                        {"vocab_size", 0},
                                                                                        {"vocab_size", 1LL << 40},
                                                                                        {"documents", nullptr},
                                                                                        {"tokenizer", 1},
                                                                                        {"compression", "none"}}) {
      with_index(key, value);
      check_throws<DataError>(open, {"index.json", key});
    }
    with_index("tokens", 0);
    check_throws<DataError>(open, {"holds no token"});
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

TEST_CASE("offsets are 64 bits: a sparse file over 5 GB", "[data]") {
  const Scratch scratch;
  const std::string path = scratch / "sparse";
  fs::create_directory(path);
  TokenIndex index = identity(1000);
  index.tokens = 3'000'000'001;  // of 2 bytes: both the token number and the byte offset exceed 32 bits
  index.documents = 1;
  std::ofstream(path + "/index.json") << index.to_json();
  const uint64_t documents[] = {0, static_cast<uint64_t>(index.tokens)};
  std::ofstream(path + "/documents.bin", std::ios::binary).write(reinterpret_cast<const char*>(documents), sizeof documents);
  std::ofstream(path + "/tokens.bin", std::ios::binary).seekp(6'000'000'000).write("\x07\x01", 2);
  REQUIRE(fs::file_size(path + "/tokens.bin") == 6'000'000'002);

  const TokenDataset dataset({path}, 1000, 1000, "bytes-v1");
  REQUIRE(dataset.sequences() == 3'000'000);
  std::vector<int32_t> tokens(1000);
  std::vector<int32_t> targets(1000);
  dataset.read(2'999'999, tokens.data(), targets.data());
  CHECK(tokens == std::vector<int32_t>(1000, 0));
  CHECK(targets[998] == 0);
  CHECK(targets[999] == 0x0107);
  dataset.read(0, tokens.data(), targets.data());
  CHECK(targets[999] == 0);
}

TEST_CASE("samples cover the stream of all directories, each target once", "[data]") {
  const Scratch scratch;
  std::vector<int32_t> stream(50);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<int32_t>(i * 7 % 256);
  const std::vector<int64_t> cuts = {0, 3, 4, 21, 50};  // windows that cross one, two and three directories
  std::vector<std::string> directories;
  for (size_t d = 0; d + 1 < cuts.size(); ++d) {
    directories.push_back(scratch / std::to_string(d));
    make_tokens(directories.back(), 256, {{stream.begin() + cuts[d], stream.begin() + cuts[d + 1]}});
  }
  for (const int64_t length : {1, 2, 5, 7, 16, 49}) {
    CAPTURE(length);
    const TokenDataset dataset(directories, length, 256, "bytes-v1");
    REQUIRE(dataset.sequences() == 49 / length);
    std::vector<int32_t> tokens(static_cast<size_t>(length));
    std::vector<int32_t> targets(static_cast<size_t>(length));
    for (int64_t sample = 0; sample < dataset.sequences(); ++sample) {
      dataset.read(sample, tokens.data(), targets.data());
      CHECK(std::equal(tokens.begin(), tokens.end(), stream.begin() + sample * length));
      CHECK(std::equal(targets.begin(), targets.end(), stream.begin() + sample * length + 1));
    }
    CHECK_THROWS_AS(dataset.read(dataset.sequences(), tokens.data(), targets.data()), InternalError);
    dataset.read(-1, tokens.data(), targets.data());
    CHECK(tokens == std::vector<int32_t>(static_cast<size_t>(length), 0));
    CHECK(targets == std::vector<int32_t>(static_cast<size_t>(length), -1));
  }
  check_throws<DataError>([&] { TokenDataset(directories, 50, 256, "bytes-v1"); }, {"50 tokens", "need 51"});
  check_throws<DataError>([&] { TokenDataset(directories, 5, 255, "bytes-v1"); }, {"vocabulary of 256", "vocab_size of 255"});
  check_throws<DataError>([&] { TokenDataset(directories, 5, 256, "bpe-1"); }, {"bytes-v1", "bpe-1"});
  CHECK_NOTHROW(TokenDataset(directories, 5, 257, "bytes-v1"));
}

TEST_CASE("the fingerprint of a dataset tells its contents, not its place", "[data]") {
  const Scratch scratch;
  make_tokens(scratch / "a", 256, {{1, 2, 3, 4}});
  make_tokens(scratch / "b", 256, {{1, 2, 3, 4}});
  make_tokens(scratch / "c", 256, {{1, 2, 3, 5}});
  const auto fingerprint = [&](const std::vector<std::string>& directories) { return TokenDataset(directories, 2, 256, "bytes-v1").fingerprint(); };
  CHECK(fingerprint({scratch / "a"}) == fingerprint({scratch / "b"}));
  CHECK(fingerprint({scratch / "a"}) != fingerprint({scratch / "c"}));
  CHECK(fingerprint({scratch / "a", scratch / "c"}) != fingerprint({scratch / "c", scratch / "a"}));
}

TEST_CASE("data build and data inspect", "[data]") {
  const Scratch scratch;
  const std::string long_text(3'000'000, 'x');  // several chunks
  const std::string first = scratch.write("first.txt", "It was a dark\x1b and stormy night.\n");
  const std::string second = scratch.write("second.txt", long_text);
  const std::string output = scratch / "out/tokens";
  CHECK(data_command({"build", "--tokenizer", "bytes", "--output", output, first, second}).find("3000033 tokens in 2 documents") !=
        std::string::npos);
  CHECK(slurp(output + "/tokens.bin") == slurp(first) + long_text);
  CHECK(data_command({"build", "--output", output, first, second}).find("nothing changed") != std::string::npos);

  const nlohmann::json json = nlohmann::json::parse(data_command({"inspect", output, "--json"}));
  CHECK(json["tokens"] == 3'000'033);
  CHECK(json["documents"] == 2);
  CHECK(json["vocab_size"] == 256);
  CHECK(json["document_tokens"]["shortest"] == 33);
  CHECK(json["document_tokens"]["mean"] == 1'500'016.5);
  CHECK(json["document_tokens"]["longest"] == 3'000'000);
  CHECK(json["sample"].get<std::string>().rfind("It was a dark\x1b", 0) == 0);
  CHECK(data_command({"inspect", output}).find("It was a dark? and stormy night.") != std::string::npos);

  const std::string binary = scratch.write("binary", "\xff\xfe\x80");
  data_command({"build", "--output", scratch / "binary-tokens", binary});
  CHECK_NOTHROW(nlohmann::json::parse(data_command({"inspect", scratch / "binary-tokens", "--json"})));
}

TEST_CASE("data build refuses bad input and leaves nothing behind", "[data]") {
  const Scratch scratch;
  const std::string good = scratch.write("good.txt", "text");
  const std::string empty = scratch.write("empty.txt", "");
  const std::string out = scratch / "new/out";
  check_throws<MissingFileError>([&] { data_command({"build", "--output", out, good, scratch / "nowhere.txt"}); }, {"nowhere.txt"});
  check_throws<IoError>([&] { data_command({"build", "--output", out, good, scratch / "."}); }, {"is a directory"});
  check_throws<DataError>([&] { data_command({"build", "--output", out, good, empty}); }, {"empty.txt", "is empty"});
  check_throws<DataError>([&] { data_command({"build", "--output", out, good, "/dev/null"}); }, {"/dev/null", "is empty"});
  check_throws<ConfigError>([&] { data_command({"build", "--tokenizer", "wordpiece", "--output", out, good}); }, {"wordpiece", "bytes"});
  check_throws<ConfigError>([&] { data_command({"build", "--output", "", good}); }, {"--output"});
  check_throws<IoError>([&] { data_command({"build", "--output", "/proc/out", good}); }, {"/proc/out", "cannot write"});
  CHECK_THROWS_AS(data_command({"build", "--output", out}), CLI::ParseError);
  CHECK_THROWS_AS(data_command({"build", good}), CLI::ParseError);
  CHECK_THROWS_AS(data_command({"build", "--output", out, "--workers", "2", good}), CLI::ParseError);
  check_throws<MissingFileError>([&] { data_command({"inspect", scratch / "nowhere"}); }, {"nowhere"});
  CHECK(scratch.names() == std::vector<std::string>{"empty.txt", "good.txt"});
}
