#include "trainer/commands/plan_output.h"

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/plan/report.h"
#include "trainer/plan/text.h"
#include "trainer/plan/world_trace.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

ordered_json cluster_json(const Place& place) {
  const ClusterConfig& c = place.cluster;
  return {{"source", place.source},
          {"device", c.device.type},
          {"nodes", c.nodes},
          {"devices_per_node", c.devices_per_node},
          {"devices", c.devices()},
          {"stack", c.software.stack},
          {"software", software_json(c)}};
}

/// JSON if no layout exists: the same keys as plan_json, so that readers need no special case.
ordered_json empty_plan_json() {
  return {{"layout", nullptr}, {"step_seconds", nullptr}, {"tokens_per_second_per_gpu", nullptr},  {"mfu", nullptr},
          {"bubble", nullptr}, {"fits", false},           {"memory_bytes", ordered_json::array()}, {"warnings", ordered_json::array()}};
}

ordered_json packing_json(const PackedData& packed) {
  if (!packed.unknown.empty()) return {{"sequences", nullptr}, {"padding", nullptr}, {"unknown", packed.unknown}};
  return {{"sequences", packed.sequences}, {"padding", packed.padding}};
}

std::string packing_text(const PackedData& packed) {
  if (!packed.unknown.empty()) return concat("packing: the share of padding is unknown: ", packed.unknown, "\n");
  return concat("packing: ", counted(packed.sequences, "sequence"),
                trireme::print("; %.2f %% of their positions are padding, which the rates above count as tokens\n", 100 * packed.padding));
}

std::string rebalance_text(const Config& config) {
  if (config.resilience.rebalance == Rebalance::kNone) return "";
  const auto [fewest, most] = split_limits(config);
  return concat("resilience.rebalance: a data rank may get ", fewest, " to ", counted(most, "micro-batch", "micro-batches"), " instead of ",
                microbatches_of(config), "; memory is that of a rank with ", most, "\n");
}

ordered_json rebalance_json(const Config& config) {
  const auto [fewest, most] = split_limits(config);
  return {{"fewest_micro_batches", fewest}, {"even_micro_batches", microbatches_of(config)}, {"most_micro_batches", most}};
}

}  // namespace

std::string plan_results_json(const PlanResults& answer, const Place& place, const std::optional<double>& tokens) {
  const auto of = [&](const RankedLayout& layout) { return plan_json(layout, place.cluster, tokens); };
  ordered_json json = answer.plan ? of(*answer.plan) : empty_plan_json();
  for (const auto& [key, value, seconds] : answer.compressed) json["compressed"].push_back({{key, value}, {"step_seconds", seconds}});
  json["cluster"] = cluster_json(place);
  json["layouts"] = ordered_json::array();
  if (answer.found) {
    for (const RankedLayout& layout : answer.found->layouts) json["layouts"].push_back(of(layout));
    json["too_large"] = ordered_json::array();
    for (const RankedLayout& layout : answer.found->too_large) json["too_large"].push_back(of(layout));
    json["advice"] = answer.found->advice.empty() ? ordered_json() : ordered_json(answer.found->advice);
    json["why"] = answer.found->why.empty() ? ordered_json() : ordered_json(answer.found->why);
    json["batches"] = ordered_json::array();
    for (const BetterBatch& better : answer.found->batches)
      json["batches"].push_back(
          {{"global_batch_size", better.batch}, {"layout", better.layout}, {"tokens_per_second_per_gpu", better.tokens_per_second_per_device}});
    if (answer.nodes) json["nodes"] = node_search_json(*answer.nodes);
  }
  if (answer.packed) json["packing"] = packing_json(*answer.packed);
  if (answer.plan && answer.plan->config.resilience.rebalance != Rebalance::kNone) json["rebalance"] = rebalance_json(answer.plan->config);
  if (answer.reroute) json["reroute"] = reroute_cost_json(*answer.reroute);
  if (answer.peers) json["peer_copies"] = peer_cost_json(*answer.peers);
  if (answer.privacy) json["privacy"] = privacy_cost_json(*answer.privacy);
  if (!answer.elastic.empty()) json["elastic"] = elastic_steps_json(answer.elastic);
  if (answer.federation) json["federation"] = federation_cost_json(*answer.federation);
  if (answer.world) json["world"] = world_json(*answer.world);
  if (answer.analysis) json["analysis"] = analysis_json(*answer.analysis);
  // File names may contain invalid UTF-8.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string plan_results_text(const PlanResults& answer, const Place& place, const std::optional<double>& tokens, bool proposed) {
  std::string text = concat("cluster: ", place.source, "\n");
  if (answer.plan) {
    text += plan_text(*answer.plan, place.cluster, tokens);
    text += compression_gain_text(answer.compressed, answer.plan->forecast.step_seconds);
    if (answer.privacy) text += privacy_cost_text(answer.plan->config, *answer.privacy);
    if (!answer.elastic.empty()) text += elastic_steps_text(answer.elastic);
    if (answer.federation) text += federation_cost_text(*answer.federation);
  }
  if (answer.packed) text += packing_text(*answer.packed);
  if (answer.plan) text += rebalance_text(answer.plan->config);
  if (answer.reroute) text += reroute_cost_text(*answer.reroute);
  if (answer.peers) text += peer_cost_text(answer.plan->config, *answer.peers);
  if (answer.world) text += "\n" + world_text(*answer.world);
  if (answer.analysis) text += "\n" + analysis_text(*answer.analysis);
  if (!answer.found) return text;
  if (answer.nodes && !answer.nodes->counts.empty()) text += "\n" + node_search_text(*answer.nodes);
  text += "\n" + search_text(*answer.found);
  if (!answer.found->layouts.empty() && !proposed) text += "--output FILE writes the first of these layouts as a configuration\n";
  return text;
}

}  // namespace trireme
