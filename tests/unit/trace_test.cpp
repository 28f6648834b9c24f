#include "trainer/loop/trace.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/core/check.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/catch.h"
#include "tests/support/trace_file.h"
#include "trainer/run/tracer.h"

namespace trireme::test {
namespace {

constexpr Action kForward{ActionType::kForward, 0, 0, -1, 0}, kBackward{ActionType::kBackward, 0, 0, -1, 0}, kNorm{ActionType::kNorm};

double seconds(const ExposedTime& rank, Cause cause) { return rank[static_cast<size_t>(cause)]; }

double sum(const ExposedTime& rank) {
  double all = 0;
  for (const double part : rank) all += part;
  return all;
}

Action at(ActionType type, int stage, int microbatch) { return {type, stage, microbatch, -1, is_compute(type) ? 0 : -1}; }

/// One micro-batch over two stages: F = 1 s, B = 2 s; each transfer takes 0.5 s; the second stage reads its batch 0.5 s longer.
std::vector<StepTrace> two_stages() {
  StepTrace first, second;
  first.seconds = second.seconds = 8.5;
  first.stretches = {{Cause::kDataWait, 0, 0.5}};
  second.stretches = {{Cause::kDataWait, 0, 1}};
  first.timeline = {{at(ActionType::kForward, 0, 0), 0.5, 1.5},
                    {at(ActionType::kSendForward, 0, 0), 1.5, 8},
                    {at(ActionType::kRecvBackward, 0, 0), 1.5, 6},
                    {at(ActionType::kBackward, 0, 0), 6, 8},
                    {kNorm, 8, 8.5}};
  first.operations = {{"pipeline", "exchange", 1.5, 1.5, 1.5, 6}, {"world", "all_reduce", 8, 8, 8, 8.25}};
  second.timeline = {{at(ActionType::kRecvForward, 1, 0), 1, 2},
                     {at(ActionType::kForward, 1, 0), 2, 3},
                     {at(ActionType::kBackward, 1, 0), 3, 5.5},
                     {at(ActionType::kSendBackward, 1, 0), 5.5, 5.5},
                     {kNorm, 5.5, 8.25}};
  second.operations = {{"pipeline", "exchange", 1, 1, 1, 2}, {"tensor", "all_reduce", 3.5, 3.75, 4, 4.25}, {"world", "all_reduce", 5.5, 5.5, 5.5, 8}};
  return {first, second};
}

}  // namespace

TEST_CASE("exposed time of one rank: waits by group and verb, and the remainder") {
  StepTrace trace;
  trace.seconds = 10;
  trace.stretches = {{Cause::kDataWait, 0, 1}};
  trace.timeline = {
      {{ActionType::kUnshard, 0, -1, 0}, 1, 1.5},   {kForward, 1.5, 4}, {kBackward, 4, 7}, {{ActionType::kReduceGrads, 0, -1, 0}, 7, 7.5},
      {{ActionType::kWaitGrads, 0, -1, 0}, 8, 8.5}, {kNorm, 8.5, 9.5}};
  trace.operations = {{"data", "all_reduce", 0.5, 0.5, 0.5, 0.75},     {"shard", "all_gather", 1.25, 1.5, 1.5, 2.5},
                      {"tensor", "all_reduce", 3, 3, 3, 3.25},         {"kv", "all_reduce", 4.5, 4.5, 4.75, 5},
                      {"shard", "reduce_scatter", 7, 7.25, 8, 8.25},   {"replicate", "all_reduce", 8.25, 8.25, 8.25, 8.5},
                      {"world", "all_reduce", 8.75, 8.75, 8.75, 9.25}, {"world", "all_reduce", 9.5, 9.5, 9.5, 9.75}};
  const ExposedTime rank = exposed_time({trace}, MeshShape{}).front();
  CHECK(seconds(rank, Cause::kDataWait) == 1);
  CHECK(seconds(rank, Cause::kZeroGather) == 1.25);
  CHECK(seconds(rank, Cause::kTensor) == 0.5);
  CHECK(seconds(rank, Cause::kZeroReduce) == 0.75);
  CHECK(seconds(rank, Cause::kOptimizer) == 1);
  CHECK(seconds(rank, Cause::kCompute) == 6.5 - 2);
  CHECK(seconds(rank, Cause::kPipelineBubble) == 0);
  CHECK(seconds(rank, Cause::kPipelineTransfer) == 0);
  CHECK(sum(rank) == 10);
}

TEST_CASE("exposed time in a table: mean and longest of the ranks, and shares of the mean step") {
  ExposedTime first{}, second{};
  first[static_cast<size_t>(Cause::kCompute)] = 3;
  second[static_cast<size_t>(Cause::kCompute)] = 1;
  second[static_cast<size_t>(Cause::kTensor)] = 2;
  const std::string table = exposed_table({first, second});
  CHECK_THAT(table, Catch::Matchers::Contains("2.0000     3.0000   66.7 %"));
  CHECK_THAT(table, Catch::Matchers::Contains("1.0000     2.0000   33.3 %"));
}

TEST_CASE("exposed time of a pipeline: the bubble is what remains with free transfers, other waits are transfer") {
  const std::vector<ExposedTime> ranks = exposed_time(two_stages(), MeshShape{.pipeline = 2});
  // With free transfers: F of stage 0 from 0.5 to 1.5, F of stage 1 to 2.5, B (2.5 s, of which 0.5 s are the tensor ranks') to 5, B of stage 0 to 7.
  CHECK(seconds(ranks[0], Cause::kPipelineBubble) == 3.5);
  CHECK(seconds(ranks[0], Cause::kPipelineTransfer) == 1);
  CHECK(seconds(ranks[0], Cause::kCompute) == 3);
  CHECK(seconds(ranks[0], Cause::kOptimizer) == 0.5);
  CHECK(seconds(ranks[1], Cause::kPipelineBubble) == 0.5 + 2);  // before its forward, and from its end until the first stage is done
  CHECK(seconds(ranks[1], Cause::kPipelineTransfer) == 0.5);
  CHECK(seconds(ranks[1], Cause::kTensor) == 0.5);
  CHECK(seconds(ranks[1], Cause::kOptimizer) == 2.75 - 2);
  for (const ExposedTime& rank : ranks) CHECK(sum(rank) == 8.5);
}

TEST_CASE("exposed time of several islands: each pipeline is replayed by itself") {
  const std::vector<StepTrace> one = two_stages();
  StepTrace late = one[0];
  late.timeline.front().begin = 0.25;  // 0.25 s more of forward in the second island
  const std::vector<ExposedTime> alone = exposed_time(one, MeshShape{.pipeline = 2}), other = exposed_time({late, one[1]}, MeshShape{.pipeline = 2});
  const std::vector<ExposedTime> islands = exposed_time({one[0], one[1], late, one[1]}, MeshShape{.pipeline = 2, .islands = 2});
  CHECK(alone[0] != other[0]);
  for (const size_t stage : {size_t{0}, size_t{1}}) {
    CHECK(islands[stage] == alone[stage]);
    CHECK(islands[2 + stage] == other[stage]);
  }
}

TEST_CASE("the wait for the other stage of a tied embedding is bubble, both in its action and after the list") {
  std::vector<StepTrace> overlapping = two_stages();
  const auto reduce_tied = [](StepTrace& rank, double begin, double end) {  // its wait comes before NORM
    TimelineEvent& norm = rank.timeline.back();
    const int stage = rank.timeline.front().action.stage;
    norm = {kNorm, 8, norm.end};
    rank.timeline.insert(rank.timeline.end() - 1,
                         {{{ActionType::kReduceTied, stage, -1, 0}, begin, end}, {{ActionType::kWaitGrads, stage, -1, 0}, end, 8}});
  };
  reduce_tied(overlapping[0], 8, 8);
  overlapping[1].operations[2] = {"embedding", "all_reduce", 5.5, 5.5, 5.5, 8};
  std::vector<StepTrace> blocking = overlapping;
  reduce_tied(overlapping[1], 5.5, 5.5);
  reduce_tied(blocking[1], 5.5, 8);
  for (const auto& steps : {overlapping, blocking}) {
    const ExposedTime rank = exposed_time(steps, MeshShape{.pipeline = 2})[1];
    CHECK(seconds(rank, Cause::kPipelineBubble) == 0.5 + 2);
    CHECK(seconds(rank, Cause::kPipelineTransfer) == 0.5);
    CHECK(seconds(rank, Cause::kZeroReduce) == 0.5);
    CHECK(sum(rank) == 8.5);
  }
}

TEST_CASE("traces are aligned by a common clock, or by their origins if clocks differ") {
  std::vector<StepTrace> ranks(3);
  const auto origin = ranks[0].origin + std::chrono::seconds(100);
  for (StepTrace& rank : ranks) {
    rank.clock = "here";
    rank.timeline = {{kForward, 1, 2}};
    rank.stretches = {{Cause::kDataWait, 0, 1}};
    rank.operations = {{"tensor", "all_reduce", 1, 1.25, 1.5, 1.75}};
    rank.kernels = {{"qkv linear_forward", 1.5, 1.75}};
  }
  ranks[2].clock = "there";
  ranks[0].origin = origin + std::chrono::milliseconds(500);
  ranks[1].origin = origin;
  ranks[2].origin = origin - std::chrono::hours(5);
  align(ranks);
  CHECK(ranks[0].timeline[0].begin == 1.5);
  CHECK(ranks[0].timeline[0].end == 2.5);
  CHECK(ranks[0].stretches[0].begin == 0.5);
  CHECK(ranks[0].operations[0].started == 1.75);
  CHECK(ranks[0].kernels[0].begin == 2);
  CHECK(ranks[0].operations[0].end == 2.25);
  for (const size_t rank : {1, 2}) CHECK(ranks[rank].timeline[0].begin == 1);
  for (const StepTrace& rank : ranks) CHECK(rank.origin == origin);
}

TEST_CASE("a trace survives serialisation unchanged") {
  StepTrace trace = two_stages()[1];
  trace.kernels = {{"qkv linear_forward", 2, 2.25}};
  const StepTrace back = step_trace_from(to_bytes(trace));
  CHECK(back.seconds == trace.seconds);
  CHECK(back.origin == trace.origin);
  CHECK(back.timeline.size() == trace.timeline.size());
  CHECK(back.operations.size() == trace.operations.size());
  CHECK(back.kernels.front().name == "qkv linear_forward");
  CHECK(to_bytes(back) == to_bytes(trace));
}

TEST_CASE("a trace keeps every figure of its events when it is sent, and is aligned with all of them") {
  StepTrace trace;
  trace.origin += std::chrono::seconds(90);
  trace.clock = "boot 17";
  trace.seconds = 9.5;
  trace.timeline = {{{ActionType::kForward, 1, 2, -1, 3}, 0.5, 1.5}, {{ActionType::kReduceGrads, 4, -1, 5, -1, 6}, 2, 2.25}};
  trace.stretches = {{Cause::kDataWait, 0.125, 0.25}, {Cause::kOptimizer, 8, 8.5}};
  trace.operations = {{"shard", "all_gather", 0.5, 0.75, 1, 1.25}, {"world", "all_reduce", 8, 8.125, 8.25, 8.5}};
  trace.kernels = {{"qkv linear_forward", 0.5, 0.75}, {"rms_norm", 1.25, 1.375}};
  std::vector<StepTrace> ranks{step_trace_from(to_bytes(trace)), step_trace_from(to_bytes(trace))};
  ranks[1].origin -= std::chrono::seconds(2);
  align(ranks);
  CHECK(ranks[0].origin == ranks[1].origin);
  for (const double late : {2.0, 0.0}) {  // of the first rank, and of the second
    const StepTrace& rank = ranks[late > 0 ? 0 : 1];
    CHECK(rank.clock == "boot 17");
    CHECK(rank.seconds == 9.5);
    CHECK(rank.origin == trace.origin - std::chrono::seconds(2));
    REQUIRE((rank.timeline.size() == 2 && rank.stretches.size() == 2 && rank.operations.size() == 2 && rank.kernels.size() == 2));
    for (size_t i = 0; i < 2; ++i) {
      CHECK(rank.timeline[i].action == trace.timeline[i].action);
      CHECK(rank.timeline[i].begin == trace.timeline[i].begin + late);
      CHECK(rank.timeline[i].end == trace.timeline[i].end + late);
      CHECK(rank.stretches[i].cause == trace.stretches[i].cause);
      CHECK(rank.stretches[i].begin == trace.stretches[i].begin + late);
      CHECK(rank.stretches[i].end == trace.stretches[i].end + late);
      CHECK(rank.operations[i].group == trace.operations[i].group);
      CHECK(rank.operations[i].verb == trace.operations[i].verb);
      CHECK(rank.operations[i].begin == trace.operations[i].begin + late);
      CHECK(rank.operations[i].started == trace.operations[i].started + late);
      CHECK(rank.operations[i].wait == trace.operations[i].wait + late);
      CHECK(rank.operations[i].end == trace.operations[i].end + late);
      CHECK(rank.kernels[i].name == trace.kernels[i].name);
      CHECK(rank.kernels[i].begin == trace.kernels[i].begin + late);
      CHECK(rank.kernels[i].end == trace.kernels[i].end + late);
    }
  }
}

TEST_CASE("exposed time of two pipelines of one island: each is that of its own ranks") {
  const std::vector<StepTrace> one = two_stages();
  StepTrace late = one[0];
  late.timeline.front().begin = 0.25;
  const std::vector<ExposedTime> alone = exposed_time(one, MeshShape{.pipeline = 2}), other = exposed_time({late, one[1]}, MeshShape{.pipeline = 2});
  for (const MeshShape& shape : {MeshShape{.pipeline = 2, .shard = 2}, MeshShape{.pipeline = 2, .tensor = 2}}) {
    const std::vector<ExposedTime> both = exposed_time({one[0], late, one[1], one[1]}, shape);  // pipelines {0, 2} and {1, 3}
    for (const size_t stage : {size_t{0}, size_t{1}}) {
      CHECK(both[2 * stage] == alone[stage]);
      CHECK(both[2 * stage + 1] == other[stage]);
    }
  }
}

TEST_CASE("exposed time and rows of every group: which waits are gathers, reductions, and of the update") {
  StepTrace trace;
  trace.seconds = 10;
  trace.timeline = {{kForward, 0, 4}, {kBackward, 4, 8}, {kNorm, 8, 9.5}};
  trace.operations = {{"secondary", "all_gather", 0.5, 0.5, 0.5, 0.625}, {"secondary", "barrier", 1, 1.0625, 1.25, 1.3125},
                      {"shard", "all_to_all", 2, 2.25, 2.25, 2.25},      {"kv", "all_reduce", 3, 3.5, 3.5, 3.5},
                      {"replicate", "all_gather", 5, 6, 6, 6},           {"embedding", "all_reduce", 6.5, 6.5, 6.5, 6.75},
                      {"islands", "all_reduce", 7, 7, 7, 7.125},         {"step", "all_reduce", 8.25, 8.5, 8.5, 8.5},
                      {"islands", "all_reduce", 9, 9, 9, 9.25}};
  const ExposedTime rank = exposed_time({trace}, MeshShape{}).front();
  CHECK(seconds(rank, Cause::kZeroGather) == 0.125 + 0.125);
  CHECK(seconds(rank, Cause::kZeroReduce) == 0.25 + 1 + 0.25);
  CHECK(seconds(rank, Cause::kTensor) == 0.5);
  CHECK(seconds(rank, Cause::kOptimizer) == 1.5);
  CHECK(seconds(rank, Cause::kCompute) == 8 - 0.25 - 1.5 - 0.5 - 0.125);
  CHECK(seconds(rank, Cause::kOther) == 0.5 + 0.125);
  CHECK(sum(rank) == 10);

  ChromeTrace chrome;
  chrome.add("step 1", 0, {{"rank 0", 0, trace}});
  const TraceFile file = read_trace(chrome.text());
  CHECK(file.problem == "");
  CHECK(file.events.at({0, "ZeRO"}) == 5);
  CHECK(file.events.at({0, "tensor"}) == 1);
  CHECK(file.events.at({0, "waiting"}) == 10);  // two of the operation that blocks at its start and at its end
  CHECK(file.events.at({0, "compute"}) == 3);
  CHECK(file.busy.at({0, "ZeRO"}) == Approx(1e6 * (0.125 + 0.3125 + 0.25 + 1 + 0.25)));
}

TEST_CASE("ranges of steps") {
  CHECK(step_range("3:5").first == 3);
  CHECK(step_range("3:5").last == 5);
  CHECK(step_range("7").first == 7);
  CHECK(step_range("7").last == 7);
  CHECK(step_range("901:1000").last == 1000);
  CHECK_THROWS_WITH(step_range("900:1000"),
                    "--trace-steps=900:1000: 101 steps; allowed at most 100, because the trace is kept in memory until the last");
  for (const char* text :
       {"1:9223372036854775807", "", ":", "0:1", "5:3", "1:", ":2", "a:b", "1:2:3", "-1:2", "1.5:2", "1 :2", "+1:2", "99999999999999999999:1"})
    CHECK_THROWS_AS(step_range(text), ConfigError);
}

TEST_CASE("a simulated pipeline as a Chrome trace: every rank, rows without overlap, arrows from sends to receives") {
  constexpr int kRanks = 4, kMicrobatches = 6;
  const std::vector<StageUnits> units(kRanks, StageUnits{{{0}}, 1, -1});
  const ActionLists plan = lower(one_forward_one_backward(kRanks, kMicrobatches), units, {});
  const Simulation run = simulate(plan, [](const Action& action) { return is_compute(action.type) ? 1e-3 : is_transfer(action.type) ? 2e-4 : 1e-4; });
  std::vector<TracedRank> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back({concat("pipeline rank \"", r, "\""), 0, {}});
    ranks.back().step.timeline = run.ranks[static_cast<size_t>(r)];
  }
  ChromeTrace trace;
  trace.add("step 1", 0, ranks);
  trace.add("step 2", run.step_seconds, ranks);
  trace.add("step 3", 2 * run.step_seconds, ranks);  // its arrows have ids of their own, too
  const TraceFile file = read_trace(trace.text());
  CHECK(file.problem == "");
  CHECK(file.processes.size() == kRanks);
  CHECK(file.processes.at(2) == "pipeline rank \"2\"");
  CHECK(file.arrows == 3 * 2 * (kRanks - 1) * kMicrobatches);
  for (int r = 0; r < kRanks; ++r) CHECK(file.events.at({r, "compute"}) == 3 * (2 * kMicrobatches + 3));  // SUM_PARTIAL, NORM, UPDATE
}

TEST_CASE("measured operations have separate rows, and overlapping ones are spread over several rows") {
  std::vector<StepTrace> steps = two_stages();
  steps[0].operations.push_back({"shard", "all_gather", 0.5, 0.5, 1, 1.25});
  steps[0].operations.push_back({"shard", "all_gather", 0.75, 0.75, 1.25, 1.5});
  ChromeTrace trace;
  trace.add("step 1", 0, {{"rank 0", 0, steps[0]}, {"rank 1", 0, steps[1]}});
  const TraceFile file = read_trace(trace.text());
  CHECK(file.problem == "");
  CHECK(file.arrows == 2);
  CHECK(file.events.at({0, "ZeRO"}) == 1);
  CHECK(file.events.at({0, "ZeRO 2"}) == 1);
  CHECK(file.events.at({1, "tensor"}) == 1);
  CHECK(file.events.at({1, "waiting"}) == 4);
  CHECK(file.events.at({0, "compute"}) == 4);
}

}  // namespace trireme::test
