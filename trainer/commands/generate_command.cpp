#include "trainer/commands/generate_command.h"

#include <iostream>

#include "trainer/commands/checkpoint_model.h"
#include "trainer/data/tokenizer.h"
#include "trainer/model/sampling.h"

namespace trireme {
namespace {

struct Arguments {
  std::string checkpoint, prompt;
  int64_t max_tokens = 200;
  SamplingOptions sampling;
  int64_t seed = 0;
};

void generate(const Arguments& arguments) {
  CheckpointModel model(arguments.checkpoint);
  const Tokenizer tokenizer = make_tokenizer(model.config().data.tokenizer);
  std::vector<int32_t> tokens = tokenizer.encode(arguments.prompt);
  if (tokens.empty()) throw ConfigError("--prompt: empty; allowed any text of one token or more");
  const auto window = static_cast<size_t>(*model.config().model.max_positions);
  model.config().training.micro_batch_size = 1;
  model.config().training.global_batch_size = 1;
  Trainer& trainer = model.load();
  std::cout << arguments.prompt << std::flush;
  const uint64_t key = random_key(static_cast<uint64_t>(arguments.seed), "generate");
  for (int64_t i = 0; i < arguments.max_tokens; ++i) {
    // Past the model's positions the oldest tokens fall out of its sight.
    const size_t begin = tokens.size() > window ? tokens.size() - window : 0;
    std::vector<double> logits = trainer.next_token_logits({tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.end()});
    logits.resize(static_cast<size_t>(tokenizer.vocab_size()));  // rows beyond the tokenizer's ids were never trained
    tokens.push_back(sample_token(logits, arguments.sampling, random_uniform(key, static_cast<uint64_t>(i))));
    std::cout << tokenizer.decode(std::span(tokens).last(1)) << std::flush;
  }
  std::cout << std::endl;
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a checkpoint's model");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("--checkpoint", arguments->checkpoint, "Checkpoint directory")->required();
  command->add_option("--prompt", arguments->prompt, "Text to continue")->required();
  command->add_option("--max-tokens", arguments->max_tokens, "Tokens to add")->check(CLI::Range(int64_t{0}, int64_t{1} << 40))->capture_default_str();
  command->add_option("--temperature", arguments->sampling.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--top-k", arguments->sampling.top_k, "Only the k most likely tokens; 0: all")->check(CLI::NonNegativeNumber);
  command->add_option("--top-p", arguments->sampling.top_p, "Only the most likely tokens that together reach p")->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", arguments->seed, "The same seed gives the same text")->check(CLI::NonNegativeNumber);
  command->callback([arguments, &exit_code] {
    generate(*arguments);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
