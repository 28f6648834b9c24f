// `include:` in a configuration file.
#include <unistd.h>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/command_output.h"
#include "tests/support/scratch.h"
#include "trainer/config/include.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

const std::string kBaseFile = R"(model: {layers: 4, hidden_size: 96, heads: 6}
training:
  steps: 100
  sequence_length: 32
  global_batch_size: 8
  optimizer: {learning_rate: 1.0e-3, weight_decay: 0.5}
data: {train: [a, b], validation: [v]}
)";

const std::string kOver = R"(include: base.yaml
model: {layers: 2}
training:
  optimizer: {learning_rate: 2.0e-3}
data: {train: [c]}
run:
)";

/// What kOver includes and overrides, in one file.
const std::string kMerged = R"(model: {layers: 2, hidden_size: 96, heads: 6}
training: {steps: 100, sequence_length: 32, global_batch_size: 8, optimizer: {learning_rate: 2.0e-3, weight_decay: 0.5}}
data: {train: [c], validation: [v]}
)";

/// Loads `name`; the message must contain every one of `parts`, and is one line.
template <class Failure>
void check_refused(const test::Scratch& files, const std::string& name, std::vector<std::string> parts) {
  CAPTURE(name);
  try {
    load_config(files / name);
    FAIL_CHECK("accepted");
  } catch (const Failure& error) {
    const std::string message = error.what();
    CAPTURE(message);
    CHECK(message.find('\n') == std::string::npos);
    for (const std::string& part : parts) CHECK_THAT(message, Catch::Matchers::Contains(part));
  }
}

}  // namespace

TEST_CASE("include: a file overrides the one that it includes, key by key") {
  const test::Scratch files;
  files.write("base.yaml", kBaseFile);
  const std::string over = files.write("over.yaml", kOver), merged = files.write("merged.yaml", kMerged);
  CHECK(load_config(over).config == load_config(merged).config);
  CHECK(test::config_output("config show " + over) == test::config_output("config show " + merged));
  CHECK(test::config_output("config show " + over).second.find("include") == std::string::npos);
  CHECK(test::config_output("config diff " + over + " " + merged) == std::pair<int, std::string>(0, ""));
  CHECK(load_config(over, {"model.layers=3", "training.steps=7"}).config == load_config(merged, {"model.layers=3", "training.steps=7"}).config);
}

TEST_CASE("include: paths are relative to the including file, and a later file of a list overrides an earlier one") {
  const test::Scratch files;
  files.write("shared/base.yaml", kBaseFile);
  files.write("shared/long.yaml", "include: base.yaml\ntraining: {steps: 900, sequence_length: 64}\n");
  files.write("shared/empty.yaml", "# nothing\n");
  const std::string wide = files.write("wide.yaml", "model: {hidden_size: 192}\ntraining: {sequence_length: 16}\n");
  const Config config =
      load_config(files.write("runs/a.yaml", "include: [../shared/long.yaml, ../shared/empty.yaml, " + wide + "]\nrun: {seed: 7}\n")).config;
  CHECK(config.training.steps == 900);
  CHECK(config.training.sequence_length == 16);
  CHECK(config.model.hidden_size == 192);
  CHECK(config.model.layers == 4);
  CHECK(config.run.seed == 7);
  files.write("runs/same.yaml", "include: [../shared/base.yaml, ../shared/base.yaml]\n");  // twice is no cycle
  CHECK(load_config(files / "runs/same.yaml").config.model.layers == 4);
}

TEST_CASE("include: messages and explain name the file in which a key stands") {
  const test::Scratch files;
  files.write("base.yaml", kBaseFile + "parallel: {tensro: 2}\n");
  files.write("over.yaml", kOver);
  check_refused<ConfigError>(files, "over.yaml", {"base.yaml:8:12 parallel.tensro=2: unknown key; did you mean parallel.tensor?"});
  files.write("base.yaml", kBaseFile + "checkpoint: {keep: -1}\n");
  check_refused<ConfigError>(files, "over.yaml", {"base.yaml:8:20 checkpoint.keep=-1: out of range"});
  files.write("base.yaml", kBaseFile + "run: {seed: 1, seed: 2}\n");
  check_refused<ConfigError>(files, "over.yaml", {"base.yaml:8:16 run.seed: duplicate key, first given at ", "base.yaml:8:7"});
  files.write("base.yaml", kBaseFile);
  files.write("over.yaml", kOver + "  seed: -1\n");
  check_refused<ConfigError>(files, "over.yaml", {"over.yaml:7:9 run.seed=-1: out of range"});

  const std::string over = files.write("over.yaml", kOver);
  const std::string text = test::config_output("config explain " + over).second;
  CHECK(text.find("model.layers = 2    # " + over + ":2:17\n") != text.npos);
  CHECK(text.find("training.steps = 100    # " + (files / "base.yaml") + ":3:10\n") != text.npos);
}

TEST_CASE("include: cycles, missing files, too many files and other places are refused, naming file and line") {
  const test::Scratch files;
  files.write("base.yaml", kBaseFile);
  files.write("self.yaml", "run: {seed: 1}\ninclude: ./self.yaml\n");
  check_refused<ConfigError>(files, "self.yaml", {"self.yaml:2:10 include=./self.yaml: the file includes itself: ", "self.yaml -> "});
  files.write("a.yaml", "include:\n  - base.yaml\n  - b.yaml\n");
  files.write("b.yaml", "\ninclude: a.yaml\n");
  check_refused<ConfigError>(files, "a.yaml", {"b.yaml:2:10 include=a.yaml: the file includes itself", "b.yaml -> "});
  files.write("missing.yaml", "include: [base.yaml, none.yaml]\n");
  check_refused<MissingFileError>(files, "missing.yaml", {"missing.yaml:1:22 include=none.yaml: ", "none.yaml: no such configuration file"});
  files.write("directory.yaml", "include: .\n");
  check_refused<ConfigError>(files, "directory.yaml", {"directory.yaml:1:10 include=.: not a regular file"});

  files.write("0.yaml", kBaseFile);
  for (size_t i = 1; i <= kMaxIncludeDepth + 1; ++i) files.write(std::to_string(i) + ".yaml", "include: " + std::to_string(i - 1) + ".yaml\n");
  CHECK(load_config(files / (std::to_string(kMaxIncludeDepth) + ".yaml")).config.model.layers == 4);
  check_refused<ConfigError>(files, std::to_string(kMaxIncludeDepth + 1) + ".yaml", {"1.yaml:1:10 include=0.yaml: included more than 8 files deep"});
  std::string many = "include: [base.yaml";
  for (size_t i = 1; i <= kMaxIncludedFiles; ++i) many += ", base.yaml";
  files.write("many.yaml", many + "]\n");
  check_refused<ConfigError>(files, "many.yaml", {"many.yaml:1:", "include=base.yaml: more than 64 files are included"});

  files.write("section.yaml", kBaseFile + "run:\n  include: base.yaml\n");
  check_refused<ConfigError>(files, "section.yaml",
                             {"section.yaml:9:3 run.include=base.yaml: allowed only at the top level of a configuration file"});
  test::check_throws<ConfigError>([&] { load_config(files / "base.yaml", {"include=a.yaml"}); },
                                  {"--set:include include=a.yaml: allowed only at the top"});
  test::check_throws<ConfigError>([&] { parse_config(kOver, "manifest.json"); }, {"manifest.json:1:1 include=base.yaml: allowed only"});
}

TEST_CASE("include: anything but paths is refused") {
  const test::Scratch files;
  files.write("base.yaml", kBaseFile);
  for (const auto& [value, part] :
       std::vector<std::pair<std::string, std::string>>{{"", "over.yaml:1:1 include: not a path"},
                                                        {"[]", "over.yaml:1:10 include: an empty list"},
                                                        {"\"\"", "include: not a path"},
                                                        {"{a: b}", "include: not a path"},
                                                        {"[base.yaml, [base.yaml]]", "over.yaml:1:22 include: not a path"},
                                                        {"\"base\\n.yaml\"", "control character 10 in the path"}}) {
    files.write("over.yaml", "include: " + value + "\n" + kBaseFile);
    check_refused<ConfigError>(files, "over.yaml", {part});
  }
  files.write("list.yaml", "- a\n");
  files.write("over.yaml", "include: list.yaml\n");
  check_refused<ConfigError>(files, "over.yaml", {"list.yaml:1:1: a configuration file is a mapping of sections, not a list"});
  files.write("over.yaml", "include: base.yaml\ninclude: base.yaml\n");
  check_refused<ConfigError>(files, "over.yaml", {"over.yaml:2:1 include: duplicate key"});
  files.write("broken.yaml", "model: {layers: 2\n");
  files.write("over.yaml", "include: broken.yaml\n");
  check_refused<ConfigError>(files, "over.yaml", {"broken.yaml:"});
}

}  // namespace trireme
