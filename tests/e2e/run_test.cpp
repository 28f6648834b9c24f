// Complete runs: their output files, bit-identical repetition, and bit-identical results after a stop and resume.
#include <cmath>
#include <map>

#include "kernels/core/isa.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace trireme::test {
namespace {

std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

void check_close(const std::vector<double>& actual, const std::vector<double>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    CAPTURE(i, actual[i], expected[i]);
    CHECK(std::abs(actual[i] - expected[i]) <= 1e-4 * expected[i]);  // fp32: a different layout sums in a different order
  }
}

TEST_CASE("run: eight ranks on three axes, their output files, and a bit-identical repetition") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrain + layout(2, 2, 2, 3);
  const Outcome first = must(directory, command);
  CHECK(first.err.find("tensor 2 x pipeline 2 x data 2, ZeRO-3") != std::string::npos);
  CHECK(first.out.find("step 6/6  loss ") != std::string::npos);

  CHECK(must(directory, {"config", "show", "run/config.yaml"}).out == read_file(directory / "run/config.yaml"));
  const json environment = json::parse(read_file(directory / "run/environment.json"));
  CHECK(environment["world_size"] == 8);
  CHECK(environment["layout"] == json({{"pipeline", 2}, {"replicate", 1}, {"shard", 2}, {"tensor", 2}}));
  CHECK(environment.contains("version"));
  CHECK(fs::read_symlink(directory / "run/checkpoints/latest") == "step-00000006");
  for (const std::string step : {"2", "4", "6"}) CHECK(fs::exists(directory / ("run/checkpoints/step-0000000" + step) / "manifest.json"));

  std::istringstream text(read_file(directory / "run/metrics.jsonl"));
  std::string line;
  REQUIRE(std::getline(text, line));
  CHECK(json::parse(line)["event"] == "start");
  int64_t step = 0, gathered = 0;
  std::map<int64_t, double> norms;
  std::vector<int64_t> evaluated;
  std::vector<std::string> saved;
  while (std::getline(text, line)) {
    const auto object = nlohmann::ordered_json::parse(line);
    if (object.contains("validation_loss")) {
      CHECK(keys(object) == std::vector<std::string>{"step", "validation_loss", "time"});
      evaluated.push_back(object["step"]);
      continue;
    }
    if (object.value("event", "") == "memory") {
      CHECK(keys(object) == std::vector<std::string>{"event", "step", "forecast", "measured", "time"});
      continue;
    }
    if (object.value("event", "") == "ranks") {
      CHECK(keys(object) == std::vector<std::string>{"event", "step", "steps", "step_seconds", "busy_seconds", "imbalance", "wait_seconds",
                                                     "data_seconds", "peak_bytes", "resident_bytes", "host_available_bytes", "grad_norms", "time"});
      for (const char* by_rank : {"step_seconds", "busy_seconds", "data_seconds", "peak_bytes", "resident_bytes", "host_available_bytes"})
        CHECK(object[by_rank].size() == 8);
      CHECK(object["wait_seconds"].contains("tensor"));
      CHECK(object["grad_norms"].size() == 6);  // embedding, four blocks, final norm
      double squares = 0;
      for (const auto& norm : object["grad_norms"]) squares += std::pow(norm.get<double>(), 2);
      CHECK(std::sqrt(squares) == Approx(norms.at(object["step"])).epsilon(1e-6));
      gathered += object["steps"].get<int64_t>();
      continue;
    }
    if (object.value("event", "") == "goodput") {
      CHECK(keys(object) == std::vector<std::string>{"event", "step", "share", "wall_seconds", "median_step_seconds", "steps", "replayed_steps",
                                                     "useful_seconds", "lost_seconds", "time"});
      CHECK(object["steps"] == 6);
      CHECK((object["share"].get<double>() > 0 && object["share"].get<double>() <= 1));
      continue;
    }
    if (object.contains("event")) {
      CHECK(keys(object) == std::vector<std::string>{"event", "checkpoint", "bytes", "stall_seconds", "write_seconds", "time"});
      CHECK(object["event"] == "checkpoint");
      saved.push_back(object["checkpoint"]);
      continue;
    }
    CHECK(keys(object) == std::vector<std::string>{"step", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "tokens_per_second",
                                                   "model_tflops", "mfu", "time"});
    CHECK(object["step"] == ++step);
    CHECK(object["tokens"] == step * 8 * 16);
    norms[step] = object["grad_norm"];
    CHECK(object["mfu"].is_null());
  }
  CHECK(step == 6);
  CHECK(gathered == 6);
  CHECK(evaluated == std::vector<int64_t>{3, 6});
  CHECK(saved == std::vector<std::string>{"step-00000002", "step-00000004", "step-00000006"});

  must(directory, command + in("again"));
  CHECK(losses(directory / "again", 6) == losses(directory / "run", 6));
  CHECK(validation_loss(directory / "again") == validation_loss(directory / "run"));
}

TEST_CASE("run: stopped twice and resumed, bit-identical to a run without a stop") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const int zero : {3, 1}) {
    CAPTURE(zero);
    const std::string whole = "whole" + std::to_string(zero), parts = "parts" + std::to_string(zero);
    const Arguments command = kTrain + layout(1, 2, 2, zero) + kNoEvaluation + sets({"checkpoint.every=0"});
    must(directory, command + in(whole));
    must(directory, command + in(parts) + Arguments{"--max-steps", "2"});
    losses(directory / parts, 2);
    CHECK(fs::read_symlink(directory / (parts + "/checkpoints/latest")) == "step-00000002");
    must(directory, command + in(parts) + Arguments{"--max-steps", "4"});
    losses(directory / parts, 4);
    must(directory, command + in(parts));
    CHECK(losses(directory / parts, 6) == losses(directory / whole, 6));
    // Weights and optimizer state too.
    for (const std::string rank : {"0", "1", "2", "3"}) {
      const std::string shard = "/checkpoints/step-00000006/rank-0000" + rank + ".safetensors";
      CHECK(read_file(directory / (parts + shard)) == read_file(directory / (whole + shard)));
    }
  }
  const auto before = directory.listing();
  const Outcome finished = must(directory, kTrain + layout(1, 2, 2, 3) + kNoEvaluation + sets({"checkpoint.every=0"}) + in("whole3"));
  CHECK(finished.err.find("nothing to do: 6 of 6 steps are done") != std::string::npos);
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("run: resumed in a different layout") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrain + kNoEvaluation, half = {"--max-steps", "3"};
  must(directory, command + in("whole"));
  const std::vector<double> expected = losses(directory / "whole", 6);
  const Arguments eight = layout(2, 2, 2, 3);

  must(directory, command + eight + in("from_eight") + half);
  must(directory, command + in("from_eight"));
  check_close(losses(directory / "from_eight", 6), expected);

  must(directory, command + in("from_one") + half);
  must(directory, command + layout(2, 1, 2, 2) + in("from_one"));
  check_close(losses(directory / "from_one", 6), expected);

  must(directory, command + layout(2, 1, 2, 1) + in("elsewhere") + Arguments{"--resume", "from_one/checkpoints/step-00000003"});
  CHECK(metrics(directory / "elsewhere")[1]["step"] == 4);
}

TEST_CASE("run: eval and generate read a checkpoint of eight ranks on one rank") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + layout(2, 2, 2, 3));
  const std::string saved = "run/checkpoints/latest";

  // CONFIG may have any layout: eval uses one rank.
  const Outcome evaluated = must(directory, Arguments{"eval", "run.yaml", "--checkpoint", saved, "--json"} + layout(2, 1, 2, 1));
  const auto result = nlohmann::ordered_json::parse(evaluated.out);
  CHECK(keys(result) == std::vector<std::string>{"validation_loss", "perplexity", "bits_per_byte", "tokens"});
  const double loss = result["validation_loss"];
  CHECK(std::abs(loss - validation_loss(directory / "run")) <= 1e-6);
  CHECK(result["perplexity"].get<double>() == Approx(std::exp(loss)));
  CHECK(result["bits_per_byte"].get<double>() == Approx(loss / std::log(2.0)));
  CHECK(result["tokens"] == 700 - 1);  // all of 700 bytes but the first

  const auto generate = [&](const Arguments& more) {
    return must(directory, Arguments{"generate", "--checkpoint", saved, "--prompt", "Ship 7", "--max-tokens", "40"} + more).out;
  };
  const std::string text = generate({"--seed", "1"});
  CHECK(text.starts_with("Ship 7"));
  CHECK(text.size() == 6 + 40 + 1);
  CHECK(generate({"--seed", "1"}) == text);
  CHECK(generate({"--seed", "2"}) != text);
  CHECK(generate({"--seed", "1", "--temperature", "0"}) == generate({"--seed", "2", "--temperature", "0"}));
  CHECK(generate({"--seed", "3", "--top-k", "1"}) == generate({"--temperature", "0"}));
}

TEST_CASE("run: ranks started by mpirun, and data: auto uses the remaining ranks") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrain + kNoEvaluation + sets({"parallel.tensor=2", "parallel.data=auto", "parallel.zero_stage=2", "training.steps=3"});
  const Outcome joined = run_under_mpirun(directory, 4, command);
  INFO(joined.err);
  REQUIRE(joined.code == 0);
  CHECK(joined.err.find("tensor 2 x pipeline 1 x data 2") != std::string::npos);
  const json environment = json::parse(read_file(directory / "run/environment.json"));
  CHECK(environment["world_size"] == 4);
  CHECK(environment["layout"]["shard"] == 2);
  must(directory, kTrain + kNoEvaluation + sets({"training.steps=3"}) + layout(2, 1, 2, 2) + in("launched"));
  CHECK(losses(directory / "launched", 3) == losses(directory / "run", 3));
}

TEST_CASE("run: kernels.cpu_isa selects the instruction set, up to that of the CPU") {
  TemporaryDirectory directory;
  prepare_run(directory);
  std::vector<double> expected;
  for (int i = 0; i < kIsas; ++i) {
    const std::string name = name_of(static_cast<Isa>(i));
    INFO(name);
    const Arguments command = kTrain + layout(1, 1, 2, 1) + kNoEvaluation + in(name) + sets({"kernels.cpu_isa=" + name});
    if (static_cast<Isa>(i) > best_isa()) {
      CHECK(must(directory, command, 64).err.find("kernels.cpu_isa=" + name) != std::string::npos);
      CHECK_FALSE(fs::exists(directory / name));
      continue;
    }
    must(directory, command);
    CHECK(json::parse(read_file(directory / name / "environment.json"))["cpu_isa"] == name);
    const std::vector<double> found = losses(directory / name, 6);
    if (expected.empty()) expected = found;
    check_close(found, expected);
  }
}

TEST_CASE("run: ranks with different inputs are refused, and the error names the difference") {
  TemporaryDirectory directory;
  prepare_run(directory);
  fs::create_directory(directory / "elsewhere");
  fs::copy(directory / "train", directory / "elsewhere/train", fs::copy_options::recursive);
  std::string tokens = read_file(directory / "elsewhere/train/tokens.bin");
  std::swap(tokens[100], tokens[205]);
  REQUIRE(tokens[100] != tokens[205]);
  write_file(directory / "elsewhere/train/tokens.bin", tokens);
  fs::copy(directory / "validation", directory / "elsewhere/validation", fs::copy_options::recursive);
  fs::copy(directory / "run.yaml", directory / "elsewhere/run.yaml");
  const Arguments rank = Arguments{"-n", "1", kBinary} + kTrain + sets({"parallel.data=2"});
  const auto refused = [&](const Arguments& second, const std::string& what) {
    const auto before = directory.listing();
    const Outcome outcome = Process(mpirun_command() + rank + Arguments{":"} + second, directory.path()).wait();
    CAPTURE(outcome.err, what);
    CHECK(outcome.code == 64);
    CHECK(outcome.err.find("the ranks of this job disagree: " + what + " differs between rank 0 and rank 1") != std::string::npos);
    CHECK(directory.changes_since(before) == "");
  };
  refused(rank + sets({"training.optimizer.learning_rate=0.5"}), "configuration");
  refused(rank + Arguments{"--max-steps", "2"}, "--max-steps");
  const Arguments elsewhere = Arguments{"-wdir", (directory / "elsewhere").string()} + rank;
  refused(elsewhere, "training data");
  // The same data, but a run directory that is not shared, as on hosts without a common file system.
  fs::copy(directory / "train/tokens.bin", directory / "elsewhere/train/tokens.bin", fs::copy_options::overwrite_existing);
  const Outcome apart = Process(mpirun_command() + rank + Arguments{":"} + elsewhere, directory.path()).wait();
  INFO(apart.err);
  CHECK(apart.code == 74);
  CHECK(apart.err.find("run.directory=run: created by rank 0, but not visible on this rank; it must be shared by all ranks (on rank 1)") !=
        std::string::npos);
}

TEST_CASE("run: a step with NaN is rejected, reported, and null in the metrics") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome outcome = must(directory, kTrain + layout(1, 2, 2, 1) + sets({"training.optimizer.learning_rate=1.0e+30"}));
  INFO(outcome.err);
  CHECK(outcome.err.find("rejected on every rank: the gradient") != std::string::npos);
  CHECK(outcome.err.find("weights are unchanged") != std::string::npos);
  const std::string text = read_file(directory / "run/metrics.jsonl");
  CHECK(text.find("nan") == std::string::npos);
  CHECK(text.find("inf") == std::string::npos);
  int64_t steps = 0, nulls = 0, rejected = 0;
  for (const json& line : metrics(directory / "run")) {
    if (line.value("event", "") == "rejected_step") {
      ++rejected;
      CHECK(line["step"] == steps);
      CHECK(line["parameter"].is_string());
    } else if (line.contains("loss")) {
      CHECK(line["step"] == ++steps);
      nulls += line["loss"].is_null() || line["grad_norm"].is_null() ? 1 : 0;
    }
  }
  CHECK(steps == 6);  // the run continues
  CHECK(rejected >= 4);
  CHECK(nulls == rejected);
}

TEST_CASE("run: a corrupt token in the middle of the data ends the job with one message") {
  TemporaryDirectory directory;
  prepare_run(directory);
  std::string text;
  while (text.size() <= size_t{1} << 20) text += read_file(directory / "train.txt");
  write_file(directory / "long.txt", text);
  must(directory, {"data", "build", "--output", "long", "long.txt"});
  std::string index = read_file(directory / "long/index.json");
  index.replace(index.find("\"vocab_size\": 256"), 17, "\"vocab_size\": 250");
  write_file(directory / "long/index.json", index);
  for (size_t i = 0; i < text.size(); ++i)
    if (i % (text.size() / 4096) != 0) text[i] = '\xFF';  // of more than a million tokens 4096 are checked before the run: only those stay valid
  write_file(directory / "long/tokens.bin", text);
  const Outcome outcome = must(directory, kTrain + layout(2, 2, 1, 0) + kNoEvaluation + sets({"data.train=[long]"}), 65);
  const std::string message = " is 255, outside the vocabulary of 250; rebuild it";  // the same token on all four
  const size_t at = outcome.err.find(message);
  INFO(outcome.err);
  REQUIRE(at != std::string::npos);
  CHECK(outcome.err.find(message, at + 1) == std::string::npos);
}

TEST_CASE("run: epochs are converted to steps") {
  TemporaryDirectory directory;
  prepare_run(directory);
  write_file(directory / "small.txt", read_file(directory / "train.txt").substr(0, 16 * 21 + 1));  // 21 sequences
  must(directory, {"data", "build", "--output", "small", "small.txt"});
  std::string config = read_file(directory / "run.yaml");
  config.replace(config.find("steps: 6"), 8, "epochs: 2");
  write_file(directory / "run.yaml", config);
  const Arguments command = kTrain + sets({"data.train=[small]", "training.schedule.name=wsd"});
  must(directory, command);
  losses(directory / "run", 6);  // 2 x 21 sequences in steps of 8: the sixth reaches into the third epoch
  CHECK(read_file(directory / "run/config.yaml").find("epochs: 2") != std::string::npos);
  CHECK(must(directory, command).err.find("nothing to do: 6 of 6") != std::string::npos);
}

TEST_CASE("run: --set with a list joins token directories") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + kNoEvaluation +
                      sets({"data.train=[train, validation]", "training.steps=2", "parallel.pipeline=2", "parallel.layers_per_stage=[3,1]"}));
  const std::string resolved = must(directory, {"config", "show", "run/config.yaml"}).out;
  CHECK(resolved.find("train: [train, validation]") != std::string::npos);
  CHECK(resolved.find("layers_per_stage: [3, 1]") != std::string::npos);
  losses(directory / "run", 2);
}

}  // namespace
}  // namespace trireme::test
