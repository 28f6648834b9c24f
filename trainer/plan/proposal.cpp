#include "trainer/plan/proposal.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/fields.h"
#include "trainer/config/write.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/report.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

/// Time with two decimals, for reasons; "none" if they are zeros.
std::string rounded_text(double seconds) {
  if (seconds < 5e-9) return "none";
  return seconds >= 0.1 ? print("%.2f s", seconds) : seconds >= 1e-4 ? print("%.2f ms", seconds * 1e3) : print("%.2f us", seconds * 1e6);
}
std::string gigabytes(double bytes) { return bytes >= 1e9 ? print("%.1f GB", bytes / 1e9) : print("%.1f MB", bytes / 1e6); }

/// A part of the step, and the property of a layout that makes it large.
struct SlowdownCause {
  const char* name;
  double StepParts::*seconds;
  std::string (*cause)(const Config& layout, const Config& best);
};

std::string cause_of_bubble(const Config& c, const Config&) {
  const std::string stages = *c.parallel.virtual_stages > 1 ? concat(" with ", *c.parallel.virtual_stages, " stages each") : "";
  return concat(counted(microbatches_of(c), "micro-batch", "micro-batches"), " on ", counted(c.parallel.pipeline, "pipeline rank"), stages, ", ",
                c.parallel.schedule);
}

std::string cause_of_compute(const Config& c, const Config& best) {
  if (c.parallel.tensor > best.parallel.tensor) return concat("matrices split over tensor ", c.parallel.tensor);
  if (c.training.micro_batch_size < best.training.micro_batch_size) return concat("small products: micro-batches of ", c.training.micro_batch_size);
  if (c.parallel.tensor > 1 && !c.parallel.sequence_parallel && best.parallel.sequence_parallel)
    return "norms and residuals repeated on every tensor rank, without sequence parallelism";
  const std::vector<int64_t>& split = *c.parallel.layers_per_stage;
  const auto [least, most] = std::minmax_element(split.begin(), split.end());
  return concat(counted(c.model.layers, "layer"), " in stages of ", *least, *least == *most ? "" : concat(" to ", *most));
}

const SlowdownCause kSlowdownCauses[] = {
    {"compute", &StepParts::compute, cause_of_compute},
    {"recomputation", &StepParts::recompute, [](const Config& c, const Config&) { return "recompute " + c.training.recompute.text(); }},
    {"bubble", &StepParts::bubble, cause_of_bubble},
    {"pipeline transfers", &StepParts::transfer,
     [](const Config& c, const Config&) {
       return concat(counted(microbatches_of(c), "micro-batch", "micro-batches"), " over ", counted(c.parallel.layers_per_stage->size(), "stage"));
     }},
    {"tensor-parallel communication", &StepParts::tensor,
     [](const Config& c, const Config&) {
       return concat("tensor ", c.parallel.tensor, c.parallel.sequence_parallel ? "" : " without sequence parallelism");
     }},
    {"parameter gathers", &StepParts::gather,
     [](const Config& c, const Config&) {
       return concat("ZeRO-", c.parallel.zero_stage, " over ", counted(*c.parallel.data / c.parallel.replicate, "rank"), ", ",
                     counted(microbatches_of(c), "time"), " per step");
     }},
    {"gradient reduction", &StepParts::reduce,
     [](const Config& c, const Config&) { return concat("ZeRO-", c.parallel.zero_stage, " over ", counted(*c.parallel.data, "data rank")); }},
    {"optimizer", &StepParts::optimizer,
     [](const Config& c, const Config&) {
       const int shards = degree_of(mesh_shape(c.parallel), MeshAxis::kShard);
       return concat("state in ", counted(shards, "shard"));
     }},
    {"host", &StepParts::host, [](const Config&, const Config&) { return std::string("host work while devices wait"); }},
};

}  // namespace

std::string slowdown_reason(const RankedLayout& layout, const RankedLayout& best) {
  const Forecast &here = layout.forecast, &first = best.forecast;
  const double slower = here.step_seconds / first.step_seconds - 1;
  if (here.tight && !first.tight && slower < 5e-4)
    return concat(
        slower < -5e-4 ? concat(print("%.1f %% faster", -slower * 100), ", but tight: needs ") : std::string("equally fast, but tight: needs "),
        gigabytes(largest_peak(here.memory)), " of ", gigabytes(here.memory_limit));
  const char* tight = here.tight ? ", tight" : "";
  if (slower < 5e-4) {
    const auto need = [](const Forecast& f) { return gigabytes(largest_peak(f.memory)); };
    return concat("equally fast; needs ", need(here), ", the best ", need(first), tight);
  }
  const SlowdownCause* most = kSlowdownCauses;
  const auto growth = [&](const SlowdownCause& part) { return here.parts.*part.seconds - first.parts.*part.seconds; };
  for (const SlowdownCause& part : kSlowdownCauses)
    if (growth(part) > growth(*most)) most = &part;
  return concat(print("%.1f %% slower: ", slower * 100), most->name, " ", rounded_text(here.parts.*most->seconds), " against ",
                rounded_text(first.parts.*most->seconds), " (", most->cause(layout.config, best.config), ")", tight);
}

std::string winning_reason(const SearchResult& result) {
  if (result.layouts.size() < 2) return "";
  const RankedLayout& best = result.layouts.front();
  const auto split = [](const RankedLayout& layout) {
    const ParallelConfig& p = layout.config.parallel;
    return std::tuple(p.tensor, p.pipeline, p.schedule);
  };
  const auto found = std::ranges::find_if(result.layouts, [&](const RankedLayout& layout) { return split(layout) != split(best); });
  const RankedLayout& other = found == result.layouts.end() ? result.layouts[1] : *found;
  // Parts of the step by what the best layout saves, most first.
  std::vector<std::pair<double, const char*>> saved;
  for (const SlowdownCause& part : kSlowdownCauses)
    saved.emplace_back(other.forecast.parts.*part.seconds - best.forecast.parts.*part.seconds, part.name);
  std::ranges::stable_sort(saved, std::greater<>(), &std::pair<double, const char*>::first);
  const double faster = other.forecast.step_seconds - best.forecast.step_seconds, least = 5e-4 * best.forecast.step_seconds;
  std::string gains, losses;
  constexpr size_t kGains = 2;
  for (size_t i = 0; i < kGains && saved[i].first > least; ++i)
    gains += concat(gains.empty() ? " it saves " : " and ", rounded_text(saved[i].first), " of ", saved[i].second);
  if (-saved.back().first > least)
    losses = concat(gains.empty() ? " it" : " but", " spends ", rounded_text(-saved.back().first), " more on ", saved.back().second);
  const auto by = [](double seconds, const char* than) { return concat(" takes ", rounded_text(seconds), than); };
  std::string first = concat(
      best.layout,
      faster > least    ? by(faster, " less per step than ")
      : faster < -least ? by(-faster, " more per step than ")
                        : std::string(" is as fast as "),
      other.layout, found == result.layouts.end() ? ", the next layout" : ", the next one with another tensor degree, pipeline degree or schedule");
  if (!gains.empty() || !losses.empty()) first += ":" + gains + losses;
  const auto need = [](const RankedLayout& layout) { return gigabytes(largest_peak(layout.forecast.memory)); };
  if (other.forecast.tight && !best.forecast.tight && faster <= least)
    return concat(first, ". The other one is ", faster < -least ? "faster, but " : "", "tight: it needs ", need(other), " of a device's ",
                  gigabytes(other.forecast.memory_limit), ", and ", best.layout, " ", need(best), ".");
  return concat(first, ". It needs ", need(best), " of a device's ", gigabytes(best.forecast.memory_limit), ", and the other one ", need(other), ".");
}

std::string memory_reason(const Forecast& forecast) {
  return concat("does not fit: pipeline rank ", forecast.worst_rank, " needs ", gigabytes(largest_peak(forecast.memory)), ", a device has ",
                gigabytes(forecast.memory_limit));
}

Config with_layout_of(const Config& given, const Config& resolved) {
  Config out = given;
  out.parallel = resolved.parallel;
  out.parallel.gradient_accumulation = ParallelConfig{}.gradient_accumulation;
  out.training.micro_batch_size = resolved.training.micro_batch_size;
  out.training.recompute = resolved.training.recompute;
  out.training.recompute_every = resolved.training.recompute_every;
  out.training.recompute_budget = resolved.training.recompute_budget;
  out.training.compression.parameters = resolved.training.compression.parameters;  // ZeRO-0 has none
  Config automatic = out;
  automatic.parallel.layers_per_stage.reset();
  return resolve(automatic) == resolved ? automatic : out;
}

std::string proposed_yaml(const RankedLayout& layout, const ClusterConfig& cluster) {
  const Forecast& f = layout.forecast;
  std::string out = concat("# ", layout.layout, " on ", counted(cluster.nodes, "node"), " of ", cluster.devices_per_node, " ", cluster.device.type,
                           ", found by `trireme plan --search`.\n# Forecast: a step of ", seconds_text(f.step_seconds));
  if (f.step_high > 0) out += concat(" (", seconds_text(f.step_low), " to ", seconds_text(f.step_high), ")");
  out += print(", %.0f tokens/s per device, MFU %.1f %%, bubble %.1f %%", f.tokens_per_second_per_device, f.mfu * 100, f.bubble * 100);
  out += software_text(cluster) + ".\n";
  out += concat("# Memory: pipeline rank ", f.worst_rank, " has the highest peak, ", gigabytes(largest_peak(f.memory)), " of ",
                gigabytes(f.memory_limit), f.tight ? ", which is tight: it leaves less than plan.memory_margin free" : "", ".\n");
  static const std::set<std::string> always = {
      "parallel.tensor",           "parallel.pipeline",          "parallel.data",     "parallel.zero_stage", "training.sequence_length",
      "training.micro_batch_size", "training.global_batch_size", "training.recompute"};
  const FieldTable table = table_of(layout.written), defaults = table_of(Config{});
  return out +
         to_yaml(layout.written, [&](const std::string& path) { return always.contains(path) || table.at(path).value != defaults.at(path).value; });
}

std::string advice(const SearchResult& result, const Config& config, const ClusterConfig& cluster) {
  const std::string devices = counted(cluster.devices(), "device");
  if (result.legal == 0 && result.remedies.empty())
    return concat("no layout of ", devices, " is legal for ", counted(config.model.layers, "layer"), ", ", counted(config.model.heads, "head"),
                  " and training.global_batch_size ", config.training.global_batch_size, ": change the number of devices or the batch");
  std::string out = result.legal == 0 ? concat("no layout of ", devices, " is legal") : concat("no layout fits on ", devices);
  if (result.remedies.empty()) return out + ", nor with more nodes, larger devices or shorter sequences";
  out += "; a layout exists";
  for (size_t i = 0; i < result.remedies.size(); ++i) out += concat(i == 0 ? " " : ", or ", result.remedies[i].text);
  return out;
}

}  // namespace trireme
