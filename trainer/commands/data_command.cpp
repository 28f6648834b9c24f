#include "trainer/commands/data_command.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/commands/data_inspect.h"
#include "trainer/data/build/build.h"
#include "trainer/files/printable.h"
#include "trainer/job/stop_signals.h"

namespace trireme {
namespace {

void build(BuildOptions options) {
  const StopRequest stop;
  options.stop_signal = [&] { return stop.signal(); };
  const auto begin = std::chrono::steady_clock::now();
  const BuildResult result = build_tokens(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const TokenIndex& index = result.index;
  if (!result.no_end.empty())
    std::cerr << "warning: " << counted(index.documents, "document") << " joined without an end-of-text token between them: " << result.no_end
              << "; --no-end-of-text says that this is meant\n";
  std::cerr << options.output << ": " << counted(index.tokens, "token") << " in " << counted(index.documents, "document") << ", tokenizer "
            << index.tokenizer;
  if (result.skipped_lines > 0)
    std::cerr << "; skipped " << counted(result.skipped_lines, "bad line") << ", the first: " << printable(result.first_skipped);
  if (result.empty_documents > 0) std::cerr << "; skipped " << counted(result.empty_documents, "empty document");
  std::cerr << "; " << std::fixed << std::setprecision(1) << static_cast<double>(result.bytes) / 1e6 << " MB of text in " << seconds << " s"
            << std::defaultfloat << (result.written ? "" : "; identical tokens already exist, nothing changed") << '\n';
  for (const std::string& look : result.looks_like)
    std::cerr << "warning: " << printable(look) << ", and was read as text, as a part of a directory; name it alone to learn how it could be read\n";
}

/// Which fields of JSON lines are the text.
void add_fields(CLI::App& command, const std::shared_ptr<BuildOptions>& options) {
  const CLI::Validator named([](std::string& name) { return name.empty() ? "must name a field" : ""; }, "", "named");
  CLI::Option* field =
      command
          .add_option("--field", options->field,
                      "JSON lines: field that contains the text, or the path to it: data.text; default for *.jsonl and *.ndjson: \"text\"")
          ->check(named)
          ->type_name("NAME");
  CLI::Option* prompt =
      command.add_option("--prompt-field", options->prompt_field, "Instruction data: field of the prompt, whose tokens are never targets")
          ->check(named)
          ->type_name("NAME")
          ->excludes(field);
  CLI::Option* response = command.add_option("--response-field", options->response_field, "Instruction data: field of the response")
                              ->check(named)
                              ->type_name("NAME")
                              ->needs(prompt);
  prompt->needs(response);
  command
      .add_option("--template", options->prompt_template,
                  "Instruction data: template of a document; the escapes \\n, \\t and \\\\ are allowed, and {{name}} is the text {name}. Text "
                  "before {response} is encoded separately and "
                  "is the prompt")
      ->capture_default_str()
      ->type_name("TEXT")
      ->needs(prompt);
}

void add_build(CLI::App& data, int& exit_code) {
  auto options = std::make_shared<BuildOptions>();
  options->threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  CLI::App* command =
      data.add_subcommand("build",
                          "Encode text as a token directory. Compressed, Parquet, Arrow and binary files are refused.\n"
                          "A text file is one document. Each line is one document in *.jsonl and *.ndjson, and in every file with --field or "
                          "--prompt-field. A directory\n"
                          "means all regular files below it in byte order of their paths, except names that begin with a dot. Pipes are accepted: "
                          "<(zcat text.gz), or - for standard input.\n"
                          "An interrupted build resumes when the same command is run again; its partial output is DIR.partial.");
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "bytes (every byte is a token), a tokenizer.json, a SentencePiece *.model, or a directory that contains one")
      ->capture_default_str()
      ->type_name("SPEC");
  command->add_option("--output", options->output, "Token directory to create")->required()->type_name("DIR");
  add_fields(*command, options);
  command->add_flag("--skip-bad-lines", options->skip_bad_lines,
                    "JSON lines: leave out lines that cannot be read or lack the field, and say how many and why the first");
  command->add_flag("--plain-text", options->plain_text, "Read files as text that look like JSON, tables, HTML or XML");
  CLI::Option* end = command->add_flag_callback(
      "--end-of-text", [options] { options->end_of_text = true; },
      "End each document with the tokenizer's end-of-text token; default: if the tokenizer has one");
  command
      ->add_flag_callback(
          "--no-end-of-text", [options] { options->end_of_text = false; }, "Do not add end-of-text tokens")
      ->excludes(end);
  command->add_option("--threads", options->threads, "Number of encoding threads; the result does not depend on it")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->type_name("N");
  command->add_option("files", options->inputs, "Text files, JSON lines or directories; - for standard input")->required()->type_name("FILE|DIR");
  command->callback([options, &exit_code] {
    build(*options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

void add_inspect(CLI::App& data, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = data.add_subcommand("inspect", "Describe token data: documents, tokens, lengths and a sample");
  command->add_option("path", options->path, "Token directory, or token file of Megatron, llm.c or nanoGPT")->required()->type_name("PATH");
  command->add_option("--tokenizer", options->tokenizer, "Tokenizer that decodes the sample; default: the one in the token directory")
      ->type_name("SPEC");
  command->add_flag("--verify", options->verify, "Read all of a token directory and compare it with the digests recorded by `data build`");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options, &exit_code] {
    inspect_tokens(*options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace

void add_data_command(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Build and inspect token data");
  data->require_subcommand(1);
  add_build(*data, exit_code);
  add_inspect(*data, exit_code);
}

}  // namespace trireme
