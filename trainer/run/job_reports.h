#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "trainer/resilience/job_record.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/run/resume.h"
#include "trainer/run/run_context.h"

namespace trireme {

/// The records of this job in jobs.jsonl, on rank 0, and what they say at the end. The training is worth more than its bookkeeping: what goes wrong with
/// it is a warning.
class JobReports {
 public:
  explicit JobReports(RunContext& run) : run_(run) {}

  /// Begins to record. `discarded`: lines of metrics.jsonl about steps that this job makes again. With --resume never a new history begins.
  void start(const Resumed& resumed, const MetricsSink::Discarded& discarded);
  /// Adds a record; no effect before start().
  void record(const char* event, const nlohmann::ordered_json& fields);
  void add_load(double seconds) { load_seconds_ += seconds; }
  void record_ready() { record("ready", {{"step", run_.done}, {"load_seconds", load_seconds_}}); }
  /// Reports the goodput of all jobs of the run, from what jobs.jsonl and metrics.jsonl have of them.
  void report_goodput();
  /// Reports which data ranks security.aggregation has suspected.
  void report_suspects();

 private:
  void record_slurm_start();

  RunContext& run_;
  const WallClock::time_point joined_ = WallClock::now();
  double load_seconds_ = 0;  ///< for the state
  bool is_recorded_ = false;
  bool record_failed_ = false;  ///< and a message has said so
};

}  // namespace trireme
