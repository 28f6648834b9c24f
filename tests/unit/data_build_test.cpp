// `data build` and `data inspect`: inputs, outputs, and that neither threads nor kills change the output.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/rng.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/scratch.h"
#include "trainer/commands/data_command.h"
#include "trainer/data/build/build.h"
#include "trainer/data/token_writer.h"
#include "trainer/tokenizer/tokenizer.h"

using namespace trireme;
using test::check_throws, test::Scratch, test::slurp;
namespace fs = std::filesystem;

namespace {

std::map<std::string, std::string> files_of(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) files[entry.path().filename().string()] = slurp(entry.path().string());
  return files;
}

/// Runs `trireme data ...` and returns what it printed.
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

/// A tokenizer.json with the bytes, two merges ("th", "the") and an end-of-text token: 256 + 2 + 1 ids.
std::string tokenizer_json() {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object();
  const auto utf8 = [](int code) {
    return code < 0x80 ? std::string(1, static_cast<char>(code))
                       : std::string{static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
  };
  int aside = 256;  // unprintable bytes get the code points from here on, as in GPT-2
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    vocabulary[utf8(printable ? byte : aside++)] = byte;
  }
  vocabulary["th"] = 256;
  vocabulary["the"] = 257;
  const nlohmann::ordered_json json{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens",
       {{{"id", 258},
         {"content", "<|endoftext|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", vocabulary},
        {"merges", {"t h", "th e"}}}}};
  return json.dump();
}
constexpr int32_t kEnd = 258;

std::vector<int32_t> tokens_of(const TokenFile& file, int64_t document) {
  const TokenFile::Document place = file.document(document);
  std::vector<int32_t> tokens(static_cast<size_t>(place.end - place.begin));
  file.read(place.begin, place.end - place.begin, tokens.data());
  return tokens;
}

/// Words, spaces and line feeds, with some long lines.
std::string prose(size_t bytes, uint64_t seed) {
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    const uint64_t bits = random_bits(seed, i);
    text += bits % 3 == 0 ? "the" : std::string(1 + bits % 9, static_cast<char>('a' + bits / 16 % 26));
    text += bits / 512 % 40 == 0 ? "\n" : bits / 512 % 41 == 0 ? "  \n\n" : " ";
  }
  return text;
}

/// Inputs of every kind, some of several pieces.
std::vector<std::string> write_inputs(const Scratch& scratch, size_t bytes) {
  std::string lines;
  for (uint64_t i = 0; lines.size() < bytes; ++i)
    lines += nlohmann::json{{"id", i}, {"text", prose(random_bits(7, i) % 5000, i)}}.dump() + (i % 50 == 7 ? "\n\n" : "\n");
  scratch.write("in/long.txt", prose(3 * bytes, 1));
  scratch.write("in/sub/lines.jsonl", lines);
  scratch.write("in/z.txt", prose(bytes / 2, 2) + "no line end");
  for (int i = 0; i < 40; ++i) scratch.write("in/many/" + std::to_string(i) + ".txt", prose(static_cast<size_t>(100 * i), 3));
  scratch.write("last.txt", prose(100, 4));
  return {scratch / "in", scratch / "last.txt"};
}

BuildOptions options_for(const Scratch& scratch, const std::string& output, std::vector<std::string> inputs) {
  BuildOptions options;
  options.tokenizer = scratch.write("tokenizer/tokenizer.json", tokenizer_json());
  options.output = scratch / output;
  options.inputs = std::move(inputs);
  options.threads = 2;
  return options;
}

}  // namespace

TEST_CASE("data build and data inspect", "[data]") {
  const Scratch scratch;
  const std::string long_text(3'000'000, 'x');  // several pieces
  const std::string first = scratch.write("first.txt", "It was a dark\x1b and stormy night.\n");
  const std::string second = scratch.write("second.txt", long_text);
  const std::string output = scratch / "out/tokens";
  CHECK(data_command({"build", "--tokenizer", "bytes", "--output", output, first, second}).find("3000033 tokens in 2 documents") !=
        std::string::npos);
  CHECK(slurp(output + "/tokens.bin") == slurp(first) + long_text);
  CHECK(data_command({"build", "--output", output, first, second}).find("nothing changed") != std::string::npos);
  CHECK(files_of(output).size() == 3);

  const nlohmann::json json = nlohmann::json::parse(data_command({"inspect", output, "--json"}));
  CHECK(json["tokens"] == 3'000'033);
  CHECK(json["documents"] == 2);
  CHECK(json["vocab_size"] == 256);
  CHECK(json["document_tokens"]["shortest"] == 33);
  CHECK(json["document_tokens"]["mean"] == 1'500'016.5);
  CHECK(json["document_tokens"]["longest"] == 3'000'000);
  CHECK(json["lengths"] == nlohmann::json::parse(R"([{"from":32,"to":63,"documents":1},{"from":2097152,"to":4194303,"documents":1}])"));
  CHECK(json["sample"].get<std::string>().rfind("It was a dark\x1b", 0) == 0);
  const std::string shown = data_command({"inspect", output});
  CHECK(shown.find("It was a dark? and stormy night.") != std::string::npos);
  CHECK(shown.find("#####") != std::string::npos);

  const std::string binary = scratch.write("binary", "some bytes \xff\xfe\x80 that are not UTF-8, in a text");
  data_command({"build", "--output", scratch / "binary-tokens", binary});
  CHECK_NOTHROW(nlohmann::json::parse(data_command({"inspect", scratch / "binary-tokens", "--json"})));
}

TEST_CASE("data inspect: a format without document boundaries", "[data]") {
  const Scratch scratch;
  const std::string path = scratch.write("ids.bin", std::string("a\0b\0\xe8\3", 6));  // nanoGPT: 97, 98, 1000
  CHECK(data_command({"inspect", path}).find("documents   not recorded by this format\n") != std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(data_command({"inspect", path, "--json"}));
  CHECK(json["documents"].is_null());
  CHECK_FALSE(json.contains("lengths"));
  check_throws<DataError>(
      [&] {
        data_command({"inspect", "--tokenizer", "bytes", path});
      },
      {"ids.bin: token 2 is 1000, outside the vocabulary of 256", "data.tokenizer or model.vocab_size does not match"});
}

TEST_CASE("data build refuses bad input and leaves nothing behind", "[data]") {
  const Scratch scratch;
  const std::string good = scratch.write("good.txt", "text");
  const std::string empty = scratch.write("empty.txt", "");
  const std::string out = scratch / "new/out";
  fs::create_directory(scratch / "hollow");
  scratch.write("packed/text.txt.gz", "\x1f\x8b");
  scratch.write("linked/a.txt", "a");
  fs::create_directory_symlink("../hollow", scratch / "linked/loop");
  scratch.write("broken/a.txt", "a");
  fs::create_symlink("nowhere", scratch / "broken/link");
  data_command({"build", "--output", scratch / "tokens", good});
  const std::vector<std::string> before = scratch.names();

  const auto build = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"build", "--output", out});
    return [arguments] { data_command(arguments); };
  };
  check_throws<MissingFileError>(build({good, scratch / "nowhere.txt"}), {"nowhere.txt"});
  check_throws<DataError>(build({good, empty}), {"empty.txt", "is empty"});
  check_throws<DataError>(build({good, "/dev/null"}), {"/dev/null", "is empty"});
  check_throws<DataError>(build({scratch / "hollow"}), {"no token"});
  check_throws<DataError>(build({scratch / "tokens"}), {"tokens: is a token directory"});
  check_throws<DataError>(build({scratch / "packed"}), {"packed/text.txt.gz: is a gzip file, not text"});
  check_throws<DataError>(build({scratch / "linked"}), {"linked/loop: is a link to a directory"});
  check_throws<MissingFileError>(build({scratch / "broken"}), {"broken/link"});
  check_throws<ConfigError>(build({"--tokenizer", "wordpiece", good}), {"wordpiece"});
  check_throws<ConfigError>(build({"--end-of-text", good}), {"--end-of-text", "bytes"});
  check_throws<ConfigError>([&] { data_command({"build", "--output", "", good}); }, {"--output"});
  check_throws<ConfigError>([&] { data_command({"build", "--output", scratch / "packed/out", scratch / "packed"}); }, {"packed/out: is inside"});
  check_throws<IoError>([&] { data_command({"build", "--output", "/proc/out", good}); }, {"/proc/out", "cannot create"});
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{},
                                             {"--workers", "2", good},
                                             {"--threads", "0", good},
                                             {"--end-of-text", "--no-end-of-text", good},
                                             {"--field", "", good},
                                             {"--prompt-field", "q", good},
                                             {"--response-field", "a", good},
                                             {"--template", "{prompt}{response}", good},
                                             {"--prompt-field", "q", "--response-field", "a", "--field", "t", good}})
    CHECK_THROWS_AS(build(bad)(), CLI::ParseError);
  CHECK_THROWS_AS(data_command({"build", good}), CLI::ParseError);
  check_throws<ConfigError>(build({"--prompt-field", "q", "--response-field", "q", good}), {"--response-field=q"});
  for (const char* bad : {"{prompt}", "{response}", "{response}{prompt}", "{prompt}{prompt}{response}", "{prompt}{response}{response}", ""})
    check_throws<ConfigError>(build({"--prompt-field", "q", "--response-field", "a", "--template", bad, good}),
                              {"--template", "after it, {response} once"});
  check_throws<ConfigError>(build({"--prompt-field", "q", "--response-field", "a", "--template", "{prompt}\\r{response}", good}), {"invalid escape"});
  for (const auto& [bad, name] : std::vector<std::pair<std::string, std::string>>{{"{instruction}{prompt}{response}", "{instruction}"},
                                                                                  {"{prompt} { input }\\n{response}", "{ input }"},
                                                                                  {"{prompt}{response}{Prompt}", "{Prompt}"},
                                                                                  {"{prompt}{{response}}{out-put}{response}", "{out-put}"}})
    check_throws<ConfigError>(
        build({"--prompt-field", "q", "--response-field", "a", "--template", bad, good}),
        {"--template=" + bad + ": unknown field " + name, "allowed {prompt} and {response}", "{" + name + "} is the text " + name});
  check_throws<MissingFileError>([&] { data_command({"inspect", scratch / "nowhere"}); }, {"nowhere"});
  CHECK(scratch.names() == before);
}

TEST_CASE("data build refuses what is not text by the name of its format", "[data]") {
  const Scratch scratch;
  const auto check = [&](const std::string& path, const std::vector<std::string>& words) {
    CAPTURE(path);
    check_throws<DataError>([&] { data_command({"build", "--output", scratch / "out", path}); }, words);
    CHECK_FALSE(fs::exists(scratch / "out"));
  };
  struct Case {
    std::string name, bytes;
    std::vector<std::string> words;
  };
  const std::string noise("\x80\x9f\0\xff\xc1", 5);
  const std::vector<Case> cases = {
      {"a.gz", "text", {"a.gz: is a gzip file, not text; decompress it first: zcat FILE | trireme data build ... -"}},
      {"a.jsonl.gz", "\x1f\x8b" + noise, {"is a gzip file", "zcat FILE | trireme data build --field text ... -"}},
      {"gzip", "\x1f\x8b" + noise, {"gzip: is a gzip file", "zcat FILE"}},
      {"zstd.jsonl", "\x28\xb5\x2f\xfd" + noise, {"is a Zstandard file", "zstdcat FILE"}},
      {"xz.txt", "\xfd" + std::string("7zXZ\0", 5) + noise, {"is an xz file", "xzcat FILE"}},
      {"bzip", "BZh91AY&SY" + noise, {"is a bzip2 file", "bzcat FILE"}},
      {"zip.gz", "PK\x03\x04" + noise, {"is a zip file", "unzip -p FILE"}},
      {"table", "PAR1" + noise, {"is a Parquet file, not text; convert it to JSON lines"}},
      {"table.parquet", "text", {"is a Parquet file"}},
      {"table.arrow", "text", {"is an Arrow file"}},
      {"arrow.txt", "ARROW1" + noise, {"is an Arrow file, not text; convert it to JSON lines"}},
      {"stream", "\xff\xff\xff\xff" + noise, {"is an Arrow file"}},
      {"wide", "\xff\xfet\xe9", {"byte order mark of UTF-16", "iconv -f ENCODING -t UTF-8"}},
      {"nul", std::string("text\0text", 9), {"nul: is binary: byte 4 is NUL"}},
      {"late", std::string(1'000'000, ' ') + std::string(1, '\0'), {"late: is binary: byte 1000000 is NUL"}},
      {"wider", std::string("\0\0\xfe\xff\0\0\0t", 8), {"byte order mark of UTF-16 or UTF-32"}},
      {"paper.pdf", "%PDF-1.7\n" + noise, {"is a PDF document, not text; extract its text first: pdftotext FILE - | trireme data build ... -"}},
      {"model.gguf", "GGUF" + noise, {"is a GGUF file, not text"}},
      {"array", "\x93NUMPY" + noise, {"is a NumPy array, not text"}},
      {"archive", "7z\xbc\xaf\x27\x1c" + noise, {"is a 7z archive"}},
      {"pointer.txt",
       "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       {"is a Git LFS pointer, not the file itself", "git lfs pull"}},
      {"greek", "\xca\xe1\xeb\xe7\xec\xdd\xf1\xe1", {"greek: not UTF-8: 7 of the first 8 bytes are invalid", "iconv"}},
  };
  for (const Case& one : cases) check(scratch.write(one.name, one.bytes), one.words);
  const std::string pipe = scratch / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { std::ofstream(pipe, std::ios::binary) << "\x1f\x8b" << noise; });
  check(pipe, {"pipe: is a gzip file"});
  writer.join();
  scratch.write("saved/state.json", "{}");
  scratch.write("saved/data-00000-of-00001.arrow", "\xff\xff\xff\xff");
  check(scratch / "saved", {"saved: is a directory of Hugging Face datasets (save_to_disk)", "load_from_disk(DIR).to_json("});
  scratch.write("splits/dataset_dict.json", "{\"splits\": [\"train\"]}");
  scratch.write("splits/train/a.txt", "text");
  check(scratch / "splits", {"splits: is a directory of Hugging Face datasets"});
  // A few bytes that are not UTF-8 are text: a Latin-1 letter in an English sentence.
  data_command({"build", "--output", scratch / "out", scratch.write("latin", "Naive is also written na\xefve.")});
}

TEST_CASE("what looks like JSON, a table, HTML or XML is named, and read as text only with --plain-text or as a part of a directory", "[data]") {
  const Scratch scratch;
  struct Case {
    std::string name, bytes;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases = {
      {"alpaca.json",
       "[\n {\n  \"instruction\": \"Add.\",\n  \"input\": \"a } b\",\n  \"output\": \"5\"\n }\n]\n",
       {"looks like a JSON array", "jq -c '.[]' FILE > FILE.jsonl", "texts in instruction, input, output", "--plain-text"}},
      {"array.txt", "[{\"a\": 1}]", {"looks like a JSON array"}},
      {"array.jsonl", "[\n{\"text\": \"a\"}]", {"looks like a JSON array", "texts in text"}},
      {"lines",
       "{\"body\": \"a\", \"meta\": {\"title\": \"b\"}, \"n\": 1}\n{\"body\": \"c\"}\n",
       {"looks like JSON lines", "--field NAME", "body, meta.title"}},
      {"notebook.ipynb", "{\n \"cells\": []\n}", {"looks like a JSON document"}},
      {"table.csv", "text,label\n\"first, document\",1\nsecond,0\n", {"looks like a table of comma-separated values", "--field"}},
      {"table.txt", "text,label\n\"first, document\",1\nsecond,0\n", {"looks like a table of comma-separated values"}},
      {"quoted.txt", "id,text\n1,\"a text that goes\non\"\n", {"looks like a table of comma-separated values"}},
      {"table.tsv", "whatever", {"looks like a table of tab-separated values"}},
      {"tabs", "text\tlabel\r\na document\t1\r\n", {"looks like a table of tab-separated values"}},
      {"page", "\n <!DOCTYPE html><p>text", {"looks like an HTML page"}},
      {"page.html", "<html><p>text", {"looks like an HTML page"}},
      {"dump.xml", "\xef\xbb\xbf<?xml version=\"1.0\"?><a>", {"looks like an XML document"}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const std::string path = scratch.write("in/" + one.name, one.bytes);
    check_throws<DataError>([&] { data_command({"build", "--output", scratch / "out", path}); }, one.words);
    CHECK_FALSE(fs::exists(scratch / "out"));
    if (one.name == "array.jsonl") {
      fs::remove(path);
      continue;
    }
    const std::string out = scratch / ("out-" + one.name);
    data_command({"build", "--plain-text", "--output", out, path});
    CHECK(TokenFile(out).tokens() == std::ssize(one.bytes));
  }
  // In a directory it may be source code.
  BuildOptions options = options_for(scratch, "all", {scratch / "in"});
  const BuildResult result = build_tokens(options);
  CHECK(result.index.documents == static_cast<int64_t>(cases.size()) - 1);
  CHECK(result.looks_like.size() == 7);  // the first of each kind
  // Prose, code and lists are no tables.
  int number = 0;
  for (const char* text :
       {"Hello, world\nthis, too\n", "one,two\nthree\n", "[1] a note\n", "{ braces }\n", "<p> alone", "a b\tc\nd\n", "x = [{'a': 1}]\n",
        "first,second", "[[wiki]] text\n", "text, label\nfirst, 1\n", "#include <a>\n#include <b>\n", "\xef\xbb\xbftext\n"})
    data_command({"build", "--output", scratch / concat("prose-", number++), scratch.write(concat("prose", number, ".txt"), text)});
}

TEST_CASE("JSON lines: fields that are there are named, paths lead to inner ones, and what is not used need not be right", "[data]") {
  const Scratch scratch;
  int number = 0;
  const auto built = [&](const std::string& lines, const std::string& field = "", bool skip = false) {
    ++number;
    BuildOptions options = options_for(scratch, concat("out", number), {scratch.write(concat("in", number, ".jsonl"), lines)});
    options.field = field;
    options.skip_bad_lines = skip;
    options.end_of_text = false;
    return build_tokens(options);
  };
  const auto text_of = [&](const BuildResult&) { return slurp(scratch / concat("out", number, "/tokens.bin")); };
  check_throws<DataError>([&] { built("{\"content\": \"a\", \"id\": 1, \"meta\": {\"title\": \"b\"}}"); },
                          {"in1.jsonl:1: \"text\" is missing; the line has texts in \"content\", \"meta.title\", which --field can name"});
  check_throws<DataError>([&] { built("{\"id\": 1}"); }, {"\"text\" is missing; the line has no text in any other field"});
  check_throws<DataError>([&] { built("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"); },
                          {"the line has lists in \"messages\": write the parts"});
  check_throws<DataError>([&] { built("{\"data\": {\"text\": \"a\"}}", "data"); }, {"\"data\" is an object; expected a string"});
  CHECK(built("{\"data\": {\"text\": \"abc\"}}", "data.text").index.tokens == 3);
  CHECK(built("{\"data.text\": \"abcd\"}", "data.text").index.tokens == 4);
  CHECK(built("{\"data\": [{\"text\": \"no\"}], \"text\": \"abcde\"}").index.tokens == 5);  // a list has no path
  check_throws<DataError>([&] { built("{\"data.text\": \"a\", \"data\": {\"text\": \"b\"}}", "data.text"); }, {"duplicate key"});
  // Python writes NaN and halves of surrogate pairs; keys that are not read may occur twice.
  for (const char* line :
       {R"({"text": "abc", "score": NaN})", R"({"score": -Infinity, "text": "abc", "b": [Infinity, NaN]})", R"({"id": 1, "text": "abc", "id": 2})",
        R"({"text": "abc", "note": "half \ud83d here"})", R"({"note": "half \udc00", "text": "abc", "x": NaN})"}) {
    CAPTURE(line);
    CHECK(built(line).index.tokens == 3);
  }
  CHECK(built(R"({"text": "NaN \"Infinity\" \\", "score": NaN})").index.tokens == 16);
  CHECK(built(R"({"text": "\ud83d\ude00", "score": NaN})").index.tokens == 4);  // a whole pair is a character
  check_throws<DataError>([&] { built(R"({"text": "half a pair \ud83d here"})"); }, {"\"text\" has half of a surrogate pair"});
  check_throws<DataError>([&] { built(R"({"text": "half \ude00\ud83d here"})"); }, {"\"text\" has half of a surrogate pair"});
  check_throws<DataError>([&] { built(R"({"text": NaN})"); }, {"\"text\" is null; expected a string"});
  check_throws<DataError>([&] { built(R"({"text": "a", "b": nope})"); }, {"not valid JSON"});
  // Bad lines are skipped on request, counted over the pieces, and the first is named.
  std::string lines;
  for (int i = 0; i < 30'000; ++i) lines += i % 1000 == 7 ? "{\"text\": 5}\n" : "{\"text\": \"good\"}\n";
  const BuildResult result = built(lines, "", true);
  CHECK(result.skipped_lines == 30);
  CHECK_THAT(result.first_skipped, Catch::Matchers::EndsWith(":8: \"text\" is 5; expected a string"));
  CHECK(result.index.documents == 30'000 - 30);
  CHECK(text_of(result).size() == 2 * 4 * (30'000 - 30));  // ids of two bytes
  check_throws<DataError>([&] { built("{\"text\": 5}\nnope\n", "", true); }, {"--skip-bad-lines: every line was skipped; ", ":1: \"text\" is 5"});
  // Other data are not the same build.
  BuildOptions again = options_for(scratch, concat("out", number - 1), {scratch / concat("in", number - 1, ".jsonl")});
  CHECK_THROWS_AS(build_tokens(again), DataError);
}

TEST_CASE("a bad JSON line is reported with file and line", "[data]") {
  const Scratch scratch;
  const std::string good = "{\"text\": \"good\"}\n";
  const std::string many = [&] {
    std::string lines;
    for (int i = 0; i < 20'000; ++i) lines += good;  // several pieces
    return lines;
  }();
  for (const auto& [line, message] :
       std::vector<std::pair<std::string, std::string>>{{"{\"text\": \"cut", "not valid JSON"},
                                                        {"{\"text\": \"" + std::string(100'000, 'x') + "\n", "not valid JSON"},
                                                        {"\"text\"", "not a JSON object"},
                                                        {"{\"Text\": \"a\"}", "\"text\" is missing"},
                                                        {"{\"text\": 5}", "\"text\" is 5; expected a string"},
                                                        {"{\"text\": null}", "\"text\" is null"},
                                                        {"{\"text\": \"a\", \"text\": \"b\"}", "duplicate key"},
                                                        {"{\"text\": \"\xff\"}", "not valid JSON"},
                                                        {"{\"text\": \"a\"}{\"text\": \"b\"}", "not valid JSON"},
                                                        {std::string(1, '\0'), "not valid JSON"}}) {
    const std::string path = scratch.write("bad.jsonl", many + "\n" + line + "\n" + many);
    try {
      data_command({"build", "--output", scratch / "out", path});
      FAIL(message);
    } catch (const DataError& error) {
      const std::string text = error.what();
      CAPTURE(text.substr(0, 300));
      CHECK(text.rfind(path + ":20002: ", 0) == 0);
      CHECK(text.find(message) != std::string::npos);
      CHECK(text.size() < 600);
    }
    CHECK(scratch.names() == std::vector<std::string>{"bad.jsonl"});
  }
  std::ofstream(scratch / "long.jsonl") << good;
  fs::resize_file(scratch / "long.jsonl", 70 << 20);  // zeros, without a line feed
  check_throws<DataError>([&] { data_command({"build", "--output", scratch / "out", scratch / "long.jsonl"}); }, {"long.jsonl:2: ", "64 MiB"});
}

TEST_CASE("documents are files and lines, in byte order, and end with the tokenizer's end-of-text token", "[data]") {
  const Scratch scratch;
  scratch.write("in/b.txt", "B");
  scratch.write("in/a/z.txt", "Z");
  scratch.write("in/a.txt", "A");     // before a/, since '.' < '/'
  scratch.write("in/a0/y.txt", "Y");  // after a/
  scratch.write("in/empty.txt", "");
  scratch.write("in/.hidden", "no");
  scratch.write("in/.git/no.txt", "no");
  scratch.write("in/lines.ndjson", "{\"text\": \"the\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"x\\u00e9\", \"meta\": {\"k\": [1]}}");
  fs::create_symlink("../far.txt", scratch / "in/c.txt");
  scratch.write("far.txt", "C");
  BuildOptions options = options_for(scratch, "out", {scratch / "in"});
  const BuildResult result = build_tokens(options);
  CHECK(result.empty_documents == 2);
  CHECK(result.written);
  const TokenFile file(options.output);
  REQUIRE(file.index().documents == 7);
  CHECK(file.index().tokenizer == "bpe");
  CHECK_FALSE(file.index().prompts);
  const std::vector<std::vector<int32_t>> expected = {
      {'A', kEnd}, {'Z', kEnd}, {'Y', kEnd}, {'B', kEnd}, {'C', kEnd}, {257, kEnd}, {'x', 0xc3, 0xa9, kEnd}};
  for (size_t i = 0; i < expected.size(); ++i) CHECK(tokens_of(file, static_cast<int64_t>(i)) == expected[i]);
  CHECK(slurp(options.output + "/tokenizer.json") == tokenizer_json());
  CHECK(fs::exists(options.output + "/documents.bin"));
  CHECK(files_of(options.output).size() == 4);

  scratch.write("tokenizer/tokenizer_config.json", "{\"eos_token\": null}");  // is copied with its tokenizer
  options.output = scratch / "configured";
  build_tokens(options);
  CHECK(slurp(options.output + "/tokenizer_config.json") == "{\"eos_token\": null}");
  CHECK(Tokenizer::open(options.output).end_of_text() == Tokenizer::open(options.tokenizer).end_of_text());
  fs::remove(scratch / "tokenizer/tokenizer_config.json");

  options.output = scratch / "bare";
  options.end_of_text = false;
  build_tokens(options);
  CHECK(tokens_of(TokenFile(options.output), 0) == std::vector<int32_t>{'A'});

  options = options_for(scratch, "fields", {scratch.write("named", "{\"body\": \"A\"}\n{\"body\": \"B\"}\n")});  // --field: every file is JSON lines
  options.field = "body";
  build_tokens(options);
  CHECK(tokens_of(TokenFile(options.output), 1) == std::vector<int32_t>{'B', kEnd});
  CHECK(data_command({"inspect", options.output}).find("\nA<|endoftext|>B<|endoftext|>\n") != std::string::npos);
}

TEST_CASE("instruction data: no token spans prompt and response", "[data]") {
  const Scratch scratch;
  const std::string lines = scratch.write("chat.txt",
                                          "{\"q\": \"t\", \"a\": \"he\"}\n"
                                          "{\"q\": \"{response}\", \"a\": \"{prompt}\"}\n"
                                          "{\"q\": \"\", \"a\": \"\"}\n");
  BuildOptions options = options_for(scratch, "out", {lines});
  options.prompt_field = "q";
  options.response_field = "a";
  CHECK(build_tokens(options).empty_documents == 1);
  const TokenFile file(options.output);
  REQUIRE(file.index().documents == 2);
  CHECK(file.index().prompts);
  CHECK(tokens_of(file, 0) == std::vector<int32_t>{'t', 'h', 'e', kEnd});  // "the" is one token, but spans the boundary
  CHECK(file.document(0).response == 1);
  CHECK(file.document(1).response - file.document(1).begin == 10);
  CHECK(file.document(1).end - file.document(1).begin == 10 + 8 + 1);

  options.output = scratch / "framed";
  options.prompt_template = "Q\\\\ {prompt}\\nA:\\t{response}\\n";
  build_tokens(options);
  const TokenFile framed(options.output);
  CHECK(framed.index().documents == 3);
  const std::vector<int32_t> tokens = tokens_of(framed, 0);
  CHECK(Tokenizer::open(options.tokenizer).decode(tokens) == "Q\\ t\nA:\the\n<|endoftext|>");
  CHECK(framed.document(0).response == 8);
  const nlohmann::json json = nlohmann::json::parse(data_command({"inspect", options.output, "--json"}));
  CHECK(json["prompt_tokens"] == 8 + (7 + 10) + 7);
  CHECK(data_command({"inspect", options.output}).find("prompts     32 tokens") != std::string::npos);

  options.output = scratch / "braces";
  options.prompt_template = "{\"{{prompt}}\": {\"{prompt}\"}, {}{{response}}{{{response}}}";
  build_tokens(options);
  CHECK(Tokenizer::open(options.tokenizer).decode(tokens_of(TokenFile(options.output), 0)) ==
        "{\"{prompt}\": {\"t\"}, {}{response}{he}<|endoftext|>");

  options.output = scratch / "bad";
  options.inputs = {scratch.write("bad.txt", "{\"q\": \"t\", \"a\": \"he\"}\n{\"q\": \"t\"}\n")};
  check_throws<DataError>([&] { build_tokens(options); }, {"bad.txt:2: \"a\" is missing"});
}

TEST_CASE("data build: the output does not depend on the number of threads", "[data]") {
  const Scratch scratch;
  BuildOptions options = options_for(scratch, "one", write_inputs(scratch, 400'000));
  options.threads = 1;
  build_tokens(options);
  const auto expected = files_of(options.output);
  CHECK(TokenFile(options.output).index().tokens > 700'000);
  // The longest file, which the build reads in several pieces, encoded in one call.
  const TokenFile file(options.output);
  std::vector<int32_t> whole = Tokenizer::open(options.tokenizer).encode(slurp(scratch / "in/long.txt"));
  whole.push_back(kEnd);
  CHECK(tokens_of(file, 0) == whole);
  for (const int threads : {2, 5}) {
    options.output = scratch / ("threads" + std::to_string(threads));
    options.threads = threads;
    build_tokens(options);
    CHECK(files_of(options.output) == expected);
  }
}

TEST_CASE("a killed build resumes and writes identical output", "[data]") {
  const Scratch scratch;
  write_inputs(scratch, 300'000);
  BuildOptions options = options_for(scratch, "whole", {scratch.write("text", prose(4'000'000, 5)), scratch / "in/sub", scratch / "last.txt"});
  build_tokens(options);
  const auto expected = files_of(options.output);

  options.output = scratch / "killed";
  options.save_every = std::chrono::milliseconds(0);  // after each piece
  const auto saved_tokens = [&] {
    const std::string journal = slurp(options.output + ".partial/progress.json");
    return journal.empty() ? int64_t{0} : nlohmann::json::parse(journal)["tokens"].get<int64_t>();
  };
  int kills = 0;
  int64_t reached = -1;  // -1: the first build is killed before its first save
  for (bool over = false; !over;) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        build_tokens(options);
      } catch (const std::exception& error) {
        std::cerr << error.what() << std::endl;
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0 && saved_tokens() <= reached) std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::this_thread::sleep_for(std::chrono::microseconds(random_bits(11, static_cast<uint64_t>(kills)) % 5000));
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);  // no effect if it has been waited for already
    over = WIFEXITED(status) && fs::exists(options.output);
    REQUIRE((over || WIFSIGNALED(status)));
    if (over) continue;
    ++kills;
    if (fs::exists(options.output)) {
      reached = std::numeric_limits<int64_t>::max();  // killed after its last save: the next build is not disturbed
    } else {
      CHECK(saved_tokens() >= reached);
      reached = std::max(reached, saved_tokens());
    }
  }
  CHECK(kills >= 4);
  CHECK(files_of(options.output) == expected);
  CHECK_FALSE(fs::exists(options.output + ".partial"));
}

TEST_CASE("a build stopped by a signal keeps its progress", "[data]") {
  const Scratch scratch;
  BuildOptions options = options_for(scratch, "whole", {scratch.write("text", prose(4'000'000, 5)), scratch.write("last", prose(100, 6))});
  build_tokens(options);
  const auto expected = files_of(options.output);
  const std::vector<std::string> before = scratch.names();

  options.output = scratch / "stopped";
  options.stop_signal = [] { return SIGINT; };
  const auto check_nothing_kept = [&] {
    try {
      build_tokens(options);
      FAIL("not stopped");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kRequeue);
      CHECK(error.what() == std::string("stopped by signal 2; no progress was saved"));
    }
  };
  check_nothing_kept();
  CHECK(scratch.names() == before);
  int stops = 0;
  int64_t reached = 0;
  for (int calls_before_stop = 6; true; ++calls_before_stop) {
    int calls = 0;
    options.stop_signal = [&] { return ++calls > calls_before_stop ? SIGTERM : 0; };
    options.threads = 1 + calls_before_stop % 3;
    try {
      build_tokens(options);
      break;
    } catch (const Error& error) {
      INFO(error.what());
      REQUIRE(calls_before_stop < 500);
      REQUIRE(error.code() == ExitCode::kRequeue);
      if (std::string(error.what()).ends_with("no progress was saved")) continue;  // no progress yet
      CHECK(std::string(error.what()).find("stopped.partial") != std::string::npos);
      const int64_t tokens = nlohmann::json::parse(slurp(options.output + ".partial/progress.json"))["tokens"];
      CHECK(tokens >= reached);
      if (tokens == reached) continue;  // no further progress
      reached = tokens;
      calls_before_stop = 6;
      ++stops;
    }
  }
  CHECK(stops >= 3);
  CHECK(files_of(options.output) == expected);
}

TEST_CASE("an unfinished build is resumed by the same command only", "[data]") {
  const Scratch scratch;
  const std::string input = scratch.write("in.txt", prose(1'000'000, 1));
  BuildOptions options = options_for(scratch, "out", {input});
  const std::string partial = options.output + ".partial";
  const auto leave_unfinished = [&] {
    for (int calls_before_stop = 3; !fs::exists(partial); ++calls_before_stop) {
      int calls = 0;
      BuildOptions stopped = options;
      stopped.threads = 1;
      stopped.stop_signal = [&] { return ++calls > calls_before_stop ? SIGTERM : 0; };
      CHECK_THROWS_AS(build_tokens(stopped), Error);
    }
    REQUIRE(fs::exists(partial + "/progress.json"));
  };
  const auto build = [&] { build_tokens(options); };

  SECTION("other options") {
    leave_unfinished();
    options.end_of_text = false;
    check_throws<ConfigError>(build, {partial, "another command"});
  }
  SECTION("other input") {
    leave_unfinished();
    fs::last_write_time(input, fs::last_write_time(input) + std::chrono::seconds(1));
    check_throws<ConfigError>(build, {partial, "input has changed"});
  }
  SECTION("a build of another command without saved progress is started over") {
    build();
    const auto expected = files_of(options.output);
    fs::remove_all(options.output);
    {
      TokenWriter writer(options.output, {"bytes", "bytes-v1", 256, 0, 0, true}, {}, "another");
      writer.keep();  // as if killed
    }
    CHECK(files_of(partial).contains("prompts.bin"));
    build();
    CHECK(files_of(options.output) == expected);
  }
  SECTION("a failed allocation keeps the saved progress") {
    int calls = 0;
    options.save_every = std::chrono::milliseconds(0);
    options.stop_signal = [&]() -> int {
      return fs::exists(partial) && slurp(partial + "/progress.json").find("offset") != std::string::npos ? throw std::bad_alloc() : ++calls * 0;
    };
    CHECK_THROWS_AS(build(), std::bad_alloc);
    CHECK(fs::exists(partial + "/progress.json"));
  }
  SECTION("an existing output is refused at once if its index differs, otherwise at the end with the progress kept") {
    build();
    const auto before = files_of(options.output);
    const BuildOptions first = options;
    options.tokenizer = "bytes";
    options.stop_signal = [] { return SIGTERM; };  // never called
    check_throws<ConfigError>(build, {"exists and differs"});
    CHECK_FALSE(fs::exists(partial));
    options = first;
    options.inputs = {scratch.write("other.txt", prose(1'000'000, 2))};
    options.save_every = std::chrono::milliseconds(0);
    check_throws<Error>(build, {"exists and differs", partial});
    CHECK(files_of(options.output) == before);
    fs::remove_all(options.output);
    build();
    CHECK(Tokenizer::open(options.tokenizer).decode(tokens_of(TokenFile(options.output), 0)) == prose(1'000'000, 2) + "<|endoftext|>");
    CHECK_FALSE(fs::exists(partial));
  }
  SECTION("files cut short") {
    leave_unfinished();
    fs::resize_file(partial + "/tokens.bin", 5);
    check_throws<DataError>(build, {"tokens.bin: 5 bytes", "remove " + partial});
  }
  SECTION("a damaged journal") {
    leave_unfinished();
    scratch.write("out.partial/progress.json", "{");
    check_throws<DataError>(build, {"progress.json"});
  }
  SECTION("a directory that is not a build") {
    fs::create_directory(partial);
    scratch.write("out.partial/mine", "mine");
    check_throws<ConfigError>(build, {partial, "mine"});
    CHECK(files_of(partial) == std::map<std::string, std::string>{{"mine", "mine"}});
  }
  SECTION("a build in progress") {
    const Tokenizer tokenizer = Tokenizer::open(options.tokenizer);
    TokenWriter writer(options.output, {tokenizer.name(), tokenizer.digest(), tokenizer.vocab_size()});
    check_throws<ConfigError>(build, {"--output", "another process"});
    writer.append(std::vector<int32_t>{1});
    writer.end_document();
    CHECK(writer.commit() == TokenWriter::Outcome::kWritten);
    check_throws<ConfigError>(build, {"exists and differs"});
    CHECK(TokenFile(options.output).tokens() == 1);
  }
  SECTION("data after the last save is written again") {
    build();
    const auto expected = files_of(options.output);
    fs::remove_all(options.output);
    leave_unfinished();
    for (const char* name : {"/tokens.bin", "/documents.bin"}) std::ofstream(partial + name, std::ios::app) << "more than is known of";
    build();
    CHECK(files_of(options.output) == expected);
  }
}

TEST_CASE("a pipe is read once, without saved progress", "[data]") {
  const Scratch scratch;
  const std::string text = prose(2'000'000, 1);
  BuildOptions options = options_for(scratch, "file", {scratch.write("in.txt", text)});
  build_tokens(options);
  const auto expected = files_of(options.output);

  const std::string pipe = scratch / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto feed = [&] {
    std::ofstream out(pipe, std::ios::binary);
    for (size_t at = 0; at < text.size(); at += 1000) out << text.substr(at, 1000) << std::flush;
  };
  options.output = scratch / "piped";
  options.inputs = {pipe};
  {
    std::thread writer(feed);
    build_tokens(options);
    writer.join();
  }
  CHECK(files_of(options.output) == expected);

  options.output = scratch / "stopped";
  ::signal(SIGPIPE, SIG_IGN);
  std::thread writer(feed);
  int calls = 0;
  options.stop_signal = [&] { return ++calls > 5 ? SIGTERM : 0; };
  check_throws<Error>([&] { build_tokens(options); }, {"signal 15", "no progress was saved"});
  writer.join();
  ::signal(SIGPIPE, SIG_DFL);
  CHECK(scratch.names() == std::vector<std::string>{"file", "in.txt", "pipe", "piped", "tokenizer"});
}

TEST_CASE("a resumed build continues the counts of lines and empty documents", "[data]") {
  const Scratch scratch;
  // Pieces have 256 KiB; the first contains the empty documents.
  std::string lines;
  int64_t count = 0;
  const auto add = [&](const std::string& text) {
    lines += nlohmann::json{{"text", text}}.dump() + "\n";
    ++count;
  };
  for (int i = 0; i < 5; ++i) add("");
  while (lines.size() < 1'200'000) add(prose(500, static_cast<uint64_t>(count)));
  const bool bad = GENERATE(false, true);
  if (bad) lines += "{\"text\": 3}\n";
  BuildOptions options = options_for(scratch, "out", {scratch.write("in.jsonl", lines)});
  options.threads = 1;
  const auto position = [&] {
    const std::string journal = slurp(options.output + ".partial/progress.json");
    const nlohmann::json read = journal.empty() ? nlohmann::json() : nlohmann::json::parse(journal)["position"];
    return read.is_null() ? int64_t{0} : read["read"]["line"].get<int64_t>();
  };
  for (int calls_before_stop = 3; position() == 0; ++calls_before_stop) {
    int calls = 0;
    BuildOptions stopped = options;
    stopped.stop_signal = [&] { return ++calls > calls_before_stop ? SIGTERM : 0; };
    CHECK_THROWS_AS(build_tokens(stopped), Error);
  }
  REQUIRE(position() > 5);
  REQUIRE(position() < count);
  if (bad) {
    check_throws<DataError>([&] { build_tokens(options); }, {concat("in.jsonl:", count + 1, ":")});
  } else {
    const BuildResult result = build_tokens(options);
    CHECK(result.empty_documents == 5);
    CHECK(result.index.documents == count - 5);
  }
}
