#include "trainer/commands/bench_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/core/counted.h"
#include "kernels/ops/matmul.h"
#include "parallel/comm/collective_steps.h"
#include "parallel/comm/self.h"
#include "trainer/bench/comm.h"
#include "trainer/bench/kernels.h"
#include "trainer/bench/step.h"
#include "trainer/commands/bench_algorithms.h"
#include "trainer/commands/bench_machine.h"
#include "trainer/commands/bench_scale.h"
#include "trainer/commands/finish_output.h"
#include "trainer/commands/finite_range.h"
#include "trainer/commands/link_file.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/config/load.h"
#include "trainer/federation/role.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/table.h"
#include "trainer/job/launcher.h"
#include "trainer/job/world.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/link_fit.h"
#include "trainer/plan/shape_rates.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string config;
  std::vector<std::string> sets;
  std::string device, precision;  ///< empty: from the configuration
  std::vector<std::string> only;
  std::vector<int64_t> sequences, head_sizes, sizes;
  int64_t tokens = 0, square = 0, working_set_mib = 0;  ///< 0: default of the device
  int64_t ranks = 2, ranks_per_gpu = 1;
  double seconds = 0.4, machine_seconds = 0.25;
  std::string output;                   ///< empty: standard output
  std::vector<std::string> algorithms;  ///< of bench comm; empty: the library only
  std::string transport = "mpi";
  bool lists = false;
  std::string cluster;  ///< cluster file for the fits of bench comm
  int64_t rounds = 0;   ///< 0: default
  bool fit = false;
  bench::StepOptions step;
  bool json = false;
  bool oversubscribe = false;
  bool allow_busy = false;

  bool fits() const { return fit || !cluster.empty(); }
  bench::Effort effort() const {
    // A fit takes the shortest batches: on a machine that is shared with other programs, long ones are all interrupted.
    constexpr double kBatch = 0.02, kShortBatch = 5e-4;
    return {.batch_seconds = std::min(fits() ? kShortBatch : kBatch, seconds / 3), .seconds = seconds, .world = nullptr};
  }
};

/// Model of `bench kernels` without a configuration: a LLaMA with 1.3 billion parameters on a GPU, with 110 million on a CPU.
constexpr const char* kGpuModel = R"(model: {layers: 24, hidden_size: 2048, heads: 16, ffn_size: 5504, vocab_size: 32000}
training: {steps: 1, sequence_length: 2048, micro_batch_size: 8, precision: bf16}
data: {train: [none]}
)";
constexpr const char* kCpuModel = R"(model: {layers: 12, hidden_size: 768, heads: 12, kv_heads: 4, ffn_size: 2048, vocab_size: 32000}
training: {steps: 1, sequence_length: 1024}
data: {train: [none]}
)";

void print(const Arguments& arguments, const ordered_json& result, const std::string& text) {
  std::cout << (arguments.json ? result.dump() + "\n" : text);
  finish_output();
}

/// E.g. "trireme 0.1.0 on NVIDIA H200, world of 1", from describe_environment.
std::string headline(const ordered_json& environment) {
  const bool gpu = !environment["gpu"].is_null();
  return concat("trireme ", environment["version"].get<std::string>(), " on ",
                gpu ? environment["gpu"]["name"].get<std::string>() : environment["host"]["cpu"].get<std::string>(), ", world of ",
                environment["world_size"], gpu ? "" : concat(", ", counted(environment["threads_per_rank"].get<int>(), "thread"), " each"), "\n");
}

std::vector<std::string> all_sets(const Arguments& arguments) {
  std::vector<std::string> sets = arguments.sets;
  if (!arguments.device.empty()) sets.push_back("run.device=" + arguments.device);
  if (!arguments.precision.empty()) sets.push_back("training.precision=" + arguments.precision);
  return sets;
}

bench::KernelOptions kernel_options(const Arguments& arguments, const Config& config, bool gpu) {
  const auto wants = [&](const char* group) {
    return arguments.only.empty() || std::find(arguments.only.begin(), arguments.only.end(), group) != arguments.only.end();
  };
  bench::KernelOptions options;
  options.gemm = wants("gemm");
  options.attention = wants("attention");
  options.bandwidth = wants("bandwidth");
  options.tokens = arguments.tokens > 0 ? arguments.tokens : config.training.micro_batch_size * config.training.sequence_length;
  options.square = arguments.square > 0 ? arguments.square : (gpu ? 8192 : 2048);
  options.sequences = arguments.sequences;
  if (options.sequences.empty()) options.sequences = gpu ? std::vector<int64_t>{1024, 2048, 4096, 8192, 16384} : std::vector<int64_t>{256, 1024};
  options.head_sizes = arguments.head_sizes.empty() ? std::vector<int64_t>{128, 64} : arguments.head_sizes;
  options.working_set = (arguments.working_set_mib > 0 ? arguments.working_set_mib : (gpu ? 1024 : 256)) << 20;
  options.effort = arguments.effort();
  return options;
}

int bench_kernels(const Arguments& arguments, const LaunchEnvironment& environment) {
  if (environment.is_rank()) throw ConfigError("bench kernels: runs on one rank; start it without mpirun or srun");
  const std::vector<std::string> sets = all_sets(arguments);
  const auto load = [&] {
    if (!arguments.config.empty()) return load_config(arguments.config, sets);
    const LoadedConfig small = parse_config(kCpuModel, "the model of bench kernels", sets);
    if (small.config.run.device == DeviceType::kCpu || usable_gpus() == 0) return small;
    return parse_config(kGpuModel, "the model of bench kernels", sets);
  };
  Config config = resolve(load());
  config.parallel = {};
  Machine machine(std::make_unique<SelfCommunicator>("world"), single_process_place(environment), config);
  const ordered_json description = describe_environment(machine.ctx(), 1, {});
  ordered_json result = {{"bench", "kernels"}, {"precision", config.training.precision.text()}, {"model", describe_model(config.model)}};
  result.update(bench::bench_kernels(machine.ctx(), config, kernel_options(arguments, config, config.run.device == DeviceType::kCuda)));
  result["environment"] = description;
  print(arguments, result, headline(description) + bench::kernels_text(result));
  return static_cast<int>(ExitCode::kOk);
}

int bench_step(const Arguments& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  std::optional<LoadedConfig> loaded;  // a pipe can be read only once
  if (!environment.is_rank()) {
    loaded = load_config(arguments.config, all_sets(arguments));
    if (const int ranks = mesh_shape(resolve(*loaded).parallel).world(); ranks > 1) {
      check_read_again(arguments.config);
      return launch(environment, ranks, command_line, {.resumable = false, .oversubscribe = arguments.oversubscribe});
    }
  }
  return static_cast<int>(run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    Config config;
    std::optional<DurableFile> output;  // fails before the measurements if it cannot be written
    collectively(*world, [&] {
      if (world->size() > 1) check_read_again(arguments.config);
      if (!loaded) loaded = load_config(arguments.config, all_sets(arguments));
      config = resolve(*loaded, world->size());
      if (world->rank() == 0 && !arguments.output.empty()) output.emplace(arguments.output);
    });
    if (is_asynchronous(config.training))
      throw ConfigError(concat("bench step: training.asynchronous.mode=", config.training.asynchronous.mode,
                               ": times steps that all ranks take together; allowed none"));
    if (!config.resilience.reroute.empty())
      throw ConfigError("bench step: resilience.reroute: times ranks that compute their own micro-batches; allowed []");
    if (is_private(config.security))
      throw ConfigError(concat("bench step: security.privacy.clip=", *config.security.privacy.clip,
                               ": private steps draw different numbers of sequences; allowed null"));
    if (is_federated(config.security)) config = resolve(federation::member_config(*loaded), world->size());
    if (std::exchange(config.resilience.rebalance, Rebalance::kNone) != Rebalance::kNone && world->rank() == 0)
      std::cerr << "note: bench step splits micro-batches evenly, with no resilience.rebalance\n";
    machine.emplace(std::move(world), place, config);
    if (machine->ctx().device == Device::kCuda && machine->world().rank() == 0)
      for (const std::string& line : shape_warnings(config)) std::cerr << "warning: " << line << '\n';
    bench::StepOptions options = arguments.step;
    options.effort = arguments.effort();
    ordered_json result = {{"bench", "step"}};
    result.update(bench::bench_step(machine->ctx(), machine->world(), config, options));
    if (machine->world().rank() != 0) return ExitCode::kOk;
    if (output) {
      output->write(result.dump() + "\n");
      output->commit();
    } else {
      print(arguments, result, headline(result["environment"]) + bench::step_text(result));
    }
    return ExitCode::kOk;
  }));
}

/// Sizes of `bench comm`: with a fit, every power of two, so that a change of protocol is found at its place.
std::vector<int64_t> comm_sizes(const Arguments& arguments, bool gpu) {
  if (!arguments.sizes.empty()) return arguments.sizes;
  const int64_t least = arguments.fits() ? 512 : 4096, most = int64_t{1} << (gpu ? 28 : arguments.fits() ? 26 : 24);
  std::vector<int64_t> sizes;
  for (int64_t bytes = least; bytes <= most; bytes *= arguments.fits() ? 2 : 16) sizes.push_back(bytes);
  return sizes;
}

AlgorithmOptions algorithm_options(const Arguments& arguments) {
  return {.names = arguments.algorithms,
          .sizes = arguments.sizes,
          .seconds = arguments.seconds,
          .rounds = arguments.rounds,
          .ranks = arguments.ranks,
          .threads = arguments.transport == "threads",
          .lists = arguments.lists,
          .output = arguments.output,
          .json = arguments.json,
          .oversubscribe = arguments.oversubscribe};
}

int bench_comm(const Arguments& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line) {
  if (!arguments.algorithms.empty()) {
    if (arguments.device == "cuda")
      throw ConfigError("--device=cuda: GPUs communicate through NCCL, which chooses its own algorithms; allowed cpu with --algorithm");
    return bench_algorithms(algorithm_options(arguments), environment, command_line);
  }
  constexpr size_t kFewestSizes = 3;
  if (arguments.fits() && !arguments.sizes.empty() && arguments.sizes.size() < kFewestSizes)
    throw ConfigError(concat("--sizes: a fit needs at least ", kFewestSizes, " sizes, and finds ranges with ", 2 * kFewestSizes, " or more"));
  if (!environment.is_rank()) {
    if (!arguments.cluster.empty()) LinkFile(arguments.cluster);  // reports a bad file before ranks are started
    return launch(environment, static_cast<int>(arguments.ranks), command_line, {.resumable = false, .oversubscribe = arguments.oversubscribe});
  }
  return static_cast<int>(run_on_ranks(environment, [&](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) {
    collectively(*world, [&] {
      if (world->size() < 2) throw ConfigError("bench comm: needs at least two ranks");
    });
    std::optional<DurableFile> output;
    std::optional<LinkFile> cluster;
    collectively(*world, [&] {  // fails before the measurements if a file cannot be written
      if (world->rank() == 0 && !arguments.output.empty()) output.emplace(arguments.output);
      if (world->rank() == 0 && !arguments.cluster.empty()) cluster.emplace(arguments.cluster);
    });
    Config config;
    if (!arguments.device.empty()) config.run.device = OneOf<DeviceType>(arguments.device);
    config.run.ranks_per_gpu = arguments.ranks_per_gpu;
    machine.emplace(std::move(world), place, config);
    Communicator& ranks = machine->world();
    if (arguments.fits()) collectively(ranks, [&] { refuse_shared_cores(config, place); });
    const bool gpu = config.run.device == DeviceType::kCuda;
    ordered_json rows = bench::bench_comm(machine->ctx(), ranks, comm_sizes(arguments, gpu), arguments.effort(),
                                          arguments.rounds > 0 ? arguments.rounds
                                          : arguments.fits()   ? 3
                                                               : 1);
    if (ranks.rank() != 0) return ExitCode::kOk;
    const ordered_json description = describe_environment(machine->ctx(), ranks.size(), {});
    LinkConfig link;
    ordered_json fit;
    if (arguments.fits()) fit = fit_comm(rows, ranks.size(), link);
    if (cluster) cluster->write(link, gpu ? description["gpu"]["name"].get<std::string>() : "", ranks.size(), place.local_size);
    if (output) {
      output->write(rows.dump() + "\n");
      output->commit();
      return ExitCode::kOk;
    }
    ordered_json result = {{"bench", "comm"}, {"comm", rows}};
    if (arguments.fits()) result["fit"] = fit;
    result["environment"] = description;
    print(arguments, result, headline(description) + "\n" + table_of(rows) + (arguments.fits() ? "\n" + table_of(fit) : ""));
    return ExitCode::kOk;
  }));
}

void add_scale(CLI::App& bench, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* scale =
      bench.add_subcommand("scale", "Measure strong and weak scaling of a configuration over data ranks, beside the planner's forecast");
  const auto options = std::make_shared<ScaleOptions>();
  const CLI::Range count(int64_t{1}, int64_t{1} << 20);
  scale->add_option("CONFIG", options->config, "YAML file of a run; tensor and pipeline degree are kept")->required();
  scale->add_option("--set", options->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  scale->add_option("--ranks", options->ranks, "Most ranks; default: one for each core or GPU")->check(count);
  scale->add_option("--threads", options->threads, "Threads of each rank")->check(count)->capture_default_str();
  scale->add_option("--steps", options->steps, "Number of timed steps of a round")->check(count)->capture_default_str();
  scale->add_option("--warmup", options->warmup, "Number of steps before the timed ones")->check(count)->capture_default_str();
  scale->add_option("--rounds", options->rounds, "Measure everything this many times and keep the fastest")->check(count)->capture_default_str();
  scale->add_option("--cluster", options->cluster, "Cluster file, or a built-in device type, of the forecasts; default: plan.cluster");
  scale->add_option("--output", options->output, "Also write the results as JSON to this file");
  scale->add_option("--svg", options->svg, "Write a drawing of the curves to this file");
  scale->add_flag("--json", options->json, "Print one JSON object");
  add_oversubscribe_flag(*scale, options->oversubscribe);
  scale->callback([options, &environment, &exit_code] { exit_code = bench_scale(environment, *options); });
}

using ArgumentsPtr = std::shared_ptr<Arguments>;

void add_common(CLI::App& command, const ArgumentsPtr& arguments) {
  command.add_option("--seconds", arguments->seconds, "Seconds for each measurement")->check(finite_range(1e-3, 60));
  command.add_flag("--json", arguments->json, "Print one JSON object");
  command.add_option("--device", arguments->device, "auto | cpu | cuda; default: from the configuration")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

void add_configuration(CLI::App& command, const ArgumentsPtr& arguments, bool required) {
  command.add_option("CONFIG", arguments->config, "YAML file of a run")->required(required);
  command.add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  command.add_option("--precision", arguments->precision, "fp64 | fp32 | bf16 | fp16; default: from the configuration")
      ->check(CLI::IsMember({"fp32", "bf16", "fp64", "fp16"}));
}

void add_kernels(CLI::App& bench, const ArgumentsPtr& arguments, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* kernels = bench.add_subcommand("kernels", "Measure single matrix products, attention and memory-bound kernels at the sizes of a model");
  const CLI::Range positive(int64_t{1}, int64_t{1} << 30);
  add_common(*kernels, arguments);
  add_configuration(*kernels, arguments, false);
  kernels->add_option("--only", arguments->only, "Comma-separated list of gemm, attention and bandwidth; default: all")
      ->delimiter(',')
      ->check(CLI::IsMember({"gemm", "attention", "bandwidth"}));
  kernels->add_option("--tokens", arguments->tokens, "Rows (tokens) of every operation; default: one micro-batch")->check(positive);
  kernels->add_option("--square", arguments->square, "Size of the square matrix product")->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  kernels->add_option("--sequences", arguments->sequences, "Sequence lengths of attention, e.g. 1024,2048")->delimiter(',')->check(positive);
  kernels->add_option("--head-sizes", arguments->head_sizes, "Head sizes of attention, e.g. 128,64")->delimiter(',')->check(positive);
  kernels->add_option("--working-set", arguments->working_set_mib, "MiB of data that repeated calls cycle through; larger than any cache")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  kernels->callback([arguments, &environment, &exit_code] { exit_code = bench_kernels(*arguments, environment); });
}

void add_step(CLI::App& bench, const ArgumentsPtr& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line,
              int& exit_code) {
  CLI::App* step = bench.add_subcommand("step", "Measure training steps of a configuration on random tokens, in the layout of `train`");
  add_common(*step, arguments);
  add_configuration(*step, arguments, true);
  step->add_option("--steps", arguments->step.steps, "Number of timed steps")->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  step->add_option("--warmup", arguments->step.warmup, "Number of warmup steps before the timed ones")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  step->add_option("--output", arguments->output, "Write the results as JSON to this file instead of standard output")->excludes("--json");
  step->add_flag("--operations", arguments->step.operations, "Also time each operation of one step separately, on rank 0");
  add_oversubscribe_flag(*step, arguments->oversubscribe);
  step->callback([arguments, &environment, command_line, &exit_code] { exit_code = bench_step(*arguments, environment, command_line); });
}

void add_comm(CLI::App& bench, const ArgumentsPtr& arguments, const LaunchEnvironment& environment, const std::vector<std::string>& command_line,
              int& exit_code) {
  CLI::App* comm = bench.add_subcommand("comm", "Measure collectives and a ring of sends over the ranks of this job");
  add_common(*comm, arguments);
  comm->add_option("--ranks", arguments->ranks, "Number of ranks to start, unless started by mpirun or srun")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 16));
  comm->add_option("--ranks-per-gpu", arguments->ranks_per_gpu, "Number of ranks that share one GPU")->check(CLI::Range(int64_t{1}, int64_t{64}));
  comm->add_option("--sizes", arguments->sizes, "Buffer sizes in bytes, e.g. 4096,1048576")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 36));
  comm->add_option("--rounds", arguments->rounds, "Measure everything this many times and keep the fastest; default: 1, with a fit 3")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  comm->add_flag("--fit", arguments->fit, "Fit latency and bandwidth by ranges of sizes");
  comm->add_option("--cluster", arguments->cluster,
                   "Fit, and write the ranges into this cluster file for `plan --cluster`, which is created if it does not exist");
  std::vector<std::string> names{"all"};
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) names.emplace_back(name_of(algorithm));
  CLI::Option* const algorithm =
      comm->add_option("--algorithm", arguments->algorithms,
                       "Measure these values of parallel.collectives, or all, beside the library and beside their model; CPU ranks only")
          ->delimiter(',')
          ->check(CLI::IsMember(names))
          ->excludes("--fit")
          ->excludes("--cluster")
          ->excludes("--ranks-per-gpu");
  comm->add_option("--transport", arguments->transport, "mpi: the ranks are processes; threads: of one process, to test the algorithms")
      ->check(CLI::IsMember({"mpi", "threads"}))
      ->needs(algorithm);
  comm->add_flag("--lists", arguments->lists, "Print the steps of each rank for an all_reduce of the first size, and measure nothing")
      ->needs(algorithm);
  comm->add_option("--output", arguments->output, "Write the results as JSON to this file instead of standard output")->excludes("--json");
  add_oversubscribe_flag(*comm, arguments->oversubscribe);
  comm->callback([arguments, &environment, command_line, &exit_code] { exit_code = bench_comm(*arguments, environment, command_line); });
}

void add_machine(CLI::App& bench, const ArgumentsPtr& arguments, const LaunchEnvironment& environment, int& exit_code) {
  CLI::App* machine = bench.add_subcommand(
      "machine", "Measure this machine's CPU and write a cluster file for `plan`, fitted to matrix products, attention, memory and collectives");
  machine->add_option("--seconds", arguments->machine_seconds, "Seconds for each measurement")->check(finite_range(1e-3, 60));
  machine->add_option("--output", arguments->output, "Cluster file to write; default: standard output");
  machine->add_flag("--allow-busy", arguments->allow_busy, "Write the figures even if other processes use more than a tenth of the cores");
  machine->callback([arguments, &environment, &exit_code] {
    exit_code = bench_machine(environment, arguments->machine_seconds, arguments->output, arguments->allow_busy);
  });
}

}  // namespace

void add_bench_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure kernels, training steps, communication or this machine");
  bench->require_subcommand(1);
  const auto arguments = std::make_shared<Arguments>();
  add_kernels(*bench, arguments, environment, exit_code);
  add_step(*bench, arguments, environment, command_line, exit_code);
  add_comm(*bench, arguments, environment, command_line, exit_code);
  add_scale(*bench, environment, exit_code);
  add_machine(*bench, arguments, environment, exit_code);
}

}  // namespace trireme
