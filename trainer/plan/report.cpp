#include "trainer/plan/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <variant>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/fields.h"
#include "trainer/files/table.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/memory_table.h"
#include "trainer/loop/recompute.h"
#include "trainer/model/flops.h"
#include "trainer/plan/analysis/analysis.h"
#include "trainer/plan/shape_rates.h"
#include "trainer/plan/stack.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSoftware = "software.";

std::string flops_text(double flops) { return flops >= 1e12 ? print("%.4g TFLOP/s", flops / 1e12) : print("%.4g GFLOP/s", flops / 1e9); }
std::string rate_text(double rate) { return print(rate >= 1000 ? "%.0f" : "%.4g", rate); }

/// Unit of a whole table, so that its figures compare.
struct MemoryUnit {
  const char* name;
  double bytes;
  std::string text(double value) const { return print("%.1f", value / bytes); }
};
MemoryUnit unit_for(double largest) { return largest >= 1e9 ? MemoryUnit{"GB", 1e9} : MemoryUnit{"MB", 1e6}; }

struct Category {
  const char* name;
  double RankBytes::*bytes;
};
constexpr Category kCategories[] = {{"parameters", &RankBytes::parameters},
                                    {"gradients", &RankBytes::gradients},
                                    {"optimizer", &RankBytes::optimizer},
                                    {"activations", &RankBytes::activations},
                                    {"other", &RankBytes::other},
                                    {"runtime", &RankBytes::runtime},
                                    {"peak", &RankBytes::peak}};

struct StepPart {
  const char* name;
  const char* words;
  double StepParts::*seconds;
};
constexpr StepPart kParts[] = {{"compute", "compute", &StepParts::compute},
                               {"recompute", "recomputation", &StepParts::recompute},
                               {"bubble", "pipeline bubble", &StepParts::bubble},
                               {"transfer", "pipeline transfers", &StepParts::transfer},
                               {"tensor", "tensor-parallel comm.", &StepParts::tensor},
                               {"gather", "parameter gathers", &StepParts::gather},
                               {"reduce", "gradient reduction", &StepParts::reduce},
                               {"optimizer", "optimizer step", &StepParts::optimizer},
                               {"host", "host", &StepParts::host}};

std::string cluster_text(const ClusterConfig& c) {
  return concat(c.devices(), " x ", c.device.type, c.devices() == 1 ? "" : concat(" (", counted(c.nodes, "node"), " of ", c.devices_per_node, ")"));
}

bool is_software(const FieldRow& row) { return row.path.starts_with(kSoftware); }

/// The ranks with the highest peaks, limited to a readable number, in rank order.
std::vector<size_t> shown_ranks(const std::vector<RankBytes>& memory) {
  constexpr size_t kMost = 8;
  std::vector<size_t> ranks(memory.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::ranges::stable_sort(ranks, std::ranges::greater(), [&](size_t rank) { return memory[rank].peak; });
  ranks.resize(std::min(kMost, ranks.size()));
  std::ranges::sort(ranks);
  return ranks;
}

/// Name of the pipeline rank with the highest peak: "stage N" if each rank has one stage. A schedule file may place stages on other ranks.
std::string worst_rank_text(const RankedLayout& plan) {
  const ParallelConfig& parallel = plan.config.parallel;
  const bool by_stage = *parallel.virtual_stages == 1 && parallel.schedule != "file";
  return concat(by_stage ? "stage " : "pipeline rank ", plan.forecast.worst_rank);
}

/// Peak of any pipeline rank by phase, and the parts of the runtime allowance of the rank with the highest peak.
std::string phases_text(const Forecast& f, const MemoryUnit& unit) {
  std::string text;
  for (int phase = 0; phase < kMemoryPhases; ++phase) {
    double most = 0;
    for (const RankBytes& rank : f.memory) {
      const int64_t peak = rank.counted ? rank.counted->phases[static_cast<size_t>(phase)].peak_total : 0;
      if (peak > 0) most = std::max(most, rank.runtime + static_cast<double>(peak));
    }
    if (most > 0) text += concat(text.empty() ? "peak by phase: " : ", ", name_of(static_cast<MemoryPhase>(phase)), " ", unit.text(most));
  }
  if (!text.empty()) text += "\n";
  const RankBytes& worst = f.memory[static_cast<size_t>(f.worst_rank)];
  if (const auto& parts = worst.allowance) {
    const auto of = [&](int64_t bytes) { return unit.text(static_cast<double>(bytes)); };
    text += concat("runtime (allowance for memory outside the arena): driver context ", of(parts->context), ", kernels ", of(parts->kernels),
                   ", matmul workspace ", of(parts->workspace), ", NCCL communicators ", of(parts->communicators), "\n");
  }
  return text;
}

std::string memory_text(const RankedLayout& plan) {
  const Forecast& f = plan.forecast;
  const double need = largest_peak(f.memory);
  const MemoryUnit unit = unit_for(need);
  ordered_json rows = ordered_json::array();
  for (const size_t rank : shown_ranks(f.memory)) {
    ordered_json& row = rows.emplace_back(ordered_json{{concat("memory, ", unit.name), concat("pipeline rank ", rank)}});
    for (const Category& category : kCategories) row[category.name] = unit.text(f.memory[rank].*category.bytes);
    row["of device"] = print("%.0f %%", 100 * f.memory[rank].peak / f.memory_limit);
  }
  const std::string amount = concat(unit.text(need), " of ", unit.text(f.memory_limit), " ", unit.name);
  const std::string verdict =
      f.tight ? concat("tight: ", worst_rank_text(plan), " has the highest peak, ", amount, ", and leaves less than plan.memory_margin free")
      : f.fits
          ? concat("fits: ", worst_rank_text(plan), " has the highest peak, ", amount)
          : concat("does not fit: ", unit.text(need - f.memory_limit), " ", unit.name, " too much on ", worst_rank_text(plan), ", peak ", amount);
  const size_t more = f.memory.size() - rows.size();
  return concat(table_of(rows), more > 0 ? concat("  and ", counted(more, "more pipeline rank"), "\n") : "", phases_text(f, unit), verdict, "\n");
}

constexpr const char* kUnknownBytes = " are unknown, because memory was computed by formula\n";

/// What a rank sends at most beside its steps; nullopt if memory, and with it this, was computed by formula.
std::optional<double> most_of(const Forecast& f, double RankMemory::*bytes) {
  std::optional<double> most;
  for (const RankBytes& rank : f.memory)
    if (rank.counted) most = std::max(most.value_or(0), (*rank.counted).*bytes);
  return most;
}

/// In the outer steps of a round of training.local; 0 without it.
std::optional<double> outer_bytes(const Forecast& f) { return most_of(f, &RankMemory::outer_bytes); }

/// Sent and received for a gradient or an exchange of training.asynchronous; 0 without it.
std::optional<double> server_bytes(const Forecast& f) { return most_of(f, &RankMemory::server_bytes); }

std::string server_bytes_text(const Forecast& f, const char* unit) {
  const std::optional<double> bytes = server_bytes(f);
  return bytes ? concat("; a rank sends and receives up to ", binary_bytes_text(*bytes), " per ", unit, "\n")
               : concat("; the bytes per ", unit, kUnknownBytes);
}

ordered_json json_of(const std::optional<double>& known) { return known ? ordered_json(*known) : ordered_json(); }

/// Bytes of the weights that the islands of hogwild share.
double shared_bytes(const Config& config) {
  return static_cast<double>(trainable_count(config.model) * size_of(precision_of(config.training).master));
}

std::string asynchronous_text(const RankedLayout& plan) {
  const Config& config = plan.config;
  if (!is_asynchronous(config.training)) return "";
  const AsynchronousConfig& asynchronous = config.training.asynchronous;
  const int64_t gradients = asynchronous.apply_after;
  if (shares_weights(config.training))
    return concat("training.asynchronous: ", counted(config.parallel.islands, "island"),
                  " on one host that step on the same weights without a lock; these take ", binary_bytes_text(shared_bytes(config)),
                  " once, beside the memory above, and results are not repeatable\n");
  if (averages_elastically(config.training))
    return concat("training.asynchronous: ", counted(config.parallel.islands, "island"), " that exchange weights with the centre every ",
                  counted(asynchronous.every, "step"), " by moving rate ", *asynchronous.moving_rate, server_bytes_text(plan.forecast, "exchange"));
  const bool leaves_out = config.resilience.backup_replicas > 0;
  return concat("training.asynchronous: ", counted(config.parallel.islands, "island"), " that send gradients alone, and ",
                counted(gradients, "gradient"), " in a step", leaves_out ? ", the first by the newest weights" : "",
                server_bytes_text(plan.forecast, "gradient"));
}

std::string local_text(const RankedLayout& plan) {
  const LocalConfig& local = plan.config.training.local;
  if (!local.steps) return "";
  const std::string islands = concat("training.local: ", counted(plan.config.parallel.islands, "island"), "; ");
  const std::optional<double> bytes = outer_bytes(plan.forecast);
  if (!bytes) return concat(islands, "the bytes of the outer steps", kUnknownBytes);
  return concat(islands, "a rank sends up to ", binary_bytes_text(*bytes), " in the ", counted(local.fragments, "outer step"), " of each round of ",
                counted(*local.steps, "step"), ", ", binary_bytes_text(*bytes / static_cast<double>(*local.steps)), " per step\n");
}

std::string time_text(const Forecast& f) {
  constexpr double kWidth = 40;
  std::string text = concat("step ", seconds_text(f.step_seconds), ", range ", seconds_text(f.step_low), " to ", seconds_text(f.step_high),
                            "; time of the critical-path rank:\n");
  for (const StepPart& part : kParts) {
    const double share = f.parts.*part.seconds / f.step_seconds;
    if (share < 5e-4) continue;
    text += print("  %-26s%11s %6.1f %%  ", part.words, seconds_text(f.parts.*part.seconds).c_str(), 100 * share);
    text += std::string(static_cast<size_t>(std::lround(kWidth * std::clamp(share, 0.0, 1.0))), '#') + "\n";
  }
  return concat(text, print("idle %.1f %% of the step, mean over the pipeline ranks\n", 100 * f.bubble),
                print("range -%.1f %% to +%.1f %%: ", 100 * (1 - f.step_low / f.step_seconds), 100 * (f.step_high / f.step_seconds - 1)),
                f.range_basis, "\n");
}

std::string utilisation_text(const RankedLayout& plan, const ClusterConfig& cluster) {
  const Forecast& f = plan.forecast;
  const double all = f.tokens_per_second_per_device * static_cast<double>(cluster.devices());
  const char* const device = cluster.device.cores ? "rank" : "GPU";
  return concat(print("MFU %.1f %% of %s: model FLOPs with the causal half of attention, no recomputation\n", 100 * f.mfu,
                      flops_text(peak_flops(plan.config, cluster)).c_str()),
                print("  %.1f %% counting full attention, as PaLM, NVIDIA, nanotron and llm-foundry do; ", 100 * f.mfu_full_attention),
                print("%.1f %% counting recomputation too, as SC'21 and BLOOM do\n", 100 * f.mfu_full_attention * recomputation_factor(plan.config)),
                rate_text(f.tokens_per_second_per_device), " tokens/s per ", device, ", ", count_text(all), " tokens/s in total, ",
                count_text(86400 * all), " tokens per day\n");
}

/// CPUs have none of these costs.
std::vector<std::string> warnings_of(const RankedLayout& plan, const ClusterConfig& cluster) {
  if (cluster.device.cores) return {};
  return shape_warnings(plan.config, stack_of(cluster.software.stack).own);
}

}  // namespace

double recomputation_factor(const Config& config) {
  return recomputation_factor(config.model, config.training.sequence_length, recompute_policy(config));
}

std::string plan_text(const RankedLayout& plan, const ClusterConfig& cluster, std::optional<double> tokens) {
  const Config& c = plan.config;
  const TrainingConfig& t = c.training;
  const auto parameters = static_cast<double>(parameter_count(c.model)), trained = static_cast<double>(trainable_count(c.model));
  std::string text = concat(c.model.architecture, ", ", count_text(parameters), " parameters, ",
                            trained < parameters ? concat(count_text(trained), " of them trained, ") : "", t.precision,
                            "; global batch: ", counted(t.global_batch_size, "sequence"), " of ", counted(t.sequence_length, "token"), ", ",
                            count_text(static_cast<double>(t.global_batch_size * t.sequence_length)), " tokens\n");
  text += concat(plan.layout, " on ", cluster_text(cluster), ", ", counted(microbatches_of(c), "micro-batch", "micro-batches"), " of ",
                 t.micro_batch_size, ", recompute ", t.recompute, software_text(cluster), "\n\n");
  text += memory_text(plan) + "\n" + time_text(plan.forecast) + local_text(plan) + asynchronous_text(plan) + "\n" + utilisation_text(plan, cluster);
  if (tokens) text += bill_text(training_bill(c, cluster, plan.forecast.step_seconds, *tokens));
  for (const std::string& line : warnings_of(plan, cluster)) text += concat("warning: ", line, "\n");
  return text;
}

std::string software_text(const ClusterConfig& cluster) {
  const FieldTable table = table_of(cluster), defaults = table_of(ClusterConfig{});
  std::string text, keys;
  for (const FieldRow& row : table.fields) {
    if (!is_software(row) || row.value == defaults.at(row.path).value) continue;
    if (row.path == "software.stack")
      text = concat("; with the kernels and overlap of ", cluster.software.stack);
    else
      keys += concat(keys.empty() ? "; " : ", ", row.path, " ", shown_value(row));
  }
  return text + keys;
}

ordered_json software_json(const ClusterConfig& cluster) {
  ordered_json json;
  for (const FieldRow& row : table_of(cluster).fields) {
    if (!is_software(row)) continue;
    ordered_json& of_key = json[row.path.substr(kSoftware.size())];
    std::visit(
        [&](const auto& value) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) of_key = value;
        },
        row.value);
  }
  return json;
}

ordered_json plan_json(const RankedLayout& plan, const ClusterConfig& cluster, std::optional<double> tokens) {
  const Forecast& f = plan.forecast;
  ordered_json peaks = ordered_json::array(), memory = ordered_json::array(), parts;
  for (const RankBytes& rank : f.memory) {
    peaks.push_back(std::llround(rank.peak));
    ordered_json& row = memory.emplace_back();
    for (const Category& category : kCategories) row[category.name] = std::llround(rank.*category.bytes);
    if (rank.counted) row["phases"] = memory_json({*rank.counted})[0]["phases"];
    if (const auto& of = rank.allowance)
      row["runtime_parts"] = {{"context", of->context}, {"kernels", of->kernels}, {"workspace", of->workspace}, {"communicators", of->communicators}};
  }
  for (const StepPart& part : kParts) parts[part.name] = f.parts.*part.seconds;
  ordered_json json = {{"layout", plan.layout},
                       {"step_seconds", f.step_seconds},
                       {"tokens_per_second_per_gpu", f.tokens_per_second_per_device},
                       {"mfu", f.mfu},
                       {"bubble", f.bubble},
                       {"fits", f.fits},
                       {"memory_verdict", f.tight  ? "tight"
                                          : f.fits ? "fits"
                                                   : "does not fit"},
                       {"memory_bytes", peaks},
                       {"step_seconds_range", {f.step_low, f.step_high}},
                       {"range_basis", f.range_basis},
                       {"mfu_full_attention", f.mfu_full_attention},
                       {"mfu_with_recomputation", f.mfu_full_attention * recomputation_factor(plan.config)},
                       {"tokens_per_day", 86400 * f.tokens_per_second_per_device * static_cast<double>(cluster.devices())},
                       {"parts", parts},
                       {"memory", memory},
                       {"memory_limit_bytes", std::llround(f.memory_limit)},
                       {"reason", plan.reason.empty() ? ordered_json() : ordered_json(plan.reason)},
                       {"warnings", warnings_of(plan, cluster)}};
  if (const LocalConfig& local = plan.config.training.local; local.steps) {
    const std::optional<double> bytes = outer_bytes(f);
    json["local"] = {{"islands", plan.config.parallel.islands},
                     {"steps", *local.steps},
                     {"fragments", local.fragments},
                     {"outer_bytes", json_of(bytes)},
                     {"bytes_per_step", bytes ? ordered_json(*bytes / static_cast<double>(*local.steps)) : ordered_json()}};
  }
  const AsynchronousConfig& asynchronous = plan.config.training.asynchronous;
  if (averages_elastically(plan.config.training))
    json["asynchronous"] = {{"mode", asynchronous.mode.text()},
                            {"every", asynchronous.every},
                            {"moving_rate", *asynchronous.moving_rate},
                            {"bytes_per_exchange", json_of(server_bytes(f))}};
  if (shares_weights(plan.config.training)) json["asynchronous"] = {{"mode", asynchronous.mode.text()}, {"shared_bytes", shared_bytes(plan.config)}};
  if (has_parameter_servers(plan.config.training))
    json["asynchronous"] = {
        {"mode", asynchronous.mode.text()}, {"apply_after", asynchronous.apply_after}, {"bytes_per_gradient", json_of(server_bytes(f))}};
  if (tokens) {
    const TrainingCost bill = training_bill(plan.config, cluster, f.step_seconds, *tokens);
    json["training"] = {{"tokens", bill.tokens},
                        {"days", bill.seconds / 86400},
                        {"device_hours", bill.device_hours},
                        {"cost", json_of(bill.cost)},
                        {"kilowatt_hours", json_of(bill.kilowatt_hours)}};
  }
  return json;
}

std::string search_text(const SearchResult& result) {
  constexpr size_t kShown = 12, kTooLarge = 4;
  std::string text = concat(counted(result.legal, "legal layout"), ", ", result.tried, " forecast, the others pruned by bounds on time and memory\n",
                            result.why.empty() ? "" : result.why + "\n");
  double largest = 0;
  for (const auto* layouts : {&result.layouts, &result.too_large})
    for (const RankedLayout& layout : *layouts) largest = std::max(largest, largest_peak(layout.forecast.memory));
  const MemoryUnit unit = unit_for(largest);
  ordered_json rows = ordered_json::array();
  std::vector<std::string> reasons = {""};  // none for the table's header
  const auto add = [&](const RankedLayout& layout) {
    const Forecast& f = layout.forecast;
    rows.push_back({{"layout", layout.layout},
                    {"step", seconds_text(f.step_seconds)},
                    {"tokens/s per device", rate_text(f.tokens_per_second_per_device)},
                    {"MFU", print("%.1f %%", 100 * f.mfu)},
                    {"bubble", print("%.1f %%", 100 * f.bubble)},
                    {unit.name, unit.text(largest_peak(f.memory))}});
    const std::string reason = layout.reason.empty() && f.tight ? "tight" : layout.reason;  // a reason says it too
    reasons.push_back(reason.empty() ? "" : "  " + reason);
  };
  for (size_t i = 0; i < std::min(kShown, result.layouts.size()); ++i) add(result.layouts[i]);
  for (size_t i = 0; i < std::min(kTooLarge, result.too_large.size()); ++i) add(result.too_large[i]);
  std::istringstream table(table_of(rows));
  std::string line;
  for (size_t i = 0; std::getline(table, line); ++i) text += line + reasons[i] + "\n";
  if (!result.layouts.empty() && !result.batches.empty()) {
    text += "ranks idle with this batch:\n";
    for (const BetterBatch& better : result.batches)
      text += concat("  training.global_batch_size ", better.batch, " gives ",
                     print("%.2f", better.tokens_per_second_per_device / result.layouts.front().forecast.tokens_per_second_per_device),
                     " times the tokens/s per device, with ", better.layout, "\n");
  }
  return result.advice.empty() ? text : text + result.advice + "\n";
}

}  // namespace trireme
