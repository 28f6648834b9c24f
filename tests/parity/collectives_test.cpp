// Training with collectives of our own in place of the library's.
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/machine/machine.h"

namespace trireme::test {
namespace {

constexpr Collectives kOwn[] = {Collectives::kRing,     Collectives::kRecursiveDoubling, Collectives::kRabenseifner,
                                Collectives::kBinomial, Collectives::kDoubleBinaryTree,  Collectives::kAuto};

}  // namespace

TEST_CASE("collectives: every algorithm trains the same model as the library, and a rerun repeats its bits") {
  constexpr int kSteps = 2;  // one for every gradient, one for its consequences
  ParityLayout three_axes, folded;
  three_axes.tensor = 2;
  three_axes.pipeline = 2;
  three_axes.data = 2;
  three_axes.zero = 3;
  three_axes.sequence_parallel = true;
  folded.tensor = 2;
  folded.data = 3;
  folded.zero = 1;
  for (ParityLayout layout : {three_axes, folded}) {
    const RunRecord library = train_on_threads(parity_config(ParityModel::kLlamaGrouped, layout, "fp64"), kSteps, Device::kReference, true);
    for (const Collectives collectives : kOwn) {
      layout.collectives = collectives;
      INFO(layout.str());
      const Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp64");
      const RunRecord own = train_on_threads(config, kSteps, Device::kReference, true);
      CHECK(difference(library, own, 1e-10) == "");
      CHECK(difference(own, train_on_threads(config, kSteps, Device::kReference, true), 0) == "");
    }
  }
}

TEST_CASE("collectives: the machine's communicator has the order of sums of the key") {
  const auto sum_with = [](Collectives collectives) {
    float sum = 0;
    run_ranks(3, [&](Communicator& world) {
      Config config;
      config.run.device = DeviceType::kCpu;
      config.parallel.collectives = collectives;
      Machine machine(whole_world(world), {.local_rank = world.rank(), .local_size = 3, .threads = 1}, config);
      const Tensor x = Tensor::empty(machine.ctx(), {3}, DType::kF32, MemoryCategory::kCommunication);
      const float values[] = {1e8F, -1e8F, 1.0F};
      std::fill_n(x.data<float>(), 3, values[world.rank()]);
      machine.world().all_reduce(machine.ctx(), x, ReduceOp::kSum).wait(machine.ctx());
      if (world.rank() == 0) sum = x.data<float>()[0];
    });
    return sum;
  };
  CHECK(sum_with(Collectives::kLibrary) == 1.0F);            // (1e8 - 1e8) + 1
  CHECK(sum_with(Collectives::kRecursiveDoubling) == 1.0F);  // the same
  CHECK(sum_with(Collectives::kRing) == 0.0F);               // (-1e8 + 1) + 1e8
}

TEST_CASE("collectives: the key takes effect in the order of sums of a run") {
  ParityLayout layout;
  layout.data = 4;
  layout.zero = 1;
  const auto run = [&](Collectives collectives) {
    layout.collectives = collectives;
    return train_on_threads(parity_config(ParityModel::kGpt2, layout, "fp32"), 2, Device::kCpu);
  };
  const RunRecord library = run(Collectives::kLibrary), halving = run(Collectives::kRabenseifner);
  CHECK(difference(library, halving, 1e-4) == "");
  CHECK(difference(library, halving, 0) != "");
}

TEST_CASE("collectives: refused where GPUs communicate through NCCL") {
  const auto with = [](const std::string& run) {
    return concat("run: ", run, "\nparallel: {collectives: ring}\ntraining: {steps: 1}\ndata: {train: [a]}\n");
  };
  check_throws<ConfigError>([&] { parse_config(with("{device: cuda}"), "c.yaml"); },
                            {"parallel.collectives=ring: GPUs communicate through NCCL", "allowed library", "nearest valid library"});
  CHECK_NOTHROW(parse_config(with("{device: cpu}"), "c.yaml"));
  CHECK_NOTHROW(parse_config(with("{device: cuda, ranks_per_gpu: 2}"), "c.yaml"));
}

}  // namespace trireme::test
