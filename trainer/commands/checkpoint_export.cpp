#include "trainer/commands/checkpoint_export.h"

#include <iostream>
#include <memory>
#include <optional>

#include "kernels/core/counted.h"
#include "trainer/commands/checkpoint_model.h"
#include "trainer/commands/export_check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/new_directory.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/table.h"
#include "trainer/huggingface/config.h"
#include "trainer/huggingface/peft_writer.h"
#include "trainer/huggingface/writer.h"
#include "trainer/job/world.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct ExportArguments {
  std::string directory, output, format, dtype = "fp32", logits;
  WeightKind weights = WeightKind::kTrained;
  uint64_t max_shard_size = static_cast<uint64_t>(HuggingFaceOptions().max_shard_bytes);
  bool no_check = false;
};

const std::map<std::string, DType> kDTypes{{"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};

/// Prints warnings and notes for users who load the tokenizer of the folder with transformers.
void note_tokenizer(const WeightSource& source, const std::string& output) {
  if (!source.tokenizer_problem().empty())
    std::cerr << concat("warning: ", source.tokenizer_problem(), "; the existing tokenizer files were copied unchanged\n");
  else if (source.tokenizer().empty())
    std::cerr << concat("warning: ", source.path(), " has no tokenizer, so the folder has none\n");
  if (source.tokenizer().empty() || !source.is_checkpoint()) return;
  if (source.tokenizer().ends_with(".model"))
    std::cerr << "note: transformers reads tokenizer.model as a LLaMA tokenizer, BPE with byte fallback and no normalisation; compare ids if it is "
                 "not one\n";
  else if (hugging_face_class(source.model()) == std::string("Qwen2ForCausalLM"))
    std::cerr << concat("note: for this class, AutoTokenizer of transformers 5 splits text as Qwen2 does and ignores tokenizer.json; ",
                        "PreTrainedTokenizerFast.from_pretrained(\"", output, "\") uses the file\n");
}

/// Returns the path of the checkpoint that was read: a running job may soon write a newer one.
std::string write(const ExportArguments& arguments, const HuggingFaceOptions& options, NewDirectory& output) {
  WeightSource source(arguments.directory, arguments.weights, Adapters::kMerged);
  const int64_t bytes = hugging_face_bytes(source.model(), options.dtype);
  HuggingFaceSummary summary;
  {
    ProgressLine line("exporting", ProgressUnit::kBytes, bytes);
    summary = write_hugging_face(source, output.partial(), options, [&](int64_t more) { line.advance(more); });
  }
  output.commit();
  note_tokenizer(source, arguments.output);
  const char* const which = arguments.weights == WeightKind::kAverage ? "the moving average of " : "";
  std::cout << concat("wrote ", arguments.output, " from ", which, source.path(), ": ", hugging_face_class(source.model()), ", ",
                      counted(summary.tensors, "tensor"), " in ", arguments.dtype, ", ", binary_bytes_text(static_cast<double>(summary.bytes)),
                      " in ", counted(summary.files, "file"), source.merges_adapters() ? ", with its adapters merged" : "", "\n")
            << std::flush;
  return source.path();
}

/// Called first, so that the command fails early if the file cannot be written.
std::optional<DurableFile> open_logits(const std::string& path, const fs::path& source) {
  std::error_code ignored;
  if (path.empty()) return std::nullopt;
  const fs::path folder = fs::weakly_canonical(fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".", ignored);
  if (folder == fs::weakly_canonical(source, ignored))
    throw ConfigError(concat("--write-logits=", path, ": is in the directory of the exported model; choose another directory"));
  if (fs::is_directory(path, ignored)) throw IoError(concat("cannot write --write-logits=", path, ": is a directory"));
  return std::optional<DurableFile>(std::in_place, path);
}

void write_logits(DurableFile& file, const ExportCheck& check) {
  const size_t vocabulary = check.logits.size() / check.tokens.size();
  nlohmann::json rows = nlohmann::json::array();
  for (size_t t = 0; t < check.tokens.size(); ++t)
    rows.push_back(std::vector<double>(check.logits.data() + t * vocabulary, check.logits.data() + (t + 1) * vocabulary));
  file.write(nlohmann::json{{"tokens", check.tokens}, {"logits", std::move(rows)}}.dump() + "\n");
  file.commit();
}

void check(const ExportArguments& arguments, const RankPlace& place, const std::string& source, DType dtype, std::optional<DurableFile>& logits) {
  const ExportCheck found = check_export(source, arguments.weights, arguments.output, dtype, place);
  if (logits) write_logits(*logits, found);
  const std::string what = concat("the logits of ", found.tokens.size(), " tokens ");
  const std::string rounded = dtype == DType::kF32 ? "" : concat(" with its weights rounded to ", arguments.dtype);
  if (!found.equal)
    throw InternalError(concat(arguments.output, ": ", what, "differ from those of ", source, rounded, " by up to ", found.error,
                               ", but must be identical; the folder was kept"));
  std::cout << concat("checked: ", what, "computed from the folder equal those of the source", rounded, ", bit for bit");
  if (found.merging) std::cout << concat("; merging the adapters changed them by up to ", *found.merging);
  if (dtype != DType::kF32) std::cout << concat("; rounding the weights changed them by up to ", found.rounding);
  std::cout << '\n';
}

/// Writes the adapters alone.
void run_peft(const ExportArguments& arguments) {
  for (const auto& [given, option] : {std::pair(!arguments.logits.empty(), "--write-logits"),
                                      {arguments.no_check, "--no-check"},
                                      {arguments.max_shard_size != ExportArguments().max_shard_size, "--max-shard-size"}})
    if (given) throw ConfigError(concat(option, ": has no effect with --format peft; allowed with --format hf"));
  WeightSource source(arguments.directory, arguments.weights);
  PeftSummary summary;
  {
    NewDirectory output(arguments.output, "--output");
    summary = write_peft(source, output.partial(), kDTypes.at(arguments.dtype));
    output.commit();
  }
  const std::string base = summary.base.empty() ? "; set \"base_model_name_or_path\" in its adapter_config.json" : concat(" for ", summary.base);
  std::cout << concat("wrote ", arguments.output, " from ", source.path(), ": adapters of ", counted(summary.layers, "layer"), " in ",
                      arguments.dtype, ", ", binary_bytes_text(static_cast<double>(summary.bytes)), base, "\n");
  finish_output();
}

void run(const ExportArguments& arguments, const RankPlace& place) {
  if (arguments.format == "peft") return run_peft(arguments);
  const HuggingFaceOptions options{kDTypes.at(arguments.dtype), static_cast<int64_t>(arguments.max_shard_size)};
  const WeightSource weights(arguments.directory, arguments.weights);
  hugging_face_class(weights.model());  // fails before anything is written if the model cannot be exported
  std::optional<DurableFile> logits = open_logits(arguments.logits, weights.path());
  std::string source;
  {
    NewDirectory output(arguments.output, "--output");
    source = write(arguments, options, output);
  }
  if (arguments.no_check)
    std::cout << "not checked: --no-check\n";
  else
    check(arguments, place, source, options.dtype, logits);
  finish_output();
}

}  // namespace

void add_checkpoint_export(CLI::App& checkpoint, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* command = checkpoint.add_subcommand("export", "Write a model as a folder for Hugging Face transformers");
  const auto arguments = std::make_shared<ExportArguments>();
  command->add_option("directory", arguments->directory, "Checkpoint, run directory (its newest checkpoint) or Hugging Face folder")
      ->required()
      ->type_name("DIR");
  add_weights_option(*command, arguments->weights);
  command->add_option("--format", arguments->format, "Format of the output: hf, with adapters merged; or peft, the adapters alone")
      ->required()
      ->check(CLI::IsMember({"hf", "peft"}))
      ->type_name("NAME");
  command->add_option("--output", arguments->output, "Folder to create; must not exist. It is named OUT.partial until it is complete")
      ->required()
      ->type_name("OUT");
  command->add_option("--dtype", arguments->dtype, "Data type of the weights: fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--max-shard-size", arguments->max_shard_size, "Maximum size of a weight file, in bytes or with a unit, e.g. 500MB or 5GB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 62))
      ->capture_default_str()
      ->type_name("BYTES");
  CLI::Option* no_check = command->add_flag("--no-check", arguments->no_check,
                                            "Skip the final comparison of the folder's logits with the source's, which needs memory for the model");
  command->add_option("--write-logits", arguments->logits, "Write the tokens and logits of the comparison to this file, as JSON")
      ->excludes(no_check)
      ->type_name("FILE");
  command->callback([arguments, &environment, &exit_code] {
    run(*arguments, single_process_place(environment));
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
