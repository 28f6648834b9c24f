// Text from a trained model: the same with any cache, number of ranks and launcher.
#include <csignal>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/manifest.h"

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

}  // namespace
}  // namespace trireme::test
