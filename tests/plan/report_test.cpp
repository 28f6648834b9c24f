#include "trainer/plan/report.h"

#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/text.h"

namespace trireme {
namespace {

using Catch::Matchers::Contains;

ClusterConfig h100() {
  ClusterConfig cluster;
  cluster.devices_per_node = 4;
  return resolve_cluster(cluster);
}

/// A layout on four pipeline ranks, of which the third has the highest peak.
RankedLayout layout_of(const std::vector<std::string>& sets, double limit) {
  const std::string text =
      "model: {layers: 16, hidden_size: 256, heads: 8, vocab_size: 1000}\n"
      "parallel: {pipeline: 4}\n"
      "training: {steps: 10, sequence_length: 128, global_batch_size: 16, precision: bf16}\n"
      "data: {train: [tokens]}\n";
  RankedLayout plan;
  plan.config = resolve(parse_config(text, "plan.yaml", sets), 4);
  plan.forecast.step_seconds = 1;
  set_memory(plan.forecast, {{.peak = 1e9}, {.peak = 2e9}, {.peak = 4e9}, {.peak = 3e9}}, limit);
  return plan;
}

TEST_CASE("step times have four significant digits") {
  CHECK(seconds_text(0) == "0 s");
  CHECK(seconds_text(6.8) == "6.800 s");
  CHECK(seconds_text(0.41394) == "0.4139 s");
  CHECK(seconds_text(12.345) == "12.35 s");
  CHECK(seconds_text(123.45) == "123.5 s");
  CHECK(seconds_text(86400) == "86400 s");
  CHECK(seconds_text(0.0132) == "13.20 ms");
  CHECK(seconds_text(0.0001) == "0.1000 ms");
  CHECK(seconds_text(4.6e-6) == "4.600 us");
}

TEST_CASE("the rank with the highest peak is named by its stage if it has one") {
  const auto said = [](const std::vector<std::string>& sets, double limit) { return plan_text(layout_of(sets, limit), h100(), {}); };
  const std::vector<std::string> several = {"parallel.schedule=interleaved_1f1b", "parallel.virtual_stages=2"};
  CHECK_THAT(said({}, 80e9), Contains("fits: stage 2 has the highest peak, 4.0 of 80.0 GB"));
  CHECK_THAT(said({}, 3e9), Contains("does not fit: 1.0 GB too much on stage 2, peak 4.0 of 3.0 GB"));
  CHECK_THAT(said(several, 80e9), Contains("fits: pipeline rank 2 has the highest peak, 4.0 of 80.0 GB"));
  CHECK_THAT(said(several, 3e9), Contains("does not fit: 1.0 GB too much on pipeline rank 2, peak 4.0 of 3.0 GB"));
}

TEST_CASE("the report names another system's stack, but not Trireme's own") {
  ClusterConfig cluster = h100();
  CHECK_THAT(plan_text(layout_of({}, 80e9), cluster, {}), !Contains("with the kernels and overlap of"));
  cluster.software.stack = "nanotron";
  CHECK_THAT(plan_text(layout_of({}, 80e9), cluster, {}), Contains("; with the kernels and overlap of nanotron"));
}

}  // namespace
}  // namespace trireme
