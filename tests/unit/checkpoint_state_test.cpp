// Checkpoints of unhealthy runs: which ones are kept while steps are rejected, non-finite values, directories with the wrong name.
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;
using namespace trireme;
using namespace trireme::test;
using Catch::Matchers::Contains;

namespace {

constexpr double kInfiniteValue = std::numeric_limits<double>::infinity();

/// The checkpoints of a run of one rank with a matrix [2,3].
struct SmallRun {
  explicit SmallRun(int64_t keep, int64_t best = 0, std::optional<int64_t> every = {})
      : checkpointer({.directory = directory.path / "checkpoints",
                      .session = "s1",
                      .keep = keep,
                      .asynchronous = false,
                      .keep_best = best,
                      .keep_every = every}) {}

  void save(int64_t step, int64_t optimizer_steps, int64_t rejected_steps, std::vector<float> values = {1, 2, 3, 4, 5, 6}) {
    CheckpointDescription about;
    about.step = step;
    about.optimizer_steps = optimizer_steps;
    about.rejected_steps = rejected_steps;
    about.model = about.layout = nlohmann::json::object();
    const StateTensor tensor{"weight/w", DType::kF32, {2, 3}, 2, {{0, 0}, {2, 3}}, values.data()};
    checkpointer.save(about, std::span(&tensor, 1));
    const auto report = checkpointer.finish();
    REQUIRE(report.has_value());
    INFO(report->error.value_or(""));
    REQUIRE_FALSE(report->error);
  }
  fs::path checkpoint(int64_t step) const { return directory.path / "checkpoints" / checkpoint_name(step); }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (int64_t step = 0; step <= 100; ++step)
      if (fs::exists(checkpoint(step))) found.push_back(step);
    return found;
  }

  TemporaryDirectory directory;
  Checkpointer checkpointer;
};

using Steps = std::vector<int64_t>;

}  // namespace

TEST_CASE("checkpoint: saves after rejected steps never displace the last checkpoints from before the rejections", "[checkpoint]") {
  SmallRun run(2);
  for (int64_t step = 1; step <= 5; ++step) run.save(step, step, 0);
  CHECK(run.steps() == Steps{4, 5});
  for (int64_t step = 6; step <= 20; ++step) {
    run.save(step, 5, step - 5);
    INFO(step);
    // 5 is the last one after an accepted step, 4 the last one followed by an accepted step: the weights of 5 may be the cause of the rejections.
    CHECK(run.steps() == (step == 6 ? Steps{4, 5, 6} : Steps{4, 5, step - 1, step}));
  }
  // After an accepted step retention is normal again.
  run.save(21, 6, 0);
  CHECK(run.steps() == Steps{20, 21});
}

TEST_CASE("checkpoint: retention during rejected steps, with several steps between saves", "[checkpoint]") {
  SmallRun run(1);
  run.save(10, 10, 0);
  run.save(20, 15, 5);  // steps 16 to 20 were rejected
  CHECK(run.steps() == Steps{10, 20});
  run.save(30, 15, 15);
  CHECK(run.steps() == Steps{10, 30});
  run.save(40, 20, 0);
  CHECK(run.steps() == Steps{40});
}

TEST_CASE("checkpoint: the first checkpoint is kept if all steps from the second on are rejected", "[checkpoint]") {
  SmallRun run(2);
  run.save(1, 1, 0);
  for (int64_t step = 2; step <= 20; ++step) run.save(step, 1, step - 1);
  CHECK(run.steps() == Steps{1, 19, 20});
}

TEST_CASE("checkpoint: an unreadable one does not count towards those kept during rejected steps", "[checkpoint]") {
  SmallRun run(1);
  run.save(1, 1, 0);
  run.save(2, 2, 0);  // replaces step 1
  fs::remove(run.checkpoint(2) / "manifest.json");
  run.save(3, 2, 1);
  run.save(4, 2, 2);
  CHECK(run.steps() == Steps{2, 4});  // not removed while a readable one is searched
}

TEST_CASE("checkpoint: those with the lowest recorded loss stay besides the newest", "[checkpoint]") {
  SmallRun run(1, 2);
  const auto save = [&](int64_t step, double loss) {
    run.save(step, step, 0);
    record_loss(run.checkpoint(step), step, loss);
  };
  save(1, 3.5);
  save(2, 3.25);
  save(3, 4);
  run.save(4, 4, 0);  // not evaluated
  CHECK(run.steps() == Steps{1, 2, 4});
  save(5, std::numeric_limits<double>::quiet_NaN());
  CHECK(run.steps() == Steps{1, 2, 5});
  save(6, 3);
  CHECK(run.steps() == Steps{1, 2, 6});  // not yet removed: a save comes before its evaluation
  run.checkpointer.remove_old(6);
  CHECK(run.steps() == Steps{2, 6});
  save(7, 3.25);
  run.checkpointer.remove_old(7);
  CHECK(run.steps() == Steps{2, 6, 7});  // of equal losses the earlier step stays, and 7 is the newest
  std::ofstream(run.checkpoint(6) / "validation.json") << "{\"validation_loss\": ";
  run.save(8, 8, 0);
  CHECK(run.steps() == Steps{2, 7, 8});
  fs::remove(run.checkpoint(2) / "manifest.json");
  save(9, 9);
  run.checkpointer.remove_old(9);
  CHECK(run.steps() == Steps{7, 9});  // an incomplete one is not among the best
}

TEST_CASE("checkpoint: those at multiples of keep_every are never removed", "[checkpoint]") {
  SmallRun run(2, 0, 4);
  for (int64_t step = 2; step <= 14; step += 2) run.save(step, step, 0);
  CHECK(run.steps() == Steps{4, 8, 12, 14});
}

TEST_CASE("checkpoint: the state of early stopping is part of the manifest", "[checkpoint]") {
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.step = 50;
  about.model = about.layout = nlohmann::json::object();
  CHECK(manifest_text(manifest).find("early_stopping") == std::string::npos);
  for (const StopState& state : {StopState{40, 2, 2.125, 20}, StopState{50, 1, {}, 0}}) {
    about.early_stopping = state;
    CHECK(parse_manifest(manifest_text(manifest), "m").description.early_stopping == state);
  }
  about.early_stopping.step = 60;
  CHECK_THROWS_WITH(parse_manifest(manifest_text(manifest), "m"), Contains("\"early_stopping\"") && Contains("60"));
}

TEST_CASE("manifest: the steps and rejections of each island, only if there are several") {
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.step = 50;
  about.optimizer_steps = 49;
  about.model = about.layout = nlohmann::json::object();
  CHECK(manifest_text(manifest).find("island_steps") == std::string::npos);
  CHECK((about.steps_of_island(0) == 49 && about.steps_of_island(1) == 49));
  about.layout["islands"] = 2;
  about.island_steps = {49, 50};
  about.island_rejections = {0, 3};
  about.rejected_steps = 3;
  const CheckpointDescription parsed = parse_manifest(manifest_text(manifest), "m").description;
  CHECK((parsed.island_steps == about.island_steps && parsed.island_rejections == about.island_rejections));
  CHECK((about.steps_of_island(0) == 49 && about.steps_of_island(1) == 50));
  CHECK((about.rejections_of_island(0) == 0 && about.rejections_of_island(1) == 3));
  for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{{}, {49}, {49, 50, 50}, {48, 49}, {49, 51}, {49, -1}}) {
    about.island_steps = wrong;
    CHECK_THROWS_WITH(parse_manifest(manifest_text(manifest), "m"), Contains("\"island_steps\""));
  }
  about.island_steps = {49, 50};
  for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{{3}, {0, 2}, {0, 4}}) {
    about.island_rejections = wrong;
    CHECK_THROWS_WITH(parse_manifest(manifest_text(manifest), "m"), Contains("\"island_rejections\""));
  }
  // Older checkpoints have none, and the key is never ignored.
  about.island_rejections = {};
  const CheckpointDescription older = parse_manifest(manifest_text(manifest), "m").description;
  CHECK((older.island_rejections.empty() && older.rejections_of_island(0) == 3 && older.rejections_of_island(1) == 3));
  about.island_rejections = {0, 3};
  std::string without_total = manifest_text(manifest);
  const std::string total = "\"rejected_steps\": 3,";
  without_total.erase(without_total.find(total), total.size());
  CHECK_THROWS_WITH(parse_manifest(with_digest(without_total), "m"), Contains("\"island_rejections\": the largest is not rejected_steps"));
  about.layout.erase("islands");
  CHECK_THROWS_WITH(parse_manifest(manifest_text(manifest), "m"), Contains("\"island_steps\": has 2 numbers for 1 island"));
}

TEST_CASE("manifest: the micro-batches of each data rank, only with resilience.rebalance") {
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.model = about.layout = nlohmann::json::object();
  CHECK(manifest_text(manifest).find("micro_batches") == std::string::npos);
  about.micro_batches = {7, 3, 6};
  CHECK(parse_manifest(manifest_text(manifest), "m").description.micro_batches == about.micro_batches);
  for (const std::vector<int>& wrong : std::vector<std::vector<int>>{{7, 0}, {7, -3}, {1 << 30, 1 << 30}}) {
    about.micro_batches = wrong;
    CHECK_THROWS_WITH(parse_manifest(manifest_text(manifest), "m"), Contains("\"micro_batches\""));
  }
  about.micro_batches = {7};
  std::string text = manifest_text(manifest);
  const size_t begin = text.find("\"micro_batches\": ") + 17, end = text.find(']', begin);
  CHECK_THROWS_WITH(parse_manifest(with_digest(text.replace(begin, end + 1 - begin, "[]")), "m"), Contains("\"micro_batches\": is empty"));
}

TEST_CASE("checkpoint: the window of accepted steps is part of the manifest, to the bit", "[checkpoint]") {
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.model = about.layout = nlohmann::json::object();
  CHECK(manifest_text(manifest).find("anomaly_window") == std::string::npos);
  about.anomaly_window = {{2.125, 0.1}, {1.0 / 3, 5e-324}};
  CHECK(parse_manifest(manifest_text(manifest), "m").description.anomaly_window == about.anomaly_window);
  const auto with = [&](const char* window) {
    std::string text = manifest_text(manifest);
    const size_t begin = text.find("\"anomaly_window\": ") + 18, end = text.find("],\n \"", begin) + 1;
    return with_digest(text.replace(begin, end - begin, window));
  };
  CHECK(parse_manifest(with("[[1.5, 2]]"), "m").description.anomaly_window == std::vector<StepFigures>{{1.5, 2}});
  for (const char* bad : {"[[1.5]]", "[[1.5, \"2\"]]", "[1.5, 2]", "[[1.5, 0]]", "[[-1, 2]]", "3"})
    CHECK_THROWS_WITH(parse_manifest(with(bad), "m"), Contains("\"anomaly_window\""));
}

TEST_CASE("checkpoint: the algorithms of matrix products are part of the manifest", "[checkpoint]") {
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.model = about.layout = nlohmann::json::object();
  CHECK(manifest_text(manifest).find("product_algorithms") == std::string::npos);
  about.product_algorithms = {{"a GPU", {{"rows 1", "id 3"}, {"rows 2", "id 4"}}}, {"another GPU", {}}};
  CHECK(parse_manifest(manifest_text(manifest), "m").description.product_algorithms == about.product_algorithms);
}

TEST_CASE("checkpoint: the changes of a run are part of its manifest", "[checkpoint]") {
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.step = 7;
  about.samples = 100;
  about.model = about.layout = nlohmann::json::object();
  CHECK(manifest_text(manifest).find("branch") == std::string::npos);
  about.branch = {{2, 16, {{"training.steps", {6, 8}}}}, {5, 0, {{"data.train", {{"a"}, {"b"}}}}}};
  const std::vector<ConfigChange> read = parse_manifest(manifest_text(manifest), "manifest").description.branch;
  REQUIRE(read.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(read[i].step == about.branch[i].step);
    CHECK(read[i].sample == about.branch[i].sample);
    CHECK(read[i].changes == about.branch[i].changes);
  }
}

TEST_CASE("checkpoint: the number of consecutive rejected steps is part of the state", "[checkpoint]") {
  SmallRun run(0);
  run.save(7, 3, 4);
  run.save(8, 4, 0);
  CHECK(CheckpointReader(run.checkpoint(7)).description().rejected_steps == 4);
  CHECK(CheckpointReader(run.checkpoint(8)).description().rejected_steps == 0);
}

TEST_CASE("checkpoint: non-finite values are counted per tensor, from the data and in the manifest", "[checkpoint]") {
  SmallRun run(0);
  run.save(1, 1, 0, {1, static_cast<float>(NAN), 3, static_cast<float>(kInfiniteValue), static_cast<float>(-kInfiniteValue), 6});
  run.save(2, 2, 0, {0, -0.0F, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), -1, 6});
  CheckpointReader spoiled(run.checkpoint(1)), whole(run.checkpoint(2));
  CHECK(spoiled.verify_digests() == NonFinite{{"weight/w", 3}});
  CHECK(spoiled.recorded_non_finite() == NonFinite{{"weight/w", 3}});
  CHECK(whole.verify_digests().empty());
  CHECK(whole.recorded_non_finite().empty());
  // If a tensor is in the files of several ranks, all boxes count.
  const StoredTensor shared{.boxes = {{.non_finite = 2}, {}, {.non_finite = 3}}};
  CHECK(recorded_non_finite({{"weight/v", {.boxes = {{.non_finite = 1}}}}, {"weight/w", shared}}) == NonFinite{{"weight/v", 1}, {"weight/w", 5}});
}

TEST_CASE("checkpoint: non-finite values are counted in every piece of a large tensor", "[checkpoint]") {
  const TemporaryDirectory directory;
  Checkpointer checkpointer({.directory = directory.path / "checkpoints", .session = "s1", .asynchronous = false});
  std::vector<float> values(size_t{5} << 20, 1);  // 20 MiB
  values.front() = static_cast<float>(NAN);
  values[values.size() / 2] = static_cast<float>(kInfiniteValue);
  CheckpointDescription about;
  about.step = 1;
  about.model = about.layout = nlohmann::json::object();
  constexpr int64_t kColumns = int64_t{1} << 20;
  const std::vector<StateTensor> tensors = {{"weight/w", DType::kF32, {5, kColumns}, 2, {{0, 0}, {5, kColumns}}, values.data()}};
  checkpointer.save(about, tensors);
  REQUIRE_FALSE(checkpointer.finish().value().error);
  CHECK(CheckpointReader(directory.path / "checkpoints" / checkpoint_name(1)).verify_digests() == NonFinite{{"weight/w", 2}});
}

TEST_CASE("checkpoint: with only_finite a state that is not finite is not published, and the one before stays", "[checkpoint]") {
  const TemporaryDirectory directory;
  const auto checkpoints = directory.path / "checkpoints";
  Checkpointer checkpointer({.directory = checkpoints, .session = "s1", .asynchronous = false, .only_finite = true});
  const auto save = [&](int64_t step, float value) {
    CheckpointDescription about;
    about.step = step;
    about.model = about.layout = nlohmann::json::object();
    const std::array<float, 2> weights{1, 2}, moments{0, value};
    const std::vector<StateTensor> tensors = {{"weight/w", DType::kF32, {1, 2}, 2, {{0, 0}, {1, 2}}, weights.data()},
                                              {"exp_avg/w", DType::kF32, {1, 2}, 2, {{0, 0}, {1, 2}}, moments.data()}};
    checkpointer.save(about, tensors);
    return checkpointer.finish().value();
  };
  CHECK_FALSE(save(1, 3).error);
  for (const double value : {kInfiniteValue, -kInfiniteValue, std::nan("")}) {
    const SaveReport spoiled = save(2, static_cast<float>(value));
    CHECK(spoiled.error == "the state is not finite: exp_avg/w (1 value)");
    CHECK(spoiled.not_finite);
    CHECK_FALSE(fs::exists(checkpoints / checkpoint_name(2)));
    CHECK(fs::read_symlink(checkpoints / "latest") == checkpoint_name(1));
  }
  CHECK_FALSE(save(3, 0).error);
}

TEST_CASE("checkpoint: non-finite values are counted in every dtype and at any alignment", "[checkpoint]") {
  const auto count = [](DType dtype, const auto& values) {
    std::vector<std::byte> bytes(sizeof values + 1);
    std::memcpy(bytes.data() + 1, values.data(), sizeof values);
    return count_non_finite(dtype, bytes.data() + 1, static_cast<int64_t>(values.size()));
  };
  CHECK(count(DType::kF64, std::array<double, 4>{kInfiniteValue, std::numeric_limits<double>::max(), NAN, 0}) == 2);
  CHECK(count(DType::kF32, std::array<float, 3>{static_cast<float>(NAN), 1, static_cast<float>(-kInfiniteValue)}) == 2);
  CHECK(count(DType::kF16, std::array<uint16_t, 4>{0x7bff, 0x7c00, 0xfc00, 0x7e01}) == 3);
  CHECK(count(DType::kBF16, std::array<uint16_t, 4>{0x7f7f, 0x7f80, 0xff80, 0x7c00}) == 2);
  CHECK(count(DType::kI32, std::array<int32_t, 2>{-1, 0x7f800000}) == 0);
}

TEST_CASE("checkpoint: at most five non-finite tensors are named", "[checkpoint]") {
  NonFinite found{{"a", 1}, {"b", 2}};
  CHECK(to_string(found) == "a (1 value), b (2 values)");
  for (const char* name : {"c", "d", "e", "f", "g"}) found[name] = 3;
  CHECK_THAT(to_string(found), Contains("e (3 values) and 2 more") && !Contains("f ("));
}

TEST_CASE("checkpoint: a directory renamed to a different step is skipped, other names are accepted", "[checkpoint]") {
  SmallRun run(0);
  for (const int64_t step : {1, 2}) run.save(step, step, 0);
  CHECK(CheckpointReader(run.checkpoint(2)).name_mismatch().empty());
  fs::rename(run.checkpoint(1), run.checkpoint(9));
  const CheckpointReader renamed(run.checkpoint(9));
  CHECK_THAT(renamed.name_mismatch(), Contains("step-00000009: the manifest says step 1") && Contains("expected directory name step-00000001"));
  fs::remove(run.directory.path / "checkpoints/latest");
  std::vector<std::string> warnings;
  CHECK(find_newest_checkpoint(run.directory.path, warnings) == run.checkpoint(2));
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Contains("step-00000009"));
  fs::rename(run.checkpoint(9), run.directory.path / "the best one");
  CHECK(CheckpointReader(run.directory.path / "the best one").name_mismatch().empty());
}

TEST_CASE("checkpoint: one with the name of a different step does not count towards keep", "[checkpoint]") {
  SmallRun run(2);
  for (const int64_t step : {1, 2}) run.save(step, step, 0);
  fs::copy(run.checkpoint(1), run.checkpoint(3), fs::copy_options::recursive);
  run.save(4, 4, 0);
  CHECK(run.steps() == Steps{2, 3, 4});
}
