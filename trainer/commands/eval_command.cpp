#include "trainer/commands/eval_command.h"

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "trainer/commands/checkpoint_model.h"
#include "trainer/commands/finish_output.h"
#include "trainer/config/load.h"
#include "trainer/files/printable.h"
#include "trainer/job/world.h"
#include "trainer/layout/resolve.h"
#include "trainer/run/run_data.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {
namespace {

struct EvalArguments {
  std::string config, checkpoint;
  std::vector<std::string> sets;
  WeightKind weights = WeightKind::kTrained;
  bool json = false;
};

void check_same_model(ModelConfig configured, const ModelConfig& saved) {
  configured.max_positions = saved.max_positions;  // derived from sequence_length, which evaluate() checks
  if (const std::string difference = model_difference(configured, saved); !difference.empty())
    throw DataError("the checkpoint's model differs from the configuration; the checkpoint has\n" +
                    difference.substr(0, difference.find_last_not_of('\n') + 1));
}

/// Refuses a tokenizer with different ids than the checkpoint's. `spec`: the checkpoint's tokenizer; empty if unknown.
void check_same_tokenizer(const Tokenizer& configured, const std::string& spec) {
  if (spec.empty()) return;
  const Tokenizer saved = Tokenizer::open(spec);
  if (!same_ids(saved, configured))
    throw DataError(concat("the checkpoint was trained with a different tokenizer (", saved.digest(), ") than data.tokenizer (", configured.digest(),
                           "); allowed data.tokenizer=", spec));
}

/// Bytes of text of the targets of `data`; nullopt if a target is not an id of the tokenizer, which then did not produce the data.
std::optional<int64_t> target_bytes(const Dataset& data, int64_t sequence_length, const std::vector<int32_t>& token_bytes) {
  std::vector<int32_t> tokens(static_cast<size_t>(sequence_length)), targets(tokens.size());
  std::vector<int64_t> segments;
  int64_t bytes = 0;
  for (int64_t sample = 0; sample < data.sequences(); ++sample) {
    segments.clear();
    data.read(sample, tokens.data(), targets.data(), segments);
    for (const int32_t target : targets) {
      if (target < 0) continue;
      if (static_cast<size_t>(target) >= token_bytes.size()) return std::nullopt;
      bytes += token_bytes[static_cast<size_t>(target)];
    }
  }
  return bytes;
}

/// The configuration of an evaluation: CONFIG as it is, because every key of it may decide the loss, for the weights of `source` on one rank. The
/// checkpoint may have any layout, and CheckpointModel leaves out what protects and distributes training.
Config evaluation_config(const Config& configured, const Config& source) {
  Config config = configured;
  config.model = source.model;
  config.parallel = source.parallel;
  return config;
}

struct Figures {
  Trainer::Evaluation evaluation;
  std::optional<int64_t> bytes = 0;

  void add(const Figures& other) {
    evaluation.add(other.evaluation);
    bytes = bytes && other.bytes ? std::optional(*bytes + *other.bytes) : std::nullopt;
  }
  double perplexity() const { return std::exp(evaluation.loss); }
  /// Comparable between tokenizers; nullopt if the bytes are unknown.
  std::optional<double> bits_per_byte() const {
    if (!bytes || *bytes == 0) return std::nullopt;
    return evaluation.nats / std::numbers::ln2 / static_cast<double>(*bytes);
  }
  nlohmann::ordered_json json() const {
    const std::optional<double> bits = bits_per_byte();
    return {{"validation_loss", evaluation.loss},
            {"perplexity", perplexity()},
            {"bits_per_byte", bits ? nlohmann::ordered_json(*bits) : nlohmann::ordered_json(nullptr)},
            {"tokens", evaluation.tokens}};
  }
  std::string text() const {
    const std::optional<double> bits = bits_per_byte();
    return concat("validation loss ", evaluation.loss, " nats per token, perplexity ", perplexity(), ", ",
                  bits ? concat(*bits, " bits per byte, ") : "", "over ", evaluation.tokens, " tokens");
  }
};

void evaluate(const EvalArguments& arguments, const LaunchEnvironment& environment) {
  // The layout of CONFIG is for training; here one rank reads the checkpoint, which may have any layout.
  const Config config = resolve(load_config(arguments.config, arguments.sets));
  if (config.data.validation.empty()) throw ConfigError("data.validation: eval needs a validation set; allowed one or more token directories");
  CheckpointModel model(arguments.checkpoint, arguments.weights);
  check_same_model(config.model, model.config().model);
  if (config.training.sequence_length > *model.config().model.max_positions)
    throw DataError(concat("training.sequence_length=", config.training.sequence_length, ": longer than the checkpoint's model allows, ",
                           *model.config().model.max_positions, " positions"));
  const Tokenizer tokenizer = Tokenizer::open(config.data.tokenizer);
  check_same_tokenizer(tokenizer, model.tokenizer());
  const std::vector<ValidationSet> sets = open_validation(config);
  for (const ValidationSet& set : sets)
    for (const std::string& doubt : set.data.suspicions()) std::cerr << "warning: " << printable(doubt) << '\n';
  const std::vector<int32_t> token_bytes = tokenizer.token_bytes();
  model.config() = evaluation_config(config, model.config());
  Trainer& trainer = model.load(single_process_place(environment));
  Figures all;
  nlohmann::ordered_json by_name;
  for (const ValidationSet& set : sets) {
    const Figures figures{trainer.evaluate(set.data, 0), target_bytes(set.data, config.training.sequence_length, token_bytes)};
    all.add(figures);
    if (!has_named_sets(config)) continue;
    by_name[set.name] = figures.json();
    if (!arguments.json) std::cout << set.name << ": " << figures.text() << std::endl;
  }
  nlohmann::ordered_json line = all.json();
  if (!by_name.is_null()) line["sets"] = by_name;
  std::cout << (arguments.json ? line.dump() : all.text()) << '\n';
  finish_output();
}

}  // namespace

void add_eval_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* command = app.add_subcommand("eval", "Compute validation loss, perplexity and bits per byte of a checkpoint");
  const auto arguments = std::make_shared<EvalArguments>();
  command->add_option("CONFIG", arguments->config, "YAML file with the validation set")->required();
  command->add_option("--checkpoint", arguments->checkpoint, "Checkpoint, run directory or Hugging Face folder")->required();
  add_weights_option(*command, arguments->weights);
  command->add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &environment, &exit_code] {
    evaluate(*arguments, environment);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
