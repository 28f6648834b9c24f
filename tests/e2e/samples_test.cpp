// observe.samples: texts during training, the same in every layout, and those of generate.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/tokenizer/utf8.h"

using nlohmann::json;

namespace trireme::test {
namespace {

const Arguments kSampled =
    sets({"observe.samples.every=2", "observe.samples.prompts=['Ship 7', O, two words]", "observe.samples.max_tokens=7", "checkpoint.keep=10"});

/// U+FFFD in place of bytes that are not UTF-8, as in metrics.jsonl.
std::string as_json(const std::string& text) { return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)); }

struct Sample {
  int64_t step;
  std::string prompt, text;
  bool operator==(const Sample&) const = default;
};

std::vector<Sample> samples_of(const std::filesystem::path& run) {
  std::vector<Sample> samples;
  for (const json& line : metrics(run))
    if (line.value("event", "") == "sample") samples.push_back({line.at("step"), line.at("prompt"), line.at("text")});
  return samples;
}

/// Checks each sample against generate from the checkpoint of its step.
void check_generated(const TemporaryDirectory& directory, const std::string& run_name, const Arguments& options) {
  for (const Sample& sample : samples_of(directory / run_name)) {
    CAPTURE(sample.step, sample.prompt);
    const std::string checkpoint = run_name + "/checkpoints/step-0000000" + std::to_string(sample.step);
    const Outcome generated =
        must(directory, Arguments{"generate", "--checkpoint", checkpoint, "--prompt", sample.prompt, "--max-tokens", "7"} + options);
    CHECK(as_json(generated.out) == sample.prompt + sample.text + "\n");
  }
}

}  // namespace

TEST_CASE("samples: every layout writes the texts of generate, and trains the bits of a run without samples") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + in("plain"));
  const Outcome one = must(directory, kTrain + kSampled + in("one"));
  const std::vector<Sample> expected = samples_of(directory / "one");
  REQUIRE(expected.size() == 9);
  CHECK(expected[0].step == 2);
  CHECK(expected[8].step == 6);
  CHECK(expected[1].prompt == "O");
  CHECK(losses(directory / "one", 6) == losses(directory / "plain", 6));
  check_generated(directory, "one", {"--temperature", "0"});
  CHECK(count(one.err, "step 4: sample: Ship 7") == 1);
  CHECK(count(one.err, "step 4: sample: two words") == 1);
  const Arguments sequence_parallel = sets({"parallel.sequence_parallel=true"});
  const std::vector<std::pair<std::string, Arguments>> layouts = {
      {"tp2", layout(2, 1, 1, 0)}, {"tp2sp-dp2", layout(2, 1, 2, 3) + sequence_parallel}, {"pp2-dp2", layout(1, 2, 2, 2)}};
  for (const auto& [name, degrees] : layouts) {
    CAPTURE(name);
    must(directory, kTrain + kSampled + degrees + in(name));
    CHECK(samples_of(directory / name) == expected);
  }
}

TEST_CASE("samples: drawn by temperature with run.seed as generate does, in event files and the report, not after a stop") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + kSampled + sets({"observe.samples.temperature=0.9", "observe.tensorboard=true", "run.seed=5"}));
  check_generated(directory, "run", {"--temperature", "0.9", "--seed", "5"});
  const std::vector<Sample> samples = samples_of(directory / "run");
  REQUIRE(samples.size() == 9);
  CHECK(samples[0].text != samples[6].text);  // of another step
  std::string events;
  for (const std::string& name : names_in(directory / "run/tensorboard")) events += read_file(directory / "run/tensorboard" / name);
  for (const char* tag : {"sample/1", "sample/2", "sample/3"}) CHECK(count(events, tag) == 3);
  CHECK(count(events, "    two words") == 3);
  must(directory, {"report", "run", "--output", "run.html"});
  CHECK(count(read_file(directory / "run.html"), "<mark>Ship 7</mark>") == 2);  // of the last two steps
}

TEST_CASE("samples: what cannot be sampled is refused before anything starts") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  const auto refused = [&](const Arguments& settings, const std::string& words) {
    CAPTURE(settings);
    check_error(run(directory, kTrain + sets(settings)), 64, words);
  };
  refused({"observe.samples.every=2"}, "observe.samples.prompts=[]: there is no text to continue");
  refused({"observe.samples.prompts=[a]"}, "observe.samples.prompts=[a]: has no effect: samples.every is 0; remove the key");
  refused({"observe.samples.every=2", "observe.samples.prompts=['']"}, "empty text where a prompt is expected");
  refused({"observe.samples.every=2", "observe.samples.prompts=a"},
          "text where a list is expected; allowed list of prompts, e.g. [a, b]; nearest valid [a]");
  refused({"observe.samples.every=2", "observe.samples.prompts=[Ship 7]", "observe.samples.max_tokens=11"},
          "'Ship 7' has 6 tokens, which observe.samples.max_tokens=11 makes longer than training.sequence_length allows, 16; nearest valid "
          "observe.samples.max_tokens=10");
  refused({"observe.samples.every=2", "observe.samples.prompts=[0123456789abcdef]"}, "has 16 tokens; allowed at most 15");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
