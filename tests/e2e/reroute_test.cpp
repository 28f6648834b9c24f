// resilience.reroute as a user meets it: in a run under mpirun, in plan and in config actions.
#include <cmath>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

using nlohmann::json;

const Arguments kPipelines =
    sets({"parallel.data=2", "parallel.pipeline=2", "parallel.zero_stage=2", "training.precision=fp64", "model.dropout=0.1"});

/// Loss and gradient norm of each step, and the validation losses.
std::vector<double> figures_of(const std::filesystem::path& run) {
  std::vector<double> figures;
  for (const json& line : metrics(run))
    for (const char* const key : {"loss", "grad_norm", "validation_loss"})
      if (line.contains(key) && line.at(key).is_number()) figures.push_back(line.at(key).get<double>());
  return figures;
}

}  // namespace

TEST_CASE("reroute: a run of four processes with a relieved rank has the losses of an undisturbed one, also when resumed without it") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, Arguments{"train", "run.yaml"} + kPipelines);
  const std::vector<double> undisturbed = figures_of(directory / "run");
  REQUIRE(undisturbed.size() >= 4);
  for (const Arguments& rerouted : {sets({"resilience.reroute=[1/0]"}), sets({"resilience.reroute=[0/1]", "resilience.reroute_from=1"})}) {
    std::filesystem::remove_all(directory / "run");
    must(directory, Arguments{"train", "run.yaml", "--max-steps", "1"} + kPipelines + rerouted);
    must(directory, Arguments{"train", "run.yaml"} + kPipelines);  // the rank computes again
    const std::vector<double> figures = figures_of(directory / "run");
    REQUIRE(figures.size() == undisturbed.size());
    for (size_t i = 0; i < figures.size(); ++i) CHECK(std::abs(figures[i] - undisturbed[i]) <= 1e-10 * std::abs(undisturbed[i]));
  }
  check(run(directory, Arguments{"train", "run.yaml"} + kPipelines + sets({"resilience.reroute=[2/0]"})), 64, "2/0 is outside the mesh");
  check(run(directory, Arguments{"train", "run.yaml", "--trace-steps", "1:1"} + kPipelines + sets({"resilience.reroute=[0/0]"})), 64,
        "allowed with resilience.reroute []");
}

TEST_CASE("reroute: plan compares the rerouted step with the undisturbed one and with fewer replicas, and config actions shows the lists") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments rerouted = kPipelines + sets({"resilience.reroute=[1/0]"});
  const Arguments cluster{"--cluster", "H100"};
  const Arguments plan = Arguments{"plan", "run.yaml"} + kPipelines + sets({"training.precision=fp32", "resilience.reroute=[1/0]"}) + cluster;
  const std::string text = must(directory, plan).out;
  CHECK(text.find("resilience.reroute, simulated without norm and update") != std::string::npos);
  const json cost = json::parse(must(directory, plan + Arguments{"--json"}).out).at("reroute");
  CAPTURE(cost.dump());
  const double undisturbed = cost.at("undisturbed_step_seconds"), step = cost.at("rerouted_step_seconds");
  CHECK(step > 1.2 * undisturbed);
  CHECK(step < 1.01 * cost.at("fewer_replicas").at("step_seconds").get<double>());
  CHECK(cost.at("fewer_replicas").at("data") == 1);
  CHECK(cost.at("added_micro_batches") == cost.at("fewer_replicas").at("micro_batches").get<int>() / 2);
  CHECK(json::parse(must(directory, plan + Arguments{"--json", "--simulate"}).out).at("world").at("step_seconds").get<double>() == Approx(step));
  check(run(directory, plan + Arguments{"--search"}), 64, "resilience.reroute=[\"1/0\"]: --search");

  const std::string lists = must(directory, Arguments{"config", "actions", "run.yaml", "--lowered"} + rerouted).out;
  CHECK(lists.find("# data rank 0, pipeline rank 0\n") != std::string::npos);
  CHECK(lists.find("0SEND_F4@1/0") != std::string::npos);  // number 4 of the helper is micro-batch 0 of data rank 1
  const size_t relieved = lists.find("# data rank 1, pipeline rank 0\n");
  REQUIRE(relieved != std::string::npos);
  CHECK(lists.substr(relieved, lists.find("# data rank 1, pipeline rank 1") - relieved).find("0F0") == std::string::npos);
}

}  // namespace trireme::test
