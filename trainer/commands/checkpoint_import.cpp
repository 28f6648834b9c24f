#include "trainer/commands/checkpoint_import.h"

#include <iostream>
#include <memory>

#include "trainer/checkpoint/tokenizer_copy.h"
#include "trainer/commands/finish_output.h"
#include "trainer/config/write.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/new_directory.h"
#include "trainer/files/progress_line.h"
#include "trainer/files/table.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/machine/environment.h"
#include "trainer/model/declare.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kWeightsName = "rank-00000.safetensors";
constexpr const char* kModelName = "model.yaml";

struct ImportArguments {
  std::string directory, output, format;
};

/// A parameter as stored in the checkpoint: unsplit, and in a dtype that loses no precision.
struct Weight {
  ParamSpec spec;
  DType dtype;
  Box whole() const { return {{0, 0}, spec.shape}; }
  int64_t bytes() const { return whole().numel() * size_of(dtype); }
  std::string name() const { return "weight/" + spec.name; }
};

std::vector<Weight> weights_of(const WeightSource& source) {
  std::vector<Weight> weights;
  for (ParamSpec& spec : whole_model(source.model())) {
    const DType dtype = source.dtype(spec.name) == DType::kF64 ? DType::kF64 : DType::kF32;
    weights.push_back({std::move(spec), dtype});
  }
  return weights;
}

/// Writes all weights, with one tensor in memory at a time.
Contents write_weights(WeightSource& source, const std::vector<Weight>& weights, const fs::path& directory, ProgressLine& progress) {
  std::vector<std::byte> buffer;
  std::vector<SafetensorsSource> entries;
  NonFinite non_finite;
  for (const Weight& weight : weights) {
    const std::vector<int64_t> shape(weight.spec.shape.begin(), weight.spec.shape.begin() + weight.spec.dims);
    entries.push_back({entry_name(weight.name(), weight.whole()), weight.dtype, shape, nullptr, [&] {
                         buffer.resize(static_cast<size_t>(weight.bytes()));
                         source.read(weight.spec.name, weight.whole(), weight.dtype, buffer.data());
                         const int64_t count = count_non_finite(weight.dtype, buffer.data(), weight.whole().numel());
                         if (count > 0) non_finite[weight.spec.name] = count;
                         progress.advance(weight.bytes());
                         return buffer.data();
                       }});
  }
  const SafetensorsSummary written = write_safetensors(directory / kWeightsName, entries, {{"format", "trireme"}});
  refuse_non_finite(source.path(), non_finite);
  Contents contents;
  contents.files[kWeightsName] = {written.bytes, written.digest};
  for (size_t i = 0; i < weights.size(); ++i) {
    const SafetensorsEntry& entry = written.entries[i];
    contents.tensors[weights[i].name()] = {weights[i].dtype,
                                           weights[i].spec.dims,
                                           weights[i].spec.shape,
                                           {{weights[i].whole(), kWeightsName, entry.begin, entry.end, written.digests[i]}}};
  }
  return contents;
}

/// Writes a checkpoint of step 0 that contains only weights. Errors: DataError if some are not finite.
void write_checkpoint(WeightSource& source, const fs::path& directory) {
  const std::vector<Weight> weights = weights_of(source);
  int64_t bytes = 0;
  for (const Weight& weight : weights) bytes += weight.bytes();
  Manifest manifest;
  {
    ProgressLine progress("importing", ProgressUnit::kBytes, bytes);
    manifest.contents = write_weights(source, weights, directory, progress);
  }
  CheckpointDescription& about = manifest.description;
  about.config = to_yaml(source.config());
  about.model = describe_model(source.model());
  about.layout = nlohmann::json::object();
  about.tokenizer = {"", "", {}};
  if (!source.tokenizer().empty()) {
    const TokenizerCopy copy = copy_of(Tokenizer::open(source.tokenizer()));
    about.tokenizer = copy.entry;
    write_tokenizer(copy.texts, directory, manifest.contents);
  }
  write_durably(directory / kModelName, to_yaml(source.config(), [&](const std::string& path) {
                  return path.starts_with("model.") || (path.starts_with("adapter.") && source.model().adapter.rank > 0);
                }));
  write_durably(directory / kManifestName, manifest_text(manifest));
  ProgressLine progress("reading back", ProgressUnit::kBytes, bytes);
  CheckpointReader(directory).verify_digests([&](int64_t more) { progress.advance(more); });
}

void run(const ImportArguments& arguments) {
  WeightSource source{fs::path(arguments.directory)};
  if (source.is_checkpoint()) throw DataError(concat(arguments.directory, ": is already a checkpoint; import needs a Hugging Face folder"));
  NewDirectory output(arguments.output, "--output");
  write_checkpoint(source, output.partial());
  output.commit();
  if (source.tokenizer().empty()) std::cerr << concat("warning: ", source.tokenizer_problem(), "; the checkpoint has no tokenizer\n");
  std::cout << concat("wrote ", arguments.output, " from ", source.path(),
                      ": weights only, for training.initial_weights; the matching model section is in ",
                      (fs::path(arguments.output) / kModelName).string(), "\n");
  finish_output();
}

}  // namespace

void add_checkpoint_import(CLI::App& checkpoint, int& exit_code) {
  CLI::App* command = checkpoint.add_subcommand("import", "Create a checkpoint from the weights of a Hugging Face folder");
  const auto arguments = std::make_shared<ImportArguments>();
  command->add_option("directory", arguments->directory, "Hugging Face folder with config.json, safetensors and tokenizer")
      ->required()
      ->type_name("DIR");
  command->add_option("--format", arguments->format, "Format of the input: hf")->required()->check(CLI::IsMember({"hf"}))->type_name("NAME");
  command->add_option("--output", arguments->output, "Checkpoint to create; must not exist. It is named OUT.partial until it is complete")
      ->required()
      ->type_name("OUT");
  command->callback([arguments, &exit_code] {
    run(*arguments);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
