#include "trainer/report/run_facts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/arena.h"
#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/table.h"
#include "trainer/plan/text.h"
#include "trainer/report/goodput.h"
#include "trainer/report/suspects.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUnknown = "–";

/// A member that is a number, as the integer nearest to it; 0 if there is none.
int64_t count_in(const ordered_json& object, const char* key) {
  const double value = number_in(object, key);
  return std::isfinite(value) && std::abs(value) < 1e18 ? static_cast<int64_t>(value) : 0;
}

std::string text_or_unknown(double value, Quantity quantity) { return std::isfinite(value) ? value_text(value, quantity) : kUnknown; }

int64_t last_step(const RunRecord& run) { return run.steps.size() == 0 ? 0 : run.steps.step.back(); }

int64_t events_of_kind(const RunRecord& run, const std::string& kind) { return std::ranges::count(run.events, kind, &EventRecord::kind); }

/// The number of steps that the run shall have; 0 if unknown.
int64_t wanted_steps(const RunRecord& run) {
  const EventRecord* const start = run.last("start");
  return start == nullptr ? 0 : count_in(start->fields, "steps");
}

std::string status_of(const RunRecord& run) {
  const int64_t done = last_step(run), wanted = wanted_steps(run);
  if (run.last("diverged") != nullptr) return "diverged";
  if (run.last("anomaly_stop") != nullptr) return "stopped at an anomaly";
  if (wanted > 0 && done >= wanted) return "finished";
  if (run.last("early_stop") != nullptr) return "stopped early";
  return done == 0 ? "no steps" : "unfinished";
}

Fact loss_fact(const RunRecord& run) {
  const size_t steps = run.steps.size(), count = std::clamp<size_t>(steps / 100, std::min<size_t>(steps, 10), 1000);
  const double loss = mean_of_last(run.steps[Figure::kLoss], count);
  return {"training loss", text_or_unknown(loss, Quantity::kNumber),
          count > 0 ? count == 1 ? "of the last step" : concat("mean of the last ", grouped(static_cast<int64_t>(count)), " steps") : "", true};
}

Fact validation_fact(const RunRecord& run) {
  const EvaluationRecord* best = nullptr;
  for (const EvaluationRecord& one : run.evaluations)
    if (std::isfinite(one.loss) && (best == nullptr || one.loss < best->loss)) best = &one;
  if (best == nullptr) return {"best validation loss", kUnknown, "", true};
  return {"best validation loss", value_text(best->loss, Quantity::kNumber), concat("at step ", grouped(best->step)), true};
}

/// nullopt if the run has no memory event that can be read.
std::optional<std::pair<double, double>> peak_memory(const RunRecord& run) {
  const EventRecord* const memory = run.last("memory");
  if (memory == nullptr) return std::nullopt;
  std::pair<double, double> peaks{0, 0};
  for (const auto& [key, most] : {std::pair("forecast", &peaks.first), {"measured", &peaks.second}}) {
    const auto ranks = memory->fields.find(key);
    if (ranks == memory->fields.end() || !ranks->is_array()) return std::nullopt;
    for (const ordered_json& rank : *ranks)
      if (rank.is_object() && std::isfinite(number_in(rank, "peak"))) *most = std::max(*most, number_in(rank, "peak"));
  }
  return peaks;
}

Fact memory_fact(const RunRecord& run) {
  const auto peaks = peak_memory(run);
  if (!peaks) return {"peak memory", kUnknown, "reported at the end of a job"};
  return {"peak memory", binary_bytes_text(peaks->second), concat("of a rank; forecast ", binary_bytes_text(peaks->first)), true};
}

std::vector<Fact> speed_facts(const RunView& view) {
  const StepTable& steps = view.run->steps;
  Fact speed{"tokens per second", text_or_unknown(median_of(steps[Figure::kTokensPerSecond]), Quantity::kCount), "median", true};
  if (!view.forecasts.empty()) {  // of the newest layout, beside the steps that were made with it
    const auto first = static_cast<size_t>(std::ranges::upper_bound(steps.step, view.forecasts.back().after_step) - steps.step.begin());
    const double rate = median_of(steps[Figure::kTokensPerSecond].subspan(first));
    const double forecast = view.tokens_per_step / view.forecasts.back().step_seconds;
    if (std::isfinite(rate / forecast))
      speed.remark = concat("median; ", percent_text(rate / forecast), " of the forecast, ", value_text(forecast, Quantity::kCount));
  }
  const auto median = [](const char* name, double value, Quantity quantity) {
    return std::isfinite(value) ? Fact{name, value_text(value, quantity), "median"} : Fact{name, kUnknown};
  };
  return {speed, median("time of a step", median_of(steps[Figure::kStepSeconds]), Quantity::kDuration),
          median("model FLOP/s utilisation", median_of(steps[Figure::kMfu]), Quantity::kPercent)};
}

std::vector<Fact> time_facts(const RunRecord& run) {
  const double training = run.steps.size() == 0 ? 0 : run.steps.elapsed_seconds.back();
  const std::vector<Job> jobs = jobs_of(run);
  std::vector<Fact> facts{{"training time", value_text(training, Quantity::kDuration), "sum of the steps", true}};
  if (jobs.empty() || !std::isfinite(jobs.front().begin) || !std::isfinite(jobs.back().end)) {
    facts.push_back({"wall-clock time", kUnknown});
    facts.push_back({"goodput", kUnknown});
    return facts;
  }
  const double wall = jobs.back().end - jobs.front().begin;
  Fact fact{"wall-clock time", value_text(wall, Quantity::kDuration), "from the first start to the last event"};
  if (wall > 0) fact.remark += concat("; ", percent_text(std::min(1.0, training / wall)), " of it in steps");
  facts.push_back(fact);
  const std::optional<Goodput> goodput = goodput_of(run);
  facts.push_back(goodput ? Fact{"goodput", percent_text(goodput->share()), goodput_text(*goodput), true} : Fact{"goodput", kUnknown});
  return facts;
}

MemoryCategory category(size_t i) { return static_cast<MemoryCategory>(i); }

}  // namespace

std::string description_of(const RunRecord& run) {
  const EventRecord* const start = run.last("start");
  std::string text = run.value("model.architecture");
  if (start != nullptr && count_in(start->fields, "parameters") > 0)
    text += concat(text.empty() ? "" : ", ", grouped(count_in(start->fields, "parameters")), " parameters");
  const auto degree = [&](const char* key) { return run.value(concat("parallel.", key)); };
  if (!degree("tensor").empty())
    text += concat("; tensor ", degree("tensor"), " x pipeline ", degree("pipeline"), " x data ", degree("data"), ", ZeRO-", degree("zero_stage"));
  if (const std::string precision = run.value("training.precision"); !precision.empty()) text += "; " + precision;
  return text;
}

std::vector<Fact> facts_of(const RunView& view) {
  const RunRecord& run = *view.run;
  const int64_t done = last_step(run), wanted = wanted_steps(run);
  const double tokens = run.steps.size() == 0 ? 0 : run.steps[Figure::kTokens].back();
  std::vector<Fact> facts{{"status", status_of(run)},
                          {"steps", grouped(done), wanted > 0 ? concat("of ", grouped(wanted)) : "", true},
                          {"tokens", text_or_unknown(tokens, Quantity::kCount), "", true},
                          loss_fact(run),
                          validation_fact(run)};
  const auto append = [&](const std::vector<Fact>& more) { facts.insert(facts.end(), more.begin(), more.end()); };
  append(speed_facts(view));
  append(time_facts(run));
  facts.push_back(memory_fact(run));
  const size_t starts = static_cast<size_t>(events_of_kind(run, "start"));
  facts.push_back({"restarts", std::to_string(starts > 0 ? starts - 1 : 0)});
  facts.push_back({"saved checkpoints", std::to_string(events_of_kind(run, "checkpoint")),
                   events_of_kind(run, "checkpoint_failed") > 0 ? concat(events_of_kind(run, "checkpoint_failed"), " failed") : ""});
  facts.push_back({"rejected steps", std::to_string(events_of_kind(run, "rejected_step"))});
  facts.push_back({"anomalous steps", std::to_string(events_of_kind(run, "anomaly"))});
  const std::vector<Suspect> suspects = suspects_of(run);
  facts.push_back({"suspected data ranks", std::to_string(suspects.size()), suspects_text(suspects, std::ssize(run.steps.step))});
  const bool audited = run.value("security.audit.enabled") == "true";
  facts.push_back({"audit log", audited ? "yes" : "no", audited ? "trireme audit verify checks it" : ""});
  return facts;
}

std::vector<Bars> memory_bars(const RunRecord& run) {
  constexpr size_t kMost = 3;
  std::vector<Bars> all;
  const EventRecord* const memory = run.last("memory");
  if (!peak_memory(run)) return all;
  const ordered_json& forecast = memory->fields["forecast"];
  const ordered_json& measured = memory->fields["measured"];
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < std::min(forecast.size(), measured.size()); ++rank)
    if (forecast[rank].is_object() && measured[rank].is_object()) ranks.push_back(rank);
  std::ranges::stable_sort(ranks, std::ranges::greater(), [&](size_t rank) { return number_in(measured[rank], "peak"); });
  ranks.resize(std::min(ranks.size(), kMost));
  std::ranges::sort(ranks);
  for (const size_t rank : ranks) {
    Bars bars{.title = forecast.size() > 1 ? concat("Peak memory of pipeline rank ", rank) : "Peak memory",
              .quantity = Quantity::kBytes,
              .key = {{1, "forecast"}, {0, "measured"}},
              .rows = {}};
    const auto add = [&](const std::string& label, const char* key) {
      const double before = number_in(forecast[rank], key), after = number_in(measured[rank], key);
      if (!(before > 0) && !(after > 0)) return;
      bars.rows.push_back({label, {{"", {{1, std::isfinite(before) ? before : 0}}}, {"", {{0, std::isfinite(after) ? after : 0}}}}});
    };
    for (size_t c = 0; c < kMemoryCategories; ++c) add(name_of(category(c)), name_of(category(c)));
    add("peak of the sum", "peak");
    all.push_back(std::move(bars));
  }
  return all;
}

std::optional<Bars> cause_bars(const RunRecord& run) {
  Bars bars{.title = "Step time by cause, mean over ranks", .quantity = Quantity::kDuration, .key = {}, .rows = {}};
  for (const EventRecord& event : run.events) {
    if (event.kind != "exposed") continue;
    Bar bar;
    for (const auto& [cause, seconds] : event.fields.items()) {
      if (cause == "step_seconds" || !seconds.is_number() || seconds.get<double>() <= 0) continue;
      std::string name = cause;
      std::ranges::replace(name, '_', ' ');
      auto known = std::ranges::find(bars.key, name, &std::pair<size_t, std::string>::second);
      if (known == bars.key.end()) {
        if (bars.key.size() == kBarColors) continue;
        known = bars.key.insert(bars.key.end(), {bars.key.size(), name});
      }
      bar.segments.push_back({known->first, seconds.get<double>()});
    }
    bars.rows.push_back({concat("step ", event.after_step), {std::move(bar)}});
  }
  constexpr size_t kMost = 20;
  if (bars.rows.empty()) return std::nullopt;
  if (bars.rows.size() > kMost) bars.rows.erase(bars.rows.begin(), bars.rows.end() - kMost);
  return bars;
}

}  // namespace trireme::report
