#include "trainer/commands/data_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/data/token_writer.h"
#include "trainer/data/tokenizer.h"

namespace trireme {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr int64_t kSampleTokens = 300;

volatile std::sig_atomic_t stop_signal = 0;

/// Turns SIGINT and SIGTERM into an exception at the next chunk, so that a stopped build cleans up behind itself.
class StopOnSignal {
 public:
  StopOnSignal() {
    stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = [](int signal) { stop_signal = signal; };
    ::sigaction(SIGINT, &action, &interrupt_);
    ::sigaction(SIGTERM, &action, &terminate_);
  }
  ~StopOnSignal() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  static void check() {
    if (stop_signal != 0) throw InternalError(concat("stopped by signal ", static_cast<int>(stop_signal), "; nothing was written"));
  }

 private:
  struct sigaction interrupt_ {};
  struct sigaction terminate_ {};
};

/// One input text, read in chunks. Pipes are welcome (`<(zcat big.gz)`).
class InputFile {
 public:
  explicit InputFile(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw_file_error(path, "cannot open", errno);
  }
  ~InputFile() { ::close(descriptor_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Empty at the end of the file.
  std::string_view read(std::vector<char>& buffer) const {
    ssize_t bytes = -1;
    do {
      StopOnSignal::check();
      bytes = ::read(descriptor_, buffer.data(), buffer.size());
    } while (bytes < 0 && errno == EINTR);
    if (bytes < 0) throw_file_error(path_, "cannot read", errno);
    return {buffer.data(), static_cast<size_t>(bytes)};
  }

 private:
  std::string path_;
  int descriptor_;
};

/// Finds what is wrong with the inputs before anything is written.
void check_inputs(const std::vector<std::string>& inputs) {
  for (const std::string& path : inputs) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) throw_file_error(path, "cannot open", errno);
    if (S_ISDIR(status.st_mode)) throw IoError(concat(path, ": is a directory; name the text files in it"));
    if (S_ISREG(status.st_mode) && status.st_size == 0) throw DataError(concat(path, ": is empty"));
    if (::access(path.c_str(), R_OK) != 0) throw_file_error(path, "cannot open", errno);
  }
}

/// A line that rewrites itself on a terminal; silent elsewhere.
class Progress {
 public:
  explicit Progress(size_t files) : files_(files), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (shown_) std::cerr << "\r\033[K";
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(size_t file, int64_t tokens) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    shown_ = true;
    std::cerr << "\rfile " << file + 1 << " of " << files_ << ", " << tokens / 1000000 << " million tokens\033[K" << std::flush;
  }

 private:
  size_t files_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

struct BuildOptions {
  std::string tokenizer = "bytes";
  std::string output;
  std::vector<std::string> inputs;
};

void build(const BuildOptions& options) {
  const Tokenizer tokenizer = make_tokenizer(options.tokenizer);
  check_inputs(options.inputs);
  const StopOnSignal stop_on_signal;
  TokenWriter writer(options.output, {tokenizer.name(), tokenizer.digest(), tokenizer.vocab_size()});
  {
    Progress progress(options.inputs.size());
    std::vector<char> buffer(kChunkBytes);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < options.inputs.size(); ++i) {
      const InputFile input(options.inputs[i]);
      const int64_t before = writer.index().tokens;
      writer.begin_document();
      for (std::string_view text = input.read(buffer); !text.empty(); text = input.read(buffer)) {
        tokens.clear();
        tokenizer.encode(text, tokens);
        writer.append(tokens);
        progress.update(i, writer.index().tokens);
      }
      if (writer.index().tokens == before) throw DataError(concat(options.inputs[i], ": is empty"));
    }
  }
  const bool written = writer.commit() == TokenWriter::Outcome::kWritten;
  const TokenIndex& index = writer.index();
  std::cerr << options.output << ": " << index.tokens << " tokens in " << index.documents << (index.documents == 1 ? " document" : " documents")
            << ", tokenizer " << index.tokenizer << (written ? "" : "; identical tokens were there already, nothing changed") << '\n';
}

struct InspectOptions {
  std::string directory;
  bool json = false;
};

/// Bytes that could move the cursor of a terminal become '?'.
std::string printable(std::string text) {
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

void inspect(const InspectOptions& options) {
  const TokenFile file(options.directory);
  const TokenIndex& index = file.index();
  int64_t shortest = index.tokens;
  int64_t longest = 0;
  for (int64_t i = 0; i < index.documents; ++i) {
    const TokenFile::Document document = file.document(i);
    shortest = std::min(shortest, document.end - document.begin);
    longest = std::max(longest, document.end - document.begin);
  }
  const double mean = static_cast<double>(index.tokens) / static_cast<double>(index.documents);
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kSampleTokens, index.tokens)));
  file.read(0, static_cast<int64_t>(tokens.size()), tokens.data());
  const std::string sample = make_tokenizer(index.tokenizer).decode(tokens);

  if (options.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(index.to_json());
    json["document_tokens"] = {{"shortest", shortest}, {"mean", mean}, {"longest", longest}};
    json["sample"] = sample;
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    return;
  }
  std::cout << "tokens      " << index.tokens << " of " << index.token_bytes() << (index.token_bytes() == 1 ? " byte" : " bytes") << '\n'
            << "documents   " << index.documents << "; tokens in each: shortest " << shortest << ", mean " << std::llround(mean) << ", longest "
            << longest << '\n'
            << "tokenizer   " << index.tokenizer << " (" << index.tokenizer_digest << "), vocabulary " << index.vocab_size << '\n'
            << "sample\n"
            << printable(sample) << '\n';
}

}  // namespace

void add_data_command(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Make and look into token directories");
  data->require_subcommand(1);

  auto build_options = std::make_shared<BuildOptions>();
  CLI::App* build_command = data->add_subcommand("build", "Tokenize text files into a token directory; one document a file");
  build_command->add_option("--tokenizer", build_options->tokenizer, "bytes: every byte is a token")->capture_default_str()->type_name("SPEC");
  build_command->add_option("--output", build_options->output, "token directory to make")->required()->type_name("DIR");
  build_command->add_option("files", build_options->inputs, "text files")->required()->type_name("FILE");
  build_command->callback([build_options, &exit_code] {
    build(*build_options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });

  auto inspect_options = std::make_shared<InspectOptions>();
  CLI::App* inspect_command = data->add_subcommand("inspect", "Describe a token directory");
  inspect_command->add_option("directory", inspect_options->directory, "token directory")->required()->type_name("DIR");
  inspect_command->add_flag("--json", inspect_options->json, "for programs");
  inspect_command->callback([inspect_options, &exit_code] {
    inspect(*inspect_options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
