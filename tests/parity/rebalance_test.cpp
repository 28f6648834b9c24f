// resilience.rebalance: data ranks with different numbers of micro-batches train what an even split trains, and a slow rank gets fewer.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

#include "parallel/comm/observed.h"
#include "parallel/comm/watched.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/layout/resolve.h"
#include "trainer/run/rebalancer.h"
#include "trainer/run/run.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct RecordedSamples final : Dataset {
  int64_t sequences() const override { return data.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data.read(sample, tokens, targets, segments);
    read_here.push_back(sample);
  }
  RaggedDataset data{29, 12, 61};
  mutable std::vector<int64_t> read_here;
};

/// Layouts with more micro-batches than pipeline ranks.
std::vector<ParityLayout> layouts_to_split() {
  std::vector<ParityLayout> layouts;
  for (int zero = 0; zero <= 3; ++zero) {
    layouts.push_back({{.data = 3, .zero = zero}});
    layouts.push_back({{.data = 4, .zero = zero, .replicate = zero == 0 ? 1 : 2}});
    layouts.push_back({{.pipeline = 2, .data = 2, .zero = zero}});
    layouts.push_back({{.tensor = 2, .pipeline = 2, .data = 2, .zero = zero, .sequence_parallel = true, .schedule = ScheduleKind::kGPipe}});
    layouts.push_back({{.pipeline = 2, .data = 2, .zero = zero, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 2}});
    layouts.push_back({{.pipeline = 2, .data = 3, .zero = zero, .schedule = ScheduleKind::kZbH2}});
    layouts.push_back({{.pipeline = 2, .data = 2, .zero = zero, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}});
  }
  for (const int zero : {2, 3}) {
    layouts.push_back({{.pipeline = 2, .data = 2, .zero = zero, .gradient_accumulation = GradientAccumulation::kFull}});
    layouts.push_back({{.data = 2,
                        .zero = 3,
                        .gradient_accumulation = zero == 2 ? GradientAccumulation::kFull : GradientAccumulation::kSharded,
                        .reshard = Reshard::kAfterStep}});
  }
  return layouts;
}

TEST_CASE("rebalance: different numbers of micro-batches train what equal ones train, with in-flight buffers poisoned") {
  constexpr int kSteps = 2;  // one for every gradient, one for its consequences
  size_t number = 0;
  for (ParityLayout layout : layouts_to_split()) {
    const ParityModel model = number++ % 2 == 0 ? ParityModel::kLlamaGrouped : ParityModel::kGpt2Dropout;
    INFO(name_of(model) << " " << layout.str());
    const RunRecord even = train_on_threads(parity_config(model, layout, "fp64"), kSteps, Device::kReference, true);
    layout.rebalance = true;
    const Config config = parity_config(model, layout, "fp64");
    const MicroBatchSplit split = uneven_split(config);
    REQUIRE(std::ranges::max(split) > std::ranges::min(split));
    const RunRecord uneven = train_on_threads(config, kSteps, Device::kReference, true);
    CHECK(difference(even, uneven, 1e-10) == "");
    CHECK(difference(even, uneven, 0) != "");  // sums have another order, so the splits did differ
    CHECK(difference(uneven, train_on_threads(config, kSteps, Device::kReference), 0) == "");
  }
}

TEST_CASE("rebalance: a data rank with one micro-batch, and one that changes its number between steps, train what equal ones train") {
  for (int zero = 0; zero <= 3; ++zero) {
    const ParityLayout layout{{.pipeline = 2, .data = 3, .zero = zero}};
    const Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp64");
    const auto run = [&](const std::vector<MicroBatchSplit>& splits) {
      GatheredState state;
      on_ranks(config, [&](Trainer& trainer) {
        trainer.initialise();
        const RaggedDataset data(29, 12, 61);
        for (int step = 0; step < 3; ++step) {
          trainer.set_micro_batches(splits[static_cast<size_t>(step)]);
          trainer.step(data, step, 1e-3);
        }
        state.add(trainer);
      });
      return state.whole();
    };
    const auto even = run({{4, 4, 4}, {4, 4, 4}, {4, 4, 4}}), uneven = run({{1, 9, 2}, {6, 1, 5}, {4, 4, 4}});
    for (const auto& [name, bytes] : even) {
      INFO("zero " << zero << ", " << name);
      const std::vector<char>& other = uneven.at(name);
      REQUIRE(other.size() == bytes.size());
      double largest = 0, worst = 0;
      for (size_t i = 0; i < bytes.size(); i += sizeof(double)) {
        double a = 0, b = 0;
        std::memcpy(&a, &bytes[i], sizeof a);
        std::memcpy(&b, &other[i], sizeof b);
        largest = std::max(largest, std::abs(a));
        worst = std::max(worst, std::abs(a - b));
      }
      CHECK(worst <= 1e-10 * std::max(largest, 1e-3));
    }
  }
}

TEST_CASE("rebalance: data ranks read their own numbers of micro-batches, all samples of the batch once, also where ranks check each other") {
  const ParityLayout layout{{.pipeline = 2, .data = 3, .zero = 2, .micro_batch = 2}};
  const Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  const MicroBatchSplit split{1, 3, 2};
  std::mutex mutex;
  std::vector<int64_t> samples;
  std::vector<double> own(3), elsewhere(3);
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    trainer.set_micro_batches(split);
    const auto rank = static_cast<size_t>(trainer.batches().data_rank());
    const RecordedSamples data;
    const StepResult result = trainer.step(data, 0, 0);
    TRIREME_CHECK(std::ssize(data.read_here) == 2 * split[rank], data.read_here.size(), " samples on data rank ", rank);
    trainer.rotate_data(1);
    const StepResult rotated = trainer.step(data, 0, 0);
    TRIREME_CHECK(std::abs(rotated.grad_norm - result.grad_norm) <= 1e-10 * result.grad_norm, "the gradient differs");
    const std::lock_guard lock(mutex);
    if (!trainer.counts_loss()) return;
    samples.insert(samples.end(), data.read_here.begin(), data.read_here.begin() + 2 * split[rank]);
    own[rank] = result.local_loss;
    elsewhere[(rank + 1) % 3] = rotated.local_loss;
  });
  CHECK(own == elsewhere);
  std::ranges::sort(samples);
  CHECK(std::ranges::adjacent_find(samples) == samples.end());
  CHECK(samples.size() == 12);
}

constexpr int64_t kSteps = 30, kSave = 5;

/// Four data ranks of two tensor ranks each, which take six micro-batches each in an even split.
Config run_config(const fs::path& directory) {
  Config config = parity_config(ParityModel::kLlama, {{.tensor = 2, .data = 4, .zero = 1}}, "fp32");
  config.model.layers = 2;
  config.parallel.layers_per_stage = {2};
  config.model.vocab_size = 256;
  config.run.directory = directory;
  config.data.train = {directory.parent_path() / "tokens"};
  config.training.steps = kSteps;
  config.training.global_batch_size = 24;
  config.checkpoint.every = kSave;
  config.checkpoint.keep = kSteps;
  config.resilience.rebalance = Rebalance::kMicroBatches;
  return config;
}

/// Runs on threads. Each collective of the tensor group takes `pause` longer, as slow compute would, and twice as long on the data rank `slow`.
void run_slowed(const Config& config, std::chrono::microseconds pause, int slow, const std::string& resume = "auto",
                std::optional<int64_t> max_steps = {}) {
  run_ranks(8, [&](Communicator& world) {
    Progress progress;
    const std::unique_ptr<Communicator> inner = watched(world, progress);
    const std::unique_ptr<Communicator> slowed = observed(*inner, [&](Context&, const ObservedBuffer& traffic) {
      if (traffic.group == "tensor" && traffic.outgoing) std::this_thread::sleep_for(pause * (world.rank() / 2 == slow ? 2 : 1));
    });
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    TRIREME_CHECK(run_training(ctx, *slowed, resolve(config, 8), {.resume = resume, .max_steps = max_steps}, progress) == ExitCode::kOk,
                  "the run failed");
  });
}

std::vector<json> lines_of(const fs::path& run_directory) {
  std::vector<json> lines;
  std::ifstream stream(run_directory / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<double> values_of(const std::vector<json>& lines, const char* key, int64_t first, int64_t last) {
  std::vector<double> values;
  for (const json& line : lines)
    if (line.contains("loss") && line["step"] >= first && line["step"] <= last) values.push_back(line[key]);
  return values;
}

std::vector<json> decisions_of(const std::vector<json>& lines) {
  std::vector<json> decisions;
  for (const json& line : lines)
    if (line.value("event", "") == "rebalance") decisions.push_back(line);
  return decisions;
}

TEST_CASE("rebalance: with one of four data ranks twice as slow, steps take the time of the ideal split after 20 steps, and a resume repeats them",
          "[alone]") {
  constexpr int kSlow = 1;
  const TemporaryDirectory files;
  write_tokens(files.path / "tokens", 29 * 12 + 1);
  const Config config = run_config(files.path / "run");
  run_slowed(config, std::chrono::microseconds(2000), kSlow);
  const std::vector<json> lines = lines_of(config.run.directory);
  const std::vector<json> decisions = decisions_of(lines);
  REQUIRE(decisions.size() == 1);
  CAPTURE(decisions[0].dump());
  CHECK(decisions[0]["step"] == 20);
  CHECK(decisions[0]["from_step"] == 21);
  CHECK(decisions[0]["micro_batches_before"] == json({6, 6, 6, 6}));
  CHECK(decisions[0]["micro_batches"] == json({7, 3, 7, 7}));  // 12 units of time become 7
  CHECK(decisions[0]["imbalance"].get<double>() == Approx(0.6).margin(0.15));
  CHECK(decisions[0]["imbalance"] == excess_of_slowest(decisions[0]["compute_seconds"].get<std::vector<double>>()));
  CHECK(median(values_of(lines, "imbalance", 1, 20)) == Approx(0.6).margin(0.15));
  CHECK(median(values_of(lines, "imbalance", 21, kSteps)) < 0.2);
  // The fastest steps, as other programs on the same cores only make steps longer.
  const double before = std::ranges::min(values_of(lines, "step_seconds", 1, 20)),
               after = std::ranges::min(values_of(lines, "step_seconds", 21, kSteps));
  INFO("steps took " << before << " s, then " << after << " s");
  CHECK(after < 1.1 * 7 / 12 * before);

  const auto checkpoint = [&](int64_t step) { return fs::path(config.run.directory) / "checkpoints" / checkpoint_name(step); };
  const auto end = read_whole(checkpoint(kSteps));
  CHECK(CheckpointReader(checkpoint(10)).description().micro_batches == MicroBatchSplit{6, 6, 6, 6});
  CHECK(CheckpointReader(checkpoint(20)).description().micro_batches == MicroBatchSplit{7, 3, 7, 7});
  // From before and after the decision, with ranks that are equally fast now.
  for (const int64_t from : {10, 25}) {
    INFO("resumed from step " << from);
    run_slowed(config, std::chrono::microseconds(0), kSlow, checkpoint(from));
    const std::vector<json> again = decisions_of(lines_of(config.run.directory));
    REQUIRE(again.size() == 1);
    CHECK(again[0]["step"] == 20);
    CHECK(again[0]["micro_batches"] == decisions[0]["micro_batches"]);
    CHECK(read_whole(checkpoint(kSteps)) == end);
  }
  INFO("a job that resumed from step 10 ended after step 12");
  run_slowed(config, std::chrono::microseconds(0), kSlow, checkpoint(10), 12);
  CHECK(decisions_of(lines_of(config.run.directory)).empty());
  run_slowed(config, std::chrono::microseconds(0), kSlow, checkpoint(10));
  const std::vector<json> again = decisions_of(lines_of(config.run.directory));
  REQUIRE(again.size() == 1);
  CHECK(again[0]["micro_batches"] == decisions[0]["micro_batches"]);
  CHECK(again[0].count("imbalance") == 0);  // nothing was measured for it
  CHECK(read_whole(checkpoint(kSteps)) == end);
}

TEST_CASE("rebalance: a run that is resumed with the key for the first time decides after 20 steps") {
  const TemporaryDirectory files;
  write_tokens(files.path / "tokens", 29 * 12 + 1);
  Config config = run_config(files.path / "run");
  config.resilience.rebalance = Rebalance::kNone;
  run_slowed(config, std::chrono::microseconds(0), 1);
  config.resilience.rebalance = Rebalance::kMicroBatches;
  run_slowed(config, std::chrono::microseconds(500), 1, fs::path(config.run.directory) / "checkpoints" / checkpoint_name(5));
  const std::vector<json> decisions = decisions_of(lines_of(config.run.directory));
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0]["step"] == 25);
}

}  // namespace
}  // namespace trireme::test
