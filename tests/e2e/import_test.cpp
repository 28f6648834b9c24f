// Import of a Hugging Face folder as a checkpoint, and training that starts from either.
#include <cmath>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/raw_safetensors.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

const fs::path kGolden = in_checkout("tests/golden/huggingface");

/// Creates the folder "NAME", the checkpoint "NAME.imported", and NAME.yaml, which trains from the folder. The vocabularies of the golden models
/// `llama_bf16` and `gpt2_tied` are large enough for the bytes tokenizer.
void prepare(const TemporaryDirectory& directory, const std::string& name) {
  if (!fs::exists(directory / "train")) build_data(directory);
  fs::copy(kGolden / name, directory / name, fs::copy_options::recursive);
  check(run(directory, {"checkpoint", "import", "--format", "hf", "--output", name + ".imported", name}), 0, name + ".imported/model.yaml");
  write_file(directory / (name + ".yaml"), read_file(directory / (name + ".imported/model.yaml")) + R"(
run: {directory: run, device: cpu}
training:
  steps: 3
  initial_weights: )" + name + R"(
  sequence_length: 16
  global_batch_size: 8
  optimizer: {learning_rate: 1.0e-2}
  schedule: {name: constant}
  evaluate: {every: 3}
data: {train: [train], validation: [validation]}
checkpoint: {every: 2}
)");
}

Arguments from(const std::string& weights, const std::string& run_directory) {
  return sets({"training.initial_weights=" + weights, "run.directory=" + run_directory});
}

std::string validation_loss_of(const TemporaryDirectory& directory, const std::string& name, const std::string& weights) {
  return must(run(directory, {"eval", name + ".yaml", "--checkpoint", weights, "--json"})).out;
}

}  // namespace

TEST_CASE("import: a complete checkpoint of the folder's weights, with the matching model section") {
  TemporaryDirectory directory;
  prepare(directory, "llama_bf16");
  const std::string model = read_file(directory / "llama_bf16.imported/model.yaml");
  for (const char* line : {"model:\n", "\n  architecture: llama\n", "\n  vocab_size: 259\n", "\n  kv_heads: 2\n", "\n  tied_embeddings: false\n"})
    CHECK_THAT(model, Contains(line));
  CHECK_THAT(model, !Contains("\n  steps") && !Contains("training"));
  check(run(directory, {"checkpoint", "verify", "llama_bf16.imported"}), 0, "complete: 21 tensors");
  const Outcome inspected = must(run(directory, {"checkpoint", "inspect", "llama_bf16.imported", "--json"}));
  const nlohmann::json facts = nlohmann::json::parse(inspected.out);
  CHECK(facts["step"] == 0);
  CHECK(facts["tokenizer"]["name"] == "");
  CHECK(facts["dtype"] == nlohmann::json{"F32"});
  // bf16 is the upper half of fp32, so the conversion is exact.
  const RawTensors theirs = read_raw(directory / "llama_bf16/model.safetensors"),
                   ours = read_raw(directory / "llama_bf16.imported/rank-00000.safetensors");
  const RawTensor &narrow = theirs.at("model.layers.1.mlp.down_proj.weight"), &wide = ours.at("weight/blocks.1.mlp.down.weight@0,0");
  REQUIRE(narrow.dtype == "BF16");
  REQUIRE(wide.data.size() == 2 * narrow.data.size());
  std::string expected;
  for (size_t i = 0; i < narrow.data.size(); i += 2) expected += std::string(2, '\0') + narrow.data.substr(i, 2);
  CHECK(wide.data == expected);
  CHECK(wide.shape == narrow.shape);
}

TEST_CASE("training starts from a folder as from the checkpoint imported from it, in any layout") {
  for (const std::string name : {"llama_bf16", "gpt2_tied"}) {
    TemporaryDirectory directory;
    prepare(directory, name);
    const std::string config = name + ".yaml";
    CHECK(validation_loss_of(directory, name, name) == validation_loss_of(directory, name, name + ".imported"));
    const Outcome started = must(run(directory, {"train", config}));
    CHECK_THAT(started.err, Contains("starting from the weights in " + name + "\n"));
    must(run(directory, Arguments{"train", config} + from(name + ".imported", "imported")));
    const std::vector<double> expected = losses(directory / "run", 3);
    CHECK(losses(directory / "imported", 3) == expected);
    must(run(directory, Arguments{"train", config} + from("none", "random")));
    CHECK(std::abs(losses(directory / "random", 3)[0] - expected[0]) > 0.01);
    for (const std::string& weights : {name, name + ".imported"}) {
      const std::string place = weights + ".split";
      must(run(directory, Arguments{"train", config} + from(weights, place) + layout(2, 2, 2, 3)));
      const std::vector<double> split = losses(directory / place, 3);
      for (size_t step = 0; step < 3; ++step) CHECK(split[step] == Approx(expected[step]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a run with initial weights resumes from its own checkpoints, and only as the same run") {
  TemporaryDirectory directory;
  prepare(directory, "llama_bf16");
  const Arguments train = {"train", "llama_bf16.yaml"};
  must(run(directory, train + sets({"run.directory=through"})));
  must(run(directory, train + Arguments{"--max-steps", "2"}));
  fs::copy(directory / "llama_bf16", directory / "other", fs::copy_options::recursive);
  auto before = directory.listing();
  check(run(directory, train + sets({"training.initial_weights=other"})), 64, "checkpoint: training.initial_weights: llama_bf16");
  check(run(directory, train + sets({"training.initial_weights=none"})), 64, "now:        training.initial_weights: none");
  check(run(directory, train + from("other", "new") + Arguments{"--resume", "run/checkpoints/step-00000002"}), 64,
        "now:        training.initial_weights: other");
  check(run(directory, train + sets({"run.directory=new"}) + Arguments{"--resume", "llama_bf16.imported"}), 64,
        "cannot resume from llama_bf16.imported: it contains only weights, not the state of a run; to start a run from them, use --set "
        "training.initial_weights=llama_bf16.imported");
  CHECK(directory.changes_since(before).empty());
  fs::remove_all(directory / "llama_bf16");
  must(run(directory, train));
  CHECK(losses(directory / "run", 3) == losses(directory / "through", 3));
}

TEST_CASE("initial weights of a different model are refused before anything is written") {
  TemporaryDirectory directory;
  prepare(directory, "llama_bf16");
  const Arguments train = {"train", "llama_bf16.yaml"};
  must(run(directory, train + from("none", "bytes") + sets({"model.vocab_size=256", "model.tied_embeddings=true"}) + Arguments{"--max-steps", "1"}));
  must(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "exported", "bytes"}));
  fs::copy(directory / "exported", directory / "swapped");
  nlohmann::json tokenizer = nlohmann::json::parse(read_file(directory / "exported/tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["A"], tokenizer["model"]["vocab"]["B"]);
  write_file(directory / "swapped/tokenizer.json", tokenizer.dump());
  fs::create_directory(directory / "empty");
  const auto before = directory.listing();
  // A single rank detects it when it runs, several ranks before they are started.
  for (const Arguments& degrees : {Arguments{}, layout(2, 1, 1, 0)}) {
    check(run(directory, train + degrees + sets({"model.ffn_size=64", "model.tied_embeddings=true", "model.rope_theta=500"})), 64,
          "training.initial_weights=llama_bf16: model differs from the configured one; allowed a configuration with\n"
          "model:\n  ffn_size: 48\n  tied_embeddings: false\n  rope_theta: 10000\n");
    check(run(directory, train + degrees + sets({"model.max_positions=65"})), 64, "model:\n  max_positions: 64\n");
    check(run(directory, train + degrees + from("nothing", "run")), 66, "nothing: does not exist");
    check(run(directory, train + degrees + from("empty", "run")), 65,
          "empty is incomplete: manifest.json is missing; nor is it a Hugging Face folder");
    check(run(directory, train + degrees + from("swapped", "run") + sets({"model.vocab_size=256", "model.tied_embeddings=true"})), 64,
          "trained with a different tokenizer than data.tokenizer=bytes; allowed swapped/tokenizer.json");
    CHECK(directory.changes_since(before).empty());
  }
  // The same ids from another file.
  must(run(directory, train + from("exported", "went_on") + sets({"model.vocab_size=256", "model.tied_embeddings=true"})));
  // A damaged tensor is refused, too.
  const fs::path weights = directory / "llama_bf16.imported/rank-00000.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(weights, bytes);
  check(run(directory, train + from("llama_bf16.imported", "run")), 65, "rank-00000.safetensors: tensor \"weight/");
  CHECK_FALSE(fs::exists(directory / "run"));
}

TEST_CASE("import refuses invalid input and an existing output, and leaves nothing behind") {
  TemporaryDirectory directory;
  prepare(directory, "llama_bf16");
  const auto import = [&](const std::string& folder, const std::string& output) {
    return run(directory, {"checkpoint", "import", "--format", "hf", "--output", output, folder});
  };
  fs::copy(directory / "llama_bf16", directory / "short", fs::copy_options::recursive);
  fs::resize_file(directory / "short/model.safetensors", fs::file_size(directory / "short/model.safetensors") - 1);
  fs::copy(directory / "llama_bf16", directory / "mamba", fs::copy_options::recursive);
  write_file(directory / "mamba/config.json", R"({"model_type": "mamba"})");
  const auto before = directory.listing();
  check(import("nothing", "out"), 66, "nothing: does not exist");
  check(import("llama_bf16", "llama_bf16.imported"), 64, "--output=llama_bf16.imported: exists");
  check(import("llama_bf16.imported", "out"), 65, "llama_bf16.imported: is already a checkpoint");
  check(import("short", "out"), 65, "short/model.safetensors");
  check(import("mamba", "out"), 65, "mamba/config.json: \"model_type\" is \"mamba\"");
  check(run(directory, {"checkpoint", "import", "--output", "out", "llama_bf16"}), 64, "--format");
  check(run(directory, {"checkpoint", "import", "--format", "gguf", "--output", "out", "llama_bf16"}), 64, "--format");
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("weights that are not finite are refused by name, by import, by export and by a run that starts from them") {
  TemporaryDirectory directory;
  prepare(directory, "llama_bf16");
  RawTensors tensors = read_raw(directory / "llama_bf16/model.safetensors");
  const auto spoil = [&](const std::string& name, size_t element, const std::string& bits) {
    RawTensor& tensor = tensors.at(name);
    REQUIRE(tensor.dtype == "BF16");
    tensor.data.replace(2 * element, 2, bits);
  };
  spoil("model.layers.1.mlp.down_proj.weight", 0, "\xc0\x7f");   // NaN
  spoil("model.layers.1.mlp.down_proj.weight", 77, "\x80\xff");  // minus infinity
  spoil("model.norm.weight", 3, std::string("\x80\x7f"));
  write_raw(directory / "llama_bf16/model.safetensors", tensors);
  const std::string refusal = "llama_bf16: contains non-finite values: blocks.1.mlp.down.weight (2 values), final_norm.weight (1 value); ";
  const auto before = directory.listing();
  const auto refuses = [&](const Arguments& arguments) {
    const Outcome outcome = run(directory, arguments);
    INFO(outcome.err);
    CHECK(outcome.code == 65);
    const size_t at = outcome.err.find(refusal);
    CHECK(at != std::string::npos);
    CHECK(outcome.err.find("non-finite", at + refusal.size()) == std::string::npos);  // one message
  };
  refuses({"checkpoint", "import", "--format", "hf", "--output", "out", "llama_bf16"});
  for (const std::string type : {"fp32", "bf16"})
    refuses({"checkpoint", "export", "--format", "hf", "--output", "out", "--dtype", type, "llama_bf16"});
  CHECK(directory.changes_since(before).empty());
  for (const Arguments& degrees : {layout(1, 1, 1, 0), layout(2, 1, 2, 0), layout(1, 1, 2, 3)}) {
    fs::remove_all(directory / "run");
    refuses(Arguments{"train", "llama_bf16.yaml"} + degrees);
    CHECK_FALSE(fs::exists(directory / "run/checkpoints/latest"));
  }
}

TEST_CASE("a folder with an unsupported tokenizer is reported, and its weights are read") {
  TemporaryDirectory directory;
  prepare(directory, "llama_bf16");
  write_file(directory / "llama_bf16/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  const Outcome imported = must(run(directory, {"checkpoint", "import", "--format", "hf", "--output", "out", "llama_bf16"}));
  CHECK_THAT(imported.err, Contains("warning: llama_bf16/tokenizer.json: ") && Contains("; the checkpoint has no tokenizer\n"));
  CHECK(fs::exists(directory / "out/manifest.json"));
  CHECK_FALSE(fs::exists(directory / "out/tokenizer.json"));
  const Outcome started = must(run(directory, {"train", "llama_bf16.yaml"}));
  CHECK_THAT(started.err, Contains("warning: llama_bf16/tokenizer.json: ") && Contains("; not compared with data.tokenizer\n"));
}

TEST_CASE("import copies the tokenizer of the folder, and generate and eval accept the folder itself") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(run(directory, Arguments{"train", "run.yaml"} + sets({"model.dropout=0"})));
  must(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "folder", "run"}));
  must(run(directory, {"checkpoint", "import", "--format", "hf", "--output", "back", "folder"}));
  CHECK(read_file(directory / "back/tokenizer.json") == read_file(directory / "folder/tokenizer.json"));
  const auto text = [&](const std::string& weights) {
    return must(run(directory, {"generate", "--checkpoint", weights, "--prompt", "Ship", "--max-tokens", "20", "--temperature", "0"})).out;
  };
  const std::string expected = text("run");
  CHECK(text("folder") == expected);
  CHECK(text("back") == expected);
  // Import restores the same bits.
  const auto weights = [&](const std::string& checkpoint) {
    RawTensors tensors = read_raw(directory / (checkpoint + "/rank-00000.safetensors"));
    std::erase_if(tensors, [](const auto& tensor) { return !tensor.first.starts_with("weight/"); });
    return tensors;
  };
  CHECK(weights("run/checkpoints/latest") == weights("back"));
}

}  // namespace trireme::test
