// Inputs that change or stop while a command reads them, or that are invalid.
#include <sys/stat.h>

#include <csignal>

#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Trains indefinitely, truncates `file` meanwhile, and expects the whole job to end with 65 and one message that names it.
void check_truncation(const TemporaryDirectory& directory, const std::string& run, const std::string& file, const Arguments& arguments) {
  CAPTURE(run, file);
  LiveJob job(directory, run, arguments + sets({"training.steps=10000000", "checkpoint.every=0", "training.evaluate.every=0"}));
  REQUIRE(job.wait_for_step(5));
  fs::resize_file(directory / file, 0);
  const Outcome outcome = job.wait();
  const std::string err = job.err();
  CAPTURE(err);
  CHECK(outcome.code == 65);
  const std::string message = file + ": truncated while in use: 0 bytes";
  REQUIRE(count(err, message) == 1);
  CHECK(err.find('\n', err.find(message)) == err.size() - 1);  // the last line: no messages about ranks that have died
  CHECK(job.wait_until_gone(10) >= 0);
}

}  // namespace

TEST_CASE("input faults: a token file truncated during training ends the whole job with 65 and names the file") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_truncation(directory, "one", "train/tokens.bin", {});
  fs::remove_all(directory / "train");
  build_data(directory);
  check_truncation(directory, "four", "train/tokens.bin", layout(2, 1, 2, 3));
  fs::remove_all(directory / "train");
  build_data(directory);
  check_truncation(directory, "pipeline", "train/tokens.bin", layout(1, 2, 2, 1));
  fs::remove_all(directory / "train");
  build_data(directory);
  check_truncation(directory, "documents", "train/documents.bin", layout(1, 1, 2, 0) + sets({"data.document_mask=true"}));
}

TEST_CASE("input faults: data whose every target is masked is refused, a batch without a target has no loss") {
  TemporaryDirectory directory;
  prepare_run(directory);
  std::string masked, some;
  for (int i = 0; i < 40; ++i) {
    masked += R"({"prompt": "0123456789abcdef", "response": ""})"
              "\n";
    some += i % 4 == 0 ? R"({"prompt": "", "response": "0123456789abcdef"})"
                         "\n"
                       : R"({"prompt": "0123456789abcdef", "response": ""})"
                         "\n";
  }
  write_file(directory / "masked.jsonl", masked);
  write_file(directory / "some.jsonl", some);
  const Arguments fields = {"data", "build", "--prompt-field", "prompt", "--response-field", "response"};
  for (const std::string name : {"masked", "some"}) must(directory, fields + Arguments{"--output", name, name + ".jsonl"});

  const auto before = directory.listing();
  for (const Arguments& ranks : {Arguments{}, layout(1, 2, 2, 0)}) {
    for (const std::string key : {"data.train", "data.validation"}) {
      const Outcome outcome = run(directory, Arguments{"train", "run.yaml"} + sets({key + "=[masked]"}) + ranks);
      check(outcome, 65, "masked: no token is a target, so there is no loss to compute; prompt tokens are never targets");
      CHECK(count(outcome.err, "\n") == 1);
    }
  }
  CHECK(directory.changes_since(before) == "");

  const Arguments small = sets({"data.train=[some]", "training.steps=30", "training.micro_batch_size=1", "training.global_batch_size=2"});
  std::vector<std::string> seen;
  for (const Arguments& ranks : {Arguments{}, layout(1, 1, 2, 1)}) {
    const std::string name = "run" + std::to_string(seen.size());
    const Outcome trained = must(directory, Arguments{"train", "run.yaml"} + small + ranks + in(name));
    size_t without = 0, with = 0;
    std::string events;
    for (const nlohmann::json& line : metrics(directory / name)) {
      if (line.contains("loss")) ++(line["loss"].is_null() ? without : with);
      if (line.contains("loss") && line["loss"].is_number()) CHECK(line["loss"].get<double>() > 0);
      if (line.contains("event") && line["event"] == "no_target") events += line["step"].dump() + " ";
    }
    CAPTURE(events);
    CHECK(without > 0);
    CHECK(with > 0);
    CHECK(without + with == 30);
    CHECK(static_cast<size_t>(std::count(events.begin(), events.end(), ' ')) == without);
    CHECK(count(trained.err, "every target of its batch is masked") == without);
    seen.push_back(events);
  }
  CHECK(seen[0] == seen[1]);
}

TEST_CASE("input faults: a resumed run detects one changed token in a million, and accepts the same data rebuilt") {
  TemporaryDirectory directory;
  prepare_run(directory);
  std::string text;
  for (int i = 0; text.size() < 1'100'000; ++i) text += "Ship " + std::to_string(i) + " pulls.\n";
  const auto build = [&] {
    fs::remove_all(directory / "large");
    write_file(directory / "large.txt", text);
    must(directory, {"data", "build", "--output", "large", "large.txt"});
  };
  build();
  const Arguments train = Arguments{"train", "run.yaml"} + sets({"data.train=[large]"});
  must(directory, train + Arguments{"--max-steps", "2"});
  build();
  must(directory, train + Arguments{"--max-steps", "4"});
  text[text.size() / 4096 * 1000 + 5] ^= 1;  // between two of the 4,096 tokens that enter the fingerprint
  build();
  check(run(directory, train), 65, "data.train contains different tokens than when it was saved");

  check(run(directory, {"data", "inspect", "--verify", "large"}), 0, ", of all tokens; verified");
  std::string bytes = read_file(directory / "large/tokens.bin");
  bytes[5000] ^= 1;
  write_file(directory / "large/tokens.bin", bytes);
  check(run(directory, {"data", "inspect", "large"}), 0, ", of all tokens\n");
  check(run(directory, {"data", "inspect", "--verify", "large"}), 65, "large/tokens.bin: changed since it was built");
  write_file(directory / "foreign.bin", "0123");
  check(run(directory, {"data", "inspect", "--verify", "foreign.bin"}), 64, "--verify: foreign.bin: token files of other programs have no digests");
}

TEST_CASE("input faults: non-finite numbers on the command line are refused") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  for (const std::string value : {"nan", "NaN", "-nan", "inf", "-inf", "infinity", "1e999", "1e-999x", ""}) {
    for (const Arguments& command : std::vector<Arguments>{{"generate", "--checkpoint", "none", "--prompt", "a", "--temperature=" + value},
                                                           {"generate", "--checkpoint", "none", "--prompt", "a", "--top-p=" + value},
                                                           {"bench", "comm", "--seconds=" + value},
                                                           {"bench", "kernels", "--seconds=" + value},
                                                           {"bench", "step", "run.yaml", "--seconds=" + value},
                                                           {"bench", "machine", "--seconds=" + value}}) {
      const Outcome outcome = Process(Arguments{kBinary} + command, directory.path(), std::chrono::seconds(20)).wait();
      CAPTURE(command, outcome.err);
      CHECK(outcome.code == 64);
      CHECK(outcome.err.find(command.back().substr(0, command.back().find('='))) != std::string::npos);
      CHECK(count(outcome.err, "\n") == 1);
    }
  }
  check(run(directory, {"bench", "comm", "--seconds=61"}), 64, "--seconds: 61: out of range; allowed a number from 0.001 to 60; nearest valid 60");
  check(run(directory, {"generate", "--checkpoint", "none", "--prompt", "a", "--top-p=nan"}), 64,
        "--top-p: nan: not a finite number; allowed a number from 0 to 1");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("input faults: a configuration from a pipe is read by one rank, refused for several, and times out") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check(shell(directory, "$T train <(cat run.yaml) --set run.directory=first"), 0, "step 6/6");
  check(shell(directory, "cat run.yaml | $T train /dev/stdin --set run.directory=second"), 0, "step 6/6");
  check(shell(directory, "$T bench step <(cat run.yaml) --seconds 0.01"), 0, "");
  check(shell(directory, "$T config show <(cat run.yaml)"), 0, "");
  const auto before = directory.listing();
  const std::string refusal = ": not a regular file, but every rank reads the configuration; allowed a regular file";
  for (const char* const line : {"$T train <(cat run.yaml) --set parallel.data=2", "cat run.yaml | $T train /dev/stdin --set parallel.tensor=2",
                                 "$T train <(cat run.yaml) --restarts 1", "$T bench step <(cat run.yaml) --set parallel.data=2"}) {
    const Outcome outcome = shell(directory, line);
    CAPTURE(line);
    check(outcome, 64, refusal);
    CHECK(count(outcome.err, "\n") == 1);
  }
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  const Outcome ranks = run_under_mpirun(directory, 2, {"train", "pipe"});
  check(ranks, 64, "pipe" + refusal);
  CHECK(count(ranks.err, refusal) == 1);
  const Outcome alone = run(directory, {"train", "pipe"});
  check(alone, 74, "pipe: cannot be read: nothing was written to this pipe for 10 seconds");
  CHECK(alone.seconds < 20);
  check(shell(directory, "(sleep 1; cat run.yaml) > pipe & $T config show pipe"), 0, "");
  fs::remove(directory / "pipe");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("input faults: data build reads standard input on request") {
  TemporaryDirectory directory;
  build_data(directory);
  const auto same = [&](const std::string& a, const std::string& b) {
    for (const std::string name : {"tokens.bin", "documents.bin", "index.json"})
      CHECK(read_file(directory / a / name) == read_file(directory / b / name));
  };
  must(shell(directory, "cat train.txt | $T data build --output piped -"));
  same("piped", "train");
  must(shell(directory, "$T data build --output redirected - < train.txt"));
  same("redirected", "train");
  must(directory, {"data", "build", "--output", "two", "validation.txt", "train.txt"});
  must(shell(directory, "cat train.txt | $T data build --output second validation.txt -"));
  same("second", "two");
  must(shell(directory, R"(echo '{"text": "abc"}' | $T data build --field text --output lines -)"));
  CHECK(read_file(directory / "lines/tokens.bin") == "abc");
  check(shell(directory, "$T data build --output none - < /dev/null"), 65, "standard input: is empty");
  check(shell(directory, R"(echo '{"text": 1}' | $T data build --field text --output none -)"), 65, "standard input:1");
  CHECK_FALSE(fs::exists(directory / "none"));
  CHECK_FALSE(fs::exists(directory / "none.partial"));
}

TEST_CASE("input faults: a control character in a --set is refused") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  for (const Arguments& ranks : {Arguments{}, layout(1, 1, 2, 0)}) {
    const Outcome outcome = run(directory, Arguments{"train", "run.yaml"} + sets({"run.name=a\nb"}) + ranks);
    check(outcome, 64, "--set run.name: control character 10 in the value");
    CHECK(count(outcome.err, "\n") == 1);
  }
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("input faults: options that would overwrite a source, or are out of range, are refused before anything is read") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, {"train", "run.yaml"});
  const Arguments generate{"generate", "--checkpoint", "run", "--prompt", "a"}, exporting{"checkpoint", "export", "run", "--format", "hf"};
  check(run(directory, generate + Arguments{"--top-k", "9223372036854775808"}), 64, "--top-k");
  check(run(directory, generate + Arguments{"--seed", "999999999999999999999999"}), 64, "--seed");
  check(run(directory, exporting + Arguments{"--output", ""}), 64, "--output");
  const std::string manifest = "run/checkpoints/latest/manifest.json";
  const std::string before = read_file(directory / manifest);
  check(run(directory, exporting + Arguments{"--output", "out", "--write-logits", manifest}), 64, "is in the directory of the exported model");
  CHECK(read_file(directory / manifest) == before);
  std::string deep;
  for (int i = 0; i < 40'000; ++i) deep += "a.";
  check(run(directory, {"train", "run.yaml", "--set", deep + "b=1"}), 64, "more than 32 parts");
  fs::remove(directory / "run/checkpoints/latest");
  fs::create_directory(directory / "run/checkpoints/latest");
  const Outcome outcome = run(directory, {"train", "run.yaml", "--set", "run.directory=run", "--max-steps", "6"});
  CHECK(outcome.err.find("terminate") == std::string::npos);
}

}  // namespace trireme::test
