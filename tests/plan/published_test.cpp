#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "kernels/core/check.h"
#include "tests/plan/published_rows.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/forecast_range.h"

using namespace trireme;
using trireme::published::Run;

namespace {

const published::Rows& rows() {
  static const published::Rows all = published::read_rows(test::in_checkout("tests/plan/published.yaml"));
  return all;
}

struct Compared {
  std::string layout;
  double measured, forecast;
};

}  // namespace

TEST_CASE("published runs: median step time error below 4 %, and 90 % within the forecast range") {
  std::vector<double> errors;
  double within = 0, within_two_thirds = 0;
  for (const Run& run : rows().runs) {
    if (!run.step_seconds) continue;
    const Forecast f = forecast_time(run.config, run.cluster);
    errors.push_back(std::abs(f.step_seconds / *run.step_seconds - 1));
    const double rounding = 1e-12 * f.step_seconds;
    within += *run.step_seconds >= f.step_low - rounding && *run.step_seconds <= f.step_high + rounding;
    within_two_thirds += errors.back() <= 2.0 / 3 * forecast_range(run.config, run.cluster).error;
  }
  const auto runs = static_cast<double>(errors.size());
  CHECK(runs >= 349);
  CHECK(published::quantile(errors, 0.5) < 0.04);
  CHECK(published::quantile(errors, 0.9) < 0.10);
  CAPTURE(within / runs, within_two_thirds / runs);
  CHECK(within >= 0.9 * runs);
  CHECK(within_two_thirds < 0.9 * runs);  // the range is not much wider than necessary
}

TEST_CASE("published runs: the planner knows the span of each system's runs") {
  std::map<std::string, RunSpan> spans;
  std::map<std::string, int> counts;
  std::set<std::string> in_fp8;
  std::map<std::string, double> bandwidths;
  for (const Run& run : rows().runs) {
    if (!run.step_seconds) continue;
    spans[run.cluster.software.stack].add(sizes_of_run(run.config, run.cluster));
    ++counts[run.cluster.software.stack];
    if (run.cluster.software.fp8 != "none") in_fp8.insert(run.cluster.software.stack);
    double& least = bandwidths.try_emplace(run.cluster.software.stack, 1).first->second;
    least = std::min(least, bandwidth_share(run.cluster.device));
    CHECK_THAT(forecast_range(run.config, run.cluster).basis, !Catch::Contains("device.") && !Catch::Contains("software."));
  }
  CHECK(seen_runs().size() == spans.size());
  for (const SeenRuns& seen : seen_runs()) {
    INFO(seen.stack);
    CHECK(seen.runs == counts[seen.stack]);
    CHECK(seen.fp8 == in_fp8.contains(seen.stack));
    CHECK(seen.least_bandwidth == Approx(bandwidths[seen.stack]).margin(0.01));
    CHECK(seen.least_bandwidth <= bandwidths[seen.stack]);
    const RunSpan& span = spans[seen.stack];
    for (const auto size : {&RunSizes::devices, &RunSizes::hidden, &RunSizes::sequence, &RunSizes::microbatch}) {
      CHECK(seen.span.least.*size == span.least.*size);
      CHECK(seen.span.most.*size == span.most.*size);
    }
  }
}

TEST_CASE("published runs: the parts of a step sum to the step") {
  for (const Run& run : rows().runs) {
    const Forecast forecast = forecast_time(run.config, run.cluster);
    const StepParts& p = forecast.parts;
    INFO(run.id);
    const double sum = p.compute + p.recompute + p.bubble + p.transfer + p.tensor + p.gather + p.reduce + p.optimizer + p.host;
    CHECK(std::abs(sum / forecast.step_seconds - 1) < 1e-9);
    CHECK(forecast.mfu > 0);
    CHECK(forecast.mfu < 1);
    CHECK(forecast.bubble >= 0);
    CHECK(forecast.bubble < 1);
  }
}

TEST_CASE("published sweeps: the fastest layout is among the forecast's first three") {
  // A sweep: layouts of one model on the same number of GPUs, run on one day. Their ids share the prefix before the layout.
  const std::regex layout("(bloom-\\d\\d-\\d\\d-h\\d+-l\\d+)-dp.*-nh64-.*|(zb-t[46]-[0-9.]+B-m\\d+)-.*");
  std::map<std::string, std::vector<Compared>> sweeps;
  for (const Run& run : rows().runs) {
    std::smatch match;
    // Lines 775, 778 and 780 have different batch sizes.
    if (!run.step_seconds || run.id.find("gb1568") != std::string::npos || !std::regex_match(run.id, match, layout)) continue;
    sweeps[match[1].matched ? match[1] : match[2]].push_back(
        {std::regex_replace(run.id, std::regex("-L\\d+$"), ""), *run.step_seconds, forecast_time(run.config, run.cluster).step_seconds});
  }
  // Largest regret of using the forecast's first layout, in percent, where it exceeds 3. In these sweeps the forecast favours ZB-V, with one layer in each
  // stage and the embedding and the head in stages of their own: it misses what a stage costs in this system besides its layers.
  const std::map<std::string, double> missed = {{"zb-t6-6.2B-m48", 5.5}, {"zb-t6-6.2B-m64", 4}};
  int counted = 0;
  for (auto& [sweep, measurements] : sweeps) {
    if (measurements.size() < 3) continue;
    ++counted;
    // Two measurements of one layout differ by up to 3 %; their mean counts.
    std::map<std::string, std::vector<Compared>> by_layout;
    for (const Compared& run : measurements) by_layout[run.layout].push_back(run);
    std::vector<Compared> runs;
    for (const auto& [name, repeated] : by_layout) {
      double sum = 0;
      for (const Compared& run : repeated) sum += run.measured;
      runs.push_back({name, sum / static_cast<double>(repeated.size()), repeated.front().forecast});
    }
    std::ranges::sort(runs, {}, &Compared::forecast);
    const auto best = std::ranges::min_element(runs, {}, &Compared::measured);
    const double regret = 100 * (runs.front().measured / best->measured - 1);
    CAPTURE(sweep, runs.size(), regret);
    CHECK(best - runs.begin() < 3);
    CHECK(regret <= (missed.contains(sweep) ? missed.at(sweep) : 3));
    if (missed.contains(sweep)) CHECK(regret > missed.at(sweep) - 1.5);  // otherwise it is no longer missed by as much
  }
  CHECK(counted >= 21);
}
