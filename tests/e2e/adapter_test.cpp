// Adapters from the command line: a run on a model folder, its adapters as a folder of PEFT, runs that train them further, and the merged model.
#include <cmath>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

/// The folder "base", and run.yaml, which trains on it.
void prepare_adapter_run(const TemporaryDirectory& directory) {
  build_data(directory);
  fs::copy(in_checkout("tests/golden/huggingface/llama_bf16"), directory / "base", fs::copy_options::recursive);
  must(run(directory, {"checkpoint", "import", "--format", "hf", "--output", "imported", "base"}));
  write_file(directory / "run.yaml", read_file(directory / "imported/model.yaml") + R"(
run: {directory: lora, device: cpu}
training:
  steps: 3
  initial_weights: base
  sequence_length: 16
  global_batch_size: 8
  optimizer: {learning_rate: 1.0e-2}
  schedule: {name: constant}
data: {train: [train], validation: [validation]}
)");
}

double loss_of(const TemporaryDirectory& directory, const std::string& weights) {
  return nlohmann::json::parse(must(run(directory, {"eval", "run.yaml", "--checkpoint", weights, "--json"})).out)["validation_loss"];
}

Outcome train_adapters(const TemporaryDirectory& directory, std::vector<std::string> settings) {
  return run(directory, Arguments{"train", "run.yaml"} + sets(std::move(settings)));
}

Outcome export_as(const TemporaryDirectory& directory, const std::string& format, const std::string& from, const std::string& to,
                  const Arguments& more = {}) {
  return run(directory, Arguments{"checkpoint", "export", "--format", format, "--output", to, from} + more);
}

}  // namespace

TEST_CASE("adapter: a run's adapters are a folder of PEFT with the run's loss, and the merged model has it, too") {
  TemporaryDirectory directory;
  prepare_adapter_run(directory);
  CHECK_THAT(must(train_adapters(directory, {"adapter.rank=2"})).err, Contains("starting from the weights in base"));
  const double trained = loss_of(directory, "lora");
  CHECK(trained != loss_of(directory, "base"));
  check(export_as(directory, "peft", "lora", "adapter"), 0, "adapters of 14 layers in fp32");
  CHECK(loss_of(directory, "adapter") == trained);
  must(run(directory, {"checkpoint", "import", "--format", "hf", "--output", "adapter-imported", "adapter"}));
  CHECK(loss_of(directory, "adapter-imported") == trained);
  CHECK_THAT(read_file(directory / "adapter-imported/model.yaml"), Contains("adapter:\n  rank: 2\n"));
  check(run(directory, {"generate", "--checkpoint", "adapter", "--prompt", "It", "--max-tokens", "4"}), 66, "base/: contains neither tokenizer.json");
  check(export_as(directory, "hf", "lora", "merged"), 0, "merging the adapters changed them by up to");
  CHECK(std::abs(loss_of(directory, "merged") - trained) < 1e-5 * trained);
  check(export_as(directory, "hf", "adapter", "merged-too"), 0, "with its adapters merged");
  fs::copy(directory / "merged/tokenizer.json", directory / "base/tokenizer.json");
  must(run(directory, {"generate", "--checkpoint", "adapter", "--prompt", "It", "--max-tokens", "4", "--tensor", "2"}));
  CHECK(read_file(directory / "merged-too/model.safetensors") == read_file(directory / "merged/model.safetensors"));
}

TEST_CASE("adapter: a run trains the adapters of its initial weights further, merges them, or refuses others") {
  TemporaryDirectory directory;
  prepare_adapter_run(directory);
  must(train_adapters(directory, {"adapter.rank=2", "adapter.targets=[query, down]"}));
  must(export_as(directory, "peft", "lora", "adapter"));
  const double trained = loss_of(directory, "lora");
  for (const std::string from : {"lora", "adapter"}) {
    INFO(from);
    const auto settings = [&](const std::string& name, std::vector<std::string> more) {
      more.insert(more.end(), {"training.initial_weights=" + from, "run.directory=" + name + "-" + from, "training.optimizer.learning_rate=1e-12"});
      return more;
    };
    must(train_adapters(directory, settings("on", {"adapter.rank=2", "adapter.targets=[query, down]"})));
    CHECK(loss_of(directory, "on-" + from) == Approx(trained).epsilon(1e-5));
    CHECK_THAT(must(train_adapters(directory, settings("merged", {}))).err, Contains("with its adapters merged"));
    CHECK(loss_of(directory, "merged-" + from) == Approx(trained).epsilon(1e-5));
    for (const std::string other : {"adapter.rank=3", "adapter.alpha=3", "adapter.targets=[query]"}) {
      std::vector<std::string> changed{"adapter.rank=2", "adapter.targets=[query, down]", other};
      if (other == "adapter.rank=3") changed.erase(changed.begin());
      if (other == "adapter.targets=[query]") changed.erase(changed.begin() + 1);
      check(train_adapters(directory, settings("other", changed)), 64, "its adapters are not those of the section adapter");
    }
  }
  // The base stays known.
  check(export_as(directory, "peft", "on-adapter", "again"), 0, "for base");
}

TEST_CASE("adapter: what makes no sense is refused or warned of") {
  TemporaryDirectory directory;
  prepare_adapter_run(directory);
  const Outcome random = must(train_adapters(directory, {"adapter.rank=2", "training.initial_weights=none", "run.directory=random"}));
  CHECK_THAT(random.err, Contains("warning: adapters are trained on random weights"));
  check(export_as(directory, "peft", "random", "of-random"), 0, "set \"base_model_name_or_path\"");
  check(run(directory, {"eval", "run.yaml", "--checkpoint", "of-random"}), 65, "base_model_name_or_path");
  must(train_adapters(directory, {"run.directory=plain"}));
  check(export_as(directory, "peft", "plain", "of-plain"), 64, "has no adapters");
  must(train_adapters(directory, {"run.directory=beside", "adapter.rank=2", "model.frozen=[embedding.weight]"}));
  check(export_as(directory, "peft", "beside", "of-beside"), 64, "beside its adapters");
  check(export_as(directory, "peft", "random", "of-random-too", {"--write-logits", "logits.json"}), 64, "--write-logits");
  CHECK(!fs::exists(directory / "of-plain"));
  CHECK(!fs::exists(directory / "of-beside"));
  check(train_adapters(directory, {"run.directory=random", "adapter.rank=4", "training.initial_weights=none", "training.steps=6"}), 64,
        "adapter.rank");
}

}  // namespace trireme::test
