// Reads adapters that PEFT has written (tests/golden/peft, made by scripts/golden_peft.py), compares what they compute and how they learn with PEFT,
// and writes them again.
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/raw_safetensors.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/huggingface/peft_writer.h"
#include "trainer/huggingface/writer.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/state.h"
#include "trainer/model/declare.h"
#include "trainer/verify/record.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kFolders = in_checkout("tests/golden/peft");
const std::vector<std::string> kTrained{"llama_all", "qwen3_rslora", "gemma3_some", "gpt2_projections"};
const std::vector<std::string> kRead{"llama_all", "qwen3_rslora", "gemma3_some", "gpt2_projections", "gpt2_attention", "gpt_neox_all"};

json read_json(const fs::path& path) { return json::parse(std::ifstream(path)); }

/// The batches of golden.json: sample s of step t is row s of batch t, whatever the order of samples.
class Batches final : public Dataset {
 public:
  Batches(json batches, const Sampler& sampler) : batches_(std::move(batches)), order_(static_cast<size_t>(sequences())) {
    const int64_t batch = sampler.global_batch();
    for (int64_t sample = 0; sample < sequences(); ++sample) order_[static_cast<size_t>(sampler.sample(sample / batch, sample % batch))] = sample;
  }
  int64_t sequences() const override { return std::ssize(batches_) * std::ssize(batches_[0]); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    const auto place = static_cast<size_t>(order_[static_cast<size_t>(sample)]), rows = batches_[0].size();
    const auto text = batches_[place / rows][place % rows].get<std::vector<int32_t>>();
    segments.push_back(std::ssize(text) - 1);
    std::copy(text.begin(), text.end() - 1, tokens);
    std::copy(text.begin() + 1, text.end(), targets);
  }

 private:
  json batches_;
  std::vector<int64_t> order_;
};

/// The configuration of a folder's model for some ranks, with what golden.json says of training.
Config config_of(const WeightSource& source, const json& golden, int tensor) {
  Config config = source.config();
  config.parallel.tensor = tensor;
  config.parallel.layers_per_stage.reset();
  config.run.device = DeviceType::kCpu;
  config.training.precision = golden.contains("loss") ? Arithmetic::kFp64 : Arithmetic::kFp32;
  config.training.reduce_dtype = ReduceDtype::kAuto;
  if (!golden.contains("loss")) return resolve(config, tensor);
  config.training.global_batch_size = std::ssize(golden["batches"][0]);
  config.training.micro_batch_size = 2;
  config.training.sequence_length = std::ssize(golden["batches"][0][0]) - 1;
  const json& optimizer = golden["optimizer"];
  config.training.gradient_clip = optimizer["gradient_clip"];
  config.training.optimizer.beta1 = optimizer["beta1"];
  config.training.optimizer.beta2 = optimizer["beta2"].get<double>();
  config.training.optimizer.epsilon = optimizer["epsilon"];
  config.training.optimizer.weight_decay = optimizer["weight_decay"];
  return resolve(config, tensor);
}

std::vector<double> logits_of(const fs::path& folder, const json& golden, int tensor = 1, Adapters adapters = Adapters::kApart) {
  std::vector<double> logits;
  run_ranks(tensor, [&](Communicator& world) {
    WeightSource source(folder, WeightKind::kTrained, adapters);
    const Config config = config_of(source, json{{"logits", 0}}, tensor);
    Arena arena(Device::kCpu, true);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, world, config, false);
    load_weights(trainer, source);
    const std::vector<double> of_rank = trainer.logits(golden["tokens"].get<std::vector<int32_t>>());
    if (world.rank() == 0) logits = of_rank;
  });
  return logits;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

std::vector<double> flat(const json& rows) {
  std::vector<double> values;
  for (const json& row : rows)
    for (const json& value : row) values.push_back(value);
  return values;
}

/// A copy of a folder, and of its base, that may be changed.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    fs::copy(kFolders / name, path(), fs::copy_options::recursive);
    const std::string base = read_json(path() / "adapter_config.json").at("base_model_name_or_path");
    fs::copy(kFolders / name / base, directory_.path / "base", fs::copy_options::recursive);
    change([](json& config) { config["base_model_name_or_path"] = "../base"; });
  }
  fs::path path() const { return directory_.path / "adapter"; }
  void change(const std::function<void(json&)>& change) const {
    json value = read_json(path() / "adapter_config.json");
    change(value);
    std::ofstream(path() / "adapter_config.json") << value.dump(1);
  }
  std::string refusal(const std::function<void(json&)>& changed) const {
    change(changed);
    return refusal();
  }
  std::string refusal() const {
    try {
      const WeightSource source(path());
    } catch (const Error& error) {
      CHECK((error.code() == ExitCode::kData || error.code() == ExitCode::kMissingFile));
      return error.what();
    }
    return "accepted";
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace

TEST_CASE("peft: the logits of adapters on their base are PEFT's, on one rank and on two") {
  for (const std::string& name : kRead) {
    INFO(name);
    const json golden = read_json(kFolders / name / "golden.json");
    const std::vector<double> expected = flat(golden["logits"]);
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    for (const int tensor : {1, 2}) CHECK(largest_difference(logits_of(kFolders / name, golden, tensor), expected) < 1e-5 * largest);
  }
}

TEST_CASE("peft: ten steps and the first gradients are PEFT's to 1e-9 in fp64") {
  for (const std::string& name : kTrained) {
    for (const int tensor : {1, 2}) {
      INFO(name << " on " << tensor << " ranks");
      const json golden = read_json(kFolders / name / "golden.json");
      std::map<std::string, std::vector<double>> gradients;
      std::vector<double> losses, norms;
      ModelConfig model;
      run_ranks(tensor, [&](Communicator& world) {
        WeightSource source(kFolders / name);
        const Config config = config_of(source, golden, tensor);
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1};
        Trainer trainer(ctx, world, config, true);
        load_weights(trainer, source);
        const int64_t batch = config.training.global_batch_size, steps = std::ssize(golden["loss"]);
        const Batches data(golden["batches"], {static_cast<uint64_t>(config.run.seed), {{batch * steps, 1.0}}, batch});
        for (int64_t step = 0; step < steps; ++step) {
          const StepResult result = trainer.step(data, step, golden["optimizer"]["learning_rate"]);
          RunRecord record;
          const GlobalTensors gradient = gather(trainer, Gathered::kGradient, 1, record);
          if (world.rank() != 0) continue;
          losses.push_back(result.loss);
          norms.push_back(result.grad_norm);
          model = config.model;
          if (step == 0)
            for (const auto& [parameter, tensor_of] : gradient) gradients[parameter] = tensor_of.values;
        }
      });
      REQUIRE(losses.size() == 10);
      for (size_t step = 0; step < losses.size(); ++step) {
        INFO("step " << step + 1);
        CHECK(losses[step] == Approx(golden["loss"][step].get<double>()).epsilon(1e-9));
        CHECK(norms[step] == Approx(golden["grad_norm"][step].get<double>()).epsilon(1e-9));
      }
      const std::vector<PeftTensor> tensors = peft_tensors(model);
      CHECK(gradients.size() == tensors.size());
      CHECK(golden["first_gradient"].size() == tensors.size());
      for (const PeftTensor& of_peft : tensors) {
        INFO(of_peft.name);
        REQUIRE(of_peft.pieces.size() == 1);
        const std::vector<double> expected = flat(golden["first_gradient"].at(of_peft.name));
        double largest = 0;
        for (const double value : expected) largest = std::max(largest, std::abs(value));
        CHECK(largest > 0);
        CHECK(largest_difference(gradients.at(of_peft.pieces.front().parameter), expected) < 1e-9 * largest);
      }
    }
  }
}

TEST_CASE("peft: adapters that are written again have the same logits, bit for bit") {
  for (const std::string& name : kRead) {
    INFO(name);
    const json golden = read_json(kFolders / name / "golden.json");
    const TemporaryDirectory directory;
    fs::create_directory(directory.path / "again");
    {
      WeightSource source(kFolders / name);
      write_peft(source, directory.path / "again", DType::kF32);
    }
    CHECK(logits_of(directory.path / "again", golden) == logits_of(kFolders / name, golden));
  }
}

TEST_CASE("peft: the configuration of written adapters is that of the folder that they come from") {
  for (const std::string& name : kRead) {
    INFO(name);
    const json theirs = read_json(kFolders / name / "adapter_config.json");
    const WeightSource source(kFolders / name);
    const json ours = json::parse(peft_config(source.model(), "base").dump());
    for (const char* key : {"peft_type", "task_type", "r", "lora_alpha", "use_rslora", "use_dora", "bias", "fan_in_fan_out", "modules_to_save"}) {
      INFO(key);
      CHECK(ours.at(key) == theirs.at(key));
    }
    const auto targets = [](const json& config) { return config.at("target_modules").get<std::set<std::string>>(); };
    CHECK(targets(ours) == targets(theirs));
    // Three layers that are one tensor have three times the rank, and the same scale.
    const std::string stacked = name == "gpt2_attention" ? "transformer.h.0.attn.c_attn" : "gpt_neox.layers.0.attention.query_key_value";
    const bool stacks = name == "gpt2_attention" || name == "gpt_neox_all";
    CHECK(ours.at("rank_pattern").size() == (stacks ? 2 : 0));
    if (stacks) CHECK(ours["rank_pattern"].at(stacked) == 3 * theirs["r"].get<int64_t>());
    if (stacks) CHECK(ours["alpha_pattern"].at(stacked) == 3 * theirs["lora_alpha"].get<int64_t>());
  }
}

TEST_CASE("peft: what a folder of adapters cannot hold is refused before anything is written") {
  const TemporaryDirectory directory;
  ModelConfig some = WeightSource(kFolders / "gpt2_attention").model();
  some.adapter.targets = {"query", "value"};
  CHECK_THROWS_WITH(peft_tensors(some), Catch::Matchers::Contains("only some of its 3 layers"));

  const Copy copy("llama_all");
  RawTensors tensors = read_raw(copy.path() / "adapter_model.safetensors");
  const auto a = std::ranges::find_if(tensors, [](const auto& entry) { return entry.second.dtype == "F32"; });
  REQUIRE(a != tensors.end());
  const float large = 1e5F;
  std::memcpy(a->second.data.data(), &large, sizeof large);
  write_raw(copy.path() / "adapter_model.safetensors", tensors);
  WeightSource wide(copy.path());
  CHECK_THROWS_WITH(write_peft(wide, directory.path, DType::kF16), Catch::Matchers::Contains("1 value overflow in F16"));
  CHECK(fs::is_empty(directory.path));
  write_peft(wide, directory.path, DType::kBF16);
  CHECK(WeightSource(directory.path).dtype("blocks.0.attention.query.lora_a.weight") == DType::kBF16);
}

TEST_CASE("peft: an adapter of three layers of one tensor has a B of its own for each") {
  const Copy copy("gpt2_attention");
  const TemporaryDirectory directory;
  {
    WeightSource source(copy.path());
    write_peft(source, directory.path, DType::kF32);
  }
  json config = read_json(directory.path / "adapter_config.json");
  config["base_model_name_or_path"] = copy.path().string() + "/../base";
  std::ofstream(directory.path / "adapter_config.json") << config.dump(1);
  CHECK(WeightSource(directory.path).model().adapter.rank == 4);
  const std::string b = "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight";
  RawTensors tensors = read_raw(directory.path / "adapter_model.safetensors");
  REQUIRE(tensors.at(b).shape == std::vector<int64_t>{96, 12});
  const float shared = 1e-6F;
  std::memcpy(tensors.at(b).data.data() + 4 * sizeof shared, &shared, sizeof shared);  // the first query row, in the columns of keys
  write_raw(directory.path / "adapter_model.safetensors", tensors);
  CHECK_THROWS_WITH(WeightSource(directory.path), Catch::Matchers::Contains("of which no B is alone in its columns"));
}

TEST_CASE("peft: merged weights have the logits of adapters on their base") {
  for (const std::string& name : kRead) {
    INFO(name);
    const json golden = read_json(kFolders / name / "golden.json");
    const std::vector<double> apart = logits_of(kFolders / name, golden), merged = logits_of(kFolders / name, golden, 2, Adapters::kMerged);
    double largest = 0;
    for (const double value : apart) largest = std::max(largest, std::abs(value));
    CHECK(largest_difference(apart, merged) < 1e-5 * largest);
  }
}

TEST_CASE("peft: a merged folder has the logits of the merged weights, bit for bit") {
  const TemporaryDirectory directory;
  WeightSource source(kFolders / "llama_all", WeightKind::kTrained, Adapters::kMerged);
  write_hugging_face(source, directory.path, {}, [](int64_t) {});
  const json golden = read_json(kFolders / "llama_all" / "golden.json");
  CHECK(logits_of(directory.path, golden) == logits_of(kFolders / "llama_all", golden, 1, Adapters::kMerged));
}

TEST_CASE("peft: what adapters of others do beyond LoRA is refused by name") {
  const auto refusal = [](const std::function<void(json&)>& change, const char* name = "llama_all") { return Copy(name).refusal(change); };
  const auto contains = [](const std::string& text) { return Catch::Matchers::Contains(text); };
  CHECK(refusal([](json&) {}) == "accepted");
  CHECK_THAT(refusal([](json& c) { c["use_dora"] = true; }), contains("\"use_dora\""));
  CHECK_THAT(refusal([](json& c) { c["peft_type"] = "IA3"; }), contains("\"peft_type\""));
  CHECK_THAT(refusal([](json& c) { c["bias"] = "all"; }), contains("\"bias\""));
  CHECK_THAT(refusal([](json& c) { c["modules_to_save"] = {"lm_head"}; }), contains("\"modules_to_save\""));
  CHECK_THAT(refusal([](json& c) { c["init_lora_weights"] = "pissa_niter_16"; }), contains("changed the weights of the base"));
  CHECK_THAT(refusal([](json& c) { c["r"] = 3; }), contains("an adapter of rank 4 beside others of rank 3"));
  CHECK_THAT(refusal([](json& c) { c["alpha_pattern"] = {{"q_proj", 12}}; }), contains("a scale of 3 beside others of 1.5"));
  CHECK_THAT(refusal([](json& c) { c["alpha_pattern"] = {{"^q_proj", 12}}; }), contains("regular expressions"));
  CHECK_THAT(refusal([](json& c) { c["base_model_name_or_path"] = "meta-llama/Llama-3.2-1B"; }), contains("no Hugging Face folder on this machine"));
  CHECK_THAT(refusal([](json& c) { c["base_model_name_or_path"] = nullptr; }), contains("base_model_name_or_path"));
  CHECK_THAT(refusal([](json& c) { c["alpha_pattern"] = {{"q_proj", "6"}}; }), contains("a value is not a number"));
  CHECK_THAT(refusal([](json& c) { c["alpha_pattern"] = {6}; }), contains("not an object"));
  CHECK_THAT(refusal([](json& c) { c["alpha_pattern"] = {{"q_proj", 6}, {"self_attn.q_proj", 7}}; }), contains("two entries for"));
  CHECK_THAT(refusal([](json& c) { c["lora_alpha"] = 0; }), contains("\"lora_alpha\""));
  CHECK_THAT(refusal([](json& c) { c["lora_alpha"] = -6; }), contains("\"lora_alpha\""));
  CHECK_THAT(refusal([](json& c) { c["r"] = 1 << 20; }), contains("\"r\""));
  CHECK_THAT(refusal([](json& c) { c["r"] = -4; }), contains("\"r\""));
  CHECK_THAT(refusal([](json& c) { c["base_model_name_or_path"] = ""; }), contains("base_model_name_or_path"));
  CHECK(refusal([](json& c) { c["alpha_pattern"] = {{"q_proj", 6}}; }) == "accepted");
  const Copy both("llama_all");
  std::ofstream(both.path() / "config.json") << "{}";
  CHECK(both.refusal() == "accepted");  // as some programs leave it
  std::ofstream(both.path() / "model.safetensors") << "";
  CHECK_THAT(both.refusal(), contains("has a model") && contains("adapter_config.json"));
}

TEST_CASE("peft: tensors that are no A or B of the base are refused by name") {
  const auto refusal = [](const std::function<void(RawTensors&)>& change) {
    const Copy copy("gpt2_attention");
    RawTensors tensors = read_raw(copy.path() / "adapter_model.safetensors");
    change(tensors);
    write_raw(copy.path() / "adapter_model.safetensors", tensors);
    return copy.refusal();
  };
  const std::string a = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
                    b = "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight";
  CHECK(refusal([](RawTensors&) {}) == "accepted");
  CHECK_THAT(refusal([&](RawTensors& t) { t.erase(b); }), Catch::Matchers::Contains(b));
  CHECK_THAT(refusal([&](RawTensors& t) { t.erase(a); }), Catch::Matchers::Contains(b));
  CHECK_THAT(refusal([&](RawTensors& t) { std::swap(t.at(a), t.at(b)); }), Catch::Matchers::Contains("an adapter of rank 96 beside"));
  CHECK_THAT(refusal([&](RawTensors& t) { t.at(b) = t.at(a); }),
             Catch::Matchers::Contains("A is [4, 32] and B [4, 32], expected [4, 32] and [96, 4]"));
  CHECK_THAT(refusal([&](RawTensors& t) { t["base_model.model.lm_head.lora_A.weight"] = t.at(a); }), Catch::Matchers::Contains("lm_head"));
}

}  // namespace trireme::test
