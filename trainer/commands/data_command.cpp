#include "trainer/commands/data_command.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <thread>

#include "kernels/core/check.h"
#include "trainer/commands/data_inspect.h"
#include "trainer/data/build/build.h"
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
  std::cerr << options.output << ": " << index.tokens << " tokens in " << index.documents << (index.documents == 1 ? " document" : " documents")
            << ", tokenizer " << index.tokenizer;
  if (result.empty_documents > 0)
    std::cerr << "; left out " << result.empty_documents << (result.empty_documents == 1 ? " empty document" : " empty documents");
  std::cerr << "; " << std::fixed << std::setprecision(1) << static_cast<double>(result.bytes) / 1e6 << " MB of text in " << seconds << " s"
            << std::defaultfloat << (result.written ? "" : "; identical tokens were there already, nothing changed") << '\n';
}

void add_build(CLI::App& data, int& exit_code) {
  auto options = std::make_shared<BuildOptions>();
  options->threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  CLI::App* command =
      data.add_subcommand("build",
                          "Encode text as a token directory.\n"
                          "A text file is one document; of *.jsonl and *.ndjson, and of every file with --field or --prompt-field, each line is one. "
                          "Of a directory all regular\n"
                          "files below are taken in byte order of their paths, but for names that begin with a dot. Pipes will do: <(zcat text.gz), "
                          "or - for standard input.\n"
                          "Stopped or killed, a build goes on where it was when the same command is given again; what is done lies in DIR.partial.");
  command
      ->add_option("--tokenizer", options->tokenizer,
                   "bytes (every byte is a token), a tokenizer.json, a *.model of SentencePiece, or a directory of one")
      ->capture_default_str()
      ->type_name("SPEC");
  command->add_option("--output", options->output, "token directory to make")->required()->type_name("DIR");
  const CLI::Validator named([](std::string& name) { return name.empty() ? "must name a field" : ""; }, "", "named");
  CLI::Option* field =
      command->add_option("--field", options->field, "of JSON lines: the field that holds the text; of *.jsonl \"text\" if not given")
          ->check(named)
          ->type_name("NAME");
  CLI::Option* prompt =
      command->add_option("--prompt-field", options->prompt_field, "instruction data: the field of the prompt, which is never a target")
          ->check(named)
          ->type_name("NAME")
          ->excludes(field);
  CLI::Option* response = command->add_option("--response-field", options->response_field, "instruction data: the field of the response")
                              ->check(named)
                              ->type_name("NAME")
                              ->needs(prompt);
  prompt->needs(response);
  command
      ->add_option("--template", options->prompt_template,
                   "what a document of instruction data is, with \\n, \\t and \\\\; what stands before {response} is encoded apart from the rest and "
                   "is the prompt")
      ->capture_default_str()
      ->type_name("TEXT")
      ->needs(prompt);
  CLI::Option* end = command->add_flag_callback(
      "--end-of-text", [options] { options->end_of_text = true; },
      "each document ends with the tokenizer's end-of-text token; if not said, where it has one");
  command
      ->add_flag_callback(
          "--no-end-of-text", [options] { options->end_of_text = false; }, "documents end without one")
      ->excludes(end);
  command->add_option("--threads", options->threads, "that encode; the result does not depend on their number")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->type_name("N");
  command->add_option("files", options->inputs, "text, JSON lines, directories; - is standard input")->required()->type_name("FILE|DIR");
  command->callback([options, &exit_code] {
    build(*options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

void add_inspect(CLI::App& data, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = data.add_subcommand("inspect", "Describe token ids: documents, tokens, lengths, a sample");
  command->add_option("path", options->path, "a token directory, or a token file of Megatron, llm.c or nanoGPT")->required()->type_name("PATH");
  command->add_option("--tokenizer", options->tokenizer, "decodes the sample; of a token directory its own if not given")->type_name("SPEC");
  command->add_flag("--verify", options->verify, "read all of a token directory and compare it with the digests that its build wrote");
  command->add_flag("--json", options->json, "for programs");
  command->callback([options, &exit_code] {
    inspect_tokens(*options);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace

void add_data_command(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Make and look into token ids");
  data->require_subcommand(1);
  add_build(*data, exit_code);
  add_inspect(*data, exit_code);
}

}  // namespace trireme
