#include "trainer/commands/plan_command.h"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>
#include <optional>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/commands/finish_output.h"
#include "trainer/commands/plan_output.h"
#include "trainer/config/fields.h"
#include "trainer/config/load.h"
#include "trainer/federation/role.h"
#include "trainer/files/output_files.h"
#include "trainer/files/progress_line.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/flops.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/report.h"
#include "trainer/plan/svg.h"
#include "trainer/plan/world_trace.h"
#include "trainer/run/run_data.h"

namespace trireme {
namespace {

struct PlanArguments {
  std::string config;
  std::optional<std::string> cluster, nodes, output, trace, svg;
  std::string ranks = "pipeline:0";
  std::vector<std::string> sets, cluster_sets;
  std::optional<double> tokens;
  bool search = false, json = false, simulate = false, analyse = false;

  bool searches_nodes() const { return search && nodes == "auto"; }
  bool wants_world() const { return simulate || trace || svg; }
};

template <class Number>
bool is_number(const std::string& text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= least && value <= most;
}

std::string nodes_of(const std::string& text) {
  constexpr int64_t kMost = 1 << 20;
  if (text != "auto" && (text.starts_with('0') || !is_number<int64_t>(text, 1, kMost)))
    throw ConfigError(concat("--nodes: invalid node count \"", text, "\"; allowed: 1 to ", kMost, ", or auto"));
  return text;
}

double tokens_of(const std::string& text) {
  if (!is_number<double>(text, 1, 1e18)) throw ConfigError(concat("--tokens: invalid token count \"", text, "\"; allowed: 1 to 1e18"));
  return std::stod(text);
}

/// --cluster, or plan.cluster of the configuration.
std::optional<std::string> cluster_of(const PlanArguments& arguments, const LoadedConfig& loaded) {
  if (arguments.cluster || loaded.config.plan.cluster == "none") return arguments.cluster;
  return loaded.config.plan.cluster;
}

/// A configuration with its forecast and the name of its layout.
RankedLayout ranked(const Config& config, const ClusterConfig& cluster) {
  const std::string layout = name_of(layout_of(config)) + (config.parallel.schedule == "file" ? "-file" : "");
  return {.config = config, .written = config, .layout = layout, .forecast = forecast(config, cluster), .reason = {}};
}

/// Runs a search that reports its progress.
template <class Search>
auto with_progress(const Search& search) {
  constexpr int64_t kParts = 1000;
  ProgressLine line("searching layouts", ProgressUnit::kItems, kParts);
  int64_t told = 0;
  return search([&](double share) {
    const auto done = static_cast<int64_t>(share * kParts);
    line.advance(std::max<int64_t>(0, done - told));
    told = std::max(told, done);
  });
}

SearchResult search(const LoadedConfig& loaded, const ClusterConfig& cluster) {
  return with_progress([&](const auto& progress) { return search_layouts(loaded.config, cluster, progress); });
}

/// Sets the number of nodes to the cheapest one on which a layout fits. If there is none, it stays, and its search says why.
void choose_nodes(const LoadedConfig& loaded, ClusterConfig& cluster, PlanResults& answer) {
  NodeSearch nodes = with_progress([&](const auto& progress) { return search_nodes(loaded.config, cluster, progress); });
  if (!nodes.counts.empty()) {
    cluster.nodes = nodes.counts[nodes.cheapest].cluster.nodes;
    answer.found = nodes.counts[nodes.cheapest].found;
  }
  answer.nodes = std::move(nodes);
}

/// Simulates all ranks and creates the requested trace and SVG.
void add_world(const PlanArguments& arguments, const ClusterConfig& cluster, PlanResults& answer) {
  const Config& config = answer.plan->config;
  const MeshShape mesh = mesh_shape(config.parallel);
  const std::vector<int> pipeline = group_members(mesh, MeshAxis::kPipeline, 0, 1);
  const std::vector<int> of_trace = arguments.trace ? ranks_named(arguments.ranks, mesh) : std::vector<int>{};
  std::vector<int> traced = of_trace;
  if (arguments.svg) traced.insert(traced.end(), pipeline.begin(), pipeline.end());
  std::ranges::sort(traced);
  traced.erase(std::unique(traced.begin(), traced.end()), traced.end());
  const LoweredSchedule plans = lowered_schedule(config);
  check_trace_size(plans.training_of_ranks(mesh), of_trace);
  answer.world = simulate_step(config, cluster, plans, traced);
  WorldSimulation& step = answer.world->step;
  if (arguments.svg) {
    std::vector<Timeline> rows;
    for (const int rank : pipeline) rows.push_back(step.timelines.at(rank));
    answer.svg = pipeline_svg(rows, concat(answer.plan->layout, " on ", cluster.devices(), " x ", cluster.device.type));
  }
  if (!arguments.trace) return;
  std::erase_if(step.timelines, [&](const auto& entry) { return !std::ranges::binary_search(of_trace, entry.first); });
  answer.trace = chrome_trace(step, mesh);
}

Analysis analysis_of(const PlanArguments& arguments, const RankedLayout& plan, const ClusterConfig& cluster) {
  AnalysisOptions options;
  options.tokens = arguments.tokens;
  options.step_seconds = [](const Config& config, const ClusterConfig& on) -> std::optional<double> {
    try {
      return forecast_time(resolve(config), on).step_seconds;
    } catch (const ConfigError&) {
      return std::nullopt;  // the layout is not possible on this number of devices
    }
  };
  return analyse(plan.config, cluster, plan.forecast, options);
}

/// A configuration is often planned where its data are not, so missing data are a note of the plan.
std::optional<PackedData> packed_data(const Config& config) {
  if (config.data.packing == Packing::kNone) return std::nullopt;
  try {
    const TokenDataset data = open_training_data(config);
    return PackedData{data.sequences(), data.padding_share()};
  } catch (const MissingFileError& error) {
    return PackedData{.unknown = error.what()};
  }
}

/// 0 where the data are not.
int64_t training_sequences(const Config& config) {
  try {
    return open_training_data(config).sequences();
  } catch (const MissingFileError&) {
    return 0;
  }
}

std::vector<OutputFile> outputs_of(const PlanArguments& arguments) {
  std::vector<OutputFile> files;
  if (arguments.output) files.push_back({"--output", *arguments.output});
  if (arguments.svg) files.push_back({"--svg", *arguments.svg});
  if (arguments.trace) files.push_back({"--trace", *arguments.trace});
  return files;
}

/// Checks the arguments before any work.
void check(const PlanArguments& arguments, const LoadedConfig& loaded) {
  std::vector<std::string> inputs{arguments.config};
  if (const std::optional<std::string> cluster = cluster_of(arguments, loaded)) inputs.push_back(*cluster);
  if (loaded.config.parallel.schedule == "file") inputs.push_back(loaded.config.parallel.schedule_file);
  check_outputs(outputs_of(arguments), inputs);
  if (arguments.analyse) training_tokens(loaded.config, arguments.tokens);
  const int64_t islands = loaded.config.parallel.islands;
  if (islands > 1 && (arguments.search || arguments.analyse))
    throw ConfigError(concat("parallel.islands=", islands, ": ", arguments.search ? "--search" : "--analyse", " knows one island; allowed 1"));
  if (loaded.config.resilience.rebalance != Rebalance::kNone && (arguments.search || arguments.analyse))
    throw ConfigError(concat("resilience.rebalance=", loaded.config.resilience.rebalance, ": ", arguments.search ? "--search" : "--analyse",
                             " splits micro-batches evenly; allowed none"));
  if (!loaded.config.resilience.reroute.empty() && (arguments.search || arguments.analyse))
    throw ConfigError(concat("resilience.reroute=", text_of(FieldValue(loaded.config.resilience.reroute)), ": ",
                             arguments.search ? "--search" : "--analyse", " knows no relieved ranks; allowed []"));
  if (is_private(loaded.config.security) && arguments.search)
    throw ConfigError(concat("security.privacy.clip=", *loaded.config.security.privacy.clip,
                             ": --search compares layouts of training without clipping of samples; allowed null"));
  if (is_federated(loaded.config.security) && arguments.search)
    throw ConfigError(
        concat("security.federation.members=", loaded.config.security.federation.members, ": --search proposes the layout of one job; allowed 0"));
  if (is_robust(loaded.config.security) && arguments.search)
    throw ConfigError(concat("security.aggregation.rule=", loaded.config.security.aggregation.rule,
                             ": --search compares numbers of data ranks, with each of which a robust rule trains another model; allowed mean"));
  if (loaded.config.run.ranks_per_gpu > 1)
    throw ConfigError(concat("run.ranks_per_gpu=", loaded.config.run.ranks_per_gpu, ": ranks that share a GPU cannot be forecast; allowed 1"));
}

void compute_results(const PlanArguments& arguments, const LoadedConfig& loaded, const Place& place, const std::optional<Config>& own,
                     PlanResults& answer) {
  if (arguments.search && !answer.found) answer.found = search(loaded, place.cluster);
  if (own)
    answer.plan = ranked(*own, place.cluster);
  else if (!answer.found->layouts.empty())
    answer.plan = answer.found->layouts.front();
  else if (!answer.found->too_large.empty())
    answer.plan = answer.found->too_large.front();
  if (arguments.output) {
    const std::vector<RankedLayout>& layouts = answer.found->layouts;
    if (layouts.empty())
      throw ConfigError(concat("--output ", *arguments.output, ": nothing to write, because no layout fits; ", answer.found->advice));
    answer.proposal = proposed_yaml(layouts.front(), place.cluster);
  }
  if ((arguments.wants_world() || arguments.analyse) && !answer.plan) throw ConfigError("no layout to simulate or analyse: " + answer.found->advice);
  if (answer.plan) {
    Config config = answer.plan->config;
    config.parallel.gradient_accumulation = loaded.config.parallel.gradient_accumulation;  // auto may become another value
    answer.compressed = compression_gain(config, place.cluster, answer.plan->forecast);
    if (is_private(config.security)) answer.privacy = privacy_cost(config, place.cluster, answer.plan->forecast, training_sequences(config));
    if (is_elastic(config.resilience)) answer.elastic = elastic_steps(config, place.cluster, answer.plan->forecast);
  }
  if (answer.plan) answer.reroute = reroute_cost(answer.plan->config, place.cluster);
  if (answer.plan && answer.plan->config.resilience.peer_copies > 0)
    answer.peers = peer_cost(answer.plan->config, place.cluster, answer.plan->forecast.step_seconds);
  if (answer.plan) answer.packed = packed_data(answer.plan->config);
  if (arguments.wants_world()) add_world(arguments, place.cluster, answer);
  if (arguments.analyse) answer.analysis = analysis_of(arguments, *answer.plan, place.cluster);
}

void plan(const PlanArguments& arguments) {
  LoadedConfig loaded = load_config(arguments.config, arguments.sets);
  check(arguments, loaded);
  PlanResults answer;
  if (is_federated(loaded.config.security)) {
    answer.federation = federation_cost(loaded.config, parameter_count(resolve(loaded).model));
    loaded = federation::member_config(loaded);
  }
  const ParallelConfig& p = loaded.config.parallel;
  const std::optional<std::string> cluster = cluster_of(arguments, loaded);
  Place place = cluster ? named_place(*cluster, arguments.cluster_sets) : assumed_place(resolve(loaded), arguments.cluster_sets);
  resolve_nodes(place, arguments.searches_nodes() ? "1" : arguments.nodes,
                p.data ? std::optional(p.islands * p.tensor * p.pipeline * *p.data) : std::nullopt, !arguments.search);
  place.cluster = resolve_cluster(place.cluster);
  set_device(loaded.config, place.cluster);
  if (arguments.searches_nodes()) {
    check_against_cluster(loaded.config, place.cluster);
    choose_nodes(loaded, place.cluster, answer);
  }
  const std::optional<Config> own = layout_on(loaded, place, !arguments.search);  // names the line of what is wrong
  check_against_cluster(loaded.config, place.cluster);
  if (own && arguments.trace) ranks_named(arguments.ranks, mesh_shape(own->parallel));  // reports an invalid --ranks early

  compute_results(arguments, loaded, place, own, answer);
  std::vector<std::string> texts;
  if (arguments.output) texts.push_back(std::move(answer.proposal));
  if (arguments.svg) texts.push_back(std::move(answer.svg));
  if (arguments.trace) texts.push_back(std::move(answer.trace));
  write_outputs(outputs_of(arguments), texts);
  std::cout << (arguments.json ? plan_results_json(answer, place, arguments.tokens)
                               : plan_results_text(answer, place, arguments.tokens, arguments.output.has_value()));
  finish_output();
}

/// Adds an option that refuses an empty value.
template <class Value, class Read>
CLI::Option* add_text(CLI::App& command, const std::string& name, std::optional<Value>& value, const Read& read, const std::string& words) {
  return command.add_option_function<std::string>(
      name,
      [&value, read, name](const std::string& text) {
        if (text.empty()) throw ConfigError(name + ": empty value; give a value or omit the option");
        value = read(text);
      },
      words);
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "Forecast memory, time and cost of a run, and find its best layout, without running it");
  const auto arguments = std::make_shared<PlanArguments>();
  const auto path = [](const std::string& text) { return text; };
  command->add_option("CONFIG", arguments->config, "YAML file of the run")->required();
  command->add_option("--set", arguments->sets, "Override a key of the file: key.path=value; may be repeated")->allow_extra_args(false);
  add_text(*command, "--cluster", arguments->cluster, path,
           "Cluster file, or a built-in device type (nodes of 8): A100-40GB | A100 | H100 | H200 | B200 | cpu");
  command->add_option("--cluster-set", arguments->cluster_sets, "Override a key of the cluster file: key.path=value; may be repeated")
      ->allow_extra_args(false);
  add_text(
      *command, "--nodes", arguments->nodes, nodes_of,
      "Number of nodes, instead of the cluster's; auto: the number that the layout needs, or with --search the cheapest one of those that it tries");
  CLI::Option* search = command->add_flag("--search", arguments->search, "Rank all legal layouts on the cluster's devices by forecast time");
  add_text(*command, "--output", arguments->output, path, "Write the best layout's configuration to this file")->needs(search);
  add_text(*command, "--tokens", arguments->tokens, tokens_of, "Also report time, cost and energy of training on this number of tokens");
  command->add_flag("--simulate", arguments->simulate, "Simulate the action lists of all ranks, which proves that they cannot deadlock");
  CLI::Option* trace =
      add_text(*command, "--trace", arguments->trace, path, "Write the simulated step of --ranks as a trace for ui.perfetto.dev to this file");
  command->add_option("--ranks", arguments->ranks, "Ranks in the trace, separated by commas, e.g. \"7\", \"0-15\", \"pipeline:7\"")
      ->needs(trace)
      ->capture_default_str();
  add_text(*command, "--svg", arguments->svg, path, "Write a drawing of the simulated step of one pipeline to this file");
  command->add_flag("--analyse", arguments->analyse,
                    "Report scaling curves, required links, checkpoint interval, compute-optimal size and textbook formulas");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &exit_code] {
    plan(*arguments);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
