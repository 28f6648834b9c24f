// Checkpoints: any boxes can be saved and any boxes loaded; a save that fails or is killed at any system call leaves the older checkpoint intact;
// errors name the damaged part.
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>

#include "tests/support/catch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/durable_file.h"

namespace fs = std::filesystem;
using namespace trireme;

namespace {

/// A new directory, removed with its contents; in /dev/shm if possible, because a save waits for the disk about ten times.
struct TemporaryDirectory {
  TemporaryDirectory() {
    const fs::path memory = "/dev/shm";
    std::string name = ((::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path()) / "trireme-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TemporaryDirectory() { fs::remove_all(path); }
  fs::path path;
};

/// The value of an element is a function of its position and the step.
double value_at(int64_t row, int64_t column, int64_t step) { return static_cast<double>(row * 1000 + column) + static_cast<double>(step) / 1024; }

template <class T>
std::vector<T> values_of(const Box& box, int64_t step) {
  std::vector<T> values;
  for (int64_t i = 0; i < box.extent[0]; ++i)
    for (int64_t j = 0; j < box.extent[1]; ++j) values.push_back(static_cast<T>(value_at(box.start[0] + i, box.start[1] + j, step)));
  return values;
}

/// The boxes of one rank and their data.
struct RankState {
  std::vector<StateTensor> tensors;
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<double>> doubles;

  void add(const std::string& name, DType dtype, std::array<int64_t, 2> shape, int dims, const Box& box, int64_t step) {
    const void* data = nullptr;
    if (dtype == DType::kF32) data = floats.emplace_back(values_of<float>(box, step)).data();
    if (dtype == DType::kF64) data = doubles.emplace_back(values_of<double>(box, step)).data();
    tensors.push_back({name, dtype, shape, dims, box, data});
  }
};

constexpr int kRanks = 3;

/// A matrix [7,5] split at elements 13 and 22 into flat ranges (up to three boxes each), one split by columns, and a vector of 11.
std::vector<RankState> state_of(int64_t step) {
  std::vector<RankState> ranks(kRanks);
  const std::array<int64_t, 2> shape{7, 5};
  ranks[0].add("weight/w", DType::kF32, shape, 2, {{0, 0}, {2, 5}}, step);
  ranks[0].add("weight/w", DType::kF32, shape, 2, {{2, 0}, {1, 3}}, step);
  ranks[1].add("weight/w", DType::kF32, shape, 2, {{2, 3}, {1, 2}}, step);
  ranks[1].add("weight/w", DType::kF32, shape, 2, {{3, 0}, {1, 5}}, step);
  ranks[1].add("weight/w", DType::kF32, shape, 2, {{4, 0}, {1, 2}}, step);
  ranks[2].add("weight/w", DType::kF32, shape, 2, {{4, 2}, {1, 3}}, step);
  ranks[2].add("weight/w", DType::kF32, shape, 2, {{5, 0}, {2, 5}}, step);
  ranks[0].add("exp_avg/w", DType::kF64, shape, 2, {{0, 0}, {7, 2}}, step);
  ranks[2].add("exp_avg/w", DType::kF64, shape, 2, {{0, 2}, {7, 3}}, step);
  ranks[0].add("weight/b", DType::kF32, {11, 1}, 1, {{0, 0}, {4, 1}}, step);
  ranks[2].add("weight/b", DType::kF32, {11, 1}, 1, {{4, 0}, {7, 1}}, step);
  return ranks;
}

CheckpointDescription describe(int64_t step) {
  CheckpointDescription about;
  about.step = step;
  about.tokens = step * 512;
  about.config = "run: {name: test}\n";
  about.model = {{"architecture", "llama"}, {"layers", 2}};
  about.layout = {{"tensor", 3}};
  return about;
}

/// A run directory whose ranks all save from this process, each with its own Checkpointer.
struct Run {
  explicit Run(
      fs::path run_directory, const std::string& session, bool asynchronous = true, int64_t keep = 3,
      const std::function<void()>& may_publish = [] {})
      : directory(std::move(run_directory)) {
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.push_back(std::make_unique<Checkpointer>(
          CheckpointOptions{directory / "checkpoints", session, rank, kRanks, keep, asynchronous, std::chrono::seconds(20), may_publish}));
  }
  /// Rank 0 saves last, so that synchronous saves also work in one thread. Returns the error of rank 0.
  std::optional<std::string> save(int64_t step) {
    const auto state = state_of(step);
    return save(step, state);
  }
  std::optional<std::string> save(int64_t step, const std::vector<RankState>& state) {
    for (int rank = kRanks - 1; rank >= 0; --rank) ranks[static_cast<size_t>(rank)]->save(describe(step), state[static_cast<size_t>(rank)].tensors);
    return error_of(0);
  }
  /// The error of the rank's last save, if any.
  std::optional<std::string> error_of(int rank) {
    Checkpointer& checkpointer = *ranks[static_cast<size_t>(rank)];
    auto report = checkpointer.finish();
    REQUIRE(report.has_value());
    while (auto later = checkpointer.take_report()) report = std::move(later);
    return report->error;
  }
  fs::path directory;
  std::vector<std::unique_ptr<Checkpointer>> ranks;
};

void require_contents(const fs::path& checkpoint, int64_t step) {
  CheckpointReader reader(checkpoint);
  REQUIRE(reader.description().step == step);
  for (const Box& box : {Box{{0, 0}, {7, 5}}, Box{{1, 1}, {5, 3}}, Box{{4, 0}, {1, 5}}, Box{{2, 4}, {3, 1}}, Box{{6, 4}, {1, 1}}}) {
    std::vector<float> floats(static_cast<size_t>(box.numel()));
    reader.read("weight/w", box, DType::kF32, floats.data());
    REQUIRE(floats == values_of<float>(box, step));
    std::vector<double> doubles(static_cast<size_t>(box.numel()));
    reader.read("exp_avg/w", box, DType::kF64, doubles.data());
    REQUIRE(doubles == values_of<double>(box, step));
  }
  const Box part{{3, 0}, {5, 1}};
  std::vector<float> vector(5);
  reader.read("weight/b", part, DType::kF32, vector.data());
  REQUIRE(vector == values_of<float>(part, step));
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(directory)) names.push_back(item.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void overwrite(const fs::path& path, int64_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file << bytes;
  REQUIRE(file.good());
}

void write_file(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string with_length(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(data_bytes, 'x');
}

template <class Body>
std::string data_error(Body&& body) {
  try {
    body();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("safetensors: files round-trip, with the header padded to 8 bytes", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "a.safetensors";
  const std::vector<double> doubles{1.5, -2};
  const std::vector<uint8_t> bytes{7, 8, 9};
  const std::vector<SafetensorsSource> sources{
      {"b", DType::kU8, {3}, bytes.data()}, {"a", DType::kF64, {1, 2}, doubles.data()}, {"none", DType::kF32, {0, 4}, nullptr}};
  const auto written = write_safetensors(path, sources, {{"made_by", "test"}});
  REQUIRE(fs::file_size(path) == static_cast<uintmax_t>(written.bytes));
  const SafetensorsFile file(path);
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < sources.size(); ++i) {
    REQUIRE(written.digests[i] == file.digest(file.entry(sources[i].name)));
    digests[sources[i].name] = written.digests[i];
  }
  REQUIRE(file.digest(digests) == written.digest);
  REQUIRE(written.digests[2] == "xxh3-128:99aa06d3014798d86001c324468d497f");  // the XXH3 digest of zero bytes, from its specification
  REQUIRE(file.metadata() == SafetensorsMetadata{{"made_by", "test"}});
  REQUIRE(file.entries().size() == 3);
  REQUIRE(file.entry("a").shape == std::vector<int64_t>{1, 2});
  REQUIRE(std::memcmp(file.data(file.entry("a")).data(), doubles.data(), 16) == 0);
  REQUIRE(std::memcmp(file.data(file.entry("b")).data(), bytes.data(), 3) == 0);
  REQUIRE(file.entry("b").begin % 8 == 0);
  REQUIRE_THROWS_AS(file.entry("c"), DataError);
  REQUIRE_THROWS_AS(SafetensorsFile(directory.path / "missing"), MissingFileError);
}

TEST_CASE("safetensors: malformed files are refused with an error naming the file", "[checkpoint]") {
  const std::string two = R"("dtype":"F32","shape":[1],"data_offsets":)";
  const std::vector<std::tuple<std::string, size_t, std::string>> cases{
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "lie outside"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "1 bytes after the last tensor"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "do not match the shape"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "lie outside"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "do not match the shape"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0, "expected an integer"},
      {R"({"a":{"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]}})", 8, "\"F8_E5M2\" is not supported"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", 8, "\"data_offsets\" is missing"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", 8, "unknown key \"more\""},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "expected a list"},
      {"{\"a\":{" + two + "[0,4]},\"b\":{" + two + "[0,4]}}", 4, "overlap at byte 0"},
      {"{\"a\":{" + two + "[0,4]},\"b\":{" + two + "[8,12]}}", 12, "gap at byte 4"},
      {"{\"a\":{" + two + "[0,4]},\"a\":{" + two + "[4,8]}}", 8, "duplicate key"},
      {"{\"a\":{\"dtype\":\"F32\"," + two + "[0,4]}}", 4, "duplicate key"},
      {R"({"__metadata__":null})", 0, "__metadata__ is not an object"},
      {R"({"a\u001b[2J":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, "control characters"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "1 data_offsets, not two"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-8]}})", 8, "expected an integer"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,NaN]}})", 8, "not valid JSON"},
      {R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}})", 8, "not valid JSON"},
      {R"({"a":7})", 8, "\"dtype\" is missing"},
      {R"({"__metadata__":{"a":1}})", 0, "expected a string"},
      {R"({"a":)", 0, "not valid JSON"},
      {R"([])", 0, "not a JSON object"},
      {std::string(100, '['), 0, "nested deeper"},
  };
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "bad.safetensors";
  for (const auto& [header, data_bytes, message] : cases) {
    INFO(header);
    write_file(path, with_length(header, data_bytes));
    const std::string error = data_error([&] { SafetensorsFile file(path); });
    CHECK_THAT(error, Contains(path.string()) && Contains(message));
  }
  for (const std::string& bytes :
       {std::string(), std::string(7, '\0'), std::string(8, '\0'), std::string(16, '\xff'), with_length("{}", 0).substr(0, 9)}) {
    write_file(path, bytes);
    CHECK_THAT(data_error([&] { SafetensorsFile file(path); }), Contains("not a safetensors file"));
  }
}

TEST_CASE("checkpoint: boxes saved by three ranks are read back as any boxes", "[checkpoint]") {
  const bool asynchronous = GENERATE(true, false);
  const TemporaryDirectory directory;
  Run run(directory.path, "s1", asynchronous);
  REQUIRE(run.save(100) == std::nullopt);
  const fs::path checkpoint = directory.path / "checkpoints/step-00000100";
  require_contents(checkpoint, 100);
  require_contents(directory.path / "checkpoints/latest", 100);
  REQUIRE(names_in(directory.path / "checkpoints") == std::vector<std::string>{"latest", "step-00000100"});
  REQUIRE(names_in(checkpoint) ==
          std::vector<std::string>{"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors", "rank-00002.safetensors"});

  CheckpointReader reader(checkpoint);
  REQUIRE(reader.description().tokens == 51200);
  REQUIRE(reader.description().config == describe(100).config);
  REQUIRE(reader.description().model == describe(100).model);
  REQUIRE(reader.tokenizer_spec() == "bytes");
  REQUIRE(reader.description().layout == describe(100).layout);
  reader.verify_digests();
  const Box row{{3, 0}, {1, 5}};
  std::vector<double> wide(5);
  reader.read("weight/w", row, DType::kF64, wide.data());
  REQUIRE(wide == values_of<double>(row, 100));
  std::vector<float> narrow(5);
  reader.read("exp_avg/w", row, DType::kF32, narrow.data());
  REQUIRE(narrow == values_of<float>(row, 100));

  CHECK_THAT(data_error([&] { reader.read("exp_avg_sq/w", row, DType::kF32, narrow.data()); }), Contains("\"exp_avg_sq/w\" is missing"));
  CHECK_THAT(data_error([&] { reader.read("weight/w", {{5, 0}, {3, 1}}, DType::kF32, narrow.data()); }), Contains("has shape [7, 5]"));
  CHECK_THAT(data_error([&] { reader.read("weight/w", row, DType::kI32, narrow.data()); }), Contains("stored as F32, requested as I32"));
  REQUIRE_THROWS_AS(CheckpointReader(directory.path / "nowhere"), MissingFileError);
}

TEST_CASE("checkpoint: an asynchronous save contains the values at the time of the call", "[checkpoint]") {
  const TemporaryDirectory directory;
  Run run(directory.path, "s1");
  auto state = state_of(7);
  for (int rank = kRanks - 1; rank >= 0; --rank) run.ranks[static_cast<size_t>(rank)]->save(describe(7), state[static_cast<size_t>(rank)].tensors);
  for (auto& rank : state)
    for (auto& values : rank.floats) std::fill(values.begin(), values.end(), -1.0F);
  REQUIRE(run.save(8) == std::nullopt);  // waits for the previous save
  require_contents(directory.path / "checkpoints/step-00000007", 7);
  require_contents(directory.path / "checkpoints/step-00000008", 8);
}

TEST_CASE("checkpoint: keep removes the oldest, leftovers of dead runs are removed, a step saved again is replaced", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoints = directory.path / "checkpoints";
  fs::create_directories(checkpoints / "step-00000009.dead-1.partial");
  fs::create_directories(checkpoints / "mine");
  Run run(directory.path, "s1", true, 2);
  fs::create_directories(checkpoints / "step-00000050.s1-9.partial");  // a later save of a faster rank
  for (int64_t step : {10, 20, 30}) REQUIRE(run.save(step) == std::nullopt);
  // Leftovers of other sessions are only removed right after locking the directory; later they could belong to a job that has taken over.
  REQUIRE(names_in(checkpoints) ==
          std::vector<std::string>{"latest", "mine", "step-00000009.dead-1.partial", "step-00000020", "step-00000030", "step-00000050.s1-9.partial"});
  REQUIRE(has_unpublished(checkpoints));
  remove_unpublished(checkpoints);
  REQUIRE_FALSE(has_unpublished(checkpoints));
  REQUIRE(names_in(checkpoints) == std::vector<std::string>{"latest", "mine", "step-00000020", "step-00000030"});

  // Rolled back: another session saves step 20 again. Step 30 is not part of its history, but must not be removed; `latest` decides.
  Run again(directory.path, "s2", true, 2);
  REQUIRE(again.save(20) == std::nullopt);
  REQUIRE(names_in(checkpoints) == std::vector<std::string>{"latest", "mine", "step-00000020", "step-00000030"});
  std::vector<std::string> warnings;
  REQUIRE(find_newest_checkpoint(directory.path, warnings) == checkpoints / "step-00000020");
  REQUIRE(warnings.empty());
}

TEST_CASE("checkpoint: a failed save is reported once and leaves the previous one intact", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoints = directory.path / "checkpoints";
  Run run(directory.path, "s1");
  REQUIRE(run.save(1) == std::nullopt);

  SECTION("a rank cannot write") {
    fs::create_directories(checkpoints / "step-00000002.s1-2.partial/rank-00001.safetensors.tmp");  // blocks its file name
    CHECK_THAT(run.save(2).value(), Contains("rank 1") && Contains("rank-00001.safetensors"));
    CHECK_THAT(run.error_of(1).value(), Contains("rank-00001.safetensors"));
  }
  SECTION("a box is missing") {
    auto state = state_of(2);
    state[1].tensors.pop_back();
    CHECK_THAT(run.save(2, state).value(), Contains("\"weight/w\": 2 elements are not in any box"));
  }
  SECTION("a replica is passed twice") {
    auto state = state_of(2);
    state[1].tensors.push_back(state[0].tensors.back());
    CHECK_THAT(run.save(2, state).value(), Contains("\"weight/b\": the box at [0, 0] overlaps"));
  }
  SECTION("ranks disagree") {
    auto state = state_of(2);
    for (auto& tensor : state[0].tensors) tensor.global_shape[0] = 12;
    CHECK_THAT(run.save(2, state).value(), Contains("ranks disagree"));
  }
  REQUIRE_FALSE(run.ranks[0]->finish().has_value());
  std::vector<std::string> warnings;
  REQUIRE(find_newest_checkpoint(directory.path, warnings) == checkpoints / "step-00000001");
  REQUIRE(run.save(3) == std::nullopt);
  require_contents(checkpoints / "latest", 3);
  REQUIRE(names_in(checkpoints) == std::vector<std::string>{"latest", "step-00000001", "step-00000003"});
}

TEST_CASE("checkpoint: an abandoned save does not affect later ones", "[checkpoint]") {
  const TemporaryDirectory directory;
  Run run(directory.path, "s1");
  const auto state = state_of(1);
  run.ranks[0]->save(describe(1), state[0].tensors);  // waits for the others
  run.ranks[0]->give_up("rank 1: no room");
  CHECK_THAT(run.error_of(0).value(), Contains("rank 1: no room"));
  for (const int rank : {1, 2}) {
    run.ranks[static_cast<size_t>(rank)]->save(describe(1), state[static_cast<size_t>(rank)].tensors);
    run.error_of(rank);
  }
  const auto next = state_of(2);
  run.ranks[0]->save(describe(2), next[0].tensors);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others are late
  for (const size_t rank : {1, 2}) run.ranks[rank]->save(describe(2), next[rank].tensors);
  CHECK(run.error_of(0) == std::nullopt);
  require_contents(directory.path / "checkpoints/latest", 2);
}

TEST_CASE("checkpoint: a save that fails leaves no directory behind", "[checkpoint]") {
  const TemporaryDirectory directory;
  {
    Run run(directory.path, "s1");
    REQUIRE(run.save(1) == std::nullopt);
    fs::create_directories(directory.path / "checkpoints/step-00000002.s1-2.partial/rank-00001.safetensors.tmp");
    REQUIRE(run.save(2).has_value());
    for (const auto& rank : run.ranks) rank->finish();
  }
  REQUIRE(names_in(directory.path / "checkpoints") == std::vector<std::string>{"latest", "step-00000001"});
}

TEST_CASE("checkpoint: every save is reported once, with its cost", "[checkpoint]") {
  const TemporaryDirectory directory;
  const bool asynchronous = GENERATE(true, false);
  Run run(directory.path, "s1", asynchronous);
  const auto state = state_of(1);
  for (const int64_t step : {1, 2})  // the first report is not taken before the second save begins
    for (int rank = kRanks - 1; rank >= 0; --rank)
      run.ranks[static_cast<size_t>(rank)]->save(describe(step), state[static_cast<size_t>(rank)].tensors);
  for (const auto& rank : run.ranks) {
    for (const int64_t step : {1, 2}) {
      const auto report = rank->finish();
      REQUIRE(report.has_value());
      CHECK(report->step == step);
      CHECK(report->error == std::nullopt);
      CHECK(report->bytes > 0);
      CHECK(report->write_seconds > 0);
      CHECK(report->stall_seconds > 0);
      if (!asynchronous) CHECK(report->stall_seconds >= report->write_seconds);
    }
    CHECK_FALSE(rank->finish().has_value());
  }
}

TEST_CASE("checkpoint: the stall of a save contains the wait for the save before", "[checkpoint]") {
  RankState state;  // a file whose hash takes several times as long as its copy
  state.add("weight/w", DType::kF32, {1 << 12, 1 << 12}, 2, {{0, 0}, {1 << 12, 1 << 12}}, 1);
  for (int tries = 0; tries < 5; ++tries) {  // another program may have slowed the first save, which does not wait
    const TemporaryDirectory directory;
    CheckpointOptions options{directory.path / "checkpoints", "s1", 0, 1, 3, true, std::chrono::seconds(20), [] {}};
    options.audited = true;
    Checkpointer checkpointer(options);
    std::array<double, 2> seconds{}, stall{};
    for (const size_t save : {0, 1}) {
      const auto begin = std::chrono::steady_clock::now();
      checkpointer.save(describe(static_cast<int64_t>(save) + 1), state.tensors);
      seconds[save] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    for (const size_t save : {0, 1}) {
      const auto report = checkpointer.finish();
      REQUIRE(report.has_value());
      stall[save] = report->stall_seconds;
      CHECK(stall[save] <= seconds[save]);
    }
    if (seconds[1] < 3 * seconds[0]) continue;
    CHECK(stall[1] > seconds[1] / 2);
    return;
  }
  FAIL("no save waited for the one before");
}

TEST_CASE("checkpoint: a job that has lost its lock publishes nothing", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoints = directory.path / "checkpoints";
  REQUIRE(Run(directory.path, "s1").save(1) == std::nullopt);
  const int allowed = GENERATE(0, 1);
  int asked = 0;
  {
    Run late(directory.path, "s2", true, 3, [&] {
      if (asked++ == allowed) throw IoError("another job has the directory");
    });
    CHECK_THAT(late.save(2).value(), Contains("another job has the directory"));
  }
  CHECK(fs::read_symlink(checkpoints / "latest") == "step-00000001");
  CHECK(fs::exists(checkpoints / "step-00000002") == (allowed == 1));
  std::vector<std::string> warnings;
  CHECK(find_newest_checkpoint(directory.path, warnings) == checkpoints / "step-00000001");
  CHECK(names_in(checkpoints).size() == 2 + static_cast<size_t>(allowed));
}

TEST_CASE("checkpoint: an unreadable one does not count towards keep", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoints = directory.path / "checkpoints";
  Run run(directory.path, "s1", true, 2);
  for (const int64_t step : {10, 20}) REQUIRE(run.save(step) == std::nullopt);
  fs::resize_file(checkpoints / "step-00000020/rank-00002.safetensors", 100);
  REQUIRE(run.save(30) == std::nullopt);
  CHECK(names_in(checkpoints) == std::vector<std::string>{"latest", "step-00000010", "step-00000020", "step-00000030"});
  REQUIRE(run.save(40) == std::nullopt);
  CHECK(names_in(checkpoints) == std::vector<std::string>{"latest", "step-00000030", "step-00000040"});
}

TEST_CASE("checkpoint: unpublished leftovers of dead jobs are removed, a checkpoint being replaced is restored", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoints = directory.path / "checkpoints";
  remove_unpublished(checkpoints);  // a new run has none
  for (const int64_t step : {1, 2}) REQUIRE(Run(directory.path, "s1").save(step) == std::nullopt);
  for (const char* name : {"step-00000003.dead-1.partial", "step-00000002.dead-2.partial.old", "mine", "step-00000004.mine"})
    fs::create_directories(checkpoints / name / "inside");
  fs::create_symlink("step-00000003", checkpoints / "latest.dead");
  fs::rename(checkpoints / "step-00000001", checkpoints / "step-00000001.dead-3.partial.old");  // between the two renames of a replacement
  remove_unpublished(checkpoints);
  CHECK(names_in(checkpoints) == std::vector<std::string>{"latest", "mine", "step-00000001", "step-00000002", "step-00000004.mine"});
  require_contents(checkpoints / "step-00000001", 1);
}

TEST_CASE("checkpoint: free space is checked before a save", "[checkpoint]") {
  const TemporaryDirectory directory;
  CHECK(free_space_error(directory.path, 1000) == std::nullopt);
  CHECK(free_space_error(directory.path / "not/yet/there", 1000) == std::nullopt);
  CHECK(free_space_error("relative", 1000) == std::nullopt);
  CHECK_THAT(free_space_error(directory.path / "not/yet/there", int64_t{1} << 60).value(),
             Contains("not/yet/there: a checkpoint needs") && Contains("are free"));
}

TEST_CASE("checkpoint: damage is detected and named, and the previous one is used", "[checkpoint]") {
  const TemporaryDirectory directory;
  const fs::path checkpoints = directory.path / "checkpoints";
  Run run(directory.path, "s1");
  REQUIRE(run.save(1) == std::nullopt);
  REQUIRE(run.save(2) == std::nullopt);
  const fs::path newest = checkpoints / "step-00000002", shard = newest / "rank-00001.safetensors", manifest = newest / "manifest.json";
  const auto require_fallback = [&](const std::string& named) {
    std::vector<std::string> warnings;
    REQUIRE(find_newest_checkpoint(directory.path, warnings) == checkpoints / "step-00000001");
    REQUIRE(warnings.size() == 1);
    CHECK_THAT(warnings[0], Contains(named));
  };
  SECTION("no manifest") {
    fs::remove(manifest);
    require_fallback("manifest.json is missing");
  }
  SECTION("torn manifest") {
    fs::resize_file(manifest, fs::file_size(manifest) / 2);
    require_fallback("manifest.json: damaged");
  }
  SECTION("a shard cut short") {
    fs::resize_file(shard, fs::file_size(shard) - 1);
    require_fallback("rank-00001.safetensors: has");
  }
  SECTION("a shard missing") {
    fs::remove(shard);
    require_fallback("rank-00001.safetensors");
  }
  SECTION("a flipped byte of data") {
    overwrite(shard, static_cast<int64_t>(fs::file_size(shard)) - 1, "?");
    CHECK_THAT(data_error([&] { CheckpointReader(newest).verify_digests(); }), Contains("rank-00001.safetensors: tensor \"weight/w\": damaged"));
  }
  SECTION("no readable checkpoint left: an error, not a new start") {
    for (const auto& step : fs::directory_iterator(newest.parent_path()))
      if (step.is_directory() && !step.is_symlink()) fs::remove(step.path() / "manifest.json");
    std::vector<std::string> warnings;
    CHECK_THAT(data_error([&] { find_newest_checkpoint(newest.parent_path().parent_path(), warnings); }), Contains("no checkpoint in"));
  }
  SECTION("a renamed tensor in a shard") {
    const std::string text = read_text(shard);
    overwrite(shard, static_cast<int64_t>(text.find("weight/w@3,0")), "weight/x@3,0");
    std::vector<float> row(5);
    CHECK_THAT(data_error([&] {
                 CheckpointReader(newest).read("weight/w", {{3, 0}, {1, 5}}, DType::kF32, row.data());
               }),
               Contains("rank-00001.safetensors") && Contains("digest"));
  }
}

TEST_CASE("checkpoint: a run directory without checkpoints has no newest one", "[checkpoint]") {
  const TemporaryDirectory directory;
  std::vector<std::string> warnings;
  REQUIRE(find_newest_checkpoint(directory.path, warnings) == std::nullopt);
  REQUIRE(find_newest_checkpoint(directory.path / "nowhere", warnings) == std::nullopt);
  REQUIRE(warnings.empty());
}

namespace {

/// Runs `body` in a child that is killed at its n-th system-call stop. Returns true if the child finished first.
template <class Body>
bool killed_at_call(int64_t n, Body&& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(3);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  for (int64_t stops = 0; WIFSTOPPED(status) && stops < n; ++stops) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    REQUIRE(::waitpid(child, &status, 0) == child);
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, &status, 0) == child);
  }
  REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));  // 3: ptrace is not permitted
  return WIFEXITED(status);
}

}  // namespace

TEST_CASE("checkpoint: after a kill at any system call a complete checkpoint exists", "[checkpoint]") {
  bool done = false;
  int64_t before = 0, after = 0;
  for (int64_t call = 1; !done; ++call) {
    const TemporaryDirectory directory;
    REQUIRE(Run(directory.path, "s1", false, 1).save(1) == std::nullopt);
    done = killed_at_call(call, [&] { Run(directory.path, "s2", false, 1).save(2); });
    std::vector<std::string> warnings;
    const auto newest = find_newest_checkpoint(directory.path, warnings);
    INFO("killed at stop " << call);
    REQUIRE(newest.has_value());
    const int64_t step = CheckpointReader(*newest).description().step;
    (step == 1 ? before : after) += 1;
    require_contents(*newest, step);
    remove_unpublished(directory.path / "checkpoints");  // as the next job would
    REQUIRE(Run(directory.path, "s3", false, 1).save(2) == std::nullopt);
    require_contents(directory.path / "checkpoints/latest", 2);
    REQUIRE(names_in(directory.path / "checkpoints") == std::vector<std::string>{"latest", "step-00000002"});
  }
  REQUIRE(before > 50);
  REQUIRE(after > 2);
}
