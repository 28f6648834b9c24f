#include "trainer/commands/generate_command.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <optional>

#include "kernels/core/counted.h"
#include "trainer/commands/checkpoint_model.h"
#include "trainer/commands/finish_output.h"
#include "trainer/commands/finite_range.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/commands/text_stream.h"
#include "trainer/files/mapped_file.h"
#include "trainer/job/launcher.h"
#include "trainer/job/stop_signals.h"
#include "trainer/loop/decoder.h"
#include "trainer/machine/collectively.h"
#include "trainer/model/sampling.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

struct GenerateArguments {
  std::string checkpoint, prompt, prompt_file;
  WeightKind weights = WeightKind::kTrained;
  int64_t max_tokens = 200;
  std::optional<double> temperature, top_p;  ///< these three: not given, the defaults of the model's folder, else those of SamplingOptions
  std::optional<int64_t> top_k;
  int64_t seed = 0;
  std::optional<int64_t> tensor;  ///< not given: all started ranks
  bool no_cache = false;
  bool oversubscribe = false;
};

/// The inputs of a rank other than the weights. The constructor is cheap and checks all arguments.
struct Request {
  Request(const GenerateArguments& of, int64_t ranks);
  void lay_out(int64_t ranks);

  const GenerateArguments& arguments;
  CheckpointModel model;
  Tokenizer tokenizer;
  std::string prompt;
  std::vector<int32_t> tokens;
};

std::string prompt_of(const GenerateArguments& arguments) {
  std::string prompt = arguments.prompt;
  if (!arguments.prompt_file.empty()) {
    const MappedFile file(arguments.prompt_file);
    file.load(0, file.bytes());
    prompt.assign(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.bytes()));
  }
  if (prompt.empty()) throw ConfigError("--prompt: empty; allowed any text of one token or more");
  return prompt;
}

Tokenizer tokenizer_of(const CheckpointModel& model) {
  if (!model.tokenizer_problem().empty()) return Tokenizer::open(model.folder() + "/");  // throws what it threw when the folder was opened
  if (model.tokenizer().empty()) throw MissingFileError(model.folder() + " has no tokenizer; add its tokenizer.json or tokenizer.model");
  return Tokenizer::open(model.tokenizer());
}

Request::Request(const GenerateArguments& of, int64_t ranks)
    : arguments(of), model(of.checkpoint, of.weights), tokenizer(tokenizer_of(model)), prompt(prompt_of(of)), tokens(tokenizer.encode(prompt)) {
  const int64_t vocabulary = *model.config().model.vocab_size;
  for (const int32_t token : tokens)
    if (token >= vocabulary) throw DataError(concat("the prompt contains token ", token, ", but the model's vocabulary size is ", vocabulary));
  lay_out(ranks);
}

void Request::lay_out(int64_t ranks) {
  Config& config = model.config();
  const int64_t kv_heads = *config.model.kv_heads;
  if (config.model.heads % ranks != 0 || *config.model.ffn_size % ranks != 0 || (kv_heads % ranks != 0 && ranks % kv_heads != 0))
    throw ConfigError(concat("--tensor=", ranks, ": cannot split a model with ", config.model.heads, " heads, ", kv_heads, " kv heads and ffn_size ",
                             *config.model.ffn_size, "; allowed divisors of heads and of ffn_size that divide kv_heads or are multiples of it"));
  config.parallel.tensor = ranks;
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = 1;
}

/// Reports tokens per second to standard error if a terminal is attached.
void report_speed(const LaunchEnvironment& environment, size_t prompt, Clock::time_point begin, Clock::time_point first, size_t made) {
  const bool watched = environment.is_rank_of_launch() ? standard_output_is_terminal(environment) : ::isatty(STDERR_FILENO) != 0;
  if (!watched || made < 2) return;
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  std::cerr << concat("prompt of ", counted(prompt, "token"), " in ", seconds(first - begin), " s, then ",
                      static_cast<double>(made - 1) / seconds(Clock::now() - first), " tokens/s")
            << std::endl;
}

SamplingOptions sampling_of(const GenerateArguments& arguments, const Tokenizer& tokenizer) {
  const GenerationDefaults& defaults = tokenizer.sampling();
  SamplingOptions options;
  options.temperature = arguments.temperature.value_or(defaults.temperature.value_or(options.temperature));
  options.top_k = arguments.top_k.value_or(defaults.top_k.value_or(options.top_k));
  options.top_p = arguments.top_p.value_or(defaults.top_p.value_or(options.top_p));
  options.vocab_size = tokenizer.vocab_size();  // rows of the model's vocabulary beyond the tokenizer's ids were never trained
  return options;
}

/// Says which settings of the model's generation_config.json apply, and which would if they were supported.
void note_sampling(const GenerateArguments& arguments, const Tokenizer& tokenizer) {
  const GenerationDefaults& defaults = tokenizer.sampling();
  std::string applied, ignored;
  const auto add = [&](const char* name, const auto& given, const auto& value) {
    if (!given && value) applied += concat(applied.empty() ? "" : ", ", name, " ", *value);
  };
  add("temperature", arguments.temperature, defaults.temperature);
  add("top_k", arguments.top_k, defaults.top_k);
  add("top_p", arguments.top_p, defaults.top_p);
  for (const std::string& name : defaults.ignored) ignored += concat(ignored.empty() ? "" : ", ", name);
  if (applied.empty() && ignored.empty()) return;
  std::cerr << concat("generation_config.json of the model: ", applied, !applied.empty() && !ignored.empty() ? "; " : "",
                      ignored.empty() ? "" : concat("not supported and not applied: ", ignored), "\n");
}

/// Every rank samples the same tokens; rank 0 prints them.
ExitCode continue_text(Request& request, const LaunchEnvironment& environment, Trainer& trainer) {
  const GenerateArguments& arguments = request.arguments;
  Communicator& world = trainer.mesh().world;
  std::vector<int32_t>& tokens = request.tokens;
  const size_t prompt = tokens.size();
  const StopRequest stop;
  world.barrier();  // until every rank has its StopRequest
  if (world.rank() == 0) announce_ready(environment);
  const auto tell = [&](const std::string& text) {
    if (world.rank() == 0) std::cout << text << std::flush;
  };
  tell(request.prompt);
  Decoder decoder(trainer, static_cast<int64_t>(prompt) + arguments.max_tokens, !arguments.no_cache);
  TextStream stream(request.tokenizer, tokens);
  const SamplingOptions sampling = sampling_of(arguments, request.tokenizer);
  if (world.rank() == 0) note_sampling(arguments, request.tokenizer);
  const uint64_t key = random_key(static_cast<uint64_t>(arguments.seed), "generate");
  const auto begin = Clock::now();
  auto first = begin;
  bool stopped = false;
  for (int64_t i = 0; i < arguments.max_tokens && !stopped; ++i) {
    const std::vector<double> logits = decoder.logits(tokens);
    if (i == 0) first = Clock::now();
    const int32_t token = sample_token(logits, sampling, random_uniform(key, static_cast<uint64_t>(i)));
    if (std::ranges::find(request.tokenizer.ends(), token) != request.tokenizer.ends().end()) break;
    tokens.push_back(token);
    tell(stream.add(token));
    // Only rank 0 notices that its standard output was closed.
    stopped = all_reduce_scalar(world, stop.requested() || !std::cout ? 1 : 0, ReduceOp::kMax) > 0;
  }
  tell(stream.rest() + "\n");
  collectively(world, finish_output);
  if (world.rank() == 0) report_speed(environment, prompt, begin, first, tokens.size() - prompt);
  return stopped ? ExitCode::kRequeue : ExitCode::kOk;
}

ExitCode generate_as_rank(const GenerateArguments& arguments, const LaunchEnvironment& environment) {
  return run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    std::optional<Request> request;
    collectively(*world, [&] {
      if (arguments.tensor && *arguments.tensor != world->size())
        throw ConfigError(concat("--tensor=", *arguments.tensor, ": mpirun or srun started ", world->size(), " ranks; allowed the same number"));
      request.emplace(arguments, world->size());
    });
    return continue_text(*request, environment, request->model.load(std::move(world), place, machine, {.may_ignore_gpus = true}));
  });
}

/// Checks all arguments before ranks are started.
int generate(const GenerateArguments& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  if (!environment.is_rank() && arguments.tensor.value_or(1) > 1) {
    const Request checked(arguments, *arguments.tensor);
    return launch(environment, static_cast<int>(*arguments.tensor), command_line, {.oversubscribe = arguments.oversubscribe});
  }
  return static_cast<int>(generate_as_rank(arguments, environment));
}

}  // namespace

void add_generate_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate",
                                         "Continue a text with a model. Beyond the model's max_positions, the oldest tokens are dropped and each new "
                                         "token recomputes all remaining ones");
  const auto arguments = std::make_shared<GenerateArguments>();
  command->add_option("--checkpoint", arguments->checkpoint, "Checkpoint, run directory or Hugging Face folder")->required();
  add_weights_option(*command, arguments->weights);
  CLI::Option* prompt = command->add_option("--prompt", arguments->prompt, "Text to continue");
  CLI::Option* file = command->add_option("--prompt-file", arguments->prompt_file, "File with the text to continue")->excludes(prompt);
  command->add_option("--max-tokens", arguments->max_tokens, "Maximum number of tokens to add; fewer if the model ends the text")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  command
      ->add_option("--temperature", arguments->temperature,
                   "Sampling temperature; 0: always the most likely token; default: generation_config.json of the model, else 1")
      ->check(finite_range(0, 1e6));
  command->add_option("--top-k", arguments->top_k, "Sample from the k most likely tokens; 0: all tokens; default: as for --temperature, else 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command
      ->add_option("--top-p", arguments->top_p,
                   "Sample from the most likely tokens whose probabilities sum to p; default: as for --temperature, else 1")
      ->check(finite_range(0, 1));
  command->add_option("--seed", arguments->seed, "Random seed; the same seed gives the same text")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max() - 1));  // CLI11 reads larger numbers as the maximum
  command->add_option("--tensor", arguments->tensor, "Number of ranks to split the model over; started by this command, mpirun or srun")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  add_oversubscribe_flag(*command, arguments->oversubscribe);
  command->add_flag("--no-cache", arguments->no_cache, "Do not cache keys and values: compute every token from the whole text");
  command->callback([arguments, &environment, command_line, prompt, file, &exit_code] {
    if (prompt->count() + file->count() == 0) throw ConfigError("--prompt is required, or --prompt-file");
    exit_code = generate(*arguments, environment, command_line);
  });
}

}  // namespace trireme
