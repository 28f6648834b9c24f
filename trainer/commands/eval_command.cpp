#include "trainer/commands/eval_command.h"

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "trainer/commands/checkpoint_model.h"
#include "trainer/config/load.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/run.h"

namespace trireme {
namespace {

struct Arguments {
  std::string config, checkpoint;
  std::vector<std::string> sets;
  bool json = false;
};

void check_same_model(const ModelConfig& configured, const ModelConfig& saved) {
  nlohmann::json a = describe_model(configured), b = describe_model(saved);
  for (nlohmann::json* model : {&a, &b}) model->erase("max_positions");  // follows sequence_length, which evaluate() looks at
  std::string difference;
  for (const auto& [key, value] : a.items())
    if (value != b[key]) difference += concat(difference.empty() ? "" : ", ", "model.", key, "=", value.dump(), " (checkpoint: ", b[key].dump(), ")");
  if (!difference.empty()) throw DataError("the checkpoint holds another model than the configuration: " + difference);
}

void evaluate(const Arguments& arguments) {
  // The layout of CONFIG is for training: here one rank reads the checkpoint, however many made it.
  const Config config = resolve(load_config(arguments.config, arguments.sets));
  if (config.data.validation.empty()) throw ConfigError("data.validation: eval needs a validation set; allowed one token directory or more");
  CheckpointModel model(arguments.checkpoint);
  check_same_model(config.model, model.config().model);
  if (config.training.sequence_length > *model.config().model.max_positions)
    throw DataError(concat("training.sequence_length=", config.training.sequence_length, ": the checkpoint's model has ",
                           *model.config().model.max_positions, " positions"));
  const TokenDataset validation = open_dataset(config, config.data.validation);
  model.config().run.device = config.run.device;
  model.config().kernels = config.kernels;
  model.config().training = config.training;
  const Trainer::Evaluation result = model.load().evaluate(validation, 0);
  const double bits_per_byte = result.loss / std::numbers::ln2;  // a token of the bytes tokenizer is a byte
  const nlohmann::ordered_json line = {
      {"validation_loss", result.loss}, {"perplexity", std::exp(result.loss)}, {"bits_per_byte", bits_per_byte}, {"tokens", result.tokens}};
  if (arguments.json) {
    std::cout << line.dump() << std::endl;
  } else {
    std::cout << "validation loss " << result.loss << " nats per token, perplexity " << std::exp(result.loss) << ", " << bits_per_byte
              << " bits per byte, over " << result.tokens << " tokens" << std::endl;
  }
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("eval", "Validation loss of a checkpoint");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->config, "YAML file whose validation set is read")->required();
  command->add_option("--checkpoint", arguments->checkpoint, "Checkpoint directory")->required();
  command->add_option("--set", arguments->sets, "key.path=value, over the file; may be repeated")->allow_extra_args(false);
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  command->callback([arguments, &exit_code] {
    evaluate(*arguments);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
