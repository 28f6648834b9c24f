// resilience.rebalance as a user meets it: in metrics, checkpoints, plan and verify.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

using nlohmann::json;

const Arguments kRebalance = sets({"parallel.data=2", "parallel.zero_stage=2", "resilience.rebalance=micro_batches", "model.dropout=0"});

}  // namespace

TEST_CASE("rebalance: a run reports its imbalance and saves its split, and eval, plan and verify know the key") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, Arguments{"train", "run.yaml"} + kRebalance);
  for (const json& line : metrics(directory / "run"))
    if (line.contains("loss")) CHECK(line.at("imbalance").get<double>() >= 0);
  CHECK(json::parse(must(directory, {"checkpoint", "inspect", "run", "--json"}).out).at("micro_batches") == json({4, 4}));
  must(directory, Arguments{"eval", "run.yaml", "--checkpoint", "run"} + kRebalance);

  const Outcome verified = must(directory, Arguments{"verify", "run.yaml", "--layouts", "dp2z3 pp2dp3z2 tp2"} + kRebalance);
  CHECK(verified.out.find("data ranks with different numbers of micro-batches") != std::string::npos);
  const std::string plan = must(directory, Arguments{"plan", "run.yaml"} + kRebalance).out;
  CHECK(plan.find("a data rank may get 1 to 7 micro-batches instead of 4; memory is that of a rank with 7") != std::string::npos);
  check(run(directory, Arguments{"plan", "run.yaml", "--search"} + kRebalance), 64, "resilience.rebalance=micro_batches: --search");
  check(run(directory, Arguments{"train", "run.yaml"} + kRebalance + sets({"training.micro_batch_size=4"})), 64, "resilience.rebalance");
}

}  // namespace trireme::test
