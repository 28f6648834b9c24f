// `trireme compare` on runs that were trained: each kind of difference is found and named, and a resumed run equals an undisturbed one.
#include <algorithm>

#include "kernels/core/check.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

const Arguments kTwoRanks = kTrain + layout(1, 1, 2, 2);

void copy_run(const TemporaryDirectory& directory, const std::string& from, const std::string& to) {
  fs::copy(directory / from, directory / to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

/// The comparison of run a with another one as JSON, after a check of its exit code and of the words of its text.
json compared(const TemporaryDirectory& directory, const std::string& other, int code, const Arguments& words) {
  const Outcome text = run(directory, {"compare", "a", other});
  INFO(text.out << text.err);
  CHECK(text.code == code);
  for (const std::string& word : words) CHECK_THAT(text.out, Catch::Matchers::Contains(word));
  const Outcome answer = run(directory, {"compare", "a", other, "--json"});
  CHECK(answer.code == code);
  const json result = json::parse(answer.out);
  CHECK(result["equal"] == (code == 0));
  return result;
}

std::string result_of(const json& comparison, const std::string& name) {
  for (const json& part : comparison["parts"])
    if (part["part"] == name) return part["result"];
  FAIL("no part " << name);
  return "";
}

}  // namespace

TEST_CASE("compare: a run that was stopped and resumed equals an undisturbed one") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTwoRanks + in("a"));
  must(directory, kTwoRanks + in("b") + sets({"run.name=b"}) + Arguments{"--max-steps", "3"});
  must(directory, kTwoRanks + in("b") + sets({"run.name=b"}));
  const json same = compared(directory, "b", 0, {"every byte of steps 4, 6", "equal: restarts, times"});
  for (const json& part : same["parts"]) CHECK(part["result"] == "equal");
  CHECK(same["cause"] == "");
  CHECK(same["checkpoints"]["only_in"] == json{{2}, {3}});  // the stop saved one more, and the oldest has been removed

  must(directory, {"compare", "a", "a"}, 0);
  check(run(directory, {"compare", "a", "nothing"}), 66, "nothing: does not exist");
  check(run(directory, {"compare", "train", "a"}), 65, "train: not a run");
  check(run(directory, {"compare", "a"}), 64, "B is required");

  for (const char* const empty : {"c", "d"}) {  // runs that ended before their first step
    fs::create_directory(directory / empty);
    fs::copy(directory / "a/config.yaml", directory / empty / "config.yaml");
    write_file(directory / empty / "metrics.jsonl", "");
  }
  check(run(directory, {"compare", "c", "d"}), 65, "c and d have recorded no step, and have no checkpoints of one step: nothing to compare");
  CHECK(result_of(compared(directory, "d", 1, {"6 -> 0"}), "steps") == "different");
}

TEST_CASE("compare: a job in another layout in the middle of a run is named, not hardware") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments train = kTrainOnly + sets({"model.dropout=0"});
  must(directory, train + layout(1, 1, 1, 0) + in("a"));
  must(directory, train + layout(1, 1, 1, 0) + in("b") + Arguments{"--max-steps", "2"});
  must(directory, train + layout(1, 1, 2, 0) + in("b") + Arguments{"--max-steps", "4"});
  must(directory, train + layout(1, 1, 1, 0) + in("b"));
  const json other = compared(directory, "b", 1, {"the jobs that trained step 3 differ: parallel.data default -> 2", "world_size 1 -> 2"});
  CHECK_THAT(other["cause"].get<std::string>(), !Catch::Matchers::Contains("hardware"));
  CHECK(result_of(other, "configuration") == "equal");
  CHECK(result_of(other, "jobs") == "different");
}

TEST_CASE("compare: a changed key, another seed and another data set are named as the cause, with the first step") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTwoRanks + in("a"));

  must(directory, kTwoRanks + in("key") + sets({"training.optimizer.weight_decay=0.2"}));
  const json key = compared(directory, "key", 1, {"likely cause", "changed keys: training.optimizer.weight_decay 0.1 -> 0.2"});
  CHECK(key["first_step"]["step"] == 2);  // the first step after the first update that decays
  CHECK(key["first_step"]["figure"] == "loss");
  CHECK(key["first_tensor"]["step"] == 2);
  CHECK(result_of(key, "data") == "equal");
  CHECK(result_of(key, "sample ids") == "equal");
  CHECK(result_of(key, "code") == "equal");

  must(directory, kTwoRanks + in("seed") + sets({"run.seed=77"}));
  const json seed = compared(directory, "seed", 1, {"another seed: run.seed 1234 -> 77"});
  CHECK(seed["first_step"]["step"] == 1);
  CHECK(result_of(seed, "sample ids") == "different");
  CHECK(seed["first_tensor"]["tensor"] == "weight/embedding.weight");

  must(directory, kTwoRanks + in("data") + sets({"data.train=[validation]", "data.validation=[train]"}));
  const json data = compared(directory, "data", 1, {"another data set: data.train [train] -> [validation]"});
  CHECK(data["first_step"]["step"] == 1);
  CHECK(result_of(data, "data") == "different");
  CHECK(result_of(data, "sample ids") == "different");
}

TEST_CASE("compare: another data set under the same path is found, and the same one under another path is equal") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTwoRanks + kNoEvaluation + in("a"));
  fs::copy(directory / "train", directory / "moved", fs::copy_options::recursive);
  must(directory, kTwoRanks + kNoEvaluation + in("moved-data") + sets({"data.train=[moved]"}));
  const json moved = compared(directory, "moved-data", 0, {"equal: restarts"});
  CHECK(moved["keys"][0]["key"] == "run.directory");
  CHECK(moved["keys"][1]["key"] == "data.train");
  CHECK(moved["keys"][1]["counts"] == false);

  std::string text = read_file(directory / "train.txt");
  for (size_t at = text.find("oars"); at != text.npos; at = text.find("oars", at)) text.replace(at, 4, "sail");
  write_file(directory / "train.txt", text);
  fs::remove_all(directory / "train");
  must(directory, {"data", "build", "--tokenizer", "bytes", "--output", "train", "train.txt"});
  must(directory, kTwoRanks + kNoEvaluation + in("b"));
  const json other = compared(directory, "b", 1, {"another data set under the same path"});
  CHECK(result_of(other, "data") == "different");
  CHECK(result_of(other, "configuration") == "equal");
  CHECK(other["first_step"]["step"] == 1);
}

TEST_CASE("compare: another commit is a difference, also where the results are equal") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTwoRanks + in("a"));
  copy_run(directory, "a", "b");
  const std::string version = json::parse(read_file(directory / "a/environment.json"))["version"];
  for (const char* name : {"environment.json", "metrics.jsonl"}) {
    std::string text = read_file(directory / "b" / name);
    for (size_t at = text.find(version); at != text.npos; at = text.find(version, at + 1)) text.replace(at, version.size(), "0.1.0 (0123abc)");
    write_file(directory / "b" / name, text);
  }
  const json commit =
      compared(directory, "b", 1, {"another version of the program", "-> 0.1.0 (0123abc)", "the results that both runs have are equal"});
  CHECK(result_of(commit, "code") == "different");
  CHECK(result_of(commit, "losses") == "equal");
  CHECK(commit["first_step"].is_null());
  CHECK(commit["first_tensor"].is_null());
}

TEST_CASE("compare: one flipped bit in the weights of a checkpoint is found, with its tensor, its element and the file that changed") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTwoRanks + in("a"));
  copy_run(directory, "a", "b");
  const fs::path checkpoint = directory / "b/checkpoints/step-00000004";
  const std::string name = "weight/blocks.2.mlp.up.weight";
  StoredBox box;
  {
    const CheckpointReader reader(checkpoint);
    box = reader.tensor(name).boxes.back();
  }
  std::string bytes = read_file(checkpoint / box.file);
  const auto at = static_cast<size_t>(box.begin) + 4 * 5 + 1;  // in the sixth element
  bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
  write_file(checkpoint / box.file, bytes);

  const json flipped =
      compared(directory, "b", 1, {"step 4: " + name, "1 bit of 1 element differs", "B does not match its manifest", "one flipped bit in " + name});
  CHECK(flipped["first_step"].is_null());
  const json& tensor = flipped["first_tensor"];
  CHECK(tensor["step"] == 4);
  CHECK(tensor["tensor"] == name);
  CHECK(tensor["elements"] == 1);
  CHECK(tensor["bits"] == 1);
  CHECK(tensor["element"] == json{box.box.start[0], box.box.start[1] + 5});
  CHECK(tensor["damage"][0] == "");
  CHECK_THAT(tensor["damage"][1].get<std::string>(), Catch::Matchers::Contains("the manifest says " + box.digest));
  CHECK_THAT(flipped["cause"].get<std::string>(), Catch::Matchers::StartsWith("the file of run B has changed since it was saved"));
  const Outcome other_way = run(directory, {"compare", "b", "a"});
  CHECK_THAT(other_way.out, Catch::Matchers::Contains("A does not match its manifest"));
}

TEST_CASE("compare: checkpoints of different layouts are compared element by element") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainOnly + layout(1, 1, 2, 2) + in("a") + Arguments{"--max-steps", "4"});
  // The same state saved by another layout: step 4 is loaded, and saved by the next run before it trains on.
  must(directory, kTrainOnly + layout(2, 2, 1, 0) + in("b") + Arguments{"--resume", "a/checkpoints/step-00000004", "--max-steps", "5"});
  must(directory, kTrainOnly + layout(1, 1, 2, 2) + in("a") + Arguments{"--max-steps", "5"});
  const json across = compared(directory, "b", 1, {"another order of sums, which changes the last bits: parallel.tensor 1 -> 2"});
  CHECK(across["first_step"]["step"] == 5);
  CHECK(across["first_tensor"]["step"] == 5);
  CHECK(across["first_tensor"]["damage"] == json{"", ""});
  CHECK(std::abs(across["first_tensor"]["values"][0].get<double>() - across["first_tensor"]["values"][1].get<double>()) < 1e-5);
}

}  // namespace trireme::test
