#include "trainer/run/reporter.h"

#include <cmath>
#include <limits>

#include "trainer/files/table.h"
#include "trainer/loop/memory_table.h"
#include "trainer/model/flops.h"
#include "trainer/run/launcher.h"

namespace trireme {

void Reporter::open(const Config& config, const nlohmann::ordered_json& environment, const std::optional<RunForecast>& forecast, int64_t step,
                    int64_t steps) {
  const std::filesystem::path path = std::filesystem::path(config.run.directory) / "metrics.jsonl";
  MetricsWriter::cut_back(path, step);
  metrics_ = std::make_unique<MetricsWriter>(path);
  console_ = std::make_unique<ConsoleReporter>(steps, standard_output_is_terminal());
  tokens_per_step_ = config.training.global_batch_size * config.training.sequence_length;
  flops_per_token_ = training_flops_per_token(config.model, config.training.sequence_length);
  if (forecast) peak_flops_ = forecast->peak_flops;
  const int64_t parameters = parameter_count(config.model);
  metrics_->event("start", {{"step", step},
                            {"steps", steps},
                            {"parameters", parameters},
                            {"world_size", environment["world_size"]},
                            {"layout", environment["layout"]},
                            {"version", environment["version"]},
                            {"forecast", forecast ? forecast_json(*forecast) : nlohmann::ordered_json()}});
  message(concat(config.run.name, ": ", config.model.architecture, " with ", parameters, " parameters, tensor ", config.parallel.tensor,
                 " x pipeline ", config.parallel.pipeline, " x data ", *config.parallel.data, ", ZeRO-", config.parallel.zero_stage, ", ",
                 config.training.precision, "; ", steps, " steps of ", config.training.global_batch_size, " x ", config.training.sequence_length,
                 " tokens"));
}

void Reporter::step(int64_t step, const StepResult& result, double seconds) {
  if (!metrics_) return;
  const double rate = static_cast<double>(tokens_per_step_) / seconds;
  const double flops = flops_per_token_ * rate;
  const std::optional<double> mfu = peak_flops_ ? std::optional(flops / *peak_flops_) : std::nullopt;
  const double loss = result.targets > 0 ? result.loss : std::numeric_limits<double>::quiet_NaN();  // the mean over no token
  const StepMetrics line{step,         loss, result.grad_norm, result.learning_rate, step * tokens_per_step_, seconds, rate,
                         flops / 1e12, mfu,  result.loss_scale};
  metrics_->step(line);
  console_->step(line);
  look_for_trouble();
  if (result.targets == 0) {
    metrics_->event("no_target", {{"step", step}});
    message(concat("warning: step ", step, " has no loss and its gradients are zero: every target of its batch is masked, as those of prompts are"));
  }
  if (result.accepted) return;
  if (result.overflow) return metrics_->event("overflow", {{"step", step}, {"parameter", result.offender}});
  metrics_->event("rejected_step", {{"step", step}, {"parameter", result.offender}});
  message(concat("step ", step, " rejected on every rank: the gradient", result.offender.empty() ? "" : " of " + result.offender,
                 " is not finite; weights are unchanged"));
}

void Reporter::evaluation(int64_t step, double loss, const std::vector<std::pair<std::string, double>>& sets) {
  if (!metrics_) return;
  metrics_->evaluation(step, loss, sets);
  console_->evaluation(step, loss, sets);
}

void Reporter::saved(const SaveReport& report) {
  if (!metrics_) return;
  const std::string name = checkpoint_name(report.step);
  if (report.error) {
    metrics_->event("checkpoint_failed", {{"checkpoint", name}, {"reason", *report.error}});
    message(concat("checkpoint of step ", report.step, " was not saved: ", *report.error, "; older checkpoints stand"));
  } else {
    metrics_->event(
        "checkpoint",
        {{"checkpoint", name}, {"bytes", report.bytes}, {"stall_seconds", report.stall_seconds}, {"write_seconds", report.write_seconds}});
  }
}

void Reporter::memory(int64_t step, const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured) {
  if (!metrics_) return;
  metrics_->event("memory", {{"step", step}, {"forecast", memory_json(forecast)}, {"measured", memory_json(measured)}});
  message("memory of a rank, planned and measured:\n" + memory_table(forecast, measured));
}

void Reporter::forecast(int64_t step, double seconds, double measured_seconds, double bytes, double measured_bytes) {
  if (!metrics_) return;
  const auto pair = [](double forecast, double measured) {
    return nlohmann::ordered_json{{"forecast", forecast}, {"measured", measured}, {"ratio", forecast / measured}};
  };
  metrics_->event("forecast", {{"step", step}, {"step_seconds", pair(seconds, measured_seconds)}, {"memory_bytes", pair(bytes, measured_bytes)}});
  const auto percent = [](double forecast, double measured) { return concat(" (", std::lround(100 * forecast / measured), " % of it)"); };
  message(concat("forecast against measured: a step ", seconds, " s against ", measured_seconds, " s", percent(seconds, measured_seconds),
                 "; memory of the rank that takes most ", binary_bytes_text(bytes), " against ", binary_bytes_text(measured_bytes),
                 percent(bytes, measured_bytes)));
}

void Reporter::sync() const {
  if (metrics_) metrics_->sync();
}

void Reporter::look_for_trouble() {
  const bool trouble = !metrics_->trouble().empty();
  if (trouble && !told_trouble_) message(metrics_->trouble() + "; its lines are kept until there is room");
  told_trouble_ = trouble;
}

void Reporter::event(const std::string& kind, const nlohmann::ordered_json& fields) {
  if (metrics_) metrics_->event(kind, fields);
}

void Reporter::message(const std::string& text) {
  if (console_) console_->message(text);
}

}  // namespace trireme
