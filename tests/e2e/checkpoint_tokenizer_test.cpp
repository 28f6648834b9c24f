// A checkpoint's copy of the tokenizer: replaces the original file, and is verified like the rest of the checkpoint.
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

TEST_CASE("checkpoint: contains its tokenizer, and a run resumes with no other") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // A tokenizer.json, created by exporting the bytes tokenizer.
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
  check(run(directory, {"checkpoint", "verify", "run"}), 0, "complete: ");
  const json facts = json::parse(run(directory, {"checkpoint", "inspect", "run", "--json"}).out);
  CHECK(facts["tokenizer"]["name"] == "bpe");
  CHECK(facts["tokenizer"]["files"] == json{"tokenizer.json"});

  // The file named in the configuration is gone: the checkpoint has a copy.
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

TEST_CASE("checkpoint: a run is not resumed with a different tokenizer") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check(run(directory, training("bytes", "train", "2") + sets({"model.vocab_size=300"})), 0, "");
  check(run(directory, {"checkpoint", "export", "--format", "hf", "--output", "folder", "run", "--no-check"}), 0, "");
  fs::rename(directory / "train", directory / "aside");
  build(directory, "folder", "train");  // a different tokenizer with the same ids, which cannot be known
  const std::vector<std::string> before = directory.listing();
  check(run(directory, training("folder", "train", "4") + sets({"model.vocab_size=300"})), 64,
        "data.tokenizer=folder: differs from the tokenizer it was trained with, bytes");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
