#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/run/anomaly_window.h"
#include "trainer/run/exchange_log.h"
#include "trainer/run/rerun.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"
#include "trainer/run/save_phase.h"

namespace trireme {

/// A step that has been started.
struct StartedStep {
  int64_t step = 0;
  Trainer::StepInFlight in_flight = {};
  StepLimits limits = {};                ///< that the device applied
  LossScale loss_scale = {};             ///< before the step
  std::vector<Exchange> exchanges = {};  ///< with the policy rerun
};

/// What a run does with a step whose loss or gradient norm is anomalous: observe.anomalies.
class AnomalyPhase final : public RunPhase {
 public:
  /// `exchanges` observes the world of the run.
  AnomalyPhase(RunContext& run, SavePhase& saves, ExchangeLog& exchanges) : run_(run), saves_(saves), exchanges_(exchanges) {}

  void resume(const Resumed& resumed) override;
  void count(int64_t step, const StepResult& result) override;
  void add_state(int64_t step, SavedState& state) const override;

  bool judges_before_update() const { return run_.config.observe.anomalies.policy != AnomalyPolicy::kWarn; }
  bool may_repeat() const { return run_.config.observe.anomalies.policy == AnomalyPolicy::kRerun; }
  ExchangeLog& exchanges() { return exchanges_; }
  /// Those that the device applies to the next step.
  StepLimits limits() const;
  /// Further fields of a step's line.
  using MoreFigures = std::function<nlohmann::ordered_json(const StepResult&)>;
  /// Reports a finished step. The report of a repeated step has the results of its last execution. Returns the results that count; nullopt if the run is to
  /// end before this step. All ranks decide alike, because Trainer::finish has compared their copies of the result, and everything else that decides follows
  /// from results. Collective.
  std::optional<StepResult> report(StartedStep finished, StepResult result, double seconds, const MoreFigures& more);
  /// With the policy stop: saves the state before the anomalous `step` and ends the run. The step was rejected and has changed no weight, but it has
  /// halved the loss scale if neither loss nor gradient is finite.
  void end_if_anomalous(int64_t step);

 private:
  RerunVerdict repeat(int64_t step, const StepResult& result, const StepLimits& limits);

  RunContext& run_;
  SavePhase& saves_;
  ExchangeLog& exchanges_;
  AnomalyWindow window_;     ///< up to the last reported step
  RankWindow rank_window_;   ///< likewise, of this rank
  StartedStep finished_;     ///< the last reported step
  std::string stop_reason_;  ///< why the run ends at an anomalous step; empty: it does not
};

}  // namespace trireme
