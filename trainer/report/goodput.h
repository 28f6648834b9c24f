#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/bars.h"
#include "trainer/report/run_record.h"

namespace trireme::report {

/// How much of the time since the first start of a run went into the steps of its history.
struct Goodput {
  int64_t steps = 0;               ///< of the history: a step that was made again counts once
  double median_step_seconds = 0;  ///< of these steps
  double wall_seconds = 0;         ///< from the first start event to the last line
  int64_t replayed_steps = 0;      ///< made, and made again after a resume
  /// Seconds by cause, in this order; with the useful time they add up to the wall time.
  ///   set-up:       from each start event to the first step: loading, tuning, and an evaluation that a stop had prevented
  ///   saves:        stalls of training while a checkpoint is copied, or the one before it is written
  ///   evaluation:   up to the line of each evaluation
  ///   replayed:     from the checkpoint that a resume went back to until the last line of the job before, pauses within it included
  ///   down:         from the last line of a job to the start event of the next one
  ///   slow steps:   what the steps took beyond their median; negative if their mean is below it
  ///   other:        the rest: replica checks, samples of text, the end of the run
  std::vector<std::pair<std::string, double>> lost;

  /// Steps x median; at most the wall time, which a few steps with a mean below their median would exceed.
  double useful_seconds() const { return std::min(static_cast<double>(steps) * median_step_seconds, wall_seconds); }
  double share() const { return useful_seconds() / wall_seconds; }
};

/// A function of the lines of metrics.jsonl. nullopt without a step, or if times are not recorded. Not known: what happened before the first start
/// event, and, where a job is killed, the time between its last line and its death, which counts as down. A resume removes the lines of later steps;
/// its start event says how many steps they were and when the last line was written (`discarded`). Runs of older versions lack it: there all of it is
/// down. Saves of which the line was removed count as replayed.
std::optional<Goodput> goodput_of(const RunRecord& run);

/// One bar: useful time, then the time lost by cause.
Bars goodput_bars(const Goodput& goodput);
/// "93 % of 2 h 10 min; lost: down 4 %, set-up 2 %": the causes of a percent or more, the largest first.
std::string goodput_text(const Goodput& goodput);

}  // namespace trireme::report
