// `checkpoint export` after training on several ranks, and when it is killed or the disk is full.
#include <algorithm>
#include <csignal>
#include <set>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

/// Trains a small model for a few steps, so that every weight differs from its initial value.
void train(const TemporaryDirectory& directory, const Arguments& more) {
  must(run(directory,
           Arguments{"train", "run.yaml"} +
               sets({"training.steps=2", "training.schedule.warmup_steps=0", "model.dropout=0", "training.evaluate.every=0", "data.validation=[]"}) +
               more));
}

/// Runs `checkpoint export` of "run" to "out" under the shim, which counts system calls in the directory "place".
Outcome disturbed(const TemporaryDirectory& directory, const Arguments& settings, const Arguments& more) {
  Arguments environment{"env", "LD_PRELOAD=" + shim("io"), "ASAN_OPTIONS=verify_asan_link_order=0",
                        "TRIREME_SHIM_DIRECTORY=" + fs::canonical(directory / "place").string()};
  for (const std::string& setting : settings) environment.push_back("TRIREME_SHIM_" + setting);
  return Process(environment + Arguments{kBinary} + exporting("run", "place/out") + more, directory.path()).wait();
}

}  // namespace

TEST_CASE("export: the folder of a checkpoint from eight ranks equals that of the same weights in one file") {
  TemporaryDirectory directory;
  prepare_run(directory);
  train(directory, layout(2, 2, 2, 3) + sets({"parallel.sequence_parallel=true"}));
  const Outcome exported = run(directory, exporting("run", "out", {"--write-logits", "logits.json"}));
  check(exported, 0, "wrote out from run/checkpoints/step-00000002: LlamaForCausalLM, ");
  CHECK_THAT(exported.out, Contains("bit for bit\n"));
  CHECK_THAT(exported.err, !Contains("\r"));
  const json logits = json::parse(read_file(directory / "logits.json"));
  CHECK(logits["tokens"].size() == 16);
  CHECK(logits["logits"].size() == 16);
  CHECK(logits["logits"][15].size() == 256);

  must(run(directory, {"checkpoint", "import", "--format", "hf", "--output", "one", "out"}));
  must(run(directory, exporting("one", "again")));
  must(run(directory, exporting("out", "copy")));
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    INFO(file);
    CHECK(read_file(directory / "copy" / file) == read_file(directory / "out" / file));
    if (std::string(file) != "config.json") CHECK(read_file(directory / "again" / file) == read_file(directory / "out" / file));
  }

  const Outcome half = run(directory, exporting("run", "half", {"--dtype", "bf16", "--max-shard-size", "4kB"}));
  check(half, 0, "with its weights rounded to bf16, bit for bit; rounding the weights changed them by up to ");
  CHECK(names_in(directory / "half").contains("model.safetensors.index.json"));
  check(run(directory, exporting("run", "unchecked", {"--no-check"})), 0, "not checked: --no-check");
}

TEST_CASE("export: a run with embedding and head on stages of their own, continued in other splits and back") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto part = [&](const Arguments& split, int last) {
    train(directory, split + sets({"training.steps=8"}) + Arguments{"--max-steps", std::to_string(last)});
  };
  part(layout(1, 3, 2, 3) + sets({"parallel.layers_per_stage=[0,4,0]"}), 2);
  check(run(directory, exporting("run", "first")), 0, "bit for bit\n");
  part(layout(1, 2, 1, 0) + sets({"parallel.layers_per_stage=[3,1]"}), 4);
  part(layout(2, 2, 1, 0) + sets({"parallel.layers_per_stage=[0,2,2,0]", "parallel.schedule=zb_v"}), 6);
  part(layout(1, 2, 2, 1) + sets({"parallel.layers_per_stage=[4,0]", "parallel.schedule=zb_h1"}), 8);
  check(run(directory, exporting("run", "last")), 0, "bit for bit\n");
  train(directory, sets({"training.steps=8", "run.directory=one"}));
  const std::vector<double> split = losses(directory / "run", 8), one = losses(directory / "one", 8);
  for (size_t step = 0; step < one.size(); ++step) CHECK(split[step] == Approx(one[step]).epsilon(1e-4));
}

TEST_CASE("export: GPT-2, Mistral and the Qwen models, checked") {
  const std::vector<std::pair<std::string, Arguments>> models{{"GPT2LMHeadModel", {"model.architecture=gpt2", "model.kv_heads=4"}},
                                                              {"Qwen2ForCausalLM", {"model.qkv_bias=true", "model.tied_embeddings=false"}},
                                                              {"Qwen3ForCausalLM", {"model.qk_norm=true", "model.head_size=8"}},
                                                              {"MistralForCausalLM", {"model.window=6"}}};
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const auto& [name, keys] : models) {
    train(directory, sets(keys) + sets({"run.directory=" + name}));
    check(run(directory, exporting(name, name + "-out")), 0, name);
  }
}

TEST_CASE("export: invalid requests are refused and leave nothing behind") {
  TemporaryDirectory directory;
  prepare_run(directory);
  train(directory, {});
  train(directory, sets({"model.qkv_bias=true", "model.qk_norm=true", "run.directory=both"}));
  fs::create_directory(directory / "there");
  const std::vector<std::string> before = directory.listing();
  check(run(directory, exporting("run", "there")), 64, "--output=there: exists; remove it or name another directory");
  check(run(directory, exporting("both", "out")), 64, "model.qkv_bias and model.qk_norm");
  check(run(directory, exporting("nowhere", "out")), 66, "nowhere");
  check(run(directory, exporting("run", "out", {"--dtype", "fp8"})), 64, "--dtype");
  check(run(directory, exporting("run", "out", {"--max-shard-size", "0"})), 64, "--max-shard-size");
  check(run(directory, exporting("run", "out", {"--no-check", "--write-logits", "x"})), 64, "--write-logits");
  check(run(directory, exporting("run", "out", {"--write-logits", "nowhere/x"})), 74, "nowhere/x");
  check(run(directory, exporting("run", "out", {"--write-logits", "there"})), 74, "there");
  check(run(directory, {"checkpoint", "export", "--format", "onnx", "--output", "out", "run"}), 64, "--format");
  check(run(directory, {"checkpoint", "export", "--output", "out", "run"}), 64, "--format");
  CHECK(directory.changes_since(before) == "");

  // A weight damaged on disk.
  const fs::path shard = directory / "run/checkpoints/step-00000002/rank-00000.safetensors";
  std::string bytes = read_file(shard);
  const json manifest = json::parse(read_file(shard.parent_path() / "manifest.json"));
  char& byte = bytes.at(manifest["tensors"]["weight/final_norm.weight"]["boxes"][0]["bytes"][0].get<size_t>());
  byte = static_cast<char>(byte ^ 1);
  write_file(shard, bytes);
  check(run(directory, exporting("run", "out")), 65, "damaged");
  CHECK(!fs::exists(directory / "out"));
  CHECK(!fs::exists(directory / "out.partial"));
}

TEST_CASE("export: killed at a system call it leaves no folder, and the next export is complete") {
  TemporaryDirectory directory;
  prepare_run(directory);
  train(directory, {});
  fs::create_directory(directory / "place");
  must(disturbed(directory, {"COUNT_FILE=" + (directory / "count").string()}, {"--no-check"}));
  const std::set<std::string> files = names_in(directory / "place/out");
  fs::remove_all(directory / "place/out");
  const int calls = std::stoi(read_file(directory / "count"));
  REQUIRE(calls > 20);
  for (const int call : {2, 5, calls / 2, calls - 6, calls - 4, calls - 2, calls}) {  // the last calls rename the directory and sync its parent
    CAPTURE(call, calls);
    CHECK(disturbed(directory, {"KILL_AT=" + std::to_string(call)}, {"--no-check"}).code == 128 + SIGKILL);
    const bool whole = fs::exists(directory / "place/out");
    if (whole) CHECK(names_in(directory / "place/out") == files);
    CHECK((!whole || call > calls - 6));
    if (!whole) must(disturbed(directory, {}, {}));
    CHECK(names_in(directory / "place") == std::set<std::string>{"out"});
    fs::remove_all(directory / "place/out");
  }
}

TEST_CASE("export: a disk that is full or fails at a system call gives one message and leaves nothing behind") {
  TemporaryDirectory directory;
  prepare_run(directory);
  train(directory, {});
  fs::create_directory(directory / "place");
  must(disturbed(directory, {"COUNT_FILE=" + (directory / "count").string()}, {"--no-check"}));
  fs::remove_all(directory / "place/out");
  const int calls = std::stoi(read_file(directory / "count"));
  const std::vector<std::string> errors{"ENOSPC", "EDQUOT", "EIO", "EROFS"};
  size_t next = 0;
  for (const int call : {1, 2, 3, 4, 9, calls / 2, calls - 8}) {
    CAPTURE(call, calls);
    const Outcome outcome = disturbed(directory, {"FAIL_AT=" + std::to_string(call), "ERRNO=" + errors[next++ % errors.size()]}, {"--no-check"});
    check(outcome, 74, "place/out");
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK(names_in(directory / "place").empty());
  }
}

TEST_CASE("export: a folder with other logits is reported, and kept") {
  TemporaryDirectory directory;
  prepare_run(directory);
  train(directory, {});
  fs::create_directory(directory / "place");
  const Outcome outcome = disturbed(directory, {"DAMAGE=1"}, {});  // changes the last byte of the last weight
  check(outcome, 70, "differ from those of run/checkpoints/step-00000002 by up to ");
  CHECK(fs::exists(directory / "place/out/model.safetensors"));
}

}  // namespace trireme::test
