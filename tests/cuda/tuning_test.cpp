// The choice of algorithms for matrix products over the ranks of a job, and its file.
#include <atomic>
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
TunedProducts tune(const std::filesystem::path& file, const ParityLayout& layout = {}, const AlgorithmsByGpu& recorded = {}) {
  Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp32");
  config.kernels.tuning_file = file;
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  std::mutex mutex;
  std::vector<TunedProducts> all;
  run_gpu_ranks(layout.world(), kNccl, [&](Communicator& world, Context& ctx) {
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    const TunedProducts tuned = tune_products(trainer, data, 0, recorded).value();
    const std::lock_guard lock(mutex);
    all.push_back(tuned);
  });
  for (const TunedProducts& one : all) {
    CHECK(one.timed == all[0].timed);
    CHECK(one.known == all[0].known);
    CHECK(one.note == all[0].note);
    CHECK(one.algorithms == all[0].algorithms);
  }
  CHECK(cuda_sim::errors().empty());
  return all.at(0);
}

/// "id 101" of each algorithm.
std::set<std::string> numbers_of(const AlgorithmsByGpu& algorithms) {
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
  const TunedProducts tuned = tune(directory.path / "products.json", layout);
  CHECK(tuned.timed > 10);
  CHECK(tuned.known == 0);
  CHECK(tuned.note == "");
  CHECK(numbers_of(tuned.algorithms) == std::set<std::string>{"id 103"});
  CHECK(nlohmann::json::parse(text_of(directory.path / "products.json")).at("products").get<AlgorithmsByGpu>() == tuned.algorithms);
}

TEST_CASE("algorithms of the checkpoint come before those of the file, which come before new times") {
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  AlgorithmsByGpu second;
  {
    const TimedMachine machine(second_is_fastest);
    second = tune(file).algorithms;
    CHECK(numbers_of(second) == std::set<std::string>{"id 101"});
  }
  const std::string before = text_of(file);
  const TimedMachine machine([](int, int place) { return place == 4 ? 1e-3 : 2e-3; });
  const TunedProducts again = tune(file);
  CHECK(again.algorithms == second);
  CHECK(again.timed == 0);
  CHECK(again.known > 0);
  CHECK(text_of(file) == before);
  const TunedProducts resumed = tune(directory.path / "other.json", {}, second);
  CHECK(resumed.algorithms == second);
  CHECK_FALSE(std::filesystem::exists(directory.path / "other.json"));
  AlgorithmsByGpu first = second;
  for (auto& [gpu, algorithms] : first)
    for (auto& [kind, algorithm] : algorithms) algorithm.replace(0, 6, "id 100").replace(algorithm.find("split 2"), 7, "split 1");
  CHECK(tune(file, {}, first).algorithms == first);
  CHECK(numbers_of(tune(directory.path / "third.json").algorithms) == std::set<std::string>{"id 104"});
  ParityLayout half;
  half.tensor = 2;
  const TunedProducts more = tune(file, half);  // other shapes
  CHECK(more.timed > 0);
  CHECK(more.note == "");
  const auto all = nlohmann::json::parse(text_of(file)).at("products").get<AlgorithmsByGpu>();
  const auto& [gpu, of_gpu] = *second.begin();
  CHECK(std::ranges::includes(all.at(gpu), of_gpu));
  CHECK(all.at(gpu).size() > of_gpu.size());
}

TEST_CASE("a file that is no tuning file is refused and stays as it is") {
  cuda_sim::reset();
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  const std::string kSound = R"({"format": "trireme-products", "version": 1, "products": {)";
  for (const std::string& text :
       {std::string(), std::string("run: {name: a}\n"), kSound, std::string(R"({"format": "trireme-products", "version": 2, "products": {}})"),
        std::string(R"({"format": "other", "version": 1, "products": {}})"), kSound + R"("gpu": {"rows": 3}}})", kSound + R"("gpu": []}})",
        kSound + R"(}, "more": 1})", kSound + "\"\xff\": {}}}"}) {
    CAPTURE(text);
    std::ofstream(file) << text;
    const std::string prefix = concat("kernels.tuning_file=", file.string(), ": not a file of algorithms: ");
    const auto check_refusal = [&](const std::function<void()>& body) {
      try {
        body();
        FAIL("not refused");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kData);
        CHECK_THAT(error.what(), Catch::Matchers::StartsWith(prefix) && Contains("; allowed a file that Trireme wrote, or a new name"));
      }
    };
    check_refusal([&] { check_tuning_file(file); });
    check_refusal([&] { tune(file); });
    CHECK(text_of(file) == text);
  }
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path), {}) == 1);  // no temporary file is left
}

TEST_CASE("a tuning file of another GPU or library is completed, with a note") {
  const TimedMachine machine(second_is_fastest);
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  std::ofstream(file) << R"({"format": "trireme-products", "version": 1, "products": {"another GPU, cuBLASLt 12.0": {"rows 1": "id 1"}}})";
  const TunedProducts other = tune(file);
  CHECK_THAT(other.note, Contains("only for other GPUs or library versions than ") && Contains(", cuBLASLt 13."));
  CHECK(tune(file).note == "");
  const auto all = nlohmann::json::parse(text_of(file)).at("products").get<AlgorithmsByGpu>();
  CHECK(all.size() == 2);
  CHECK(all.at("another GPU, cuBLASLt 12.0").at("rows 1") == "id 1");

  cuda_sim::set_algorithms({.seconds = second_is_fastest, .identity = 200});  // another list under the same version
  const TunedProducts replaced = tune(file);
  CHECK_THAT(replaced.note, Contains("cuBLASLt no longer offers the algorithms of ") && Contains(" kinds of matrix products; they were timed again"));
  CHECK(replaced.timed == other.timed);
  CHECK(numbers_of(replaced.algorithms) == std::set<std::string>{"id 201"});
  CHECK(tune(file).note == "");
}

TEST_CASE("an entry that another job writes into the tuning file while products are timed survives") {
  const TemporaryDirectory directory;
  const auto file = directory.path / "products.json";
  std::atomic<bool> wrote = false;
  const TimedMachine machine([&](int device, int place) {
    if (!wrote.exchange(true))
      std::ofstream(file) << R"({"format": "trireme-products", "version": 1, "products": {"another GPU, cuBLASLt 12.0": {"rows 1": "id 1"}}})";
    return second_is_fastest(device, place);
  });
  const TunedProducts tuned = tune(file);
  CHECK(wrote);
  CHECK(tuned.timed > 0);
  const auto all = nlohmann::json::parse(text_of(file)).at("products").get<AlgorithmsByGpu>();
  CHECK(all.size() == 2);
  CHECK(all.at("another GPU, cuBLASLt 12.0").at("rows 1") == "id 1");
}

TEST_CASE("a tuning file that cannot be written is refused before the first step") {
  const TemporaryDirectory directory;
  try {
    check_tuning_file(directory.path / "nowhere/products.json");
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kIo);
    CHECK_THAT(error.what(), Contains("kernels.tuning_file=") && Contains("no such directory"));
  }
}

}  // namespace trireme::test
