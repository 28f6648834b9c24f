#pragma once
// What `trireme goodput` prints: the time of a run by cause, beside the share that plan's formula expects of its failures and saves.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/plan/analysis/reliability.h"
#include "trainer/report/goodput.h"

namespace trireme::report {

/// Share of training in the time of training, saves and failures, without evaluations, pauses and the first start: measured, and as expected.
struct GoodputForecast {
  Failures failures;           ///< per save and failure of this run
  const char* mtbf_from = "";  ///< "measured", "given" or "assumed"
  double interval = 0;         ///< seconds of training between two saves, on the mean
  double measured = 0;         ///< share of training
  double expected = 0;         ///< the same by effective_share_exponential()
  double best_interval = 0;    ///< by daly_interval()
  double best_expected = 0;    ///< with it
};
/// nullopt if the run has not saved.
std::optional<GoodputForecast> forecast_of(const RunRecord& run, const Goodput& goodput);

std::string goodput_report_text(const RunRecord& run, const Goodput& goodput);
nlohmann::ordered_json goodput_report_json(const RunRecord& run, const Goodput& goodput);

}  // namespace trireme::report
