#include "trainer/commands/checkpoint_export.h"

#include <iostream>
#include <memory>
#include <optional>

#include "trainer/commands/checkpoint_model.h"
#include "trainer/commands/export_check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/new_directory.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/table.h"
#include "trainer/huggingface/config_writer.h"
#include "trainer/huggingface/writer.h"
#include "trainer/job/world.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

struct Arguments {
  std::string directory, output, format, dtype = "fp32", logits;
  WeightKind weights = WeightKind::kTrained;
  uint64_t max_shard_size = static_cast<uint64_t>(HuggingFaceOptions().max_shard_bytes);
  bool no_check = false;
};

const std::map<std::string, DType> kDTypes{{"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}};

/// What the user of transformers has to know of the tokenizer in the folder.
void note_tokenizer(const WeightSource& source, const std::string& output) {
  if (!source.tokenizer_problem().empty())
    std::cerr << concat("warning: ", source.tokenizer_problem(), "; the folder has the files of a tokenizer that there are, as they are\n");
  else if (source.tokenizer().empty())
    std::cerr << concat("warning: ", source.path(), " has no tokenizer; the folder has none either\n");
  if (source.tokenizer().empty() || source.is_hugging_face()) return;
  if (source.tokenizer().ends_with(".model"))
    std::cerr
        << "note: transformers takes tokenizer.model for one of LLaMA, BPE with byte fallback and no normalisation; compare ids if it is another\n";
  else if (hugging_face_class(source.model()) == std::string("Qwen2ForCausalLM"))
    std::cerr << concat("note: for this class AutoTokenizer of transformers 5 splits text as Qwen2 does, whatever tokenizer.json says; ",
                        "PreTrainedTokenizerFast.from_pretrained(\"", output, "\") goes by the file\n");
}

/// Returns the path of what was read: of a run under way the newest checkpoint may soon be another.
std::string write(const Arguments& arguments, const HuggingFaceOptions& options, NewDirectory& output) {
  WeightSource source(arguments.directory, arguments.weights);
  const int64_t bytes = hugging_face_bytes(source.model(), options.dtype);
  HuggingFaceSummary summary;
  {
    ProgressLine line("exporting", ProgressUnit::kBytes, bytes);
    summary = write_hugging_face(source, output.partial(), options, [&](int64_t more) { line.advance(more); });
  }
  output.commit();
  note_tokenizer(source, arguments.output);
  const char* const which = arguments.weights == WeightKind::kAverage ? "the moving average of " : "";
  std::cout << concat("wrote ", arguments.output, " from ", which, source.path(), ": ", hugging_face_class(source.model()), ", ", summary.tensors,
                      " tensors in ", arguments.dtype, ", ", binary_bytes_text(static_cast<double>(summary.bytes)), " in ", summary.files,
                      summary.files == 1 ? " file\n" : " files\n")
            << std::flush;
  return source.path();
}

/// Made before anything else, so that what cannot be written is told at once.
std::optional<DurableFile> open_logits(const std::string& path, const fs::path& source) {
  std::error_code ignored;
  if (path.empty()) return std::nullopt;
  const fs::path folder = fs::weakly_canonical(fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".", ignored);
  if (folder == fs::weakly_canonical(source, ignored))
    throw ConfigError(concat("--write-logits=", path, ": would be written among the files that are exported; choose another directory"));
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

void check(const Arguments& arguments, const RankPlace& place, const std::string& source, DType dtype, std::optional<DurableFile>& logits) {
  const ExportCheck found = check_export(source, arguments.weights, arguments.output, dtype, place);
  if (logits) write_logits(*logits, found);
  const std::string what = concat("the logits of ", found.tokens.size(), " tokens ");
  const std::string rounded = dtype == DType::kF32 ? "" : concat(" with its weights rounded to ", arguments.dtype);
  if (!found.equal)
    throw InternalError(concat(arguments.output, ": ", what, "differ from those of ", source, rounded, " by up to ", found.error,
                               ", and should not at all; the folder was left as it is"));
  std::cout << concat("checked: ", what, "computed from the folder are those of the source", rounded, ", bit for bit");
  if (dtype != DType::kF32) std::cout << concat("; the rounding moves them by up to ", found.rounding);
  std::cout << '\n';
}

void run(const Arguments& arguments, const RankPlace& place) {
  const HuggingFaceOptions options{kDTypes.at(arguments.dtype), static_cast<int64_t>(arguments.max_shard_size)};
  const WeightSource weights(arguments.directory, arguments.weights);
  hugging_face_class(weights.model());  // what cannot be written leaves no trace
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
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("directory", arguments->directory, "checkpoint, run directory (its newest checkpoint), or Hugging Face folder")
      ->required()
      ->type_name("DIR");
  add_weights_option(*command, arguments->weights);
  command->add_option("--format", arguments->format, "hf")->required()->check(CLI::IsMember({"hf"}))->type_name("NAME");
  command->add_option("--output", arguments->output, "Folder to make; must not exist. Until it is whole it is called OUT.partial")
      ->required()
      ->type_name("OUT");
  command->add_option("--dtype", arguments->dtype, "Of the weights: fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--max-shard-size", arguments->max_shard_size, "More is cut into files of up to so many bytes; 500MB and 5GB are understood")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 62))
      ->capture_default_str()
      ->type_name("BYTES");
  CLI::Option* no_check =
      command->add_flag("--no-check", arguments->no_check,
                        "Do not load the folder at the end to compare its logits with the source's, which takes the memory of the model");
  command->add_option("--write-logits", arguments->logits, "Tokens and logits of that comparison, as JSON")->excludes(no_check)->type_name("FILE");
  command->callback([arguments, &environment, &exit_code] {
    run(*arguments, lone_place(environment));
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
