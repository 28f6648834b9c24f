// `trireme verify` as run by a user or a Slurm prolog.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

using nlohmann::json;

Arguments verify(const std::string& layouts) { return {"verify", "run.yaml", "--layouts", layouts}; }

}  // namespace

TEST_CASE("verify reports for each layout that it trains the same model, and writes no files") {
  const TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);  // no data: only the sizes of the model are read
  const auto before = directory.listing();
  const Outcome people = must(directory, verify("tp2 pp2dp2z1"));
  CHECK(people.out.find("tp2 ") != std::string::npos);
  CHECK(people.out.find("pp2dp2z1 ") != std::string::npos);
  CHECK(people.out.find("same") != std::string::npos);
  CHECK(people.err.empty());
  const json report =
      json::parse(must(directory, verify("dp2-z3 pp2:vpp2-interleaved_1f1b") + Arguments{"--json", "--steps", "2", "--seed", "7"}).out);
  CHECK(report.at("baseline").at("verdict") == "same");
  REQUIRE(report.at("layouts").size() == 2);
  for (const json& row : report["layouts"]) {
    CHECK(row.at("verdict") == "same");
    CHECK(row.at("max_difference") < 1e-11);
    for (const char* key : {"tensor", "layer", "stage", "ranks", "axis", "trap", "step"}) CHECK(row.at(key).is_null());
  }
  CHECK(report["layouts"][1]["layout"] == "pp2:vpp2-interleaved_1f1b");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("verify refuses invalid arguments before it starts") {
  const TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  check(run(directory, verify("tp2 dp21f1b")), 64, "needs a separator");
  check(run(directory, verify("tp2 pp9")), 64, "more stages than model.layers");
  check(run(directory, verify("dp128")), 64, "at most 64");
  check(run(directory, verify("tp2") + Arguments{"--steps", "1"}), 64, "--steps");
  check(run(directory, verify("tp2") + sets({"model.heads=0"})), 64, "model.heads");
  check(run(directory, {"verify", "none.yaml"}), 66, "none.yaml");
}

}  // namespace trireme::test
