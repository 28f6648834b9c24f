#pragma once
#include <span>
#include <string>

#include "trainer/report/run_plots.h"

namespace trireme::report {

/// One row per step and run, not down-sampled: run, step, time (UTC), elapsed_seconds, the figures of metrics.jsonl, and validation_loss in the rows of
/// evaluated steps. Numbers read back to the same bits; a figure without a value is an empty cell. Quoted as in RFC 4180; the name of a run that a
/// spreadsheet would take for a formula is preceded by an apostrophe.
std::string csv_of(std::span<const RunView> runs);

/// A cell with any text, quoted in this way.
std::string csv_text(const std::string& text);
/// A cell with a number; empty if it is not finite.
std::string csv_number(double value);

}  // namespace trireme::report
