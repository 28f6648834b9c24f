#pragma once
#include <span>
#include <string>

#include "trainer/report/run_plots.h"

namespace trireme::report {

/// One row per step and run, not down-sampled: run, step, time (UTC), elapsed_seconds, the figures of metrics.jsonl, and validation_loss in the rows of
/// evaluated steps. Numbers read back to the same bits; a figure without a value is an empty cell. Quoted as in RFC 4180; the name of a run that a
/// spreadsheet would take for a formula is preceded by an apostrophe.
std::string csv_of(std::span<const RunView> runs);

}  // namespace trireme::report
