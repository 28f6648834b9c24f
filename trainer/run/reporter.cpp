#include "trainer/run/reporter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "kernels/core/counted.h"
#include "trainer/config/check.h"
#include "trainer/files/table.h"
#include "trainer/loop/memory_table.h"
#include "trainer/model/flops.h"
#include "trainer/run/metrics_sink.h"

namespace trireme {

using nlohmann::ordered_json;

void Reporter::open(const Config& config, const ordered_json& environment, const std::optional<RunForecast>& forecast, const RunHistory& history,
                    int64_t steps, TerminalWidth width, std::FILE* messages) {
  history_ = history;
  const MetricsSink::Discarded discarded = MetricsSink::lines_after(std::filesystem::path(config.run.directory) / "metrics.jsonl", history.step);
  const std::vector<std::string> warnings = sinks_.open({config, history_, steps, std::move(width), stdout, messages});
  has_islands_ = config.parallel.islands > 1 && !has_parameter_servers(config.training);
  balances_ = config.data.balance != Balance::kNone;
  is_private_ = is_private(config.security);
  packs_ = config.data.packing != Packing::kNone;
  positions_per_step_ = config.training.global_batch_size * config.training.sequence_length;
  flops_per_token_ = training_flops_per_token(config.model, config.training.sequence_length);
  if (forecast) peak_flops_ = forecast->peak_flops;
  const int64_t parameters = parameter_count(config.model), trained = trainable_count(config.model);
  ordered_json fields = {{"steps", steps},
                         {"parameters", parameters},
                         {"world_size", environment["world_size"]},
                         {"layout", environment["layout"]},
                         {"version", environment["version"]},
                         {"forecast", forecast ? forecast_json(*forecast) : ordered_json()}};
  if (trained < parameters) fields["trainable_parameters"] = trained;
  if (history.from_peers) fields["from_peers"] = true;
  if (!discarded.until.empty()) fields["discarded"] = {{"steps", discarded.steps}, {"until", discarded.until}};
  event("start", history.step, fields,
        concat(config.run.name, ": ", config.model.architecture, " with ", parameters, " parameters, ",
               trained < parameters ? concat(trained, " of them trained, ") : "", islands_text(config.parallel), "tensor ", config.parallel.tensor,
               " x pipeline ", config.parallel.pipeline, " x data ", *config.parallel.data, ", ZeRO-", config.parallel.zero_stage, ", ",
               config.training.precision, "; ", counted(steps, "step"), " of ", config.training.global_batch_size, " x ",
               config.training.sequence_length, " tokens"));
  for (const std::string& warning : warnings) message(warning);
}

void Reporter::step(int64_t step, const StepResult& result, double seconds, const ordered_json& more, int64_t padding) {
  const double rate = static_cast<double>(positions_per_step_ - result.padding) / seconds;
  const double flops = flops_per_token_ * rate;
  const double loss = result.targets > 0 ? result.loss : std::numeric_limits<double>::quiet_NaN();  // mean over zero tokens
  ordered_json fields = {{"loss", loss},
                         {"grad_norm", result.grad_norm},
                         {"learning_rate", result.learning_rate},
                         {"tokens", history_.tokens + (step - history_.step) * positions_per_step_ - padding},
                         {"step_seconds", seconds},
                         {"tokens_per_second", rate},
                         {"model_tflops", flops / 1e12},
                         {"mfu", peak_flops_ ? ordered_json(flops / *peak_flops_) : ordered_json()}};
  if (packs_) fields["padding"] = static_cast<double>(result.padding) / static_cast<double>(positions_per_step_);
  if (balances_) fields["cost_imbalance"] = result.cost_imbalance;
  if (result.loss_scale) fields["loss_scale"] = *result.loss_scale;
  fields.update(more);
  event("step", step, fields);
  for (const std::string& error : sinks_.new_errors()) message(error);
  if (result.targets == 0 && !is_private_)  // a private step may draw no sequence, and says nothing about it
    event("no_target", step, {},
          concat("warning: step ", step, " has no loss and its gradients are zero: every target of its batch is masked, as prompt targets are"));
  if (result.accepted || result.over_limit) return;  // a limit is reported by anomaly()
  if (result.overflow) return event("overflow", step, {{"parameter", result.offender}});
  event("rejected_step", step, {{"parameter", result.offender}},
        concat("step ", step, " rejected on every rank: the gradient", result.offender.empty() ? "" : " of " + result.offender,
               " is not finite; weights are unchanged"));
}

void Reporter::anomaly(int64_t step, const StepResult& result, const StepLimits& limits, const std::string& action, const ordered_json& more,
                       const std::string& text) {
  ordered_json fields = {{"action", action},
                         {"measured", {{"loss", result.loss}, {"grad_norm", result.grad_norm}}},
                         {"limit", {{"loss", limits.loss}, {"grad_norm", limits.grad_norm}}}};
  fields.update(more);
  event("anomaly", step, fields, text.empty() ? "" : concat("step ", step, ": anomaly: ", text));
}

void Reporter::evaluating(int64_t step, int64_t done, int64_t batches, double seconds) { sinks_.evaluating(step, done, batches, seconds); }

void Reporter::evaluation(int64_t step, double loss, const std::vector<std::pair<std::string, double>>& sets) {
  ordered_json fields = {{"validation_loss", loss}};
  for (const auto& [name, loss_of_set] : sets) fields["validation"][name] = loss_of_set;
  event("evaluation", step, fields);
}

void Reporter::saved(const SaveReport& report) {
  const std::string name = checkpoint_name(report.step);
  if (report.error)
    return event("checkpoint_failed", {}, {{"checkpoint", name}, {"reason", *report.error}},
                 concat("checkpoint of step ", report.step, " was not saved: ", *report.error, "; older checkpoints remain valid"));
  event("checkpoint", {},
        {{"checkpoint", name}, {"bytes", report.bytes}, {"stall_seconds", report.stall_seconds}, {"write_seconds", report.write_seconds}});
}

void Reporter::memory(int64_t step, const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured) {
  event("memory", step, {{"forecast", memory_json(forecast)}, {"measured", memory_json(measured)}},
        "memory per rank, forecast and measured:\n" + memory_table(forecast, measured));
}

void Reporter::forecast(int64_t step, double seconds, double measured_seconds, double bytes, double measured_bytes) {
  const auto pair = [](double forecast, double measured) {
    return ordered_json{{"forecast", forecast}, {"measured", measured}, {"ratio", forecast / measured}};
  };
  const auto percent = [](double forecast, double measured) { return concat(" (", std::lround(100 * forecast / measured), " %)"); };
  event("forecast", step, {{"step_seconds", pair(seconds, measured_seconds)}, {"memory_bytes", pair(bytes, measured_bytes)}},
        concat("forecast vs measured: step time ", seconds, " s vs ", measured_seconds, " s", percent(seconds, measured_seconds),
               "; peak memory of a rank at most ", binary_bytes_text(bytes), " vs ", binary_bytes_text(measured_bytes),
               percent(bytes, measured_bytes)));
}

void Reporter::finish() { sinks_.finish(); }

ordered_json Reporter::take_island_events() { return kept_ ? std::exchange(*kept_, ordered_json::array()) : ordered_json::array(); }

void Reporter::report_island_events(int64_t island, const ordered_json& events) {
  for (const ordered_json& one : events) write_of_island(island, one[0], one[1], one[2], one[3]);
}

void Reporter::write_of_island(int64_t island, const std::string& kind, int64_t step, ordered_json fields, const std::string& text) {
  fields["island"] = island;
  write({kind, step, fields, text.empty() ? "" : concat("island ", island, ": ", text), WallClock::now()});
}

void Reporter::event(const std::string& kind, std::optional<int64_t> step, const ordered_json& fields, const std::string& text) {
  constexpr std::array<std::string_view, 3> kOfIsland = {"rejected_step", "anomaly", "no_target"};
  const bool of_island = step && std::ranges::find(kOfIsland, kind) != kOfIsland.end();
  if (of_island && kept_) kept_->push_back({kind, *step, fields, text});
  if (of_island && has_islands_) return write_of_island(0, kind, *step, fields, text);
  write({kind, step, fields, text, WallClock::now()});
}

void Reporter::write(const Event& event) {
  for (const std::string& failure : sinks_.write(event)) message(failure);
}

}  // namespace trireme
