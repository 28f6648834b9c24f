// The tokenizer that a checkpoint carries: enough to go on without the file it came from, and checked like everything else in it.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using nlohmann::json;

Arguments training(const std::string& tokenizer, const std::string& data, const std::string& steps) {
  return Arguments{"train", "run.yaml", "--max-steps", steps} +
         sets({"data.tokenizer=" + tokenizer, "data.train=[" + data + "]", "data.validation=[]", "training.evaluate.every=0"});
}

void build(const TemporaryDirectory& directory, const std::string& tokenizer, const std::string& data) {
  check(run(directory, {"data", "build", "--tokenizer", tokenizer, "--output", data, "train.txt"}), 0, "");
}

}  // namespace

TEST_CASE("checkpoint: carries its tokenizer, and a run goes on with no other") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // A tokenizer.json to begin with: what an export makes of the bytes tokenizer.
  check(run(directory, training("bytes", "train", "2") + sets({"run.directory=bytes"})), 0, "");
  check(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "folder", "bytes", "--no-check"}), 0, "");
  const std::string first = "first/tokenizer.json", moved = "moved/tokenizer.json", another = "another/tokenizer.json";
  for (const char* name : {"first", "moved", "another"}) fs::create_directory(directory / name);
  const std::string text = read_file(directory / "folder/tokenizer.json");
  write_file(directory / first, text);
  write_file(directory / another, text + " ");
  build(directory, first, "tokens");

  check(run(directory, training(first, "tokens", "2")), 0, "");
  const fs::path checkpoint = directory / "run/checkpoints/step-00000002", copy = checkpoint / "tokenizer.json";
  CHECK(read_file(copy) == text);
  check(run(directory, {"checkpoint", "verify", "run"}), 0, "whole: ");
  const json facts = json::parse(run(directory, {"checkpoint", "inspect", "run", "--json"}).out);
  CHECK(facts["tokenizer"]["name"] == "bpe");
  CHECK(facts["tokenizer"]["files"] == json{"tokenizer.json"});

  // Gone from where the configuration names it: the checkpoint has its own.
  fs::rename(directory / first, directory / moved);
  check(run(directory, {"generate", "--checkpoint", "run/checkpoints/latest", "--prompt", "Ship", "--max-tokens", "3"}), 0, "Ship");
  check(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "out", "run"}), 0, "bit for bit");
  CHECK(read_file(directory / "out/tokenizer.json") == read_file(copy));

  const std::vector<std::string> before = directory.listing();
  check(run(directory, training(another, "tokens", "4")), 65, "tokens");
  CHECK(directory.changes_since(before) == "");
  check(run(directory, training(moved, "tokens", "4")), 0, "step 4/");

  std::string bytes = read_file(copy);
  bytes.at(bytes.size() / 2) = static_cast<char>(bytes.at(bytes.size() / 2) ^ 1);
  write_file(copy, bytes);
  check(run(directory, {"checkpoint", "verify", checkpoint.string()}), 65, "tokenizer.json: damaged: its digest is ");
  check(run(directory, {"generate", "--checkpoint", checkpoint.string(), "--prompt", "Ship"}), 65, "tokenizer.json: damaged");
  fs::remove(copy);
  check(run(directory, {"checkpoint", "verify", checkpoint.string()}), 65, "tokenizer.json: cannot be read");
}

TEST_CASE("checkpoint: a run whose tokenizer gives other ids is not gone on with") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check(run(directory, training("bytes", "train", "2") + sets({"model.vocab_size=300"})), 0, "");
  check(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "folder", "run", "--no-check"}), 0, "");
  fs::rename(directory / "train", directory / "aside");
  build(directory, "folder", "train");  // the same ids by another tokenizer: nobody can know that
  const std::vector<std::string> before = directory.listing();
  check(run(directory, training("folder", "train", "4") + sets({"model.vocab_size=300"})), 64,
        "data.tokenizer=folder: not the tokenizer that it was trained with, which is bytes");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
