#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/bars.h"
#include "trainer/report/run_record.h"

namespace trireme::report {

/// What a run spends its time on. Every moment between its first launch and its end has one cause.
enum class TimeCause : uint8_t {
  kCompute,        ///< steps of the history, at their median: the useful time; minus the next two
  kCommunication,  ///< in these, ranks that wait for others: communication that is not hidden, and bubbles
  kData,           ///< in these, reading samples
  kSlowSteps,      ///< what the steps of the history took beyond their median
  kStartUp,        ///< from a launch to the first step, without the load; of a job that its launcher restarts, from the meeting of its ranks on
  kLoad,           ///< reading and distributing weights and optimizer state
  kSaves,          ///< training stands still for a checkpoint: copying, or waiting for the one before, also in steps that are lost later
  kEvaluation,
  kReplayed,    ///< steps that were lost, when they were made first, up to the failure
  kDetection,   ///< from a failure until the last rank has ended
  kRestart,     ///< from there until the ranks that the launcher starts have met: its delay, and the start of processes
  kWaiting,     ///< for nodes: until Slurm runs a requeued job again, or the launcher has found hosts
  kNotRunning,  ///< between two jobs that were started by hand
  kOther,       ///< the rest: replica checks, samples of text, the end of a job
};
inline constexpr std::array kTimeCauses{
    "compute",    "exposed communication", "data",      "slow steps", "start-up",          "load",        "saves",
    "evaluation", "replayed steps",        "detection", "restart",    "waiting for nodes", "not running", "other"};
inline constexpr size_t kUsefulCauses = 3;

/// How much of the time of a run went into the steps of its history, and where the rest went.
struct Goodput {
  int64_t steps = 0;               ///< of the history: a step that was made again counts once
  double median_step_seconds = 0;  ///< of these steps
  double wall_seconds = 0;         ///< from the first launch to the end of the last job, or its last line while it runs
  int64_t replayed_steps = 0;      ///< made, and made again after a resume
  int64_t jobs = 0;
  FailureHistory failures;
  int64_t saves = 0;
  double down_seconds = 0;                           ///< detection, restart, start-up and load of failures
  bool is_divided = false;                           ///< exposed communication and data were measured; else they count as compute
  std::array<double, kTimeCauses.size()> seconds{};  ///< by TimeCause; they add up to wall_seconds, and none is negative

  double operator[](TimeCause cause) const { return seconds[static_cast<size_t>(cause)]; }
  /// The number of steps times their median; at most what they took.
  double useful_seconds() const { return std::accumulate(seconds.begin(), seconds.begin() + kUsefulCauses, 0.0); }
  double share() const { return useful_seconds() / wall_seconds; }
};

/// From the lines of jobs.jsonl and metrics.jsonl. nullopt without a step, or if times are not recorded. What a launcher did not see, such as the death of
/// a job that srun started, ends with the last line that is known of it. Runs of versions without jobs.jsonl have only what metrics.jsonl says: their time
/// begins with the first start event, the time between two jobs counts as not running, and saves of lost steps as replayed.
std::optional<Goodput> goodput_of(const RunRecord& run);

/// One bar: useful time, then the time lost by groups of causes.
Bars goodput_bars(const Goodput& goodput);
/// "93 % of 2 h 10 min; lost: restart 4 %, start-up 2 %": the causes of a percent or more, the largest first.
std::string goodput_text(const Goodput& goodput);

}  // namespace trireme::report
