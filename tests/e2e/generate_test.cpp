// Text from a trained model: the same with any cache, number of ranks and launcher.
#include <cmath>
#include <csignal>
#include <functional>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/raw_safetensors.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/tokenizer/tokenizer_json.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

constexpr const char* kPrompt = "Ship 7";

void train_model(const TemporaryDirectory& directory) {
  prepare_run(directory);
  const Outcome trained = run(directory, {"train", "run.yaml"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
}

const Arguments kGenerate = {"generate", "--checkpoint", "run", "--max-tokens", "40"};  // more than the 16 positions of the model

std::string text_of(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.empty());  // standard error is not a terminal: no progress line
  return outcome.out;
}

TEST_CASE("generate: one, two and four ranks, with and without a cache, write the same text") {
  TemporaryDirectory directory;
  train_model(directory);
  const Arguments greedy = kGenerate + Arguments{"--prompt", kPrompt, "--temperature", "0"};
  const std::string expected = text_of(run(directory, greedy));
  CHECK(expected.starts_with(kPrompt));
  CHECK(expected.size() == 6 + 40 + 1);
  CHECK(text_of(run(directory, greedy + Arguments{"--no-cache"})) == expected);
  CHECK(text_of(run(directory, greedy + Arguments{"--tensor", "2"})) == expected);
  CHECK(text_of(run(directory, greedy + Arguments{"--tensor", "4"})) == expected);
  CHECK(text_of(run_under_mpirun(directory, 2, greedy)) == expected);

  write_file(directory / "prompt.txt", kPrompt);
  const Arguments drawn = kGenerate + Arguments{"--prompt-file", "prompt.txt", "--seed", "3", "--top-k", "20", "--top-p", "0.9"};
  const std::string other = text_of(run(directory, drawn));
  CHECK(other != expected);
  CHECK(text_of(run(directory, drawn + Arguments{"--tensor", "2", "--no-cache"})) == other);

  // A prompt from a file, with as many bytes as the model has positions, and with more.
  for (const std::string& prompt : {std::string("S"), std::string("0123456789abcdef"), std::string("line one\nline two, which is longer")}) {
    write_file(directory / "prompt.txt", prompt);
    const std::string text = text_of(run(directory, kGenerate + Arguments{"--prompt-file", "prompt.txt", "--temperature", "0"}));
    CHECK(text.starts_with(prompt));
    CHECK(text_of(run(directory, kGenerate + Arguments{"--prompt", prompt, "--temperature", "0", "--no-cache"})) == text);
  }
  CHECK(text_of(run(directory, {"generate", "--checkpoint", "run", "--prompt", kPrompt, "--max-tokens", "0"})) == std::string(kPrompt) + "\n");
}

TEST_CASE("generate: a model with more rows than its tokenizer has ids never draws one of them") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, Arguments{"train", "run.yaml"} + sets({"model.vocab_size=1024"}));  // 768 rows without a token
  // At this temperature all rows are equally likely.
  const Arguments drawn = kGenerate + Arguments{"--prompt", kPrompt, "--temperature", "1e6"};
  const std::string text = text_of(run(directory, drawn));
  CHECK(text.size() == 6 + 40 + 1);
  CHECK(text_of(run(directory, drawn + Arguments{"--tensor", "2"})) == text);
  CHECK(text_of(run(directory, drawn + Arguments{"--no-cache", "--seed", "4"})).size() == 6 + 40 + 1);
}

TEST_CASE("generate: invalid requests are refused before a rank is started") {
  TemporaryDirectory directory;
  train_model(directory);
  const auto before = directory.listing();
  const auto refused = [&](const Outcome& outcome, int code, const std::string& message) {
    INFO(outcome.err);
    CHECK(outcome.code == code);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.find(message) != std::string::npos);
    CHECK(outcome.err.find(message, outcome.err.find(message) + 1) == std::string::npos);  // one message for the whole job
    CHECK(directory.changes_since(before) == "");
  };
  const Arguments prompt = kGenerate + Arguments{"--prompt", kPrompt};
  refused(run(directory, prompt + Arguments{"--tensor", "3"}), 64, "--tensor=3: cannot split a model with 4 heads, 2 kv heads and ffn_size 32");
  refused(run(directory, prompt + Arguments{"--tensor", "0"}), 64, "--tensor");
  refused(run_under_mpirun(directory, 2, prompt + Arguments{"--tensor", "4"}), 64, "--tensor=4: mpirun or srun started 2 ranks");
  refused(run_under_mpirun(directory, 3, prompt), 64, "--tensor=3: cannot split");
  refused(run(directory, prompt + Arguments{"--prompt-file", "prompt.txt"}), 64, "--prompt excludes --prompt-file");
  refused(run(directory, kGenerate + Arguments{"--prompt-file", "nowhere.txt", "--tensor", "2"}), 66, "nowhere.txt");
}

TEST_CASE("generate: a small checkpoint whose manifest declares a large model is refused before memory is allocated") {
  TemporaryDirectory directory;
  train_model(directory);
  const auto manifest = directory / "run/checkpoints/step-00000006/manifest.json";
  std::string text = read_file(manifest);
  for (const auto& [from, to] : {std::pair{"hidden_size: 16\\n", "hidden_size: 8192\\n"}, {"ffn_size: 32\\n", "ffn_size: 65536\\n"}}) {
    REQUIRE(text.find(from) != std::string::npos);
    text.replace(text.find(from), std::string(from).size(), to);
  }
  write_file(manifest, with_digest(text));
  // 24 GiB of weights with an address space of 4 GiB.
  const auto within_4_gib = [&](const std::string& command) {
    return Process({"/bin/sh", "-c", "ulimit -v 4194304; exec \"$0\" " + command, kBinary}, directory.path()).wait();
  };
  for (const std::string command : {"generate --checkpoint run --prompt abc", "checkpoint export --format hf --output folder run"}) {
    const Outcome refused = within_4_gib(command);
    INFO(command << refused.err);
    CHECK(refused.code == 65);
    CHECK(refused.err.find("manifest.json: tensor \"weight/embedding.weight\" has shape [256, 16], expected [256, 8192]") != std::string::npos);
  }
  write_file(directory / "large.yaml", kConfig + "plan: {must_fit: false}\n");
  const Outcome evaluated =
      within_4_gib("eval large.yaml --checkpoint run --set model.hidden_size=8192 --set model.head_size=4 --set model.ffn_size=65536");
  INFO(evaluated.err);
  CHECK(evaluated.code == 65);
  CHECK(evaluated.err.find("has shape [256, 16]") != std::string::npos);
}

TEST_CASE("generate: an output that cannot be written ends it") {
  TemporaryDirectory directory;
  train_model(directory);
  for (const std::string ranks : {"1", "2"}) {
    const std::string command = "exec \"$0\" generate --checkpoint run --prompt abc --max-tokens 100000000 --tensor " + ranks + " > /dev/full";
    const Outcome outcome = Process({"sh", "-c", command, kBinary}, directory.path()).wait();
    INFO(ranks << " ranks: " << outcome.err);
    CHECK(outcome.code == 74);
    CHECK(outcome.err.find("cannot write to standard output") != std::string::npos);
  }
}

TEST_CASE("generate: a stop request ends it after a token") {
  TemporaryDirectory directory;
  train_model(directory);
  for (const std::string ranks : {"1", "2"}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      CAPTURE(ranks, signal);
      Process process(Arguments{kBinary, "generate", "--checkpoint", "run", "--prompt", kPrompt, "--max-tokens", "100000000", "--tensor", ranks},
                      directory.path());
      REQUIRE(process.wait_for(kPrompt));
      process.signal(signal);
      const Outcome stopped = process.wait();
      INFO(stopped.err);
      CHECK(stopped.code == 75);
      CHECK(stopped.out.back() == '\n');
      CHECK(stopped.err.empty());
    }
  }
}

/// A GPT-2 whose next token does not depend on its input: "<|endoftext|>" (0) never, "<|turn|>" (1) with probability 0.2, eight letters with 0.1 each.
void write_constant_model(const TemporaryDirectory& directory, const std::string& name) {
  constexpr int64_t kTokens = 258, kWidth = 8;
  nlohmann::json vocabulary = {{"<|endoftext|>", 0}, {"<|turn|>", 1}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[to_byte_level(std::string(1, static_cast<char>(byte)))] = 2 + byte;
  nlohmann::json added = nlohmann::json::array();
  for (const char* content : {"<|endoftext|>", "<|turn|>"}) added.push_back({{"id", vocabulary[content]}, {"content", content}, {"special", true}});
  const nlohmann::json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"added_tokens", added},
                                    {"pre_tokenizer", level},
                                    {"decoder", level},
                                    {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  write_file(directory / (name + "/tokenizer.json"), tokenizer.dump());
  write_file(directory / (name + "/config.json"),
             R"({"model_type": "gpt2", "vocab_size": 258, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 64, "n_inner": null,
                 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true})");
  RawTensors tensors;
  const auto add = [&](const std::string& tensor, const std::vector<int64_t>& shape, const std::function<float(int64_t)>& value) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::string data;
    for (int64_t i = 0; i < count; ++i) {
      const float element = value(i);
      data.append(reinterpret_cast<const char*>(&element), sizeof element);
    }
    tensors["transformer." + tensor] = {"F32", shape, data};
  };
  const auto zero = [](int64_t) { return 0.0F; };
  const auto one = [](int64_t) { return 1.0F; };
  const auto first = [](int64_t i) { return i == 0 ? 1.0F : 0.0F; };
  add("wte.weight", {kTokens, kWidth}, [](int64_t i) {
    const int64_t token = i / kWidth;
    if (i % kWidth != 0) return 0.0F;
    return token == 1 ? std::log(0.2F) : token >= 2 + 'a' && token < 2 + 'a' + 8 ? std::log(0.1F) : -40.0F;
  });
  add("wpe.weight", {64, kWidth}, zero);
  add("ln_f.weight", {kWidth}, zero);
  add("ln_f.bias", {kWidth}, first);
  for (const std::string norm : {"h.0.ln_1", "h.0.ln_2"}) {
    add(norm + ".weight", {kWidth}, one);
    add(norm + ".bias", {kWidth}, zero);
  }
  add("h.0.attn.c_attn.weight", {kWidth, 3 * kWidth}, zero);
  add("h.0.attn.c_attn.bias", {3 * kWidth}, zero);
  add("h.0.attn.c_proj.weight", {kWidth, kWidth}, zero);
  add("h.0.attn.c_proj.bias", {kWidth}, zero);
  add("h.0.mlp.c_fc.weight", {kWidth, 4 * kWidth}, zero);
  add("h.0.mlp.c_fc.bias", {4 * kWidth}, zero);
  add("h.0.mlp.c_proj.weight", {4 * kWidth, kWidth}, zero);
  add("h.0.mlp.c_proj.bias", {kWidth}, zero);
  write_raw(directory / (name + "/model.safetensors"), tensors);
}

TEST_CASE("generate: stops at each end token of the model's folder, also from a checkpoint imported from it") {
  TemporaryDirectory directory;
  fs::create_directories(directory / "model");
  write_constant_model(directory, "model");
  const auto text = [&](const std::string& model, const Arguments& more = {}) {
    return must(run(directory, Arguments{"generate", "--checkpoint", model, "--prompt", "a", "--max-tokens", "60", "--seed", "1"} + more));
  };
  CHECK_THAT(text("model").out, Catch::Matchers::Contains("<|turn|>"));  // no file names it
  for (const auto& [file, content] :
       {std::pair("generation_config.json", R"({"eos_token_id": [0, 1]})"), std::pair("tokenizer_config.json", R"({"eos_token": "<|turn|>"})"),
        std::pair("special_tokens_map.json", R"({"eos_token": {"content": "<|turn|>"}})")}) {
    INFO(file);
    write_file(directory / (std::string("model/") + file), content);
    const Outcome stopped = text("model");
    CHECK(stopped.out.size() < 40);
    CHECK(stopped.out.find("<|turn|>") == std::string::npos);
    CHECK(stopped.err.empty());
    fs::remove(directory / (std::string("model/") + file));
  }
  nlohmann::json config = nlohmann::json::parse(read_file(directory / "model/config.json"));
  config["eos_token_id"] = {0, 1};
  write_file(directory / "model/config.json", config.dump());
  const std::string expected = text("model").out;
  CHECK(expected.size() < 40);
  must(run(directory, {"checkpoint", "import", "--format", "hf", "--output", "imported", "model"}));
  CHECK(text("imported").out == expected);
  must(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "exported", "imported"}));
  CHECK(text("exported").out == expected);
  CHECK(nlohmann::json::parse(read_file(directory / "exported/config.json")).at("eos_token_id") == nlohmann::json({0, 1}));
}

TEST_CASE("generate: sampling settings of the model's folder apply unless they are given, and are printed") {
  TemporaryDirectory directory;
  fs::create_directories(directory / "model");
  write_constant_model(directory, "model");
  const auto generated = [&](const std::string& settings, const Arguments& more = {}) {
    write_file(directory / "model/generation_config.json", settings);
    return must(run(directory, Arguments{"generate", "--checkpoint", "model", "--prompt", "a", "--max-tokens", "8", "--seed", "1"} + more));
  };
  const std::string likely = "a<|turn|><|turn|><|turn|><|turn|><|turn|><|turn|><|turn|><|turn|>\n";
  const Outcome plain = generated("{}");
  CHECK(plain.out != likely);
  CHECK(plain.err.empty());
  const Outcome greedy = generated(R"({"do_sample": false, "temperature": 0.7})");
  CHECK(greedy.out == likely);
  CHECK(greedy.err == "generation_config.json of the model: temperature 0\n");
  CHECK(generated(R"({"do_sample": false})", {"--temperature", "1"}).out == plain.out);
  CHECK(generated(R"({"do_sample": false})", {"--temperature", "1"}).err.empty());
  CHECK(generated(R"({"top_k": 1, "repetition_penalty": 1.1})").out == likely);
  CHECK(generated(R"({"top_k": 1, "repetition_penalty": 1.1})").err ==
        "generation_config.json of the model: top_k 1; not supported and not applied: repetition_penalty\n");
  CHECK(generated(R"({"top_p": 0.1, "temperature": 1.0})").out == likely);
  CHECK(generated(R"({"top_p": 0.1})", {"--top-p", "1"}).out == plain.out);
  CHECK(generated(R"({"top_k": 1})", {"--top-k", "0"}).out == plain.out);
  write_file(directory / "model/generation_config.json", R"({"top_p": 7})");
  check(run(directory, {"generate", "--checkpoint", "model", "--prompt", "a"}), 65, "generation_config.json: \"top_p\" is 7");
}

}  // namespace
}  // namespace trireme::test
