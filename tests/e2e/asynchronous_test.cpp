// Asynchronous updates from the command line: what a run logs, repeats and refuses.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kServers = kTrainOnly + sets({"parallel.islands=2", "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=4",
                                              "training.asynchronous.staleness=2", "training.steps=10", "checkpoint.every=4", "checkpoint.keep=10",
                                              "training.schedule.warmup_steps=0"});

std::string tensors_of(const fs::path& run_directory, const std::string& step) {
  const fs::path checkpoint = run_directory / "checkpoints" / ("step-000000" + step);
  std::string all;
  for (const std::string& name : names_in(checkpoint))
    if (name.ends_with(".safetensors")) all += read_file(checkpoint / name);
  return all;
}

/// By step.
std::vector<nlohmann::json> values_of(const fs::path& run_directory, const std::string& key) {
  std::vector<nlohmann::json> values;
  for (const nlohmann::json& line : metrics(run_directory))
    if (!line.contains("event") && line.contains("loss")) values.push_back(line.at(key));
  return values;
}

}  // namespace

TEST_CASE("asynchronous: a run logs workers and staleness, and another one repeats it from this log, bit for bit") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const Arguments& island : {layout(1, 1, 2, 1), layout(2, 1, 1, 0)}) {
    must(directory, kServers + island + in("first"));
    must(directory, kServers + island + in("again") + sets({"training.asynchronous.replay=first"}));
    CHECK(losses(directory / "first", 10) == losses(directory / "again", 10));
    CHECK(values_of(directory / "first", "workers") == values_of(directory / "again", "workers"));
    CHECK(checkpoint_names(directory / "first") == std::set<std::string>{"step-00000004", "step-00000008", "step-00000010"});
    for (const char* const step : {"04", "08", "10"}) CHECK(tensors_of(directory / "first", step) == tensors_of(directory / "again", step));
    std::vector<int64_t> counts;
    int64_t gradients = 0;
    for (const nlohmann::json& staleness : values_of(directory / "first", "staleness")) {
      REQUIRE(staleness.size() == 1);
      counts.resize(std::max<size_t>(counts.size(), staleness[0].get<size_t>() + 1));
      ++counts[staleness[0].get<size_t>()];
      ++gradients;
    }
    CHECK(gradients == 10);
    std::vector<int64_t> steps;
    for (const nlohmann::json& line : metrics(directory / "first")) {
      if (line.value("event", "") != "staleness") continue;
      steps.push_back(line["step"].get<int64_t>());
      if (steps.back() == 10) CHECK(line["gradients"] == counts);
    }
    CHECK(steps == std::vector<int64_t>{4, 8, 10});
    fs::remove_all(directory / "first");
    fs::remove_all(directory / "again");
  }
}

TEST_CASE("asynchronous: a resumed run repeats the steps after its checkpoint in their logged order") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_error(must(directory, kServers + in("run") + Arguments{"--max-steps", "7"}), 0, "done: 8 of 10 steps");
  const std::vector<double> before = losses(directory / "run", 8);
  const std::string state = tensors_of(directory / "run", "08");
  const std::vector<nlohmann::json> workers = values_of(directory / "run", "workers");
  // Steps 5 to 8 have been trained, but their checkpoint is lost.
  const auto lose_checkpoint = [&] {
    fs::remove_all(directory / "run/checkpoints/step-00000008");
    fs::remove(directory / "run/checkpoints/latest");
  };
  lose_checkpoint();
  check_error(must(directory, kServers + in("run") + Arguments{"--max-steps", "8"}), 0, "steps 5 to 8 are repeated in the order of arrivals");
  CHECK(losses(directory / "run", 8) == before);
  // As if this job had ended before it repeated a step.
  lose_checkpoint();
  std::string kept;
  for (const nlohmann::json& line : metrics(directory / "run"))
    if (line.value("step", 0) <= 4) kept += line.dump() + "\n";
  write_file(directory / "run/metrics.jsonl", kept);
  check_error(must(directory, kServers + in("run") + Arguments{"--max-steps", "8"}), 0, "steps 5 to 8 are repeated in the order of arrivals");
  CHECK(losses(directory / "run", 8) == before);
  CHECK(values_of(directory / "run", "workers") == workers);
  CHECK(tensors_of(directory / "run", "08") == state);
  must(directory, kServers + in("run"));
  losses(directory / "run", 10);
}

TEST_CASE("asynchronous: with a backup replica a resumed run and a replay repeat the log, late gradients included") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments backup = kTrainOnly + layout(1, 1, 1, 0) +
                           sets({"parallel.islands=3", "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=4",
                                 "training.asynchronous.apply_after=2", "resilience.backup_replicas=1", "training.steps=8", "checkpoint.every=4",
                                 "training.schedule.warmup_steps=0"});
  must(directory, backup + in("first"));
  const std::vector<double> before = losses(directory / "first", 8);
  const std::string state = tensors_of(directory / "first", "08");
  int64_t arrivals = 0;
  for (const nlohmann::json& workers : values_of(directory / "first", "workers")) arrivals += std::ssize(workers);
  CHECK(arrivals >= 16);
  must(directory, backup + in("again") + sets({"training.asynchronous.replay=first"}));
  CHECK(losses(directory / "again", 8) == before);
  CHECK(tensors_of(directory / "again", "08") == state);
  fs::remove_all(directory / "first/checkpoints/step-00000008");
  fs::remove(directory / "first/checkpoints/latest");
  check_error(must(directory, backup + in("first")), 0, "steps 5 to 8 are repeated in the order of arrivals");
  CHECK(losses(directory / "first", 8) == before);
  CHECK(tensors_of(directory / "first", "08") == state);
  // The number of backups is part of what is trained, and their log is not one of a run without them.
  const Arguments without =
      kTrainOnly + layout(1, 1, 1, 0) +
      sets({"parallel.islands=3", "training.asynchronous.mode=parameter_server", "training.asynchronous.steps=4",
            "training.asynchronous.apply_after=2", "training.steps=8", "checkpoint.every=4", "training.schedule.warmup_steps=0"});
  check_error(run(directory, without + in("first")), 64, "resilience.backup_replicas");
}

TEST_CASE("asynchronous: one island trains as without parameter servers, and its checkpoints are evaluated and exported as any other") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments steps = kTrain + layout(1, 1, 2, 2) + sets({"training.steps=6", "training.evaluate.every=3", "checkpoint.every=3"});
  const Arguments servers = sets({"training.asynchronous.mode=parameter_server", "training.asynchronous.steps=3"});
  must(directory, steps + in("plain"));
  must(directory, steps + servers + in("served"));
  CHECK(losses(directory / "plain", 6) == losses(directory / "served", 6));
  CHECK(tensors_of(directory / "plain", "06") == tensors_of(directory / "served", "06"));
  CHECK(validation_loss(directory / "plain") == validation_loss(directory / "served"));
  must(directory, steps + servers + sets({"parallel.islands=2"}) + in("islands"));
  const Arguments eval = {"eval", "run.yaml", "--json", "--checkpoint", "islands"};
  const double loss = nlohmann::json::parse(must(directory, eval).out)["validation_loss"];
  CHECK(loss == Approx(validation_loss(directory / "islands")).epsilon(1e-6));
  must(directory, exporting("islands", "out"));
}

TEST_CASE("asynchronous: elastic averaging logs its exchanges, repeats them when it is resumed, and evaluates and exports the centre") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments elastic = kTrain + sets({"parallel.islands=2", "training.asynchronous.mode=elastic_averaging", "training.asynchronous.steps=4",
                                           "training.asynchronous.every=2", "training.steps=10", "checkpoint.every=4", "training.evaluate.every=4",
                                           "checkpoint.keep=10", "training.schedule.warmup_steps=0"});
  must(directory, elastic + in("first"));
  must(directory, elastic + in("again") + sets({"training.asynchronous.replay=first"}));
  CHECK(losses(directory / "first", 10) == losses(directory / "again", 10));
  CHECK(values_of(directory / "first", "workers") == values_of(directory / "again", "workers"));
  for (const char* const step : {"04", "08", "10"}) CHECK(tensors_of(directory / "first", step) == tensors_of(directory / "again", step));
  CHECK(validation_loss(directory / "first") == validation_loss(directory / "again"));
  size_t exchanges = 0;
  for (const nlohmann::json& workers : values_of(directory / "first", "workers")) exchanges += workers.size();
  CHECK(exchanges == 10);
  for (const nlohmann::json& line : metrics(directory / "first")) {
    if (line.value("event", "") != "staleness") continue;
    int64_t counted = 0;
    for (const nlohmann::json& count : line["exchanges"]) counted += count.get<int64_t>();
    CHECK(counted == line["step"].get<int64_t>());  // each of two islands, every second step
  }
  // Steps 9 and 10 have been trained, but their checkpoint is lost.
  const std::vector<double> before = losses(directory / "first", 10);
  const std::string state = tensors_of(directory / "first", "10");
  fs::remove_all(directory / "first/checkpoints/step-00000010");
  fs::remove(directory / "first/checkpoints/latest");
  check_error(must(directory, elastic + in("first")), 0, "steps 9 to 10 are repeated in the order of arrivals");
  CHECK(losses(directory / "first", 10) == before);
  CHECK(tensors_of(directory / "first", "10") == state);
  // Another value of `every` has other exchanges.
  check_error(run(directory, elastic + in("other") + sets({"training.asynchronous.replay=first", "training.asynchronous.every=1"})), 65,
              "training.asynchronous.replay=first: the arrivals of step 4 are impossible with parallel.islands 2");
  const Arguments eval = {"eval", "run.yaml", "--json", "--checkpoint", "first"};
  const double loss = nlohmann::json::parse(must(directory, eval).out)["validation_loss"];
  CHECK(loss == Approx(validation_loss(directory / "first")).epsilon(1e-6));
  must(directory, exporting("first", "out"));
  check_error(run(directory, elastic + in("traced") + Arguments{"--trace-steps", "2:3"}), 64, "--trace-steps=2:3: with training.asynchronous");
}

TEST_CASE("asynchronous: hogwild warns that it is not repeatable, resumes, evaluates and exports, and one island trains as SGD") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments steps = kTrain + layout(1, 1, 1, 0) +
                          sets({"training.optimizer.name=sgd", "training.optimizer.learning_rate=0.05", "training.steps=8", "checkpoint.every=4",
                                "training.evaluate.every=4", "training.schedule.warmup_steps=0"});
  const Arguments hogwild = sets({"training.asynchronous.mode=hogwild", "training.asynchronous.steps=4"});
  must(directory, steps + in("plain"));
  const Outcome one = must(directory, steps + hogwild + in("one"));
  const std::string warning = "warning: training.asynchronous.mode=hogwild: the islands change the same weights without a lock";
  CHECK((one.out + one.err).find(warning) == std::string::npos);
  CHECK(losses(directory / "plain", 8) == losses(directory / "one", 8));
  CHECK(tensors_of(directory / "plain", "08") == tensors_of(directory / "one", "08"));
  const Arguments several = steps + hogwild + sets({"parallel.islands=2"}) + in("several");
  const Outcome half = must(directory, several + Arguments{"--max-steps", "3"});
  check_error(half, 0, "done: 4 of 8 steps");
  check_error(half, 0, warning);
  check_error(must(directory, several), 0, "done: 8 of 8 steps");
  const std::vector<double> trained = losses(directory / "several", 8);
  CHECK(trained.back() < trained.front());
  const Arguments eval = {"eval", "run.yaml", "--json", "--checkpoint", "several"};
  const double loss = nlohmann::json::parse(must(directory, eval).out)["validation_loss"];
  CHECK(loss == Approx(validation_loss(directory / "several")).epsilon(1e-6));
  must(directory, exporting("several", "out"));
  const Arguments keys = kNoEvaluation + sets({"training.optimizer.name=sgd", "training.asynchronous.mode=hogwild", "checkpoint.every=0"});
  const Arguments plan = Arguments{"plan", "run.yaml"} + keys + sets({"parallel.islands=2"});
  CHECK(must(directory, plan).out.find("2 islands on one host that step on the same weights without a lock") != std::string::npos);
  CHECK(nlohmann::json::parse(must(directory, plan + Arguments{"--json"}).out)["asynchronous"]["shared_bytes"] > 0);
  check(run(directory, Arguments{"verify", "run.yaml", "--layouts", "tp2 dp2z3"} + keys), 0, "as one island without training.asynchronous");
}

TEST_CASE("asynchronous: what cannot be replayed, traced, measured or changed is refused before anything is written") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kServers + in("run") + Arguments{"--max-steps", "4"});
  must(directory, kTrainOnly + sets({"training.steps=2"}) + in("plain"));
  const std::vector<std::string> before = directory.listing();
  const auto refused = [&](const Arguments& more, int code, const std::string& words) {
    check_error(run(directory, kServers + in("other") + more), code, words);
    CHECK(directory.changes_since(before) == "");
  };
  refused(sets({"training.asynchronous.replay=missing"}), 66, "training.asynchronous.replay=missing: no missing/metrics.jsonl");
  refused(sets({"training.asynchronous.replay=plain"}), 65, "training.asynchronous.replay=plain: has no order of arrivals for step 1");
  refused(sets({"training.asynchronous.replay=run", "training.asynchronous.apply_after=2"}), 65,
          "the arrivals of step 1 are impossible with parallel.islands 2");
  refused({"--trace-steps", "2:3"}, 64, "--trace-steps=2:3: with training.asynchronous");
  refused(sets({"observe.anomalies.policy=skip"}), 64, "observe.anomalies.policy=skip");
  check_error(run(directory, Arguments{"bench", "step", "run.yaml"} + kNoEvaluation + Arguments(kServers.begin() + 2, kServers.end())), 64,
              "bench step: training.asynchronous.mode=parameter_server");
  check_error(run(directory, kServers + sets({"training.asynchronous.staleness=1"}) + in("run")), 64, "training.asynchronous.staleness");
  check_error(run(directory, kTrainOnly + sets({"training.steps=10"}) + in("run")), 64, "parallel.islands");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("asynchronous: plan counts the bytes of a gradient, and more islands take more steps in a second") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto plan = [&](int islands) {
    const Arguments servers =
        kNoEvaluation + sets({"training.asynchronous.mode=parameter_server", "checkpoint.every=0", "parallel.islands=" + std::to_string(islands)});
    return nlohmann::json::parse(must(directory, Arguments{"plan", "run.yaml", "--json"} + servers).out);
  };
  const nlohmann::json one = plan(1), two = plan(2);
  CHECK((one["asynchronous"]["bytes_per_gradient"] == 0 && two["asynchronous"]["bytes_per_gradient"] > 0));
  CHECK(two["step_seconds"].get<double>() < one["step_seconds"].get<double>());
  // With a backup replica, three islands take the steps of two, and a slow one delays the end of a round of 100 steps.
  const Arguments backup = sets({"training.asynchronous.mode=parameter_server", "checkpoint.every=0", "parallel.islands=3",
                                 "training.asynchronous.apply_after=2", "resilience.backup_replicas=1"});
  const auto seconds_with_backup = [&](const char* straggler) {
    const Arguments cluster = {"--cluster", "cpu", "--cluster-set", "nodes=3", "--cluster-set", straggler};
    return nlohmann::json::parse(must(directory, Arguments{"plan", "run.yaml", "--json"} + cluster + kNoEvaluation + backup).out)["step_seconds"]
        .get<double>();
  };
  const double even = seconds_with_backup("software.straggler=1"), uneven = seconds_with_backup("software.straggler=3");
  CHECK((uneven > even && uneven < 1.03 * even));
  CHECK(must(directory, Arguments{"plan", "run.yaml"} + kNoEvaluation + backup).out.find("2 gradients in a step, the first by the newest weights") !=
        std::string::npos);
  const Arguments elastic = {"plan", "run.yaml"},
                  keys = kNoEvaluation + sets({"training.asynchronous.mode=elastic_averaging", "checkpoint.every=0", "parallel.islands=2"});
  const nlohmann::json averaged = nlohmann::json::parse(must(directory, elastic + Arguments{"--json"} + keys).out)["asynchronous"];
  CHECK((averaged["every"] == 10 && averaged["moving_rate"] == 0.45));
  CHECK(averaged["bytes_per_exchange"] == two["asynchronous"]["bytes_per_gradient"]);  // weights and gradients of four bytes
  CHECK(must(directory, elastic + keys).out.find("2 islands that exchange weights with the centre every 10 steps by moving rate 0.45") !=
        std::string::npos);
  check(run(directory, Arguments{"verify", "run.yaml", "--layouts", "tp2"} + kNoEvaluation +
                           sets({"training.asynchronous.mode=parameter_server", "parallel.islands=2", "checkpoint.every=0"})),
        0, "as one island without training.asynchronous");
}

}  // namespace trireme::test
