// A complete training run on simulated GPUs, as `trireme train` performs it: device selection, memory, step metrics, resuming on another device.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <mutex>
#include <set>
#include <sstream>
#include <tuple>

#include "parallel/comm/self.h"
#include "tests/cuda_sim/cublas_lt.h"
#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/nccl.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/trace_file.h"
#include "trainer/commands/checkpoint_model.h"
#include "trainer/commands/run_on_ranks.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/machine.h"
#include "trainer/run/run.h"
#include "trainer/verify/ragged_dataset.h"

namespace trireme::test {
namespace {

class RunFiles {
 public:
  RunFiles() {
    for (const char* name : {"train", "validation"}) write_tokens(directory_.path / name, 12 * 40 + 1);
  }

  /// Runs `name` on `device` up to `max_steps`, as `train` would. A rank sees all GPUs, or only number only_gpu_of(rank). Returns the number of
  /// system allocations; the GPU's memory counts as one.
  int64_t train(
      const std::string& name, const std::string& device, std::optional<int64_t> max_steps, const ParityLayout& layout = {},
      const std::function<void(Config&)>& change = [](Config&) {}, const std::optional<StepRange>& trace_steps = {},
      const std::function<int(int)>& only_gpu_of = [](int) { return -1; }) const {
    std::mutex mutex;
    int64_t allocations = 0;
    run_ranks(layout.world(), [&](Communicator& threads) {
      cuda_sim::show_only(only_gpu_of(threads.rank()));
      ParityLayout small = layout;
      small.layers = 3;
      Config config = parity_config(ParityModel::kLlamaGrouped, small, "fp32");
      config.training.global_batch_size = 4;  // a simulated GPU takes its time for every micro-batch
      config.run.directory = directory_.path / name;
      config.run.device = OneOf<DeviceType>(device);
      config.model.vocab_size = 256;
      config.data.train = {directory_.path / "train"};
      config.data.validation = {directory_.path / "validation"};
      config.training.evaluate = {4, 1};
      config.checkpoint.every = 3;
      change(config);
      config = resolve(config, threads.size());
      Machine machine(whole_world(threads), {threads.rank(), threads.size()}, config);
      Progress progress;
      TRIREME_CHECK(
          run_training(machine.ctx(), machine.world(), config, {.max_steps = max_steps, .trace_steps = trace_steps}, progress) == ExitCode::kOk,
          "the run failed");
      const std::lock_guard lock(mutex);
      allocations = std::max(allocations, machine.ctx().arena->system_allocations());
    });
    return allocations;
  }
  std::vector<nlohmann::json> steps(const std::string& name) const { return steps_of(directory_.path / name); }
  /// The lines of metrics.jsonl with this event; "": steps and evaluations.
  std::vector<nlohmann::json> events(const std::string& name, const std::string& event) const {
    std::vector<nlohmann::json> found;
    std::ifstream file(directory_.path / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (nlohmann::json value = nlohmann::json::parse(line); value.value("event", "") == event) found.push_back(std::move(value));
    return found;
  }
  TraceFile trace(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(directory_.path / name / "trace.json").rdbuf();
    return read_trace(text.str());
  }
  std::vector<double> validation_losses(const std::string& name) const { return validation_losses_of(directory_.path / name); }
  std::filesystem::path path(const std::string& name) const { return directory_.path / name; }

 private:
  TemporaryDirectory directory_;
};

void check_close(const std::vector<nlohmann::json>& expected, const std::vector<nlohmann::json>& actual) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(actual[i][0] == expected[i][0]);
    for (const int figure : {1, 2}) CHECK(actual[i][figure].get<double>() == Approx(expected[i][figure].get<double>()).epsilon(1e-4));
  }
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

void open_machine(const std::string& device, int local_rank, int64_t ranks_per_gpu, std::string* chosen = nullptr,
                  const MachineOptions& options = {.device_files = "/nowhere"}) {
  Config config;
  config.run.device = OneOf<DeviceType>(device);
  config.run.ranks_per_gpu = ranks_per_gpu;
  const Machine machine(std::make_unique<SelfCommunicator>("world"), {local_rank, local_rank + 1}, config, options);
  if (chosen) *chosen = config.run.device.text();
}

}  // namespace

TEST_CASE("a GPU run matches the CPU run, allocates memory once, and resumes from the other device's checkpoint") {
  const RunFiles files;
  const auto train = [&](const std::string& name, const std::string& device, std::optional<int64_t> max_steps) {
    return files.train(name, device, max_steps, {}, [](Config& config) { config.training.steps = 7; });
  };
  train("cpu", "cpu", std::nullopt);
  CHECK(train("gpu", "cuda", std::nullopt) == 1);
  check_close(files.steps("cpu"), files.steps("gpu"));
  train("both", "cuda", 2);
  train("both", "cpu", 5);
  train("both", "auto", std::nullopt);
  check_close(files.steps("cpu"), files.steps("both"));
}

TEST_CASE("a 3D-parallel run on eight GPUs matches a run on one CPU") {
  ParityLayout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  layout.zero = 3;
  layout.sequence_parallel = true;
  const RunFiles files;
  files.train("cpu", "cpu", 5);
  CHECK(files.train("gpus", "cuda", 5, layout) == 1);
  check_close(files.steps("cpu"), files.steps("gpus"));
}

TEST_CASE("captured steps and the evaluations between them see the parameters of every update") {
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 1;
  const RunFiles files;
  for (const bool graph : {false, true})
    files.train(graph ? "graph" : "queued", "cuda", 6, layout, [graph](Config& config) {
      config.training.precision = Arithmetic::kFp16;
      config.training.evaluate.every = 1;
      config.kernels.cuda_graph = graph;
    });
  CHECK(files.steps("queued").size() == 6);
  CHECK(files.steps("graph") == files.steps("queued"));
  CHECK(files.validation_losses("queued").size() == 6);
  CHECK(files.validation_losses("graph") == files.validation_losses("queued"));
}

TEST_CASE("activations, histograms and samples on GPUs are those of the CPU, and change no bit of a run, with and without graphs", "[slow]") {
  ParityLayout layout;
  layout.tensor = layout.data = 2;
  layout.zero = 3;
  layout.sequence_parallel = true;
  const RunFiles files;
  const auto train = [&](const std::string& name, const std::string& device, bool observed, bool graph) {
    return files.train(name, device, 7, layout, [&](Config& config) {
      config.data.tokenizer = "bytes";
      config.kernels.cuda_graph = graph;
      if (!observed) return;
      config.observe.activations.every = 2;
      config.observe.tensorboard = true;
      config.observe.histograms.every = 3;
      config.observe.samples = {.every = 3, .prompts = {"abc"}, .max_tokens = 4};
    });
  };
  const auto activations = [&](const std::string& name) {
    std::vector<nlohmann::json> found;
    for (const nlohmann::json& line : files.events(name, ""))
      if (line.contains("activation_max")) found.push_back(line["activation_max"]);
    return found;
  };
  train("cpu", "cpu", true, false);
  const std::vector<nlohmann::json> expected = activations("cpu"), texts = files.events("cpu", "sample");
  REQUIRE(expected.size() == 3);
  REQUIRE(texts.size() == 2);
  for (const bool graph : {false, true}) {
    CAPTURE(graph);
    const std::string suffix = graph ? "-graph" : "";
    train("plain" + suffix, "cuda", false, graph);
    train("observed" + suffix, "cuda", true, graph);  // a text that grows by a token takes memory that a step does not
    CHECK(files.steps("observed" + suffix) == files.steps("plain" + suffix));
    const std::vector<nlohmann::json> found = activations("observed" + suffix), samples = files.events("observed" + suffix, "sample");
    REQUIRE(found.size() == 3);
    REQUIRE(samples.size() == 2);
    for (size_t i = 0; i < found.size(); ++i) {
      REQUIRE(found[i].size() == expected[i].size());
      for (const auto& [layer, largest] : expected[i].items()) CHECK(found[i].at(layer).get<double>() == Approx(largest.get<double>()).epsilon(1e-3));
    }
    for (size_t i = 0; i < samples.size(); ++i) CHECK(samples[i]["text"] == texts[i]["text"]);
  }
}

TEST_CASE("a run keeps its algorithms of matrix products: with their file, and when it resumes without it") {
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 3;
  const RunFiles files;
  const auto train = [&](const std::string& name, const std::string& tuning_file, int fastest, std::optional<int64_t> max_steps = {}) {
    cuda_sim::reset(1, {.operation_seconds = 1e-3});
    cuda_sim::set_algorithms({.seconds = [=](int, int place) { return place == fastest ? 1e-3 : 2e-3; }});
    CHECK(files.train(name, "cuda", max_steps, layout, [&](Config& config) {
      config.training.steps = 4;
      config.kernels.tuning_file = tuning_file == "none" ? tuning_file : files.path(tuning_file).string();
    }) == 1);  // allocation of memory: a rehearsal takes no more than a step
    cuda_sim::set_algorithms({});
    const std::vector<nlohmann::json> events = files.events(name, "tuned_products");
    return events.empty() ? nlohmann::json() : events.back();
  };
  CHECK(train("heuristic", "none", 2).is_null());
  CHECK(train("first", "first.json", 0)["timed"] > 0);
  CHECK(files.steps("first") == files.steps("heuristic"));  // the rehearsal changes nothing

  CHECK(train("timed", "timed.json", 2)["timed"] > 0);
  CHECK(files.steps("timed") != files.steps("heuristic"));
  check_close(files.steps("heuristic"), files.steps("timed"));
  const nlohmann::json known = train("known", "timed.json", 4);
  CHECK(known["timed"] == 0);
  CHECK(known["known"] > 0);
  CHECK(files.steps("known") == files.steps("timed"));

  CHECK(train("stopped", "stopped.json", 2, 2)["step"] == 0);
  std::filesystem::remove(files.path("stopped.json"));
  const nlohmann::json resumed = train("stopped", "stopped.json", 4);
  CHECK(resumed["step"] == 2);
  CHECK(resumed["timed"] == 0);
  CHECK(files.steps("stopped") == files.steps("timed"));
  CHECK(files.validation_losses("stopped") == files.validation_losses("timed"));

  {  // `eval` and `generate` time nothing, although the checkpoint's configuration has the file
    std::filesystem::remove(files.path("timed.json"));
    CheckpointModel model((files.path("timed") / "checkpoints/latest").string());
    CHECK(model.config().kernels.tuning_file == files.path("timed.json"));
    model.config().training.global_batch_size = model.config().training.micro_batch_size = 1;
    model.config().parallel = {};
    model.config() = resolve(model.config(), 1);
    Trainer& trainer = model.load({0, 1});
    CHECK(model.config().run.device == DeviceType::kCuda);
    const RaggedDataset data(3, model.config().training.sequence_length, *model.config().model.vocab_size);
    std::vector<int64_t> products;
    for (int i = 0; i < 2; ++i) {
      const int64_t before = cuda_sim::cublas_lt_statistics().products;
      trainer.evaluate(data, 1);
      products.push_back(cuda_sim::cublas_lt_statistics().products - before);
    }
    CHECK(products[0] > 0);
    CHECK(products[0] == products[1]);
    CHECK_FALSE(std::filesystem::exists(files.path("timed.json")));
  }
  cuda_sim::reset();
}

TEST_CASE("a run with registered buffers has the bits of one without, with graphs, and where NCCL refuses them") {
  ParityLayout layout;
  layout.tensor = layout.data = 2;
  layout.zero = 3;
  const RunFiles files;
  using cuda_sim::Registration;
  for (const auto& [name, registers, graph, behaviour] :
       {std::tuple{"plain", false, false, Registration::kWorks}, std::tuple{"registered", true, false, Registration::kWorks},
        std::tuple{"graph", true, true, Registration::kWorks}, std::tuple{"refused", true, false, Registration::kFails}}) {
    cuda_sim::reset(1);
    cuda_sim::set_registration(behaviour, 3);
    const cuda_sim::IssuedOperations before = cuda_sim::issued_operations();
    CHECK(files.train(name, "cuda", {}, layout, [&, registering = registers, captures = graph](Config& config) {
      config.training.steps = 4;
      config.parallel.register_buffers = registering;
      config.kernels.cuda_graph = captures;
    }) == 1);
    cuda_sim::set_registration(Registration::kWorks);
    const cuda_sim::IssuedOperations after = cuda_sim::issued_operations();
    const bool used = registers && behaviour == Registration::kWorks;
    CHECK((after.registered > before.registered) == used);
    CHECK((after.others > before.others) == !used);
    CHECK(cuda_sim::live_registrations() == 0);
    CHECK(cuda_sim::errors().empty());
    CHECK(files.steps(name) == files.steps("plain"));
    CHECK(files.validation_losses(name) == files.validation_losses("plain"));
  }
}

TEST_CASE("a run that leaves no multiprocessor to matrix products is refused") {
  const auto open = [](int64_t free) {
    Config config;
    config.run.device = DeviceType::kCuda;
    config.parallel.communication_sms = free;
    const Machine machine(std::make_unique<SelfCommunicator>("world"), {0, 1}, config, {.device_files = "/nowhere"});
  };
  cuda_sim::reset();
  CHECK_THAT(message_of([&] { open(cuda_sim::kMultiprocessors); }),
             Catch::Matchers::Contains("parallel.communication_sms=4: leaves none of the 4 multiprocessors of the GPU") &&
                 Catch::Matchers::Contains("allowed 0 to 3; nearest valid 3"));
  CHECK(message_of([&] { open(cuda_sim::kMultiprocessors - 1); }).empty());
}

TEST_CASE("a run with an unusable tuning file ends before it makes its directory") {
  const RunFiles files;
  std::ofstream(files.path("products.json")) << "{}";
  try {
    files.train("refused", "cuda", 1, {}, [&](Config& config) { config.kernels.tuning_file = files.path("products.json"); });
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kData);
    CHECK_THAT(error.what(), Catch::Matchers::Contains("kernels.tuning_file=") && Catch::Matchers::Contains("not a file of algorithms"));
  }
  CHECK_FALSE(std::filesystem::exists(files.path("refused")));
}

TEST_CASE("captured steps use the timed algorithms, and rehearsals change neither loss scale nor dropout") {
  const RunFiles files;
  for (const auto& [name, graph, tuned, fastest] : {std::tuple{"plain", false, false, 0}, std::tuple{"rehearsed", false, true, 0},
                                                    std::tuple{"queued", false, true, 3}, std::tuple{"graph", true, true, 3}}) {
    cuda_sim::reset(1, {.operation_seconds = 1e-3});
    cuda_sim::set_algorithms({.seconds = [of = fastest](int, int place) { return place == of ? 1e-3 : 2e-3; }});
    files.train(name, "cuda", 4, {}, [&, captures = graph, tunes = tuned](Config& config) {
      config.training.global_batch_size = 3;
      config.training.precision = Arithmetic::kFp16;
      config.training.loss_scale = {.initial = 1 << 20, .growth_interval = 2};
      config.model.dropout = captures || fastest > 0 ? 0 : 0.1;
      config.kernels.cuda_graph = captures;
      if (tunes) config.kernels.tuning_file = files.path("products.json");
    });
    cuda_sim::set_algorithms({});
    std::filesystem::remove(files.path("products.json"));
  }
  CHECK(files.steps("rehearsed") == files.steps("plain"));
  CHECK(files.steps("graph").size() == 4);  // two queued, one captured, one launched
  CHECK(files.steps("graph") == files.steps("queued"));
  cuda_sim::reset();
}

TEST_CASE("traced steps on GPUs: times by cause, a trace of all ranks, and the same bits with and without a CUDA graph") {
  ParityLayout layout;
  layout.pipeline = layout.data = 2;
  layout.zero = 3;
  const RunFiles files;
  const auto train = [&](const std::string& name, bool graph, const std::optional<StepRange>& steps) {
    files.train(
        name, "cuda", 6, layout, [graph](Config& config) { config.kernels.cuda_graph = graph; }, steps);
  };
  train("alone", false, {});
  train("traced", false, StepRange{2, 3});
  train("graph", true, StepRange{4, 5});  // between launches
  CHECK(files.steps("alone").size() == 6);
  CHECK(files.steps("traced") == files.steps("alone"));
  CHECK(files.steps("graph") == files.steps("alone"));
  for (const char* name : {"traced", "graph"}) {
    const std::vector<nlohmann::json> exposed = files.events(name, "exposed");
    REQUIRE(exposed.size() == 2);
    for (const nlohmann::json& line : exposed) {
      for (const char* cause : {"compute", "optimizer", "data_wait"}) CHECK(line.at(cause) > 0);
    }
    const TraceFile trace = files.trace(name);
    // The clocks of two GPUs are known to within a wait of the host, which may be longer than a transfer here.
    CHECK((trace.problem == "" || trace.problem.find("arrives before") != std::string::npos));
    CHECK(trace.processes.size() == 4);
    CHECK(trace.arrows > 0);
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(trace.busy.at({rank, "operations"}) > 0);
      CHECK(trace.busy.at({rank, "operations"}) < trace.busy.at({rank, "compute"}));
    }
  }
}

TEST_CASE("the causes of a traced step on a GPU add up to no more than the step that the host measures around them") {
  const RunFiles files;
  files.train(
      "one", "cuda", 2, {}, [](Config&) {}, StepRange{1, 2});
  const std::vector<nlohmann::json> exposed = files.events("one", "exposed");
  REQUIRE(exposed.size() == 2);
  for (const nlohmann::json& line : exposed) {
    int64_t steps = 0;
    for (const nlohmann::json& step : files.events("one", "")) {
      if (step["step"] != line["step"] || !step.contains("step_seconds")) continue;
      ++steps;
      CHECK(line.at("step_seconds") <= step["step_seconds"].get<double>());
      CHECK(line.at("step_seconds") >= 0.1 * step["step_seconds"].get<double>());  // seconds, not milliseconds
    }
    CHECK(steps == 1);
  }
}

TEST_CASE("a run on GPUs warns once of each shape for which cuBLASLt has no kernel, whichever rank has it") {
  ParityLayout layout;
  layout.pipeline = 2;
  const RunFiles files;
  files.train("odd", "cuda", 4, layout, [](Config& config) {
    config.training.precision = Arithmetic::kBf16;
    config.model.hidden_size = 23;
    config.training.evaluate.every = 1;
  });
  files.train("even", "cuda", 2, layout, [](Config& config) {
    config.training.precision = Arithmetic::kBf16;
    config.model.vocab_size = 257;  // the padding of the stored vocabulary makes its products even
  });
  const std::vector<nlohmann::json> events = files.events("odd", "plain_products");
  REQUIRE(events.size() == 1);
  CHECK(events[0]["step"] == 1);
  // Four micro-batches through four layers in each of three blocks, and through the head, whose 12 rows are computed as chunks of 5, 5 and 2: a product
  // and both gradients each.
  CHECK(events[0]["per_step"] == 4 * 3 * (4 * 3 + 3));
  const auto of_head = [](const nlohmann::json& shape) { return shape.get<std::string>().find("256") != std::string::npos; };
  CHECK(std::ranges::count_if(events[0]["shapes"], of_head) == 2 * 3);  // the head is on the last rank, and rank 0 reports
  CHECK(events[0]["shapes"].size() == 3 * (4 + 2));
  CHECK(files.events("even", "plain_products").empty());
}

TEST_CASE("the host queues two steps without waiting for the GPUs and without allocating memory") {
  ParityLayout layout;
  layout.tensor = 2;
  const Config config = parity_config(ParityModel::kLlama, layout, "bf16");
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  run_ranks(layout.world(), [&](Communicator& threads) {
    Config own = config;
    own.run.device = DeviceType::kCuda;
    Machine machine(whole_world(threads), {threads.rank(), threads.size()}, own);
    Trainer trainer(machine.ctx(), machine.world(), own, true);
    trainer.initialise();
    trainer.step(data, 0, 1e-3);
    threads.barrier();
    const int64_t waits = cuda_sim::statistics().waits;
    const int64_t allocations = machine.ctx().arena->system_allocations();
    const Trainer::StepInFlight first = trainer.start(data, 1, 1e-3), second = trainer.start(data, 2, 1e-3);
    threads.barrier();
    TRIREME_CHECK(cuda_sim::statistics().waits == waits, cuda_sim::statistics().waits - waits, " waits");
    TRIREME_CHECK(machine.ctx().arena->system_allocations() == allocations, "memory allocated in a step");
    threads.barrier();
    TRIREME_CHECK(trainer.finish(first).accepted && trainer.finish(second).accepted, "a step was rejected");
  });
}

TEST_CASE("device selection, and the reason when a device is refused") {
  std::string chosen;
  open_machine("auto", 0, 1, &chosen);
  CHECK(chosen == "cuda");
  open_machine("cpu", 0, 1, &chosen);
  CHECK(chosen == "cpu");
  open_machine("cuda", 15, 2);
  CHECK(message_of([] { open_machine("cuda", 8, 1); }).find("9 ranks on this host, 1 per GPU, but 8 GPUs") != std::string::npos);

  cuda_sim::Options none;
  none.driver_version = 0;
  cuda_sim::reset(0, none);
  CHECK(message_of([] { open_machine("cuda", 0, 1); }).find("no CUDA driver is installed") != std::string::npos);
  open_machine("auto", 0, 1, &chosen);
  CHECK(chosen == "cpu");

  cuda_sim::Options old;
  old.major = 7;
  cuda_sim::reset(0, old);
  CHECK(message_of([] { open_machine("cuda", 0, 1); }).find("compute capability 7.0; at least 8.0 is required") != std::string::npos);
  cuda_sim::reset();
}

TEST_CASE("where run.device auto becomes cuda, every rule about GPUs applies as if the file had said cuda") {
  const std::string base =
      "model: {layers: 2, hidden_size: 16, heads: 2, vocab_size: 256}\nparallel: {data: 2}\n"
      "training: {steps: 2, sequence_length: 16, global_batch_size: 8}\ndata: {train: [train]}\n";
  const auto refusal = [&](const std::string& device, const std::vector<std::string>& sets) {
    return message_of([&] {
      std::vector<std::string> all = sets;
      all.push_back("run.device=" + device);
      Config config = resolve(parse_config(base, "run.yaml", all));
      const Machine machine(std::make_unique<SelfCommunicator>("world"), {0, 1}, config, {.device_files = "/nowhere"});
    });
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"parallel.islands=2", "training.asynchronous.mode=parameter_server"}, "training.asynchronous.mode parameter_server has no CUDA kernels"},
      {{"parallel.islands=2", "training.asynchronous.mode=elastic_averaging"}, "training.asynchronous.mode elastic_averaging has no CUDA kernels"},
      {{"training.compression.method=power_sgd", "training.compression.rank=1"}, "power_sgd sums over all data ranks, which GPUs cannot do yet"},
      {{"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1"}, "robust rules have no CUDA kernels"},
      {{"resilience.rebalance=micro_batches"}, "how long a GPU computes in a step is not measured"},
      {{"parallel.collectives=ring"}, "GPUs communicate through NCCL, which chooses its own algorithms"}};
  cuda_sim::reset();
  for (const auto& [sets, rule] : cases) {
    CAPTURE(sets);
    CHECK_THAT(refusal("cuda", sets), Catch::Matchers::Contains(rule));
    CHECK_THAT(refusal("auto", sets), Catch::Matchers::StartsWith("run.device=auto is cuda in this job: ") && Catch::Matchers::Contains(rule));
  }
  CHECK(refusal("auto", {}).empty());
  cuda_sim::reset(0, {.driver_version = 0});
  for (const auto& [sets, rule] : cases) CHECK(refusal("auto", sets).empty());  // CPUs
  CHECK_THAT(
      refusal("auto", {"kernels.attention=cudnn", "training.precision=bf16"}),
      Catch::Matchers::StartsWith("run.device=auto is cpu in this job: ") && Catch::Matchers::Contains("attention on CPUs has kernels of its own"));
  cuda_sim::reset();
}

TEST_CASE("a failure is reported before the GPU is closed") {
  cuda_sim::reset();
  struct Report final : std::stringbuf {
    int sync() override {  // std::endl
      allocations = cuda_sim::statistics().allocations;
      return 0;
    }
    int64_t allocations = 0;
  } report;
  std::streambuf* const before = std::cerr.rdbuf(&report);
  const ExitCode code = run_on_ranks({}, [](std::unique_ptr<Communicator> world, const RankPlace& place, auto& machine) -> ExitCode {
    Config config;
    config.run.device = DeviceType::kCuda;
    machine.emplace(std::move(world), place, config);
    throw AgreedError(ExitCode::kData, "a broken file", true);
  });
  std::cerr.rdbuf(before);
  CHECK(code == ExitCode::kData);
  CHECK(report.str() == "a broken file\n");
  CHECK(report.allocations > 0);
  CHECK(cuda_sim::statistics().allocations == 0);
}

TEST_CASE("run.device auto refuses CPUs on a host whose GPUs not every rank can use") {
  const TemporaryDirectory files;  // in place of /dev
  const MachineOptions here{.device_files = files.path};
  const auto refusal = [&] { return message_of([&] { open_machine("auto", 0, 1, nullptr, here); }); };
  const std::string few = message_of([&] { open_machine("auto", 8, 1, nullptr, here); });
  CHECK_THAT(few, Catch::Matchers::StartsWith("run.device=auto: this job's hosts have GPUs, but not every rank can use one: rank 0 on "));
  CHECK_THAT(few,
             Catch::Matchers::EndsWith(": 9 ranks on this host, 1 per GPU, but 8 GPUs; allowed: fewer ranks per host, run.ranks_per_gpu 2 (slow, "
                                       "for tests), or run.device cpu"));
  std::string chosen;
  open_machine("auto", 8, 1, &chosen, {.device_files = files.path, .may_ignore_gpus = true});
  CHECK(chosen == "cpu");
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia", "null"}) std::ofstream(files.path / name) << "";  // of a host without GPUs
  cuda_sim::reset(0, {.driver_version = 12040});
  open_machine("auto", 0, 1, &chosen, here);
  CHECK(chosen == "cpu");
  std::ofstream(files.path / "nvidia0") << "";
  CHECK(refusal().find("the driver (12.4) is older than this build's CUDA") != std::string::npos);
  cuda_sim::reset(0, {.devices = 0});  // the job was not given one
  CHECK(refusal().find("no GPU found (is CUDA_VISIBLE_DEVICES empty, or a Slurm job without --gpus-per-node?); allowed cpu") != std::string::npos);
  cuda_sim::reset();
}

TEST_CASE("run.device auto is one decision of the job, also where only one host has GPUs") {
  const TemporaryDirectory with, without;
  std::ofstream(with.path / "nvidia0") << "";
  cuda_sim::reset(0, {.driver_version = 0});
  std::mutex mutex;
  std::set<std::string> messages;
  run_ranks(2, [&](Communicator& threads) {
    Config config;
    config.run.device = DeviceType::kAuto;
    std::string message;
    try {
      const Machine machine(whole_world(threads), {0, 1}, config, {.device_files = threads.rank() == 1 ? with.path : without.path});
    } catch (const Error& error) {
      message = error.what();
    }
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  REQUIRE(messages.size() == 1);
  CHECK_THAT(*messages.begin(), Catch::Matchers::StartsWith("run.device=auto: this job's hosts have GPUs"));
  cuda_sim::reset();
}

TEST_CASE("ranks with a MIG instance each train through host memory, and two ranks of one instance are refused") {
  cuda_sim::reset(0, {.mig = true});
  ParityLayout layout;
  layout.data = 2;
  const RunFiles files;
  files.train("cpu", "cpu", 3, layout);
  const auto train_on = [&](const std::string& name, const std::function<int(int)>& instance_of, bool graph) {
    files.train(
        name, "cuda", 3, layout, [&](Config& config) { config.kernels.cuda_graph = graph; }, {}, instance_of);
  };
  const auto own = [](int rank) { return rank; };
  train_on("mig", own, false);
  check_close(files.steps("cpu"), files.steps("mig"));
  CHECK(message_of([&] { train_on("graph", own, true); }).find("kernels.cuda_graph=true: needs NCCL between ranks; allowed false: MIG instances") ==
        0);
  CHECK(message_of([&] {
          train_on(
              "shared", [](int) { return 3; }, false);
        }).find("2 ranks on this host, 1 per GPU, but 1 GPU") != std::string::npos);
  cuda_sim::reset();
}

TEST_CASE("a run that does not fit on the GPU fails before the first step, with the memory table") {
  cuda_sim::Options small;
  small.memory = size_t{512} << 20;  // reserved for libraries
  cuda_sim::reset(0, small);
  const RunFiles files;
  const std::string message = message_of([&] { files.train("small", "cuda", std::nullopt); });
  INFO(message);
  for (const char* part : {"this run needs ", "parameters", "optimizer", "activations", "peak of the sum"})
    CHECK(message.find(part) != std::string::npos);
  CHECK(files.steps("small").empty());
  cuda_sim::reset();
}

}  // namespace trireme::test
