#include "trainer/run/job_forecast.h"

#include <algorithm>

#include "trainer/loop/memory_table.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"

namespace trireme {

void JobForecast::forecast_time() {
  if (run_.coordinates()) return;
  const std::string gpu = run_.ctx.device == Device::kCuda ? run_.ctx.gpu->properties().name : "";
  time_ = forecast_run(run_.config, run_.world.size(), run_.options.ranks_per_host.value_or(run_.world.size()), gpu);
}

TrainerPlan JobForecast::plan_trainer() {
  TrainerPlan plan;
  RankMemory otherwise;
  const bool choice = accumulation_is_a_choice(run_.config);
  collectively(run_.world, [&] {
    plan.recompute = recompute_policy(run_.config);
    plan.schedule = lowered_schedule(run_.config);
    plan.memory = forecast_memory(run_.config, run_.world.rank(), run_.world.size(), plan.recompute, plan.schedule);
    if (choice) otherwise = forecast_memory(with_other_accumulation(run_.config), run_.world.rank(), run_.world.size(), plan.recompute);
  });
  const MeshShape mesh = mesh_shape(run_.config.parallel);
  memory_ = memory_by_pipeline_rank(run_.world, mesh, plan.memory);
  if (run_.ctx.device != Device::kCuda && run_.config.plan.must_fit)
    check_host_memory(run_.world, host_name(), static_cast<double>(plan.memory.peak_total), host_memory());
  if (choice) accumulation_ = "\n" + accumulation_text(run_.config, memory_, memory_by_pipeline_rank(run_.world, mesh, otherwise));
  if (run_.config.training.recompute == RecomputeMode::kBudget)
    recompute_ = "\n" + recompute_text(run_.config, plan.schedule.stage_rank, plan.recompute);
  return plan;
}

void JobForecast::report_time() {
  if (time_) run_.reporter.message(forecast_text(*time_));
}

void JobForecast::report_memory() {
  const char* const without = run_.ctx.device == Device::kCpu ? ", without workspace of CPU kernels" : "";
  run_.reporter.message(
      concat("memory forecast per rank, maximum of each pipeline rank", without, ":\n", memory_table(memory_), accumulation_, recompute_));
}

void JobForecast::compare() {
  const auto measured = memory_by_pipeline_rank(run_.world, run_.trainer->mesh().shape, measured_memory(*run_.ctx.arena));
  run_.reporter.memory(run_.done, memory_, measured);
  const std::optional<double> measured_seconds = run_.clock.steady.median();
  if (!time_ || !measured_seconds) return;
  const auto most = [](const std::vector<RankMemory>& ranks) {
    return static_cast<double>(std::ranges::max_element(ranks, {}, &RankMemory::peak_total)->peak_total);
  };
  run_.reporter.forecast(run_.done, time_->time.step_seconds, *measured_seconds, most(memory_), most(measured));
}

}  // namespace trireme
