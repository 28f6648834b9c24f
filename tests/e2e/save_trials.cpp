#include "tests/e2e/save_trials.h"

#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;

namespace trireme::test {

namespace {

std::string tensors_of(const fs::path& checkpoint) {
  std::string bytes;
  for (const auto& item : std::set<fs::path>(fs::directory_iterator(checkpoint), fs::directory_iterator()))
    if (item.extension() == ".safetensors") bytes += read_file(item);
  return bytes;
}

}  // namespace

Trials::Trials(const Arguments& ranks) : ranks_(ranks) {
  prepare_run(directory_);
  must(run("before", {"--max-steps", "2"}));
  must(run(copy("whole"), {}));
  losses_ = losses(path("whole"), kSteps);
}

std::string Trials::copy(const std::string& name) const {
  fs::remove_all(path(name));
  fs::copy(path("before"), path(name), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  return name;
}

Outcome Trials::disturbed(const Arguments& settings, const Arguments& more) const {
  Arguments environment{"env", "LD_PRELOAD=" + shim("io"), "ASAN_OPTIONS=verify_asan_link_order=0",
                        "TRIREME_SHIM_DIRECTORY=" + fs::canonical(path("trial") / "checkpoints").string()};
  for (const std::string& setting : settings) environment.push_back("TRIREME_SHIM_" + setting);
  return Process(environment + Arguments{kBinary} + command("trial") + more, directory_.path()).wait();
}

Outcome Trials::run_with_descriptors(int limit) const {
  const Arguments limited{"sh", "-c", "ulimit -n " + std::to_string(limit) + "; exec \"$@\"", "sh", kBinary};
  return Process(limited + command("trial"), directory_.path()).wait();
}

int Trials::calls_of_a_save(int rank) const {
  copy();
  fs::remove(path("count"));
  must(disturbed({"RANK=" + std::to_string(rank), "COUNT_FILE=" + path("count").string()}, {"--max-steps", "4"}));
  return std::stoi(read_file(path("count")));
}

int64_t Trials::require_whole() const {
  for (const fs::path& checkpoint : checkpoints_of(path("trial"))) {
    CheckpointReader(checkpoint).verify_digests();
    CHECK(tensors_of(checkpoint) == tensors_of(path("whole") / "checkpoints" / checkpoint.filename()));
  }
  std::vector<std::string> warnings;
  const auto newest = find_newest_checkpoint(path("trial"), warnings);
  REQUIRE(newest.has_value());
  CHECK(warnings.empty());
  CHECK(fs::equivalent(path("trial") / "checkpoints/latest", *newest));
  return CheckpointReader(*newest).description().step;
}

void Trials::require_as_undisturbed(const std::set<std::string>& steps) const {
  CHECK(require_whole() == kSteps);
  CHECK(losses(path("trial"), kSteps) == losses_);
  std::set<std::string> names{"latest"};
  for (const std::string& step : steps) names.insert("step-0000000" + step);
  CHECK(names_in(path("trial") / "checkpoints") == names);
}

}  // namespace trireme::test
