#pragma once
// What a Reporter writes and prints, for tests of whole texts.
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/run/reporter.h"

namespace trireme::test {

/// A run that a Reporter reports.
struct ReportedRun {
  Config config = {};  ///< resolved; its run.directory is a scratch directory
  nlohmann::ordered_json environment = {};
  std::optional<RunForecast> forecast = {};
  RunHistory history = {};
  int64_t steps = 1;
  TerminalWidth width = {};  ///< of the terminal that standard output is; empty: it is a log
  std::string metrics = {};  ///< what metrics.jsonl contains before
};

/// Without the times of day, which metrics.jsonl, a log and the start of a run have.
struct ReporterOutput {
  std::string metrics;   ///< metrics.jsonl
  std::string out;       ///< standard output
  std::string messages;  ///< standard error
};

/// The output of a Reporter after open() and `body`, which also gets the path of metrics.jsonl.
ReporterOutput reporter_output(ReportedRun run, const std::function<void(Reporter& reporter, const std::string& metrics)>& body);

}  // namespace trireme::test
