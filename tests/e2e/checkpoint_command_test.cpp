// `checkpoint inspect` and `checkpoint verify` on a checkpoint, on a run directory, and on other paths.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

void flip(const fs::path& path, size_t at) {
  std::string bytes = read_file(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
  write_file(path, bytes);
}

}  // namespace

TEST_CASE("checkpoint command: inspect and verify") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check(run(directory, {"checkpoint", "verify", "run"}), 66, "run: does not exist");
  // Two replicas: only one of the ranks saves.
  REQUIRE(run(directory, Arguments{"train", "run.yaml"} + layout(1, 1, 2, 0) +
                             sets({"training.steps=4", "training.schedule.warmup_steps=0", "checkpoint.every=2"}))
              .code == 0);

  for (const std::string path : {"run", "run/", "run/checkpoints/latest", "run/checkpoints/step-00000004"}) {
    INFO(path);
    const Outcome inspected = run(directory, {"checkpoint", "inspect", path, "--json"});
    check(inspected, 0, "step-00000004");
    const nlohmann::json facts = nlohmann::json::parse(inspected.out);
    CHECK(facts["step"] == 4);
    CHECK(facts["optimizer_steps"] == 4);
    CHECK(facts["tokens"] == 4 * 8 * 16);
    CHECK(facts["model"]["layers"] == 4);
    CHECK(facts["layout"].is_object());
    CHECK(facts["dtype"] == nlohmann::json{"F32"});
    CHECK(facts["parameters"] > 10000);
    int64_t bytes = 0;
    for (const auto& file : facts["files"]) {
      CHECK(file["bytes"] == fs::file_size(directory / "run/checkpoints/latest" / file["file"].get<std::string>()));
      bytes += file["bytes"].get<int64_t>();
    }
    CHECK(facts["bytes"] == bytes);
    CHECK(facts["tensors"][0]["shape"].is_array());
    CHECK(facts["tensors"].size() % 3 == 0);  // weights and two moments

    const Outcome verified = run(directory, {"checkpoint", "verify", path});
    check(verified, 0, "complete: " + std::to_string(facts["tensors"].size()) + " tensors, " + std::to_string(bytes) + " bytes in " + "1 file\n");
    CHECK_THAT(verified.err, Contains("verifying run/checkpoints/step-00000004") && !Contains("\r"));
  }
  const Outcome table = run(directory, {"checkpoint", "inspect", "run"});
  check(table, 0, "checkpoint       run/checkpoints/step-00000004\n");
  CHECK_THAT(table.out, Contains("layers 4") && Contains("weight/embedding.weight") && Contains("rank-00000.safetensors") && Contains("xxh3-128:"));

  const fs::path newest = directory / "run/checkpoints/step-00000004", shard = newest / "rank-00000.safetensors";
  const size_t last = fs::file_size(shard) - 1;
  flip(shard, last);
  const Outcome damaged = run(directory, {"checkpoint", "verify", "run"});
  check(damaged, 65, "step-00000004/rank-00000.safetensors: tensor \"");
  CHECK(damaged.out.empty());
  check(run(directory, {"checkpoint", "verify", "run/checkpoints/step-00000002"}), 0, "complete: ");
  check(run(directory, {"checkpoint", "inspect", "run"}), 0, "step             4\n");  // reads only the manifest
  flip(shard, last);
  flip(shard, 20);
  check(run(directory, {"checkpoint", "verify", "run"}), 65, "step-00000004/rank-00000.safetensors: ");
  flip(shard, 20);
  flip(newest / "manifest.json", 500);
  for (const char* verb : {"inspect", "verify"}) check(run(directory, {"checkpoint", verb, "run"}), 65, "step-00000004/manifest.json: damaged");
  fs::remove(newest / "manifest.json");
  for (const char* verb : {"inspect", "verify"}) check(run(directory, {"checkpoint", verb, "run"}), 65, "is incomplete: manifest.json is missing");
}

TEST_CASE("checkpoint command: paths that are not a checkpoint are refused") {
  TemporaryDirectory directory;
  fs::create_directories(directory / "run/checkpoints");
  write_file(directory / "file", "x");
  for (const char* verb : {"inspect", "verify"}) {
    check(run(directory, {"checkpoint", verb, "nowhere"}), 66, "nowhere: does not exist; expected a checkpoint or a run directory");
    check(run(directory, {"checkpoint", verb, "file"}), 65, "file: not a directory");
    check(run(directory, {"checkpoint", verb, "run"}), 66, "run: this run has no checkpoint yet");
    check(run(directory, {"checkpoint", verb, "."}), 65, "manifest.json is missing");
    check(run(directory, {"checkpoint", verb}), 64, "directory is required");
  }
  check(run(directory, {"checkpoint"}), 64, "see trireme --help");
}

}  // namespace trireme::test
