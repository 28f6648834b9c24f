#include "trainer/run/metrics_sink.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "kernels/core/check.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/json_lines.h"
#include "trainer/run/sinks.h"

namespace trireme {

using nlohmann::ordered_json;

void MetricsSink::write(const Event& event) {
  if (event.kind.empty()) return;
  ordered_json line;
  if (event.kind != "step" && event.kind != "evaluation") line["event"] = event.kind;
  if (event.step) line["step"] = *event.step;
  if (event.fields.is_object()) line.update(event.fields);
  if (event.time) line["time"] = utc_text(*event.time);
  // Shortest form that reads back to the same bits; NaN and infinity become null.
  file_.append(line.dump() + "\n");
}

MetricsHistory MetricsSink::history(const std::filesystem::path& path) {
  MetricsHistory history;
  if (!std::filesystem::exists(path)) return history;
  for (JsonLines lines(path.string()); lines.next();) {
    const ordered_json& value = lines.value();
    if (!value.is_object()) continue;  // incomplete line
    const auto named = [&](const char* key) { return value.contains(key) && value[key].is_string() ? value[key].get<std::string>() : ""; };
    const std::string event = named("event");
    const int64_t step = value.contains("step") && value["step"].is_number_integer() ? value["step"].get<int64_t>() : 0;
    if (event.empty() && value.contains("loss")) history.steps = step;
    if (value.contains("validation_loss")) {
      history.evaluated = step;
      const ordered_json& loss = value["validation_loss"];
      history.loss = loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
    if (event == "checkpoint") history.checkpoint = named("checkpoint");
    const bool from_peers = value.contains("from_peers");  // of which nothing need be left
    if (event == "start" && step > 0 && !from_peers) history.checkpoint = checkpoint_name(step);
  }
  return history;
}

std::filesystem::path MetricsSink::rename_existing(const std::filesystem::path& path) {
  if (history(path).steps == 0) return {};
  std::filesystem::path free;
  for (int n = 1; free.empty() || std::filesystem::exists(std::filesystem::symlink_status(free)); ++n)
    free = path.parent_path() / concat(path.stem().string(), "-", n, path.extension().string());
  rename_durably(path, free);
  return free;
}

MetricsSink::Discarded MetricsSink::lines_after(const std::filesystem::path& path, int64_t step) {
  Discarded discarded;
  if (!std::filesystem::exists(path)) return discarded;
  bool later = false;
  for (JsonLines lines(path.string()); lines.next();) {
    const ordered_json& value = lines.value();
    if (!value.is_object()) continue;  // incomplete line
    const auto found = value.find("step");
    later = later || (found != value.end() && found->is_number_integer() && found->get<int64_t>() > step);
    if (!later) continue;
    if (!value.contains("event") && value.contains("loss")) ++discarded.steps;
    if (const auto time = value.find("time"); time != value.end() && time->is_string()) discarded.until = time->get<std::string>();
  }
  return discarded;
}

LoggedSplits MetricsSink::splits_after(const std::filesystem::path& path, int64_t step) {
  LoggedSplits splits;
  if (!std::filesystem::exists(path)) return splits;
  for (JsonLines lines(path.string()); lines.next();) {
    const ordered_json& value = lines.value();
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer()) continue;
    const auto at = value["step"].get<int64_t>();
    const std::string event = value.contains("event") && value["event"].is_string() ? value["event"].get<std::string>() : "";
    const auto add = [&](int64_t after, const ordered_json& counts) {
      std::vector<int>& split = splits.after_step[after];
      split.clear();
      for (const ordered_json& count : counts) split.push_back(count.is_number_integer() ? count.get<int>() : 0);
    };
    if (event.empty() && value.contains("imbalance")) splits.last_step = std::max(splits.last_step, at);
    if (event == "rebalance" && value.contains("micro_batches")) add(at, value["micro_batches"]);
    if (event == "rebalance_again" && value.contains("last_step") && value["last_step"].is_number_integer() && value.contains("micro_batches")) {
      splits.last_step = std::max(at, value["last_step"].get<int64_t>());
      std::erase_if(splits.after_step, [&](const auto& logged) { return logged.first > at; });
      for (const auto& [after, counts] : value["micro_batches"].items()) add(std::strtoll(after.c_str(), nullptr, 10), counts);
    }
  }
  std::erase_if(splits.after_step, [&](const auto& logged) { return logged.first <= step; });
  return splits;
}

LoggedOrder MetricsSink::order_after(const std::filesystem::path& path, int64_t step) {
  LoggedOrder order;
  if (!std::filesystem::exists(path)) return order;
  const auto add = [&](int64_t at, const ordered_json& workers) {
    std::vector<int>& of_step = order[at];
    of_step.clear();
    for (const ordered_json& worker : workers) of_step.push_back(worker.is_number_integer() ? worker.get<int>() : -1);
  };
  for (JsonLines lines(path.string()); lines.next();) {
    const ordered_json& value = lines.value();
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer() || !value.contains("workers")) continue;
    const auto at = value["step"].get<int64_t>();
    if (!value.contains("event")) {
      add(at, value["workers"]);
    } else if (value["event"] == "arrivals") {
      std::erase_if(order, [&](const auto& logged) { return logged.first > at; });
      for (const auto& [later, workers] : value["workers"].items()) add(std::strtoll(later.c_str(), nullptr, 10), workers);
    }
  }
  std::erase_if(order, [&](const auto& logged) { return logged.first <= step; });
  return order;
}

void MetricsSink::truncate_after(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  for (JsonLines lines(path.string()); step > 0 && lines.next() && lines.is_whole();) {
    const ordered_json& line = lines.value();
    if (!line.is_object()) continue;
    const auto found = line.find("step");
    if (found != line.end() && found->is_number_integer() && found->get<int64_t>() > step) break;
    kept += lines.text() + "\n";
  }
  write_durably(path, kept);
}

std::unique_ptr<EventSink> make_metrics_sink(const SinkSettings& settings) {
  const std::filesystem::path path = std::filesystem::path(settings.config.run.directory) / "metrics.jsonl";
  MetricsSink::truncate_after(path, settings.history.step);
  return std::make_unique<MetricsSink>(path);
}

}  // namespace trireme
