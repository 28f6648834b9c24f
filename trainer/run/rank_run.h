#pragma once
// For run.cpp and run_setup.cpp alone.
#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launcher.h"
#include "trainer/job/stop_signals.h"
#include "trainer/loop/memory.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/resilience/run_lock.h"
#include "trainer/run/checkpoint_manager.h"
#include "trainer/run/rejected_steps.h"
#include "trainer/run/reporter.h"
#include "trainer/run/run.h"
#include "trainer/run/run_data.h"
#include "trainer/run/tracer.h"

namespace trireme {

/// The whole state of one rank's run, set up in the order of the constructor; every step of it is agreed on by all ranks.
class Run {
 public:
  /// `log` times `world`, where steps are to be traced.
  Run(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress, CommunicationLog* log);
  ExitCode loop();

 private:
  void open_data();
  void resume();
  void sweep_finished();
  std::vector<std::string> candidates();
  void open_directory(const std::string& checkpoint);
  void make_trainer();
  void report_forecast(const std::vector<RankMemory>& measured);
  void report_memory();
  void end_if_diverged();
  std::string checkpoint_before_rejections() const;
  void start_step(int64_t step);
  void finish_step();
  void set_timeout();
  void check_replicas(int64_t step);
  void evaluate(int64_t step);
  bool evaluates_at(int64_t step) const;
  std::filesystem::path directory() const { return config_.run.directory; }
  int64_t last_step() const { return std::min(total_, options_.max_steps.value_or(total_)); }
  bool reports() const { return world_.rank() == 0; }

  Context& ctx_;
  Communicator& world_;
  Config config_;
  RunOptions options_;
  Progress& progress_;
  StopRequest stop_;
  std::string session_;  ///< the same on every rank, another at every start
  std::unique_ptr<RunData> data_;
  std::string training_data_;  ///< its TokenDataset::identity
  std::unique_ptr<Trainer> trainer_;
  std::optional<Tracer> tracer_;
  std::unique_ptr<RunLock> lock_;                   ///< rank 0: until this run ends
  Reporter reporter_;                               ///< speaks on rank 0
  std::unique_ptr<CheckpointManager> checkpoints_;  ///< uses the two above until its end
  std::vector<RankMemory> memory_;                  ///< forecast, by pipeline rank
  std::optional<RunForecast> forecast_;             ///< of time, where this machine's figures are known
  std::string accumulation_;                        ///< what parallel.gradient_accumulation costs, where it is a choice
  std::string recompute_;                           ///< what training.recompute budget has chosen
  int64_t total_ = 0;
  int64_t done_ = 0;        ///< steps
  bool evaluated_ = false;  ///< after step done_, where that is due: a run may have been killed between its save and its evaluation
  struct Started {
    int64_t step;
    Trainer::StepInFlight in_flight;
  };
  std::optional<Started> started_;  ///< not yet reported
  RejectedSteps rejected_;          ///< up to the last reported step
  std::chrono::steady_clock::time_point last_report_ = std::chrono::steady_clock::now();
  std::deque<double> step_seconds_;  ///< of the last steps
};

}  // namespace trireme
