#include "trainer/run/rank_figures.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>

#include "trainer/files/strict_json.h"
#include "trainer/loop/memory.h"

namespace trireme {

using nlohmann::ordered_json;

HostMemoryUse host_memory_use() {
  HostMemoryUse use;
  int64_t size = 0, pages = 0;
  if (std::ifstream file("/proc/self/statm"); file >> size >> pages) use.resident = pages * ::sysconf(_SC_PAGE_SIZE);
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name >> size && std::getline(file, unit);)
    if (name == "MemAvailable:") use.available = 1024 * size;
  return use;
}

RankFigures::RankFigures(Trainer& trainer, Progress& progress) : trainer_(trainer), progress_(progress) {
  if (trainer.context().device == Device::kCuda) sensors_.emplace(trainer.context().gpu->properties().pci);
  interrupt();
}

void RankFigures::interrupt() {
  waited_before_ = progress_.waited();
  input_before_ = trainer_.batches().input_seconds();
}

void RankFigures::add_step(double seconds) {
  const std::vector<double>& now = progress_.waited();
  waited_.resize(now.size());
  waited_before_.resize(now.size());
  busy_seconds_ = seconds;
  for (size_t group = 0; group < now.size(); ++group) {
    const double waited = now[group] - waited_before_[group];
    waited_[group] += waited;
    busy_seconds_ -= waited;
  }
  waited_before_ = now;
  input_seconds_ += trainer_.batches().input_seconds() - std::exchange(input_before_, trainer_.batches().input_seconds());
  seconds_ += seconds;
  ++steps_;
}

bool RankFigures::due() const {
  constexpr double kSecondsPerRank = 0.05;
  const double pause = std::max(1.0, kSecondsPerRank * trainer_.mesh().world.size());
  return steps_ > 0 && std::chrono::duration<double>(std::chrono::steady_clock::now() - last_).count() >= pause;
}

/// The figures of this rank.
ordered_json RankFigures::figures() const {
  const auto per_step = [&](double seconds) { return seconds / static_cast<double>(steps_); };
  ordered_json figures = {{"step_seconds", per_step(seconds_)}};
  // On a GPU the device waits, not the host.
  if (trainer_.context().device != Device::kCuda) {
    double waited = 0;
    for (const double seconds : waited_) waited += seconds;
    figures["busy_seconds"] = per_step(seconds_ - waited);
    const Progress::Snapshot now = progress_.snapshot();
    for (size_t group = 0; group < waited_.size(); ++group) {
      ordered_json& sum = figures["wait_seconds"][now.groups[group].name];
      sum = (sum.is_number() ? sum.get<double>() : 0) + per_step(waited_[group]);
    }
    figures["data_seconds"] = per_step(input_seconds_);
  }
  figures["peak_bytes"] = measured_memory(*trainer_.context().arena).peak_total;
  const HostMemoryUse memory = host_memory_use();
  if (memory.resident > 0) figures["resident_bytes"] = memory.resident;
  if (memory.available > 0) figures["host_available_bytes"] = memory.available;
  if (sensors_) figures.update(sensors_->latest());
  return figures;
}

void RankFigures::report(int64_t step, Reporter& reporter) {
  if (steps_ == 0) return;
  Communicator& world = trainer_.mesh().world;
  std::vector<ordered_json> ranks;
  for (const std::string& text : all_gather_strings(world, figures().dump())) ranks.push_back(parse_value<ordered_json>(text, "figures of a rank"));
  const std::vector<LayerGradient> layers = trainer_.layer_gradients();
  if (world.rank() == 0) {
    ordered_json fields = {{"steps", steps_}};
    fields.update(merge_rank_figures(ranks));
    for (const LayerGradient& layer : layers) fields["grad_norms"][layer.layer] = layer.norm;
    reporter.event("ranks", step, fields);
    report_dead(layers, step, reporter);
  }
  steps_ = 0;
  seconds_ = 0;
  input_seconds_ = 0;
  std::ranges::fill(waited_, 0);
  last_ = std::chrono::steady_clock::now();
}

void RankFigures::report_dead(const std::vector<LayerGradient>& layers, int64_t step, Reporter& reporter) {
  for (const auto& [layer, norm, zero_steps] : layers) {
    if (zero_steps < trainer_.config().observe.anomalies.window) {
      dead_.erase(layer);
    } else if (dead_.insert(layer).second) {
      const char* const advice = scales_loss(trainer_.config().training) ? "; in fp16 a gradient may be too small for the loss scale" : "";
      reporter.event("dead_layer", step, {{"layer", layer}, {"zero_steps", zero_steps}},
                     concat("step ", step, ": warning: the gradient of ", layer, " has been zero in each of the last ", zero_steps,
                            " steps, so nothing but weight decay changes its weights", advice));
    }
  }
}

namespace {

/// The means of the entries of the objects that ranks have under `key`; an entry that a rank lacks counts as 0.
ordered_json mean_entries(const std::vector<ordered_json>& ranks, const std::string& key) {
  ordered_json means = ordered_json::object();
  for (const ordered_json& rank : ranks) {
    const ordered_json entries = rank.value(key, ordered_json::object());
    for (const auto& [name, value] : entries.items()) means[name] = means.value(name, 0.0) + value.get<double>();
  }
  for (ordered_json& mean : means) mean = mean.get<double>() / static_cast<double>(ranks.size());
  return means;
}

/// (max - min) / mean of the numbers of a list; 0 if the mean is 0 or there is no number.
double imbalance_of(const ordered_json& list) {
  std::vector<double> seconds;
  for (const ordered_json& each : list)
    if (each.is_number()) seconds.push_back(each.get<double>());
  if (seconds.empty()) return 0;
  const auto [low, high] = std::ranges::minmax(seconds);
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
  return mean > 0 ? (high - low) / mean : 0;
}

}  // namespace

ordered_json merge_rank_figures(const std::vector<ordered_json>& ranks) {
  ordered_json merged;
  for (const ordered_json& any : ranks) {
    for (const auto& [key, value] : any.items()) {
      if (merged.contains(key)) continue;
      if (value.is_object()) {
        merged[key] = mean_entries(ranks, key);
        continue;
      }
      for (const ordered_json& rank : ranks) merged[key].push_back(rank.contains(key) ? rank[key] : ordered_json());
      if (key == "busy_seconds") merged["imbalance"] = imbalance_of(merged[key]);
    }
  }
  return merged;
}

}  // namespace trireme
