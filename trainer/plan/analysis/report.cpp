#include <cmath>

#include "kernels/core/check.h"
#include "trainer/files/table.h"
#include "trainer/plan/analysis/analysis.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

std::string figure_text(const std::string& unit, double value) {
  return unit == "bytes" ? bytes_text(value) : unit == "share" ? percent_text(value) : time_text(value);
}

/// Numbers that JSON cannot represent become null.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }
ordered_json number(const std::optional<double>& value) { return value ? number(*value) : ordered_json(nullptr); }

std::string compute_text(const std::vector<FrontierDistance>& fits) {
  ordered_json rows = ordered_json::array();
  for (const FrontierDistance& run : fits)
    rows.push_back({{"fit", run.law.name},
                    {"loss", number_text(run.loss)},
                    {"FLOPs needed for this loss", percent_text(run.same_loss.flops / run.same_flops.flops)},
                    {"best loss at its FLOPs", number_text(run.same_flops.loss)},
                    {"with parameters", count_text(run.same_flops.parameters)},
                    {"tokens", count_text(run.same_flops.tokens)},
                    {"source", run.law.source}});
  const FrontierDistance& run = fits.front();
  return concat("compute-optimal model and data: ", count_text(run.parameters), " parameters on ", count_text(run.tokens), " tokens (",
                number_text(run.tokens / run.parameters), " per parameter) take ", number_text(run.same_flops.flops), " FLOPs:\n", table_of(rows));
}

std::string curve_text(const char* name, const ScalingCurve& curve, const std::string& law) {
  if (curve.points.empty()) return "";
  ordered_json rows = ordered_json::array();
  for (const ScalingPoint& point : curve.points)
    rows.push_back({{"devices", point.devices},
                    {"step", time_text(point.seconds)},
                    {"speedup", number_text(point.speedup)},
                    {"efficiency", percent_text(point.efficiency)}});
  return concat(name, " scaling over data ranks; ", law, ":\n", table_of(rows));
}

std::string links_text(const std::vector<LinkNeed>& needs) {
  if (needs.empty()) return "";
  ordered_json rows = ordered_json::array();
  for (const LinkNeed& need : needs)
    rows.push_back({{"traffic of a rank", need.traffic.what},
                    {"bytes per step", bytes_text(need.traffic.bytes)},
                    {"overlaps compute of", time_text(need.traffic.seconds)},
                    {"required GB/s", need.bandwidth / 1e9},
                    {"available GB/s", need.available_bandwidth / 1e9},
                    {"latency limit (10 % of step)", time_text(need.latency)},
                    {"latency", time_text(need.available_latency)},
                    {"link", need.network ? "network" : "node"}});
  return "links required to hide communication behind compute:\n" + table_of(rows);
}

/// The source of a built-in figure, or "as given".
std::string of_figure(double value, double built_in, const char* source) { return concat(" (", value == built_in ? source : "as given", ")"); }

std::string assumptions_text(const ClusterConfig& machines) {
  const ClusterConfig usual;
  const auto rate = [](double bytes) { return bytes_text(bytes) + "/s per node"; };
  return concat("assumptions: a node fails every ", number_text(machines.node_mtbf / 86400), " days",
                of_figure(machines.node_mtbf, usual.node_mtbf, "419 failures in 54 days on 2,048 nodes, arXiv:2407.21783"), "; storage writes ",
                rate(machines.storage.write), of_figure(machines.storage.write, usual.storage.write, "273 GB/s from 384 nodes, arXiv:2104.04473"),
                " and reads ", rate(machines.storage.read), of_figure(machines.storage.read, usual.storage.read, "1 TB/s to 384 nodes, same source"),
                ", at any number of nodes;\n  ", time_text(machines.restart), " per restart", of_figure(machines.restart, usual.restart, "assumed"),
                " and ", bytes_text(kHostCopy),
                "/s from a device to its host (assumed); node_mtbf, storage and restart of the cluster file override these\n");
}

std::string saving_text(const SavePlan& plan, double training_seconds) {
  std::string text = concat(
      "checkpoints: ", bytes_text(plan.bytes), " each, at most ", bytes_text(plan.storage), " on disk; a save takes ", time_text(plan.write_seconds),
      " and stalls training for ", time_text(plan.failures.stall), "\na failure every ", time_text(plan.failures.mtbf),
      plan.mtbf_is_given ? " (resilience.mean_time_between_failures)" : "", ": save every ", time_text(plan.daly), " (Daly 2006; Young 1974 ",
      time_text(plan.young), "), checkpoint.every ", static_cast<int64_t>(plan.steps), "; effective training time ", percent_text(plan.share), " (",
      percent_text(plan.share_exponential), " with Poisson failures), so ", time_text(training_seconds / plan.share_exponential), " in total\n");
  if (plan.every_is_automatic)
    text += "checkpoint.every is auto: the run will choose this interval from its own measurements\n";
  else if (plan.configured)
    text += concat("effective training time with the configured checkpoint.every: ", percent_text(*plan.configured), "\n");
  else
    text += "checkpoint.every is 0: a failure loses all progress\n";
  return text;
}

std::string textbook_text(const std::vector<TextbookFigure>& figures) {
  ordered_json rows = ordered_json::array();
  for (const TextbookFigure& figure : figures)
    rows.push_back({{"figure", figure.what},
                    {"textbook", figure_text(figure.unit, figure.textbook)},
                    {"forecast", figure_text(figure.unit, figure.forecast)},
                    {"source", figure.source}});
  return "textbook formulas beside the forecast:\n" + table_of(rows);
}

ordered_json json_of(const ComputeOptimum& optimum) {
  return {{"flops", number(optimum.flops)},
          {"parameters", number(optimum.parameters)},
          {"tokens", number(optimum.tokens)},
          {"loss", number(optimum.loss)}};
}

ordered_json json_of(const ScalingCurve& curve) {
  ordered_json points = ordered_json::array();
  for (const ScalingPoint& point : curve.points)
    points.push_back({{"devices", point.devices}, {"step_seconds", point.seconds}, {"speedup", point.speedup}, {"efficiency", point.efficiency}});
  return {{"points", points}, {"serial_share", curve.serial_share}, {"limit", number(curve.limit)}};
}

ordered_json json_of(const std::vector<FrontierDistance>& runs) {
  ordered_json fits = ordered_json::array();
  for (const FrontierDistance& run : runs)
    fits.push_back({{"name", run.law.name},
                    {"source", run.law.source},
                    {"loss", run.loss},
                    {"same_flops", json_of(run.same_flops)},
                    {"same_loss", json_of(run.same_loss)}});
  const FrontierDistance& run = runs.front();
  return {{"parameters", run.parameters}, {"tokens", run.tokens}, {"budget_flops", run.same_flops.flops}, {"fits", fits}};
}

ordered_json assumptions_json(const ClusterConfig& machines) {
  return {{"node_mtbf_seconds", machines.node_mtbf},
          {"storage_write", machines.storage.write},
          {"storage_read", machines.storage.read},
          {"restart_seconds", machines.restart},
          {"host_copy", kHostCopy}};
}

ordered_json json_of(const SavePlan& plan) {
  return {{"checkpoint_bytes", plan.bytes},
          {"kept", plan.kept},
          {"storage_bytes", plan.storage},
          {"write_seconds", plan.write_seconds},
          {"stall_seconds", plan.failures.stall},
          {"mtbf_seconds", plan.failures.mtbf},
          {"downtime_seconds", plan.failures.downtime},
          {"young_seconds", plan.young},
          {"daly_seconds", plan.daly},
          {"every_steps", plan.steps},
          {"effective_share", plan.share},
          {"effective_share_exponential", plan.share_exponential},
          {"configured_share", number(plan.configured)}};
}

}  // namespace

std::string bill_text(const TrainingCost& bill) {
  std::string text =
      concat(count_text(bill.tokens), " tokens: ", print("%.3g days, ", bill.seconds / 86400), count_text(bill.device_hours), " device hours");
  if (bill.cost) text += concat(", cost ", count_text(*bill.cost));
  if (bill.kilowatt_hours) text += print(", %.4g MWh", *bill.kilowatt_hours / 1000);
  return text + "\n";
}

std::string analysis_text(const Analysis& analysis) {
  const auto serial = [](const ScalingCurve& curve) { return percent_text(curve.serial_share); };
  const ScalingCurve& strong = analysis.strong;
  const std::string limit = strong.points.empty() ? ""
                            : std::isfinite(strong.limit)
                                ? concat("at most ", number_text(strong.limit), " times as fast as on ", strong.points.front().devices,
                                         strong.points.front().devices == 1 ? " device" : " devices")
                                : "no upper limit";
  return concat(compute_text(analysis.compute), "without failures, in ", number_text(analysis.bill.steps), " steps: ", bill_text(analysis.bill),
                curve_text("strong", strong, concat("Amdahl's serial share ", serial(strong), ", ", limit)),
                curve_text("weak", analysis.weak, concat("Gustafson's serial share ", serial(analysis.weak))), links_text(analysis.links),
                saving_text(analysis.saving, analysis.bill.seconds), assumptions_text(analysis.machines), textbook_text(analysis.textbook));
}

ordered_json analysis_json(const Analysis& analysis) {
  const TrainingCost& bill = analysis.bill;
  ordered_json links = ordered_json::array(), textbook = ordered_json::array();
  for (const LinkNeed& need : analysis.links)
    links.push_back({{"traffic", need.traffic.what},
                     {"bytes", need.traffic.bytes},
                     {"hidden_behind_seconds", need.traffic.seconds},
                     {"required_bandwidth", number(need.bandwidth)},
                     {"available_bandwidth", need.available_bandwidth},
                     {"tolerable_latency", number(need.latency)},
                     {"available_latency", need.available_latency},
                     {"link", need.network ? "network" : "node"}});
  for (const TextbookFigure& figure : analysis.textbook)
    textbook.push_back(
        {{"figure", figure.what}, {"unit", figure.unit}, {"textbook", figure.textbook}, {"forecast", figure.forecast}, {"source", figure.source}});
  return {{"compute", json_of(analysis.compute)},
          {"training",
           {{"tokens", bill.tokens},
            {"steps", bill.steps},
            {"seconds", bill.seconds},
            {"seconds_with_failures", number(bill.seconds / analysis.saving.share_exponential)},
            {"device_hours", bill.device_hours},
            {"cost", number(bill.cost)},
            {"kilowatt_hours", number(bill.kilowatt_hours)}}},
          {"strong_scaling", json_of(analysis.strong)},
          {"weak_scaling", json_of(analysis.weak)},
          {"links", links},
          {"saving", json_of(analysis.saving)},
          {"assumptions", assumptions_json(analysis.machines)},
          {"textbook", textbook}};
}

}  // namespace trireme
