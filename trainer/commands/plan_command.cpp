#include "trainer/commands/plan_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/commands/finish_output.h"
#include "trainer/config/load.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/progress_line.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/machine.h"
#include "trainer/loop/rank_plan.h"
#include "trainer/plan/analysis/analysis.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/report.h"
#include "trainer/plan/stack.h"
#include "trainer/plan/svg.h"
#include "trainer/plan/world_costs.h"
#include "trainer/plan/world_trace.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string config, cluster, nodes, output, trace, svg;  ///< empty: not given
  std::string ranks = "pipeline:0";
  std::vector<std::string> sets, cluster_sets;
  std::optional<double> tokens;
  bool search = false, json = false, simulate = false, analyse = false;

  bool wants_world() const { return simulate || !trace.empty() || !svg.empty(); }
};

/// What there is to say.
struct Answer {
  std::optional<RankedLayout> plan;
  std::optional<SearchResult> found;
  std::optional<SimulatedWorld> world;
  std::optional<Analysis> analysis;
};

/// Machines to plan for.
struct Place {
  ClusterConfig cluster;
  std::string source;  ///< "cluster.yaml", or what was assumed
  bool open = false;   ///< as many nodes as the layout needs
};

int64_t world_of(const Config& config) { return mesh_shape(config.parallel).world(); }

Place named_place(const Arguments& arguments) {
  const std::vector<std::string> types = device_types();
  if (std::ranges::find(types, arguments.cluster) == types.end() || std::filesystem::exists(arguments.cluster))
    return {load_cluster(arguments.cluster, arguments.cluster_sets), arguments.cluster, false};
  return {parse_cluster("device: {type: " + arguments.cluster + "}", arguments.cluster, arguments.cluster_sets),
          "nodes of the built-in " + arguments.cluster, true};
}

/// Without --cluster: GPUs where the run asks for them or this machine has some, else this machine itself.
Place assumed_place(const Arguments& arguments, const Config& config) {
  if (config.run.device == "cuda" || (config.run.device == "auto" && usable_gpus() > 0))
    return {parse_cluster("device: {type: H100}", "--cluster", arguments.cluster_sets),
            "assumed, as run.device asks for GPUs; --cluster names others", true};
  const int64_t ranks = world_of(config);
  ClusterConfig cluster = parse_cluster("device: {type: cpu}", "--cluster", arguments.cluster_sets);
  cluster.devices_per_node = ranks;
  if (!cluster.device.cores) cluster.device.cores = usable_cores();
  if (!cluster.device.memory) cluster.device.memory = host_memory() / static_cast<double>(ranks);
  return {cluster, "assumed: this machine's CPU, with built-in figures; --cluster names others", true};
}

/// Nodes as --nodes says, or as the ranks need.
void settle_nodes(Place& place, const Arguments& arguments, std::optional<int64_t> ranks) {
  ClusterConfig& c = place.cluster;
  const std::string& nodes = arguments.nodes;
  const bool number = !nodes.empty() && nodes != "auto";
  if (number) c.nodes = std::stoll(nodes);
  // Ranks share the cores of a CPU machine, however many they are.
  if (const ClusterConfig whole = resolve_cluster(c); whole.device.cores && ranks && !arguments.search) c = shared_by(whole, *ranks);
  if (!number && (place.open || nodes == "auto")) {
    if (!ranks)
      throw ConfigError("parallel.data=auto: takes what the cluster leaves, so the number of nodes must be given; give --nodes N, or a cluster file");
    if (*ranks > c.devices_per_node && *ranks % c.devices_per_node != 0)
      throw ConfigError(concat("the layout's ", *ranks, " ranks do not fill nodes of ", c.devices_per_node,
                               " devices; choose degrees whose product is a multiple of ", c.devices_per_node, ", or a cluster with other nodes"));
    c.devices_per_node = std::min(c.devices_per_node, *ranks);
    c.nodes = *ranks / c.devices_per_node;
  }
}

/// The configuration's layout on these devices; nothing where it is made for another number of them and `needed` is false.
std::optional<Config> layout_on(const LoadedConfig& loaded, const Place& place, bool needed) {
  const int64_t devices = place.cluster.devices();
  const ParallelConfig& p = loaded.config.parallel;
  const int64_t model_ranks = p.tensor * p.pipeline;
  if (!p.data && devices % model_ranks == 0) return resolve(loaded, devices);
  const Config config = resolve(loaded);
  if (p.data && world_of(config) == devices) return config;
  if (!needed) return std::nullopt;
  throw ConfigError(concat(loaded.sources.file, " parallel: tensor ", p.tensor, " x pipeline ", p.pipeline, " x data ", *config.parallel.data, " = ",
                           world_of(config), " ranks, and the cluster (", place.source, ") has ", devices, " devices: ", place.cluster.nodes,
                           " nodes of ", place.cluster.devices_per_node, "; change nodes, or give --nodes auto, or --search"));
}

/// "layout" of a configuration in one word.
RankedLayout ranked(const Config& config, const ClusterConfig& cluster) {
  return {.config = config, .written = config, .layout = name_of(layout_of(config)), .forecast = forecast(config, cluster), .reason = {}};
}

ordered_json cluster_json(const Place& place) {
  const ClusterConfig& c = place.cluster;
  return {{"source", place.source}, {"device", c.device.type},  {"nodes", c.nodes}, {"devices_per_node", c.devices_per_node},
          {"devices", c.devices()}, {"stack", c.software.stack}};
}

SearchResult search(const LoadedConfig& loaded, const ClusterConfig& cluster) {
  constexpr int64_t kParts = 1000;
  ProgressLine line("searching layouts", ProgressUnit::kItems, kParts);
  int64_t told = 0;
  return search_layouts(loaded.config, cluster, [&](double share) {
    const auto done = static_cast<int64_t>(share * kParts);
    line.advance(std::max<int64_t>(0, done - told));
    told = std::max(told, done);
  });
}

/// Simulates the world, and writes the pictures that were asked for.
SimulatedWorld simulate_and_draw(const Arguments& arguments, const RankedLayout& plan, const ClusterConfig& cluster) {
  const MeshShape mesh = mesh_shape(plan.config.parallel);
  const std::vector<int> pipeline = group_members(mesh, MeshAxis::kPipeline, 0, 1);
  std::vector<int> traced = arguments.trace.empty() ? std::vector<int>{} : ranks_named(arguments.ranks, mesh);
  const std::vector<int> of_trace = traced;
  if (!arguments.svg.empty()) traced.insert(traced.end(), pipeline.begin(), pipeline.end());
  std::ranges::sort(traced);
  traced.erase(std::unique(traced.begin(), traced.end()), traced.end());
  SimulatedWorld world = simulate_step(plan.config, cluster, traced);
  if (!arguments.svg.empty()) {
    std::vector<Timeline> rows;
    for (const int rank : pipeline) rows.push_back(world.step.timelines.at(rank));
    write_durably(
        arguments.svg,
        pipeline_svg(rows, {.title = concat(plan.layout, " on ", cluster.devices(), " x ", cluster.device.type), .names = {}, .window = {}}));
  }
  if (!arguments.trace.empty()) {
    std::erase_if(world.step.timelines, [&](const auto& entry) { return !std::ranges::binary_search(of_trace, entry.first); });
    write_durably(arguments.trace, chrome_trace(world.step, mesh));
  }
  return world;
}

Analysis analysis_of(const Arguments& arguments, const RankedLayout& plan, const ClusterConfig& cluster) {
  AnalysisOptions options;
  options.tokens = arguments.tokens;
  options.step_seconds = [](const Config& config, const ClusterConfig& on) -> std::optional<double> {
    try {
      return forecast_time(resolve(config), on).step_seconds;
    } catch (const ConfigError&) {
      return std::nullopt;  // no such layout at this size
    }
  };
  return analyse(plan.config, cluster, plan.forecast, options);
}

void print_json(const Arguments& arguments, const Place& place, const Answer& answer) {
  const auto of = [&](const RankedLayout& layout) { return plan_json(layout, place.cluster, arguments.tokens); };
  ordered_json json = answer.plan ? of(*answer.plan) : ordered_json::object();
  json["cluster"] = cluster_json(place);
  json["layouts"] = ordered_json::array();
  if (answer.found) {
    for (const RankedLayout& layout : answer.found->layouts) json["layouts"].push_back(of(layout));
    json["too_large"] = ordered_json::array();
    for (const RankedLayout& layout : answer.found->too_large) json["too_large"].push_back(of(layout));
    json["advice"] = answer.found->advice.empty() ? ordered_json() : ordered_json(answer.found->advice);
  }
  if (answer.world) json["world"] = world_json(*answer.world);
  if (answer.analysis) json["analysis"] = analysis_json(*answer.analysis);
  std::cout << json.dump() << '\n';
}

void print_text(const Arguments& arguments, const Place& place, const Answer& answer) {
  std::cout << "cluster: " << place.source << '\n';
  if (answer.plan) std::cout << plan_text(*answer.plan, place.cluster, arguments.tokens);
  if (answer.world) std::cout << '\n' << world_text(*answer.world);
  if (answer.analysis) std::cout << '\n' << analysis_text(*answer.analysis);
  if (!answer.found) return;
  std::cout << '\n' << search_text(*answer.found);
  if (!answer.found->layouts.empty() && arguments.output.empty()) std::cout << "--output FILE writes the first of these as a configuration\n";
}

void plan(const Arguments& arguments) {
  const LoadedConfig loaded = load_config(arguments.config, arguments.sets);
  const ParallelConfig& p = loaded.config.parallel;
  Place place = arguments.cluster.empty() ? assumed_place(arguments, resolve(loaded)) : named_place(arguments);
  stack_of(place.cluster.software.stack);
  settle_nodes(place, arguments, p.data ? std::optional(p.tensor * p.pipeline * *p.data) : std::nullopt);
  const std::optional<Config> own = layout_on(loaded, place, !arguments.search);
  place.cluster = resolve_cluster(place.cluster);

  Answer answer;
  if (arguments.search) answer.found = search(loaded, place.cluster);
  if (own)
    answer.plan = ranked(*own, place.cluster);
  else if (!answer.found->layouts.empty())
    answer.plan = answer.found->layouts.front();
  else if (!answer.found->too_large.empty())
    answer.plan = answer.found->too_large.front();
  if (!arguments.output.empty()) {
    const std::vector<RankedLayout>& layouts = answer.found->layouts;
    if (layouts.empty()) throw ConfigError(concat("--output ", arguments.output, ": nothing to write, as no layout fits; ", answer.found->advice));
    write_durably(arguments.output, proposed_yaml(layouts.front(), place.cluster));
  }
  if ((arguments.wants_world() || arguments.analyse) && !answer.plan) throw ConfigError("no layout to simulate or analyse: " + answer.found->advice);
  if (arguments.wants_world()) answer.world = simulate_and_draw(arguments, *answer.plan, place.cluster);
  if (arguments.analyse) answer.analysis = analysis_of(arguments, *answer.plan, place.cluster);
  (arguments.json ? print_json : print_text)(arguments, place, answer);
  finish_output();
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plan", "Forecast memory, time and cost of a run, and find its best layout, without running it");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("CONFIG", arguments->config, "YAML file of the run")->required();
  command->add_option("--set", arguments->sets, "key.path=value, over the file; may be repeated")->allow_extra_args(false);
  command->add_option("--cluster", arguments->cluster,
                      "YAML file of the machines, or a built-in type, A100-40GB | A100 | H100 | H200 | B200 | cpu, in nodes of 8");
  command->add_option("--cluster-set", arguments->cluster_sets, "key.path=value, over the cluster's file; may be repeated")->allow_extra_args(false);
  command->add_option("--nodes", arguments->nodes, "Number of nodes in place of the cluster's; auto: as many as the layout needs")
      ->check(CLI::IsMember({"auto"}) | CLI::Range(int64_t{1}, int64_t{1} << 20));
  CLI::Option* search = command->add_flag("--search", arguments->search, "Rank all legal layouts of the cluster's devices");
  command->add_option("--output", arguments->output, "Write the best layout's configuration to this file")->needs(search);
  command->add_option("--tokens", arguments->tokens, "Also tell time, cost and energy of training on so many")->check(CLI::Range(1.0, 1e18));
  command->add_flag("--simulate", arguments->simulate, "Run the action lists of all ranks in the simulator, which proves that they cannot deadlock");
  CLI::Option* trace = command->add_option("--trace", arguments->trace, "Write the simulated step of --ranks to this file, for ui.perfetto.dev");
  command->add_option("--ranks", arguments->ranks, "Ranks of the trace: \"7\", \"0-15\", \"pipeline:7\", separated by commas")
      ->needs(trace)
      ->capture_default_str();
  command->add_option("--svg", arguments->svg, "Draw the simulated step of one pipeline to this file");
  command->add_flag("--analyse", arguments->analyse, "Scaling curves, required links, checkpoint interval, compute-optimal size, textbook formulas");
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  command->callback([arguments, &exit_code] {
    plan(*arguments);
    exit_code = static_cast<int>(ExitCode::kOk);
  });
}

}  // namespace trireme
