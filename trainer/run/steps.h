#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "parallel/comm/timed.h"
#include "trainer/run/anomaly_phase.h"
#include "trainer/run/kernel_notes.h"
#include "trainer/run/run_context.h"
#include "trainer/run/tracer.h"

namespace trireme {

/// Takes the steps of a run one by one, and reports them. On a GPU a step is reported while the next one runs.
class Steps {
 public:
  Steps(RunContext& run, AnomalyPhase& anomalies, KernelNotes& kernels) : run_(run), anomalies_(anomalies), kernels_(kernels) {}

  /// Traces the steps of RunOptions::trace_steps; `log` records the communication of the world.
  void trace(CommunicationLog& log);
  /// Counts from now on what the sets of data.train with weights contribute. On rank 0.
  void count_sets();
  void start(int64_t step);
  /// Reports the step that has been started, unless that is done.
  void finish();
  /// The last step that start() has begun has not been reported.
  bool is_behind() const { return started_.has_value(); }
  /// Writes the trace, at the end of a run.
  void finish_trace();

 private:
  nlohmann::ordered_json use_of_sets(int64_t step) const;
  nlohmann::ordered_json more_figures(int64_t step, const StepResult& result);
  bool records_activations(int64_t step) const;
  bool makes_histograms(int64_t step) const;

  RunContext& run_;
  AnomalyPhase& anomalies_;
  KernelNotes& kernels_;
  std::optional<Tracer> tracer_;
  std::optional<Sampler> blend_;        ///< rank 0: the sample order, if data.train has groups with weights
  std::optional<StartedStep> started_;  ///< not yet reported
};

}  // namespace trireme
