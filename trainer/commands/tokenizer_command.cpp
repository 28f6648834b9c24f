#include "trainer/commands/tokenizer_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <thread>

#include "kernels/core/check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/data/build/inputs.h"
#include "trainer/data/build/text_check.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/progress_line.h"
#include "trainer/tokenizer/count_pieces.h"
#include "trainer/tokenizer/text_chunk_reader.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/train.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

/// Checks all inputs before reading any. Returns their total bytes; 0 if unknown, e.g. for a pipe.
int64_t check_inputs(const std::vector<std::string>& files) {
  int64_t bytes = 0;
  bool known = true;
  for (const std::string& path : files) {
    if (path == "-") {
      known = false;
      continue;
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw_file_error(path, "cannot open", errno);
    if (S_ISDIR(status.st_mode)) throw IoError(concat(path, ": is a directory; name the text files in it"));
    if (::access(path.c_str(), R_OK) != 0) throw_file_error(path, "cannot open", errno);
    if (S_ISREG(status.st_mode)) check_text_file(path, "tokenizer");
    known = known && S_ISREG(status.st_mode);
    bytes += status.st_size;
  }
  return known ? bytes : 0;
}

/// Refuses JSON lines, whose field names would be read as text, and unless `plain_text` what looks like other records.
void check_plain_text(const std::vector<std::string>& files, bool plain_text) {
  for (const std::string& path : files)
    if (has_json_lines(path))
      throw DataError(
          concat(path, ": contains JSON lines, not text; trireme data build encodes their \"text\" fields, and jq -r .text FILE extracts them"));
  for (const std::string& path : files)
    if (std::error_code ignored; !plain_text && path != "-" && fs::is_regular_file(path, ignored)) check_look_of_file(path);
}

constexpr const char* kPlainTextDoc = "Read files as text that look like JSON, tables, HTML or XML";

// ---- train ----

struct TrainOptions {
  int64_t vocab_size = 0;
  std::string output;
  std::string pattern = "llama3";
  std::vector<std::string> special = {"<|endoftext|>"};
  int64_t threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  bool plain_text = false;
  std::vector<std::string> files;
};

void check_output(const fs::path& output) {
  const std::string option = "--output=" + output.string();
  if (output.extension() == ".model")
    throw ConfigError(concat(option, ": SentencePiece models are read but not trained here; name a file that ends in .json"));
  if (output.extension() != ".json")
    throw ConfigError(concat(option, ": the tokenizer is a Hugging Face tokenizer.json; name a file that ends in .json"));
  std::error_code error;
  if (fs::exists(output, error) && !fs::is_regular_file(output, error)) throw ConfigError(concat(option, ": exists and is not a regular file"));
  const fs::path parent = output.parent_path();
  if (!parent.empty() && !fs::is_directory(parent, error))
    throw ConfigError(concat(option, ": no such directory: ", parent.string(), "; create it first"));
}

/// Returns false if the file already has exactly this text. Errors: ConfigError if it has different contents.
bool write_tokenizer(const fs::path& output, const std::string& text) {
  std::error_code error;
  if (fs::exists(output, error)) {
    if (read_text(output) == text) return false;
    throw ConfigError(concat("--output=", output.string(), ": exists and differs from what would be written; remove it or name another file"));
  }
  write_durably(output, text);
  sync_directory(output.parent_path());
  return true;
}

const NamedPattern& pattern_of(const std::string& name) {
  return *std::find_if(kNamedPatterns.begin(), kNamedPatterns.end(), [&](const NamedPattern& pattern) { return pattern.name == name; });
}

std::vector<std::string> pattern_names() {
  std::vector<std::string> names;
  for (const NamedPattern& pattern : kNamedPatterns) names.emplace_back(pattern.name);
  return names;
}

void train(const TrainOptions& options) {
  check_output(options.output);
  train_byte_pairs({}, options.vocab_size, options.special);  // without text: checks the options before reading the text
  const int64_t bytes = check_inputs(options.files);
  check_plain_text(options.files, options.plain_text);
  const NamedPattern& pattern = pattern_of(options.pattern);  // CLI11 has checked the name
  PieceCounts pieces;
  {
    ProgressLine progress("reading", ProgressUnit::kBytes, bytes);
    pieces = count_pieces(options.files, pattern, static_cast<int>(options.threads), [&](int64_t more) { progress.advance(more); });
  }
  if (pieces.empty()) throw DataError(concat(options.files.front(), options.files.size() == 1 ? ": is empty" : " and the other files are empty"));
  BytePairVocabulary vocabulary;
  {
    ProgressLine progress("merging", ProgressUnit::kItems, options.vocab_size, static_cast<int64_t>(options.special.size()) + 256);
    vocabulary = train_byte_pairs(pieces, options.vocab_size, options.special, [&] { progress.advance(1); });
  }
  const bool written = write_tokenizer(options.output, tokenizer_json(vocabulary, pattern, options.special.size()));
  std::cerr << options.output << ": " << vocabulary.tokens.size() << " tokens from " << pieces.size() << " distinct pieces of text";
  if (static_cast<int64_t>(vocabulary.tokens.size()) < options.vocab_size)
    std::cerr << "; fewer than --vocab-size=" << options.vocab_size << ", because every piece is already one token";
  std::cerr << (written ? "\n" : "; the identical file already exists, nothing changed\n");
}

// ---- encode, decode ----

struct EncodeOptions {
  std::string tokenizer;
  bool json = false, plain_text = false;
  std::vector<std::string> files = {"-"};
};

void encode(const EncodeOptions& options) {
  Tokenizer tokenizer = Tokenizer::open(options.tokenizer);
  check_inputs(options.files);
  check_plain_text(options.files, options.plain_text);
  const char* const separator = options.json ? "," : " ";
  std::vector<int32_t> tokens;
  for (const std::string& file : options.files) {
    bool first_stretch = true, first_token = true;
    TextChunkReader stretches(file, [&](std::string_view text) { return tokenizer.cut(text, first_stretch); });
    if (options.json) std::cout << '[';
    for (std::string text = stretches.next(); !text.empty(); text = stretches.next()) {
      if (first_stretch) check_magic(text, file == "-" ? "standard input" : file, "tokenizer encode");
      tokens.clear();
      tokenizer.encode(text, tokens, std::exchange(first_stretch, false));
      for (const int32_t token : tokens) std::cout << (std::exchange(first_token, false) ? "" : separator) << token;
    }
    std::cout << (options.json ? "]\n" : "\n");
  }
  finish_output();
}

struct DecodeOptions {
  std::string tokenizer;
  std::string file = "-";
};

constexpr std::string_view kBetweenIds = " \t\r\v\f\n[],";

/// Reads integers separated by white space, or JSON lists, whose brackets and commas count as white space. Errors: DataError with line and position
/// of anything else and of ids outside the vocabulary.
class IdReader {
 public:
  IdReader(std::string name, int64_t vocab_size) : name_(std::move(name)), vocab_size_(vocab_size) {}

  void read(std::string_view text, std::vector<int32_t>& ids) {
    for (size_t at = 0; at < text.size();) {
      if (text[at] == '\n') {
        ++line_;
        place_ = 0;
        ++at;
      } else if (kBetweenIds.find(text[at]) != kBetweenIds.npos) {
        ++at;
      } else {
        const size_t end = std::min(text.find_first_of(kBetweenIds, at), text.size());
        ids.push_back(id(text.substr(at, end - at)));
        at = end;
      }
    }
  }

 private:
  int32_t id(std::string_view word) {
    ++place_;
    int32_t value = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error == std::errc() && end == word.data() + word.size() && value >= 0 && value < vocab_size_) return value;
    constexpr size_t kMost = 40;
    throw DataError(concat(name_, ", line ", line_, ", place ", place_, ": ", shown(word.substr(0, kMost)),
                           " is not a token id; expected an integer from 0 to below ", vocab_size_));
  }

  /// Quotes the word and replaces control characters.
  static std::string shown(std::string_view word) {
    std::string text = "\"";
    for (const char c : word) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    return text + '"';
  }

  std::string name_;
  int64_t vocab_size_;
  int64_t line_ = 1, place_ = 0;
};

void decode(const DecodeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::open(options.tokenizer);
  check_inputs({options.file});
  // Cuts only between numbers.
  TextChunkReader stretches(options.file, [](std::string_view text) { return text.find_last_of(kBetweenIds) + 1; });
  IdReader reader(options.file == "-" ? "standard input" : options.file, tokenizer.vocab_size());
  std::vector<int32_t> ids;
  for (std::string text = stretches.next(); !text.empty(); text = stretches.next()) reader.read(text, ids);
  std::cout << tokenizer.decode(ids);
  finish_output();
}

void add_train(CLI::App& tokenizer, int& exit_code) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = tokenizer.add_subcommand("train", "Train a byte-level BPE tokenizer on text; the result does not depend on threads or machine");
  command->add_option("--vocab-size", options->vocab_size, "Total number of tokens: special tokens, 256 bytes and merges")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{std::numeric_limits<int32_t>::max()}))
      ->type_name("N");
  command->add_option("--output", options->output, "Hugging Face tokenizer.json to write")->required()->type_name("FILE");
  command->add_option("--pattern", options->pattern, "Model whose regular expression cuts text into pieces; no token spans two pieces")
      ->check(CLI::IsMember(pattern_names()))
      ->capture_default_str();
  command->add_option("--special", options->special, "Special token, instead of <|endoftext|>; may be repeated")
      ->allow_extra_args(false)
      ->type_name("TOKEN");
  command->add_option("--threads", options->threads, "Number of threads that read text")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
  command->add_flag("--plain-text", options->plain_text, kPlainTextDoc);
  command->add_option("files", options->files, "Text files; - for standard input")->required()->type_name("FILE");
  command->callback([options, &exit_code] {
    train(*options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

constexpr const char* kSpec = "bytes, a tokenizer.json, a SentencePiece *.model, or a directory that contains one";

}  // namespace

void add_tokenizer_command(CLI::App& app, int& exit_code) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Train a tokenizer, or convert between text and token ids");
  tokenizer->require_subcommand(1);
  add_train(*tokenizer, exit_code);

  const auto encode_options = std::make_shared<EncodeOptions>();
  CLI::App* encode_command = tokenizer->add_subcommand("encode", "Print the token ids of each file, one line per file");
  encode_command->add_option("--tokenizer", encode_options->tokenizer, kSpec)->required()->type_name("SPEC");
  encode_command->add_flag("--json", encode_options->json, "Print each line as a JSON list");
  encode_command->add_flag("--plain-text", encode_options->plain_text, kPlainTextDoc);
  encode_command->add_option("files", encode_options->files, "Text files; - for standard input (default)")->type_name("FILE");
  encode_command->callback([encode_options, &exit_code] {
    encode(*encode_options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });

  const auto decode_options = std::make_shared<DecodeOptions>();
  CLI::App* decode_command = tokenizer->add_subcommand("decode", "Print the text of token ids, byte for byte, without a newline at the end");
  decode_command->add_option("--tokenizer", decode_options->tokenizer, kSpec)->required()->type_name("SPEC");
  decode_command->add_option("file", decode_options->file, "File with ids separated by white space, or JSON lists; - for standard input (default)")
      ->type_name("FILE");
  decode_command->callback([decode_options, &exit_code] {
    decode(*decode_options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
