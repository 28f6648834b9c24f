#include "trainer/plan/report.h"

#include <sstream>

#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/compression_gain.h"
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
  set_memory(plan.forecast, {{.peak = 1e9}, {.peak = 2e9}, {.peak = 4e9}, {.peak = 3e9}}, limit, 0.08);
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

TEST_CASE("of more than eight pipeline ranks the fullest are shown, phases count the runtime, and each MFU is its own") {
  RankedLayout plan = layout_of({"training.recompute=full"}, 80e9);
  std::vector<RankBytes> ranks(12);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    RankMemory counted;
    counted.phases[static_cast<size_t>(MemoryPhase::kForward)].peak_total = static_cast<int64_t>(rank) * 1'000'000'000 + 500'000'000;
    ranks[rank] = {.runtime = 2e9, .peak = 3e9 + 1e9 * static_cast<double>(rank), .counted = counted};
  }
  set_memory(plan.forecast, std::move(ranks), 80e9, 0.08);
  plan.forecast.mfu = 0.3;
  plan.forecast.mfu_full_attention = 0.36;
  const std::string text = plan_text(plan, h100(), {});
  CAPTURE(text);
  CHECK_THAT(text, Contains("peak by phase: forward 13.5\n"));
  CHECK_THAT(text, Contains("MFU 30.0 %"));
  CHECK_THAT(text, Contains("36.0 % counting full attention"));
  CHECK_THAT(text, Contains("47.8 % counting recomputation too"));  // the head is not computed again
  const double rate = plan.forecast.tokens_per_second_per_device = 1.25e4;
  const double devices = static_cast<double>(h100().devices());
  CHECK_THAT(plan_text(plan, h100(), {}), Contains(concat(" tokens/s per GPU, ", count_text(rate * devices), " tokens/s in total, ",
                                                          count_text(86400 * rate * devices), " tokens per day\n")));
  CHECK(devices > 1);
  CHECK_THAT(text, Contains("pipeline rank 4 "));
  CHECK_THAT(text, Contains("pipeline rank 11 "));
  CHECK_THAT(text, !Contains("pipeline rank 3 "));
}

TEST_CASE("the report names another system's stack, but not Trireme's own") {
  ClusterConfig cluster = h100();
  CHECK_THAT(plan_text(layout_of({}, 80e9), cluster, {}), !Contains("with the kernels and overlap of"));
  cluster.software.stack = "nanotron";
  CHECK_THAT(plan_text(layout_of({}, 80e9), cluster, {}), Contains("; with the kernels and overlap of nanotron"));
}

TEST_CASE("the report names the software that the cluster file describes where it differs from the default") {
  const auto header = [](const ClusterConfig& cluster) {
    const std::string text = plan_text(layout_of({"parallel.pipeline=2", "parallel.data=2"}, 80e9), cluster, {});
    return text.substr(0, text.find("\n\n"));
  };
  ClusterConfig cluster = h100();
  CHECK_THAT(header(cluster), !Contains("software."));
  cluster.software.straggler = 1.25;
  CHECK_THAT(header(cluster), Contains("recompute none; software.straggler 1.25"));
  cluster.software = {.stack = "torchtitan", .compiled = true, .fp8 = "tensorwise", .context = 2};
  CHECK_THAT(header(cluster),
             Contains("; with the kernels and overlap of torchtitan; software.compiled true, software.fp8 tensorwise, software.context 2"));
  CHECK(software_json(cluster) ==
        nlohmann::ordered_json({{"stack", "torchtitan"}, {"straggler", 1.0}, {"compiled", true}, {"fp8", "tensorwise"}, {"context", 2}}));
}

TEST_CASE("the head of a written configuration names the software of its forecast") {
  RankedLayout layout = layout_of({}, 4.2e9);
  layout.written = layout.config;
  ClusterConfig cluster = h100();
  CHECK_THAT(proposed_yaml(layout, cluster), Contains(" %.\n# Memory:"));
  cluster.software.stack = "torchtitan";
  cluster.software.context = 2;
  CHECK_THAT(proposed_yaml(layout, cluster), Contains(" %; with the kernels and overlap of torchtitan; software.context 2.\n# Memory:"));
}

TEST_CASE("a best layout that is tight says so in the search's table and at the head of the written file") {
  SearchResult result;
  for (const char* name : {"dp8z1", "pp2dp4"}) {
    result.layouts.push_back(layout_of({}, 4.2e9));
    result.layouts.back().layout = name;
    result.layouts.back().written = result.layouts.back().config;
  }
  result.layouts[1].reason = "equally fast; needs 4.0 GB, the best 4.0 GB, tight";
  const auto lines_with_tight = [](std::istringstream text) {
    int count = 0;
    for (std::string line; std::getline(text, line);) count += line.ends_with("  tight") || line.ends_with(", tight") ? 1 : 0;
    return count;
  };
  REQUIRE(result.layouts[0].forecast.tight);
  CHECK(lines_with_tight(std::istringstream(search_text(result))) == 2);
  CHECK_THAT(proposed_yaml(result.layouts[0], h100()), Contains("# Memory: pipeline rank 2 has the highest peak, 4.0 GB of 4.2 GB, which is tight: "
                                                                "it leaves less than plan.memory_margin free.\n"));
  for (RankedLayout& layout : result.layouts) set_memory(layout.forecast, layout.forecast.memory, 80e9, 0.08);
  CHECK(lines_with_tight(std::istringstream(search_text(result))) == 1);  // of the reason above
  CHECK_THAT(proposed_yaml(result.layouts[0], h100()), Contains("4.0 GB of 80.0 GB.\n"));
}

/// Two CPU hosts with one rank each, and a link of `bandwidth` bytes/s.
ClusterConfig two_hosts(double bandwidth) {
  ClusterConfig cluster;
  cluster.nodes = 2;
  cluster.devices_per_node = 1;
  cluster.device.type = "cpu";
  cluster.network.bandwidth = bandwidth;
  cluster.network.latency = 1e-4;
  return resolve_cluster(cluster);
}

RankedLayout data_parallel(const ClusterConfig& cluster, const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"parallel.pipeline=1", "parallel.data=2", "run.device=cpu", "training.precision=fp32"};
  all.insert(all.end(), sets.begin(), sets.end());
  const std::string text =
      "model: {layers: 2, hidden_size: 128, heads: 4, vocab_size: 512}\n"
      "training: {steps: 10, sequence_length: 128, global_batch_size: 4}\n"
      "data: {train: [tokens]}\n";
  RankedLayout plan;
  plan.config = resolve(parse_config(text, "plan.yaml", all), 2);
  plan.forecast = forecast(plan.config, cluster);
  return plan;
}

TEST_CASE("plan says what encoded parameters gain where their gathers take a tenth of the step") {
  const ClusterConfig slow = two_hosts(2.5e6);
  const std::vector<std::string> sharded{"parallel.zero_stage=3", "parallel.gradient_accumulation=sharded",  // refused with compressed gradients
                                         "parallel.overlap=false"};
  const RankedLayout plan = data_parallel(slow, sharded);
  const std::vector<CompressedStep> steps = compression_gain(plan.config, slow, plan.forecast);
  REQUIRE(steps.size() == 1);
  CHECK((steps[0].key == "parameters" && steps[0].value == "int8"));
  std::vector<std::string> encoded = sharded;
  encoded.emplace_back("training.compression.parameters=int8");
  const RankedLayout with = data_parallel(slow, encoded);
  CHECK(steps[0].step_seconds == with.forecast.step_seconds);
  // This part of a step contains two gathers and a reduction, all of fp32: 4 bytes of a gather become 1 + 4/256.
  CHECK(plan.forecast.parts.gather / with.forecast.parts.gather == Approx(3 / (2 / 3.94 + 1)).epsilon(0.02));
  CHECK(compression_gain(with.config, slow, with.forecast).empty());
}

TEST_CASE("plan says what compressed gradients gain where their reduction takes a tenth of the step, and nothing elsewhere") {
  const ClusterConfig slow = two_hosts(2.5e6), fast = two_hosts(1e11);
  const RankedLayout plan = data_parallel(slow, {});
  const std::vector<CompressedStep> steps = compression_gain(plan.config, slow, plan.forecast);
  REQUIRE(steps.size() == 2);
  CHECK((steps[0].key == "method" && steps[0].value == "int8"));
  CHECK((steps[1].key == "method" && steps[1].value == "int4"));
  for (const auto& [key, value, seconds] : steps) {
    CAPTURE(value);
    CHECK(seconds == data_parallel(slow, {"training.compression.method=" + value}).forecast.step_seconds);
    CHECK_THAT(compression_gain_text(steps, plan.forecast.step_seconds),
               Contains("  method: " + value + " ") && Contains(print("%.3g x as fast", plan.forecast.step_seconds / seconds)));
  }
  // A message of int8 has a scale for each block: 4 bytes become 1 + 4/256.
  CHECK(plan.forecast.parts.reduce / (steps[0].step_seconds - (plan.forecast.step_seconds - plan.forecast.parts.reduce)) ==
        Approx(3.94).epsilon(0.06));
  const auto none = [&](const ClusterConfig& cluster, const std::vector<std::string>& sets) {
    const RankedLayout other = data_parallel(cluster, sets);
    CHECK(compression_gain(other.config, cluster, other.forecast).empty());
  };
  none(fast, {});
  none(slow, {"training.compression.method=int4"});
  none(slow, {"training.precision=fp16"});  // refused with compression
  ClusterConfig small = slow;
  small.device.memory = largest_peak(plan.forecast.memory) + 1e3;  // the errors do not fit
  none(small, {});
  CHECK(compression_gain_text({}, 1).empty());
}

}  // namespace
}  // namespace trireme
