#include "trainer/run/steps.h"

#include <utility>

#include "trainer/loop/histograms.h"
#include "trainer/loop/resident.h"
#include "trainer/report/suspects.h"
#include "trainer/run/run_phase.h"

namespace trireme {

void Steps::trace(CommunicationLog& log) { tracer_.emplace(*run_.trainer, log, run_.options.trace_steps.value(), run_.directory()); }

void Steps::count_sets() {
  const std::vector<Dataset::Group> groups = run_.data->train.groups();
  if (run_.reports() && groups.size() > 1)
    blend_.emplace(static_cast<uint64_t>(run_.config.run.seed), groups, run_.config.training.global_batch_size, data_start(run_.history.branch));
}

/// The results of a step are read while the next one runs, unless one of both is traced, a step may be held back or more of it is recorded than its
/// results. On a CPU they are available immediately.
void Steps::start(int64_t step) {
  run_.progress.begin_step(step, run_.ctx.arena->peak_bytes(), peak_resident_bytes());
  const double rate = run_.learning_rate_of(step);
  const bool traced = tracer_ && tracer_->traces(step);
  if (traced) {
    finish();
    tracer_->begin(step);
  }
  run_.trainer->record_activations(records_activations(step));
  const LossScale before = run_.trainer->scalars().loss_scale();
  run_.clock.timeout.start(step, run_.config.parallel.islands > 1 && (is_asynchronous(run_.config.training) || run_.rounds().may_wait_after(step)));
  run_.set_timeout();
  if (anomalies_.may_repeat()) {
    run_.trainer->weights_changed();  // as in execute()
    anomalies_.exchanges().start();
  }
  const StepLimits limits = anomalies_.limits();
  StartedStep now{step, run_.trainer->start(run_.data->train, step - 1, rate, limits), limits, before};
  if (anomalies_.may_repeat()) now.exchanges = anomalies_.exchanges().stop();
  finish();
  started_ = std::move(now);
  if (traced || anomalies_.judges_before_update() || records_activations(step) || makes_histograms(step) || run_.ctx.device != Device::kCuda)
    finish();
}

void Steps::finish() {
  if (!started_) return;
  const int64_t step = started_->step;
  const StepResult result = run_.trainer->finish(started_->in_flight);
  if (tracer_) tracer_->end(step);
  StartedStep finished = *std::exchange(started_, std::nullopt);
  const bool traced = tracer_ && tracer_->traces(step);
  const double seconds = run_.clock.finish(step, result, traced);
  for (RunPhase* const phase : run_.phases) phase->add_seconds(seconds);
  run_.set_timeout();
  const auto more = [&](const StepResult& last) { return more_figures(step, last); };
  if (const std::optional<StepResult> counted = anomalies_.report(std::move(finished), result, seconds, more)) {
    for (RunPhase* const phase : run_.phases) phase->count(step, *counted);
    if (counted->targets > 0) run_.trainer->scalars().count_layer_gradients();
  }
  if (makes_histograms(step)) {
    const std::vector<Histogram> histograms = parameter_histograms(*run_.trainer, static_cast<double>(result.loss_scale.value_or(1)));
    run_.reporter.histograms(step, histograms);
    run_.clock.interrupt();
  }
  kernels_.after_step(step);
  if (traced) run_.clock.interrupt();
  if (!tracer_ || !tracer_->has_report() || !run_.rounds().ends_after(step)) return;  // within a round no rank waits for another island
  run_.progress.act(concat("writing the trace after step ", step));
  run_.progress.set_timeout(state_timeout(run_.config));
  tracer_->report(run_.reporter);
  run_.set_timeout();
  run_.clock.interrupt();
}

void Steps::finish_trace() {
  if (!tracer_) return;
  run_.progress.act("writing the trace");
  tracer_->finish(run_.reporter);
}

/// {"data_tokens": {path: tokens}} of each entry of data.train, if they have weights: counted since the training data last changed. With packing
/// {"data_sequences": {path: sequences}}: how many of their positions are tokens depends on the order of the samples.
nlohmann::ordered_json Steps::use_of_sets(int64_t step) const {
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  if (!blend_) return fields;
  const std::vector<int64_t> samples = blend_->samples_before(step);  // steps of a sampler count from 0
  const bool packs = run_.config.data.packing != Packing::kNone;
  for (size_t set = 0; set < samples.size(); ++set) {
    nlohmann::ordered_json& count = fields[packs ? "data_sequences" : "data_tokens"][run_.config.data.train[set]];
    count = (count.is_number() ? count.get<int64_t>() : 0) + samples[set] * (packs ? 1 : run_.config.training.sequence_length);
  }
  return fields;
}

static bool is_multiple(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

bool Steps::records_activations(int64_t step) const { return is_multiple(step, run_.config.observe.activations.every); }
bool Steps::makes_histograms(int64_t step) const { return is_multiple(step, run_.config.observe.histograms.every); }

/// The data ranks that stand out among the gradients of a step, with their distances; null: not finite or missing.
static nlohmann::ordered_json suspects_json(const std::vector<double>& distances) {
  nlohmann::ordered_json suspects = nlohmann::ordered_json::object();
  for (size_t rank = 0; rank < distances.size(); ++rank)
    if (distances[rank] > kSuspectDistance) suspects[std::to_string(rank)] = distances[rank];
  return suspects;
}

/// The fields of a step's line besides its results. Collective.
nlohmann::ordered_json Steps::more_figures(int64_t step, const StepResult& result) {
  nlohmann::ordered_json fields = use_of_sets(step);
  if (result.outer)
    fields.update({{"outer_grad_norm", result.outer->gradient_norm}, {"drift", result.outer->drift}, {"outer_bytes", result.outer->sent_bytes}});
  if (const Arrivals* const arrivals = result.arrivals()) fields.update({{"workers", arrivals->workers}, {"staleness", arrivals->staleness}});
  if (is_robust(run_.config.security)) fields["suspects"] = suspects_json(result.distances);
  for (const RunPhase* const phase : run_.phases) phase->add_figures(step, fields);
  if (!records_activations(step)) return fields;
  for (const auto& [layer, largest] : run_.trainer->activation_maxima()) fields["activation_max"][layer] = largest;
  return fields;
}

}  // namespace trireme
