// The figures of single ranks name a slow one: its time is spent in work, that of the others in waiting for it.
#include <chrono>
#include <cstdio>
#include <thread>

#include "parallel/comm/watched.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"
#include "trainer/run/rank_figures.h"

namespace trireme::test {
namespace {

/// Delays the reading of each sample of a rank.
class SlowDataset final : public Dataset {
 public:
  SlowDataset(const Dataset& data, std::chrono::milliseconds pause) : data_(data), pause_(pause) {}
  int64_t sequences() const override { return data_.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    std::this_thread::sleep_for(pause_);
    data_.read(sample, tokens, targets, segments);
  }

 private:
  const Dataset& data_;
  std::chrono::milliseconds pause_;
};

TEST_CASE("rank figures: busy seconds name the slow rank, and each report counts the steps since the last") {
  constexpr int kSlow = 2, kSteps = 4;
  constexpr auto kPause = std::chrono::milliseconds(20);
  ParityLayout layout;
  layout.data = 4;
  const Config config = parity_config(ParityModel::kLlama, layout, "fp32");
  const RaggedDataset data(29, 12, 61);
  const Scratch scratch;
  double longest = 0;
  std::FILE* const null = std::fopen("/dev/null", "w");
  run_ranks(4, [&](Communicator& inner) {
    Progress progress;
    const auto world = watched(inner, progress);
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, *world, config, true);
    trainer.initialise();
    trainer.watch(progress);
    Config files = config;
    files.run.directory = scratch / "";
    Reporter reporter;
    if (world->rank() == 0) reporter.open(files, {{"world_size", 4}, {"layout", {}}, {"version", "1"}}, std::nullopt, {}, 2 * kSteps, {}, null);
    const SlowDataset slow(data, world->rank() == kSlow ? kPause : std::chrono::milliseconds(0));
    RankFigures figures(trainer, progress);
    TRIREME_CHECK(!figures.due(), "no step yet");
    for (int step = 1; step <= 2 * kSteps; ++step) {
      if (step > kSteps) {  // what is not part of a step
        world->barrier();
        if (world->rank() == 1) std::this_thread::sleep_for(2 * kPause);
        world->barrier();
        figures.interrupt();
      }
      const auto begin = std::chrono::steady_clock::now();
      trainer.step(slow, step - 1, 1e-3);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (world->rank() == 0) longest = std::max(longest, seconds);
      figures.add_step(seconds);
      if (step % kSteps == 0) figures.report(step, reporter);
    }
    figures.report(2 * kSteps, reporter);  // nothing was added: no event
  });
  std::fclose(null);
  std::vector<nlohmann::json> events;
  std::ifstream lines(scratch / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);)
    if (const auto event = nlohmann::json::parse(line); event.value("event", "") == "ranks") events.push_back(event);
  REQUIRE(events.size() == 2);
  const double pause = 3 * std::chrono::duration<double>(kPause).count();  // a rank reads three samples a step
  for (const nlohmann::json& event : events) {
    CAPTURE(event.dump());
    CHECK(event["steps"] == kSteps);
    CHECK(event["step"] == (&event == &events[0] ? kSteps : 2 * kSteps));
    for (size_t rank = 0; rank < 4; ++rank) {
      CAPTURE(rank);
      CHECK(event["step_seconds"][rank].get<double>() >= pause);
      CHECK(event["step_seconds"][rank].get<double>() <= longest + 0.5);
      if (rank != kSlow) CHECK(event["busy_seconds"][rank].get<double>() < event["busy_seconds"][kSlow].get<double>() - pause / 2);
    }
    CHECK(event["busy_seconds"][kSlow].get<double>() >= pause);
    CHECK(event["imbalance"].get<double>() > 0.5);
    double waits = 0;
    for (const auto& seconds : event["wait_seconds"]) waits += seconds.get<double>();
    CHECK(waits > 3.0 / 4 * pause / 2);
    CHECK(event["wait_seconds"].contains("world"));
    CHECK(event["grad_norms"].size() == 8);
  }
}

TEST_CASE("rank figures: groups with one name wait together, and all waits and the busy seconds are the step") {
  constexpr auto kPause = std::chrono::milliseconds(20);
  const Config config = parity_config(ParityModel::kLlama, ParityLayout().on_one_rank(), "fp32");
  const Scratch scratch;
  std::FILE* const null = std::fopen("/dev/null", "w");
  run_ranks(1, [&](Communicator& world) {
    Progress progress;
    const size_t shard = progress.add_group("shard", {0}), other = progress.add_group("other", {0}), again = progress.add_group("shard", {0});
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    Config files = config;
    files.run.directory = scratch / "";
    Reporter reporter;
    reporter.open(files, {{"world_size", 1}, {"layout", {}}, {"version", "1"}}, std::nullopt, {}, 2, {}, null);
    RankFigures figures(trainer, progress);
    const auto wait = [&](size_t group, int pauses) {
      const ScopedWait waiting(progress, {.what = "all_reduce", .group = group, .number = 1, .messages = {}});
      std::this_thread::sleep_for(pauses * kPause);
    };
    for (int step = 1; step <= 2; ++step) {
      wait(shard, 3);
      wait(other, 1);
      wait(again, 2);
      figures.add_step(10);
    }
    figures.report(2, reporter);
  });
  std::fclose(null);
  std::ifstream lines(scratch / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event.value("event", "") != "ranks") continue;
    const double pause = std::chrono::duration<double>(kPause).count();
    const double shard = event["wait_seconds"]["shard"], other = event["wait_seconds"]["other"];
    CHECK(shard >= 5 * pause);
    CHECK(other >= pause);
    CHECK(shard + other + event["busy_seconds"][0].get<double>() == Approx(10).epsilon(1e-9));
    return;
  }
  FAIL("no event of the ranks' figures");
}

}  // namespace
}  // namespace trireme::test
