// The choice of algorithms for matrix products over the ranks of a job, and its file.
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda_sim/cublas_lt.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/run_files.h"
#include "trainer/loop/product_tuning.h"
#include "trainer/loop/trainer.h"
#include "trainer/verify/ragged_dataset.h"

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using Recorded = std::map<std::string, cuda::ProductAlgorithms>;

struct Tuned {
  TunedProducts report;
  Recorded algorithms;
};

/// A machine whose clock counts the seconds of each algorithm, until the end of a test.
class TimedMachine {
 public:
  explicit TimedMachine(const std::function<double(int device, int place)>& seconds) {
    cuda_sim::reset(1, {.operation_seconds = 1e-3});
    cuda_sim::set_algorithms({.seconds = seconds});
  }
  ~TimedMachine() {
    cuda_sim::set_algorithms({});
    cuda_sim::reset();
  }
  TimedMachine(const TimedMachine&) = delete;
  TimedMachine& operator=(const TimedMachine&) = delete;
};

double second_is_fastest(int /*device*/, int place) { return place == 1 ? 1e-3 : 2e-3; }

/// What a job on a machine with one GPU for each rank finds. `recorded`: the algorithms of the checkpoint that it resumes from.
Tuned tune(const std::filesystem::path& file, const ParityLayout& layout = {}, const Recorded& recorded = {}) {
  Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp32");
  config.kernels.tuning_file = file;
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  std::mutex mutex;
  std::vector<Tuned> all;
  run_gpu_ranks(layout.world(), kNccl, [&](Communicator& world, Context& ctx) {
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    trainer.set_product_algorithms(recorded);
    const TunedProducts report = tune_products(trainer, data, 0).value();
    const std::lock_guard lock(mutex);
    all.push_back({report, trainer.product_algorithms()});
  });
  for (const Tuned& one : all) {
    CHECK(one.report.timed == all[0].report.timed);
    CHECK(one.report.known == all[0].report.known);
    CHECK(one.report.warning == all[0].report.warning);
    CHECK(one.algorithms == all[0].algorithms);
  }
  CHECK(cuda_sim::errors().empty());
  return all.at(0);
}

/// "id 101" of each algorithm.
std::set<std::string> numbers_of(const Recorded& algorithms) {
  std::set<std::string> found;
  for (const auto& [gpu, of_gpu] : algorithms)
    for (const auto& [kind, algorithm] : of_gpu) found.insert(algorithm.substr(0, 6));
  return found;
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("ranks whose times disagree use the algorithm with the least sum of times") {
  // Each device has a favourite of its own, which is slow elsewhere.
  const TimedMachine machine([](int device, int place) { return place == 3 ? 2e-3 : place == device % 3 ? 1e-3 : 9e-3; });
  const TemporaryDirectory directory;
  ParityLayout layout;
  layout.tensor = layout.data = 2;
  layout.pipeline = 2;
  layout.zero = 3;
  const Tuned tuned = tune(directory.path / "products.json", layout);
  CHECK(tuned.report.timed > 10);
  CHECK(tuned.report.known == 0);
  CHECK(tuned.report.warning == "");
  CHECK(numbers_of(tuned.algorithms) == std::set<std::string>{"id 103"});
  CHECK(nlohmann::json::parse(text_of(directory.path / "products.json")).at("products").get<Recorded>() == tuned.algorithms);
}

TEST_CASE("algorithms of the checkpoint come before those of the file, which come before new times") {
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  Recorded second;
  {
    const TimedMachine machine(second_is_fastest);
    second = tune(file).algorithms;
    CHECK(numbers_of(second) == std::set<std::string>{"id 101"});
  }
  const std::string before = text_of(file);
  const TimedMachine machine([](int, int place) { return place == 4 ? 1e-3 : 2e-3; });
  const Tuned again = tune(file);
  CHECK(again.algorithms == second);
  CHECK(again.report.timed == 0);
  CHECK(again.report.known > 0);
  CHECK(text_of(file) == before);
  const Tuned resumed = tune(directory.path / "other.json", {}, second);
  CHECK(resumed.algorithms == second);
  CHECK_FALSE(std::filesystem::exists(directory.path / "other.json"));
  Recorded first = second;
  for (auto& [gpu, algorithms] : first)
    for (auto& [kind, algorithm] : algorithms) algorithm.replace(0, 6, "id 100").replace(algorithm.find("split 2"), 7, "split 1");
  CHECK(tune(file, {}, first).algorithms == first);
  CHECK(numbers_of(tune(directory.path / "third.json").algorithms) == std::set<std::string>{"id 104"});
  ParityLayout half;
  half.tensor = 2;
  const Tuned more = tune(file, half);  // other shapes
  CHECK(more.report.timed > 0);
  CHECK(more.report.warning == "");
  const auto all = nlohmann::json::parse(text_of(file)).at("products").get<Recorded>();
  const auto& [gpu, of_gpu] = *second.begin();
  CHECK(std::ranges::includes(all.at(gpu), of_gpu));
  CHECK(all.at(gpu).size() > of_gpu.size());
}

TEST_CASE("a tuning file that cannot be read is ignored with a warning and stays as it is") {
  const TimedMachine machine(second_is_fastest);
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  const std::string kSound = R"({"format": "trireme-products", "version": 1, "products": {)";
  for (const std::string& text :
       {std::string(), std::string("run: {name: a}\n"), kSound, std::string(R"({"format": "trireme-products", "version": 2, "products": {}})"),
        std::string(R"({"format": "other", "version": 1, "products": {}})"), kSound + R"("gpu": {"rows": 3}}})", kSound + R"("gpu": []}})",
        kSound + R"(}, "more": 1})", kSound + "\"\xff\": {}}}"}) {
    CAPTURE(text);
    std::ofstream(file) << text;
    const Tuned tuned = tune(file);
    CHECK(tuned.report.timed > 0);
    CHECK(numbers_of(tuned.algorithms) == std::set<std::string>{"id 101"});
    CHECK_THAT(tuned.report.warning, Catch::Matchers::StartsWith(concat("warning: kernels.tuning_file=", file.string(), " is ignored")));
    CHECK(text_of(file) == text);
  }
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path), {}) == 1);  // no temporary file is left
}

TEST_CASE("a tuning file of another GPU or library is completed with a warning") {
  const TimedMachine machine(second_is_fastest);
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  std::ofstream(file) << R"({"format": "trireme-products", "version": 1, "products": {"another GPU, cuBLASLt 12.0": {"rows 1": "id 1"}}})";
  const Tuned other = tune(file);
  CHECK_THAT(other.report.warning, Contains("has no algorithms for ") && Contains(", cuBLASLt 13."));
  CHECK(tune(file).report.warning == "");
  const auto all = nlohmann::json::parse(text_of(file)).at("products").get<Recorded>();
  CHECK(all.size() == 2);
  CHECK(all.at("another GPU, cuBLASLt 12.0").at("rows 1") == "id 1");

  cuda_sim::set_algorithms({.seconds = second_is_fastest, .identity = 200});  // another list under the same version
  const Tuned replaced = tune(file);
  CHECK_THAT(replaced.report.warning, Contains("cuBLASLt does not offer the algorithms of ") && Contains("kinds of matrix products any more"));
  CHECK(replaced.report.timed == other.report.timed);
  CHECK(numbers_of(replaced.algorithms) == std::set<std::string>{"id 201"});
  CHECK(tune(file).report.warning == "");
}

TEST_CASE("a tuning file that cannot be written is refused before the first step") {
  cuda_sim::reset();
  const TemporaryDirectory directory;
  std::string message;
  try {
    tune(directory.path / "nowhere/products.json");
  } catch (const Error& error) {
    message = error.what();
    CHECK(error.code() == ExitCode::kIo);
  }
  CHECK_THAT(message, Contains("kernels.tuning_file=") && Contains("no such directory"));
}

}  // namespace trireme::test
