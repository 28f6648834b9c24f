#include "trainer/data/build/build.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/data/build/encoder_pool.h"
#include "trainer/data/build/text_check.h"
#include "trainer/data/token_writer.h"
#include "trainer/files/digest.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/strict_json.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

DocumentRules document_rules(const BuildOptions& options) {
  if (options.prompt_field.empty() != options.response_field.empty()) throw ConfigError("--prompt-field and --response-field must be given together");
  if (!options.prompt_field.empty() && !options.field.empty())
    throw ConfigError("--field=" + options.field + ": cannot be combined with --prompt-field");
  if (!options.prompt_field.empty() && options.prompt_field == options.response_field)
    throw ConfigError("--response-field=" + options.response_field + ": is the same as --prompt-field");
  DocumentRules rules;
  if (!options.field.empty()) rules.field = options.field;
  rules.prompt_field = options.prompt_field;
  rules.response_field = options.response_field;
  rules.skip_bad_lines = options.skip_bad_lines;
  parse_template(options.prompt_template, rules);
  return rules;
}

std::optional<int32_t> document_end(const BuildOptions& options, const Tokenizer& tokenizer) {
  if (options.end_of_text == true && !tokenizer.end_of_text())
    throw ConfigError(concat("--end-of-text: tokenizer ", options.tokenizer, " has no end-of-text token: ", tokenizer.where_no_end()));
  return options.end_of_text == false ? std::nullopt : tokenizer.end_of_text();
}

/// The output must not lie inside an input directory.
void check_output(const BuildOptions& options) {
  if (options.output.empty()) throw ConfigError("--output=: must name a directory");
  std::error_code ignored;
  // Absolute first: of a relative path of which nothing exists weakly_canonical leaves a relative one.
  const std::string output = fs::weakly_canonical(fs::absolute(options.output, ignored), ignored).string() + "/";
  for (const std::string& path : options.inputs)
    if (path != "-" && fs::is_directory(path, ignored) && output.starts_with(fs::canonical(path, ignored).string() + "/"))
      throw ConfigError(concat("--output=", options.output, ": is inside the input directory ", path, "; name a directory outside it"));
}

/// Digest of everything that determines the result; excludes the number of threads.
std::string command_digest(const BuildOptions& options, const DocumentRules& rules, const Tokenizer& tokenizer, std::optional<int32_t> end,
                           const InputSurvey& survey) {
  nlohmann::json command{{"tokenizer", tokenizer.digest()},
                         {"end", end.value_or(-1)},
                         {"lines", !options.field.empty()},
                         {"fields", {rules.field, rules.prompt_field, rules.response_field}},
                         {"template", {rules.before, rules.between, rules.after}},
                         {"inputs", survey.digest}};
  if (rules.skip_bad_lines) command["skip"] = true;
  Digest digest;
  digest.update(command.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  return digest.str();
}

class Build {
 public:
  explicit Build(const BuildOptions& options)
      : options_(options),
        rules_(document_rules(options)),
        tokenizer_(Tokenizer::open(options.tokenizer)),
        end_(document_end(options, tokenizer_)),
        survey_(survey_inputs(options.inputs)),
        writer_(options.output, {tokenizer_.name(), tokenizer_.digest(), tokenizer_.vocab_size(), 0, 0, rules_.instruction()}, tokenizer_.copies(),
                command_digest(options, rules_, tokenizer_, end_, survey_)) {}

  BuildResult run() {
    try {
      go_on();
      encode_all();
      if (skipped_ > 0 && writer_.index().documents == 0) throw DataError(concat("--skip-bad-lines: every line was skipped; ", first_skipped_));
      const bool written = writer_.commit() == TokenWriter::Outcome::kWritten;
      const bool joined = !end_ && options_.end_of_text != false && writer_.index().documents > 1;
      return {writer_.index(), bytes_, empty_, skipped_, first_skipped_, looks_like_, written, joined ? tokenizer_.where_no_end() : ""};
    } catch (const Error& error) {
      keep_for(error);
      throw;
    } catch (...) {  // such as std::bad_alloc
      if (worth_keeping_) writer_.keep();
      throw;
    }
  }

 private:
  /// Restores the progress saved by an earlier attempt. There is none with pipes, which can be read only once.
  void go_on() {
    if (writer_.position().is_null()) return;
    const std::string where = (writer_.partial() / "progress.json").string();
    position_ = Position::parse(member(writer_.position(), "read", where), where);
    empty_ = integer_member(writer_.position(), "empty_documents", where);
    if (writer_.position().contains("skipped_lines")) {
      skipped_ = integer_member(writer_.position(), "skipped_lines", where);
      first_skipped_ = string_member(writer_.position(), "first_skipped", where);
    }
    worth_keeping_ = true;
  }

  void encode_all() {
    EncoderPool pool(tokenizer_, rules_, options_.threads);
    Position next = position_;
    int64_t number = 0;
    int64_t before = position_.offset;
    if (position_.input > 0) for_each_input(options_.inputs, [&](const Input& input) { before += number++ < position_.input ? input.bytes : 0; });
    ProgressLine progress("encoding", ProgressUnit::kBytes, survey_.regular ? survey_.bytes : 0, before);
    number = 0;
    for_each_input(options_.inputs, [&](const Input& input) {
      if (number++ < next.input) return;
      const auto push = [&](Piece piece) {
        check_stop();
        while (pool.full_for(piece.bytes)) write(pool.take(), progress);
        pool.give(std::move(piece));
        while (pool.ready()) write(pool.take(), progress);
      };
      // A directory may be a collection of source code, where JSON and HTML are text; a file with a name is meant.
      const auto check_look = [&](std::string_view start, bool lines) {
        if (options_.plain_text) return;
        const std::optional<Look> look = look_of(start, input.path, lines);
        if (!look) return;
        if (input.named || lines) throw DataError(concat(input.path, ": ", look->text(), lines ? "" : kPlainTextAdvice));
        if (looks_.insert(look->what).second) looks_like_.push_back(concat(input.path, " looks like ", look->what));
      };
      read_pieces(
          input, next, lines_in(input.path), tokenizer_, check_look, [this] { check_stop(); }, push);
      next = {number};
    });
    while (!pool.empty()) {
      check_stop();
      write(pool.take(), progress);
    }
  }

  bool lines_in(const std::string& path) const { return rules_.instruction() || !options_.field.empty() || has_json_lines(path); }

  void write(const Piece& piece, ProgressLine& progress) {
    auto part = piece.tokens.begin();
    size_t at = 0;
    for (const Piece::Document& document : piece.documents) {
      for (auto left = static_cast<size_t>(document.tokens); left > 0;) {
        if (at == part->size()) ++part, at = 0;
        const size_t count = std::min(left, part->size() - at);
        writer_.append({part->data() + at, count});
        at += count;
        left -= count;
      }
      if (!document.ends) continue;
      if (end_ && writer_.open_tokens() > 0) writer_.append({&*end_, 1});
      if (!writer_.end_document(document.prompt)) ++empty_;
    }
    if (skipped_ == 0) first_skipped_ = piece.first_skipped;
    skipped_ += piece.skipped;
    bytes_ += piece.bytes;
    position_ = piece.end;
    progress.advance(piece.bytes);
    if (survey_.regular && std::chrono::steady_clock::now() - saved_ >= options_.save_every) save();
  }

  void save() {
    nlohmann::json reached = {{"read", position_.to_json()}, {"empty_documents", empty_}};
    if (skipped_ > 0) reached.update({{"skipped_lines", skipped_}, {"first_skipped", first_skipped_}});
    writer_.save(reached);
    saved_ = std::chrono::steady_clock::now();
    worth_keeping_ = true;
  }

  /// Throws if a stop was requested. Called between two pieces, when position_ matches the writer.
  void check_stop() {
    const int signal = options_.stop_signal();
    if (signal == 0) return;
    if (!survey_.regular || (writer_.index().tokens == 0 && !worth_keeping_))
      throw Error(ExitCode::kRequeue, concat("stopped by signal ", signal, "; no progress was saved"));
    save();
    throw Error(ExitCode::kRequeue, concat("stopped by signal ", signal));
  }

  /// Keeps the progress after a full disk, a stop or an existing output, but not after bad data: fixing the input invalidates the progress.
  void keep_for(const Error& error) {
    const bool passes = error.code() == ExitCode::kIo || error.code() == ExitCode::kMissingFile || error.code() == ExitCode::kRequeue ||
                        error.code() == ExitCode::kUsage;
    if (!passes || !worth_keeping_) return;
    writer_.keep();
    throw Error(error.code(), concat(error.what(), "; rerun the same command to resume from ", writer_.partial().string()));
  }

  const BuildOptions& options_;
  const DocumentRules rules_;
  const Tokenizer tokenizer_;
  const std::optional<int32_t> end_;
  const InputSurvey survey_;
  TokenWriter writer_;
  Position position_;  ///< input position after the last piece written
  int64_t empty_ = 0, skipped_ = 0;
  std::string first_skipped_;
  std::vector<std::string> looks_like_;
  std::set<std::string> looks_;
  int64_t bytes_ = 0;
  bool worth_keeping_ = false;  ///< progress has been saved
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

}  // namespace

BuildResult build_tokens(const BuildOptions& options) {
  check_output(options);
  // Returns large blocks to the system when they are freed. By default the allocator keeps them, for each of many threads.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 18);
  return Build(options).run();
}

}  // namespace trireme
