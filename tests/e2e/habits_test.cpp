// What people bring along from other trainers: their keys, options, commands, launchers and hostfiles.
#include <algorithm>
#include <cstdlib>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("habits: options and commands of other trainers are named by those of this one") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  struct Case {
    Arguments command;
    std::string words;
  };
  for (const Case& one :
       {Case{kTrain + Arguments{"--max_iters", "10"}, "max_iters of nanoGPT is training.steps here, in the file or as --set training.steps=VALUE"},
        {kTrain + Arguments{"--learning-rate-decay", "--lr=1e-3"}, "lr of torchtitan and Megatron-LM is training.optimizer.learning_rate here"},
        {kTrain + Arguments{"--tensor-model-parallel-size", "2"}, "is parallel.tensor here"},
        {kTrain + Arguments{"--deepspeed", "ds.json"}, "is parallel.zero_stage here"},
        {{"trian", "run.yaml"}, "unknown argument: trian; did you mean train?"},
        {{"pretrain", "run.yaml"}, "unknown argument: pretrain; here it is trireme train"},
        {{"finetune"}, "here it is trireme train, with training.initial_weights"},
        {{"data", "biuld"}, "unknown argument: biuld; did you mean build?"},
        {kTrain + sets({"max_steps=5"}), "max_steps of Hugging Face, LitGPT and axolotl is training.steps here"}}) {
    const Outcome outcome = run(directory, one.command);
    INFO(outcome.err);
    check_error(outcome, 64, one.words);
  }
  write_file(directory / "train.toml", "[training]\nsteps = 10\n");
  check_error(run(directory, {"train", "train.toml"}), 64, "train.toml:1:1: is TOML");
  fs::remove(directory / "train.toml");
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("habits: torchrun and leftovers of an outer job are named before anything starts") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  check_error(shell(directory, "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=x TORCHELASTIC_RUN_ID=1 $T train run.yaml"), 64,
              "Start it once, without torchrun");
  check_error(shell(directory, "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 $T train run.yaml"), 64, "mpirun has not started this process");
  CHECK(directory.changes_since(before).empty());
  const Outcome noted = shell(directory, "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=x $T train run.yaml --max-steps 1");
  INFO(noted.err);
  CHECK(noted.code == 0);
  CHECK(count(noted.err, "note: RANK, LOCAL_RANK, WORLD_SIZE=2 and MASTER_ADDR are set") == 1);
}

TEST_CASE("habits: a hostfile that mpirun would refuse or misread is refused by line, and nothing starts") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrainOnly + layout(1, 1, 2, 0) + Arguments{"--hosts", "hosts"};
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"localhost slots=2\r\n", "hosts file hosts:1: the line ends in a carriage return"},
           {"localhost:2\n", "hosts file hosts:1: localhost:2: is the form of MPICH; Open MPI's is localhost slots=2"},
           {"# two\nlocalhost slots=-1\n", "hosts file hosts:2: slots=-1: is not a number of ranks"},
           {"localhost slots=1\nno..such..host slots=1\n", "hosts file hosts:2: no..such..host: no address is known for this name"},
           {"", "hosts file hosts lists no host"},
           {"# none\n\n", "hosts file hosts lists no host"}}) {
    CAPTURE(text);
    const char* const home = std::getenv("HOME");
    if (words.ends_with("for this name") && home != nullptr && fs::exists(fs::path(home) / ".ssh/config")) continue;  // ssh may know the name
    write_file(directory / "hosts", text);
    const Outcome outcome = run(directory, command);
    INFO(outcome.err);
    check_error(outcome, 64, words);
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
    CHECK_FALSE(fs::exists(directory / "run"));
  }
  write_file(directory / "hosts", "# a comment\n localhost slots = 2  # of this machine\n");
  must(directory, command + Arguments{"--max-steps", "1"});
}

TEST_CASE("habits: an output within the input directory is refused, wherever the command stands") {
  TemporaryDirectory directory;
  write_file(directory / "a.txt", "text");
  const auto before = directory.listing();
  for (const Arguments& one : {Arguments{"--output", "o", "."}, {"--output", "./o/p", "./"}, {"--output", (directory / "o").string(), "."}})
    check_error(run(directory, Arguments{"data", "build"} + one), 64, "is inside the input directory");
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("habits: token files of another width are trained with a warning") {
  TemporaryDirectory directory;
  prepare_run(directory);
  std::string ids;
  for (int i = 0; i < 2000; ++i) ids += {static_cast<char>(i * 37 % 251), '\0', '\0', '\0'};
  write_file(directory / "wide.bin", ids);
  const std::string words = "wide.bin: read as 4000 ids of 2 bytes, but every second one is 0 or almost: are these 2000 ids of 4 bytes?";
  const Outcome trained = must(directory, kTrainOnly + sets({"data.train=[wide.bin]"}) + layout(1, 1, 2, 0) + Arguments{"--max-steps", "1"});
  CHECK(count(trained.err, words) == 1);
  CHECK_THAT(must(directory, {"data", "inspect", "wide.bin"}).err, Contains(words));
  CHECK_THAT(must(directory, {"data", "inspect", "train"}).err, !Contains("warning"));
}

TEST_CASE("habits: one step trains, and the last of a decay, unless the configuration asks for a rate of 0") {
  TemporaryDirectory directory;
  prepare_run(directory);
  write_file(directory / "one.yaml", R"(run: {directory: one, device: cpu}
model: {layers: 1, hidden_size: 16, heads: 2}
training: {steps: 1, sequence_length: 16, global_batch_size: 2}
data: {train: [train]}
)");
  const auto rate = [&](const std::string& run, const Arguments& more) {
    must(directory, Arguments{"train", "one.yaml"} + in(run) + more);
    double last = -1;
    for (const nlohmann::json& line : metrics(directory / run))
      if (line.contains("loss")) last = line["learning_rate"];
    return last;
  };
  CHECK(rate("one", {}) == Approx(5e-4));
  CHECK(rate("two", sets({"training.steps=2", "training.schedule.warmup_steps=1"})) == Approx(5e-4));
  CHECK(rate("zero", sets({"training.schedule.final_learning_rate=0"})) == 0);
  // A run of version 0.1 can be resumed: it has saved 0 for a rate that was not set.
  must(directory, Arguments{"train", "one.yaml"} + in("old") + sets({"training.steps=3", "training.schedule.final_learning_rate=0"}) +
                      Arguments{"--max-steps", "1"});
  CHECK(rate("old", sets({"training.steps=3"})) > 0);
  // The other way round is a change.
  must(directory, Arguments{"train", "one.yaml"} + in("new") + sets({"training.steps=3"}) + Arguments{"--max-steps", "1"});
  check_error(run(directory, Arguments{"train", "one.yaml"} + in("new") + sets({"training.steps=3", "training.schedule.final_learning_rate=0"})), 64,
              "training.schedule.final_learning_rate");
}

}  // namespace trireme::test
