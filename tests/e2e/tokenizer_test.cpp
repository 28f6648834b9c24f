// `trireme tokenizer train | encode | decode` from the command line.
#include <fstream>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

const std::string kGoldenTraining = in_checkout("tests/golden/bpe_training/");

Arguments train_arguments(const Arguments& more) { return Arguments{"tokenizer", "train", "--vocab-size", "700", "--output", "t.json"} + more; }

}  // namespace

TEST_CASE("tokenizer command: trains, encodes and decodes, preserving every byte") {
  TemporaryDirectory directory;
  fs::copy(kGoldenTraining + "mixed.txt", directory / "text");
  const Outcome trained = run(directory, train_arguments({"text"}));
  check_error(trained, 0, "t.json: 700 tokens from ");
  CHECK(trained.out.empty());
  CHECK(trained.err.find('\r') == std::string::npos);
  CHECK(read_file(directory / "t.json") == read_file(kGoldenTraining + "llama3.json"));
  CHECK(directory.listing().size() == 2);

  // All kinds of input: NUL, invalid UTF-8, no line feed at the end.
  std::string bytes = read_file(directory / "text") + " end";
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  write_file(directory / "bytes", bytes);
  for (const std::string tokenizer : {"t.json", "bytes", "."}) {
    INFO(tokenizer);
    fs::remove(directory / "tokenizer.json");
    if (tokenizer == ".") fs::copy(directory / "t.json", directory / "tokenizer.json");
    const Outcome back = shell(directory, "$T tokenizer encode --tokenizer " + tokenizer + " < bytes | $T tokenizer decode --tokenizer " + tokenizer +
                                              " > back && cmp bytes back");
    check_error(back, 0, "");
    CHECK(shell(directory, "$T tokenizer encode --tokenizer " + tokenizer + " bytes > ids && $T tokenizer decode --tokenizer " + tokenizer +
                               " ids | cmp bytes -")
              .code == 0);
  }
}

TEST_CASE("tokenizer command: one line per file, as ids or as JSON") {
  TemporaryDirectory directory;
  write_file(directory / "a", "AB");
  write_file(directory / "b", "C\n");
  write_file(directory / "none", "");
  CHECK(run(directory, {"tokenizer", "encode", "--tokenizer", "bytes", "a", "none", "b"}).out == "65 66\n\n67 10\n");
  CHECK(run(directory, {"tokenizer", "encode", "--tokenizer", "bytes", "--json", "a", "none", "b"}).out == "[65,66]\n[]\n[67,10]\n");
  CHECK(shell(directory, "printf xyz | $T tokenizer encode --tokenizer bytes a - b").out == "65 66\n120 121 122\n67 10\n");
  CHECK(shell(directory, "printf '\\t65\\r\\n\\n66 67' | $T tokenizer decode --tokenizer bytes").out == "ABC");
  CHECK(shell(directory, "$T tokenizer encode --tokenizer bytes --json a none b | $T tokenizer decode --tokenizer bytes").out == "ABC\n");
  CHECK(shell(directory, "$T tokenizer decode --tokenizer bytes < none").out.empty());
  // Longer than a stretch of the reader, through pipes.
  CHECK(shell(directory, "seq 400000 > long; cat long | $T tokenizer encode --tokenizer bytes | $T tokenizer decode --tokenizer bytes | cmp long -")
            .code == 0);
  CHECK(shell(directory, "$T tokenizer encode --tokenizer bytes long > /dev/full").code == 74);
}

TEST_CASE("tokenizer command: a bad id is reported with its position") {
  TemporaryDirectory directory;
  const auto decode = [&](const std::string& ids) {
    write_file(directory / "ids", ids);
    const Outcome outcome = run(directory, {"tokenizer", "decode", "--tokenizer", "bytes", "ids"});
    CHECK(outcome.out.empty());
    return outcome;
  };
  check_error(decode("1 2\n3 256 4"), 65, "ids, line 2, place 2: \"256\" is not a token id; expected an integer from 0 to below 256");
  check_error(decode("1 2\n\n-1"), 65, "ids, line 3, place 1: \"-1\"");
  check_error(decode("65 6x"), 65, "ids, line 1, place 2: \"6x\"");
  check_error(decode("1.0"), 65, "ids, line 1, place 1: \"1.0\"");
  check_error(decode("99999999999999999999"), 65, "\"99999999999999999999\"");
  check_error(decode("[65, 6x]\n"), 65, "ids, line 1, place 2: \"6x\"");
  check_error(decode("\0332J"), 65, "\"?2J\"");
  check_error(shell(directory, "echo 300 | $T tokenizer decode --tokenizer bytes"), 65, "standard input, line 1, place 1: \"300\"");
}

TEST_CASE("tokenizer command: the result is complete or absent, and never replaces a different file") {
  TemporaryDirectory directory;
  fs::copy(kGoldenTraining + "few.txt", directory / "text");
  check_error(run(directory, train_arguments({"text"})), 0, "fewer than --vocab-size=700, because every piece is already one token");
  const auto before = directory.listing();
  check_error(run(directory, train_arguments({"--threads", "1", "text"})), 0, "the identical file already exists, nothing changed");
  CHECK(directory.changes_since(before) == "");
  check_error(run(directory, train_arguments({"--special", "<s>", "--special", "</s>", "text"})), 64, "--output=t.json: exists and differs");
  CHECK(directory.changes_since(before) == "");
  check_error(shell(directory, "cat text | $T tokenizer train --vocab-size 700 --output piped.json - && cmp t.json piped.json"), 0, "piped.json: ");
  check_error(shell(directory, "$T tokenizer train --vocab-size 700 --output piped.json <(cat text)"), 0, "nothing changed");
  check_error(run(directory, {"tokenizer", "train", "--vocab-size", "262", "--output", "s.json", "--special", "<s>", "--special", "</s>", "text"}), 0,
              "262 tokens");
  const auto file = nlohmann::json::parse(read_file(directory / "s.json"));
  CHECK(file["added_tokens"].size() == 2);
  CHECK(file["model"]["vocab"]["</s>"] == 1);
}

TEST_CASE("tokenizer command: bad input is reported before anything is written") {
  TemporaryDirectory directory;
  write_file(directory / "text", "some text");
  write_file(directory / "empty", "");
  write_file(directory / "broken.json", "{");
  write_file(directory / "lines.jsonl", "{\"text\": \"a\"}\n");
  write_file(directory / "text.gz", "\x1f\x8b");
  fs::create_directories(directory / "folder.json");
  const auto before = directory.listing();
  const auto train = [&](const std::string& size, const std::string& output, const Arguments& more) {
    return run(directory, Arguments{"tokenizer", "train", "--vocab-size", size, "--output", output} + more);
  };
  check_error(train("300", "t.json", {"text", "text.gz"}), 65,
              "text.gz: is a gzip file, not text; decompress it first: zcat FILE | trireme tokenizer ... -");
  check_error(train("300", "t.json", {"lines.jsonl"}), 65, "lines.jsonl: contains JSON lines, not text");
  check_error(run(directory, {"tokenizer", "encode", "--tokenizer", "bytes", "lines.jsonl"}), 65, "trireme data build encodes their \"text\"");
  check_error(run(directory, {"tokenizer", "encode", "--tokenizer", "bytes", "text.gz"}), 65,
              "text.gz: is a gzip file, not text; decompress it first: zcat FILE | trireme tokenizer ... -");
  check_error(train("256", "t.json", {"text"}), 64, "--vocab-size=256: too small: 256 bytes and 1 special tokens need 257");
  check_error(train("256", "t.json", {"missing"}), 64, "--vocab-size=256");
  check_error(train("0", "t.json", {"text"}), 64, "--vocab-size");
  check_error(train("300", "t.model", {"text"}), 64, "SentencePiece models are read but not trained here");
  check_error(train("300", "t.txt", {"text"}), 64, "name a file that ends in .json");
  check_error(train("300", "folder.json", {"text"}), 64, "exists and is not a regular file");
  check_error(train("300", "nowhere/t.json", {"text"}), 64, "no such directory: nowhere");
  check_error(train("300", "t.json", {"--pattern", "gpt5", "text"}), 64, "gpt5");
  check_error(train("300", "t.json", {"--special", "a", "text"}), 64, "--special=a: represents a byte");
  check_error(train("300", "t.json", {"--special", "<a>", "--special", "<a>", "text"}), 64, "--special=<a>: given twice");
  check_error(train("300", "t.json", {}), 64, "files is required");
  check_error(train("300", "t.json", {"text", "missing"}), 66, "missing: cannot open");
  check_error(train("300", "t.json", {"folder.json"}), 74, "folder.json: is a directory");
  check_error(train("300", "t.json", {"empty"}), 65, "empty: is empty");
  check_error(run(directory, {"tokenizer", "encode", "--tokenizer", "bytes", "text", "missing"}), 66, "missing: cannot open");
  CHECK(run(directory, {"tokenizer", "encode", "--tokenizer", "bytes", "text", "missing"}).out.empty());
  check_error(run(directory, {"tokenizer", "encode", "--tokenizer", "words", "text"}), 64, "words");
  check_error(run(directory, {"tokenizer", "encode", "--tokenizer", "none.json", "text"}), 66, "none.json");
  check_error(run(directory, {"tokenizer", "encode", "--tokenizer", "broken.json", "text"}), 65, "broken.json: not valid JSON");
  check_error(run(directory, {"tokenizer", "encode", "text"}), 64, "--tokenizer is required");
  check_error(run(directory, {"tokenizer"}), 64, "see trireme --help");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("data build: documents that are joined without an end-of-text token are named in a warning") {
  TemporaryDirectory directory;
  write_file(directory / "docs.jsonl", "{\"text\": \"hello\"}\n{\"text\": \"hello\"}\n");
  write_file(directory / "text", "hello hello");
  fs::create_directories(directory / "folder");
  must(run(directory, {"tokenizer", "train", "--vocab-size", "257", "--special", "<end>", "--output", "folder/tokenizer.json", "text"}));
  const auto built = [&](const std::string& tokenizer, const std::string& output, const Arguments& more = {}) {
    return must(run(directory, Arguments{"data", "build", "--tokenizer", tokenizer, "--output", output, "docs.jsonl"} + more)).err;
  };
  const std::string warning = "warning: 2 documents joined without an end-of-text token between them: folder/tokenizer.json: no eos_token is named";
  CHECK(built("folder", "a").starts_with(warning));
  CHECK(built("folder", "b", {"--no-end-of-text"}).find("warning") == std::string::npos);
  CHECK(built("bytes", "c").find("warning: 2 documents joined without an end-of-text token between them: tokenizer bytes has") != std::string::npos);
  check_error(run(directory, {"data", "build", "--tokenizer", "folder", "--end-of-text", "--output", "d", "docs.jsonl"}), 64,
              "no eos_token is named");
  write_file(directory / "folder/special_tokens_map.json", R"({"eos_token": "<end>"})");
  CHECK(built("folder", "e").find("warning") == std::string::npos);
  const auto index = nlohmann::json::parse(read_file(directory / "e/index.json"));
  CHECK(index["tokens"] == 12);
  CHECK(fs::exists(directory / "e/special_tokens_map.json"));  // a token directory's copy names the same end
}

}  // namespace trireme::test
