#pragma once
#include <optional>
#include <string>
#include <vector>

#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/run/run_context.h"

namespace trireme {

/// What the trainer of this rank is made of.
struct TrainerPlan {
  std::vector<Recompute> recompute;
  LoweredSchedule schedule;
  RankMemory memory;  ///< forecast
};

/// What is forecast of a job, and compared with what was measured at its end.
class JobForecast {
 public:
  explicit JobForecast(RunContext& run) : run_(run) {}

  void forecast_time();
  /// Collective. Errors, on all ranks: ConfigError if a host has too little memory.
  TrainerPlan plan_trainer();
  const std::optional<RunForecast>& time() const { return time_; }
  void report_time();
  /// Reports the memory of all ranks, with the costs of what the configuration chooses.
  void report_memory();
  /// Reports forecast and measurement. Collective.
  void compare();

 private:
  RunContext& run_;
  std::vector<RankMemory> memory_;   ///< by pipeline rank
  std::optional<RunForecast> time_;  ///< of a step, if this machine's hardware figures are known
  std::string accumulation_;         ///< cost of parallel.gradient_accumulation, if both values are possible
  std::string recompute_;            ///< the choice of training.recompute budget, as text
};

}  // namespace trireme
