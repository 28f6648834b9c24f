#include <array>
#include <cmath>
#include <cstdio>

#include "kernels/core/check.h"
#include "trainer/bench/table.h"
#include "trainer/plan/analysis/analysis.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

std::string digits(double value, const char* unit) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), value >= 999.5 && value < 1e9 ? "%.0f%s" : "%.3g%s", value, unit);
  return text.data();
}

/// 67e9 -> "67B".
std::string count_text(double value) {
  if (!std::isfinite(value)) return "none";
  if (value >= 1e15) return digits(value, "");
  for (const auto& [scale, name] : {std::pair{1e12, "T"}, {1e9, "B"}, {1e6, "M"}})
    if (value >= scale) return digits(value / scale, name);
  return digits(value, "");
}

std::string time_text(double seconds) {
  for (const auto& [scale, name] : {std::pair{86400.0, " days"}, {3600.0, " h"}, {60.0, " min"}, {1.0, " s"}, {1e-3, " ms"}})
    if (seconds >= (scale > 1 ? 2 * scale : scale)) return digits(seconds / scale, name);
  return digits(seconds * 1e6, " us");
}

std::string percent_text(double share) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string figure_text(const std::string& unit, double value) {
  return unit == "bytes" ? bench::bytes_text(value) : unit == "share" ? percent_text(value) : time_text(value);
}

/// Numbers that JSON has no word for are null.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }
ordered_json number(const std::optional<double>& value) { return value ? number(*value) : ordered_json(nullptr); }

std::string compute_text(const ComputeUse& use) {
  ordered_json rows = ordered_json::array();
  for (size_t i = 0; i < use.run.size(); ++i) {
    const FrontierDistance& run = use.run[i];
    const ComputeOptimum& best = use.best[i];
    rows.push_back({{"fit", run.law.name},
                    {"loss", digits(run.loss, "")},
                    {"best of its FLOPs", digits(run.same_flops.loss, "")},
                    {"of the FLOPs suffice", percent_text(run.same_loss.flops / run.same_flops.flops)},
                    {"budget: parameters", count_text(best.parameters)},
                    {"tokens", count_text(best.tokens)},
                    {"loss of these", digits(best.loss, "")},
                    {"source", run.law.source}});
  }
  return concat("compute-optimal model and data: ", count_text(use.parameters), " parameters on ", count_text(use.tokens), " tokens (",
                digits(use.tokens / use.parameters, " a parameter"), "); a budget of ", digits(use.budget, " FLOPs"), ":\n", bench::table_of(rows));
}

std::string bill_text(const TrainingBill& bill) {
  std::string text = concat("training on ", count_text(bill.tokens), " tokens without failures: ", digits(bill.steps, " steps, "),
                            time_text(bill.seconds), ", ", digits(bill.device_hours, " device hours"));
  if (bill.cost) text += concat(", price ", digits(*bill.cost, ""));
  if (bill.kilowatt_hours) text += concat(", ", digits(*bill.kilowatt_hours, " kWh"));
  return text + "\n";
}

std::string curve_text(const char* name, const ScalingCurve& curve, const std::string& law) {
  if (curve.points.empty()) return "";
  ordered_json rows = ordered_json::array();
  for (const ScalingPoint& point : curve.points)
    rows.push_back({{"devices", point.devices},
                    {"step", time_text(point.seconds)},
                    {"speedup", digits(point.speedup, "")},
                    {"efficiency", percent_text(point.efficiency)}});
  return concat(name, " scaling over data ranks; ", law, ":\n", bench::table_of(rows));
}

std::string links_text(const std::vector<LinkNeed>& needs) {
  if (needs.empty()) return "";
  ordered_json rows = ordered_json::array();
  for (const LinkNeed& need : needs)
    rows.push_back({{"a rank's traffic", need.traffic.what},
                    {"a step", bench::bytes_text(need.traffic.bytes)},
                    {"beside", time_text(need.traffic.seconds)},
                    {"needs GB/s", need.bandwidth / 1e9},
                    {"has GB/s", need.available_bandwidth / 1e9},
                    {"a tenth of a step at", time_text(need.latency)},
                    {"latency", time_text(need.available_latency)},
                    {"link", need.network ? "network" : "node"}});
  return "links that hide their traffic behind compute:\n" + bench::table_of(rows);
}

std::string saving_text(const SavingPlan& plan, double training_seconds) {
  std::string text =
      concat("checkpoints: ", bench::bytes_text(plan.bytes), " each, at most ", bench::bytes_text(plan.storage), " on disk; written in ",
             time_text(plan.write_seconds), ", training stalls ", time_text(plan.failures.stall), "\na failure every ", time_text(plan.failures.mtbf),
             ": save every ", time_text(plan.daly), " (Daly 2006; Young 1974 ", time_text(plan.young), "), checkpoint.every ",
             static_cast<int64_t>(plan.steps), "; effective training time ", percent_text(plan.share), " (", percent_text(plan.share_exponential),
             " with failures at random moments), so ", time_text(training_seconds / plan.share_exponential), " in all\n");
  if (plan.configured)
    text += concat("with the configured checkpoint.every ", percent_text(*plan.configured), "\n");
  else
    text += "checkpoint.every is 0: a failure loses all that was done\n";
  return text;
}

std::string textbook_text(const std::vector<TextbookFigure>& figures) {
  ordered_json rows = ordered_json::array();
  for (const TextbookFigure& figure : figures)
    rows.push_back({{"figure", figure.what},
                    {"textbook", figure_text(figure.unit, figure.textbook)},
                    {"forecast", figure_text(figure.unit, figure.forecast)},
                    {"source", figure.source}});
  return "what the literature's formulas say:\n" + bench::table_of(rows);
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

ordered_json json_of(const ComputeUse& use) {
  ordered_json fits = ordered_json::array();
  for (size_t i = 0; i < use.run.size(); ++i)
    fits.push_back({{"name", use.run[i].law.name},
                    {"source", use.run[i].law.source},
                    {"loss", use.run[i].loss},
                    {"same_flops", json_of(use.run[i].same_flops)},
                    {"same_loss", json_of(use.run[i].same_loss)},
                    {"optimum", json_of(use.best[i])}});
  return {{"parameters", use.parameters}, {"tokens", use.tokens}, {"budget_flops", use.budget}, {"fits", fits}};
}

ordered_json json_of(const SavingPlan& plan) {
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

std::string analysis_text(const Analysis& analysis) {
  const auto serial = [](const ScalingCurve& curve) { return percent_text(curve.serial_share); };
  const std::string limit = std::isfinite(analysis.strong.limit) ? digits(analysis.strong.limit, " times as fast at most") : "no limit in sight";
  return compute_text(analysis.compute) + bill_text(analysis.bill) +
         curve_text("strong", analysis.strong, concat("Amdahl's serial share ", serial(analysis.strong), ", ", limit)) +
         curve_text("weak", analysis.weak, concat("Gustafson's serial share ", serial(analysis.weak))) + links_text(analysis.links) +
         saving_text(analysis.saving, analysis.bill.seconds) + textbook_text(analysis.textbook);
}

ordered_json analysis_json(const Analysis& analysis) {
  const TrainingBill& bill = analysis.bill;
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
          {"textbook", textbook}};
}

}  // namespace trireme
