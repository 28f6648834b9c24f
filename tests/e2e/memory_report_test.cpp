// Memory reports of a run: forecast at the start, measurement at the end.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

using nlohmann::json;

namespace trireme::test {
namespace {

json memory_event(const TemporaryDirectory& directory) {
  json found;
  for (const json& line : metrics(directory / "run"))
    if (line.value("event", "") == "memory") found = line;
  REQUIRE(found.is_object());
  return found;
}

TEST_CASE("memory: a run in double precision takes the forecast memory, to the byte, in every category and phase") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome outcome = must(directory, Arguments{"train", "run.yaml"} + layout(1, 2, 2, 2) + sets({"training.precision=fp64"}));
  const json event = memory_event(directory);
  CHECK(event["step"] == 6);
  REQUIRE(event["forecast"].size() == 2);
  CHECK(event["forecast"] == event["measured"]);
  for (const json& rank : event["measured"]) {
    const json& phases = rank["phases"];
    for (const char* const phase : {"load", "forward", "backward", "optimizer", "evaluation", "save"}) {
      INFO(phase);
      CHECK(phases[phase]["peak"] > 0);
      CHECK(phases[phase]["peak"] <= rank["peak"]);
    }
    CHECK(phases["backward"]["activations"] == rank["activations"]);
    CHECK(phases["save"]["activations"] == 0);
    CHECK(phases["save"]["optimizer"] == rank["optimizer"]);
    CHECK(phases["save"]["peak"] < phases["evaluation"]["peak"]);
    CHECK(phases["evaluation"]["peak"] < phases["forward"]["peak"]);
  }

  const size_t planned = outcome.err.find("memory forecast per rank"), both = outcome.err.find("memory per rank, forecast and measured");
  REQUIRE(planned != std::string::npos);
  REQUIRE(both != std::string::npos);
  CHECK(planned < both);
  for (const char* const words : {"pipeline 0", "pipeline 1", "activations", "peak of the sum", "by phase, forecast: load ",
                                  "parallel.gradient_accumulation: sharded stores up to "})
    CHECK(outcome.err.find(words) < both);
  for (const char* const words : {"measured 1", "by phase, measured: load "}) CHECK(outcome.err.find(words, both) != std::string::npos);
}

TEST_CASE("memory: the alternatives of gradient_accumulation are reported with their exact cost") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto told = [&](const Arguments& more) {
    const std::string err = must(directory, Arguments{"train", "run.yaml", "--resume", "never", "--max-steps", "1"} + layout(1, 1, 2, 2) + more).err;
    const size_t begin = err.find("parallel.gradient_accumulation: ");
    return begin == std::string::npos ? std::string() : err.substr(begin, err.find('\n', begin) - begin);
  };
  const std::string sharded = told(in("sharded")), full = told(in("full") + sets({"parallel.gradient_accumulation=full"}));
  INFO(sharded << "\n" << full);
  const auto swapped = [](const std::string& text) {
    const size_t colon = text.find(": "), semicolon = text.find("; ");
    return text.substr(0, colon + 2) + text.substr(semicolon + 2) + "; " + text.substr(colon + 2, semicolon - colon - 2);
  };
  REQUIRE(!sharded.empty());
  CHECK(full == swapped(sharded));
  CHECK(told(in("one") + sets({"training.micro_batch_size=4"})).empty());  // one micro-batch
}

}  // namespace
}  // namespace trireme::test
