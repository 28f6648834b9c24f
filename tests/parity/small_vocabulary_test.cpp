// The padding of the stored vocabulary. A vocabulary too small for its tensor ranks: the last rank's rows of the embedding are all padding.
#include <atomic>
#include <cmath>
#include <mutex>

#include "parallel/comm/self.h"
#include "tests/parity/layouts.h"
#include "tests/parity/text_models.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

constexpr int64_t kTokens = 5;  // two tokens per rank: the third of four ranks has one, the fourth none
constexpr int kRanks = 4;

Config config_of(ParityModel model, int tensor) {
  ParityLayout layout;
  layout.tensor = tensor;
  Config config = parity_config(model, layout, "fp64");
  config.model.vocab_size = kTokens;
  return config;
}

/// Throws unless the rows of `spec` beyond its box are zero in this rank's weights, gradients and optimizer states. Returns their number of elements.
int64_t expect_zero_padding(const TransformerStage& stage, int unit) {
  const ParamStore& params = stage.params();
  const Unit& of = *params.units()[static_cast<size_t>(unit)];
  std::vector<Tensor> tensors{params.master(unit), stage.grads().shard(unit)};
  for (const auto& [name, tensor] : stage.optimizer()->state(unit)) tensors.push_back(tensor);
  int64_t padding = 0;
  for (const Unit::Segment& segment : of.owned_segments()) {
    const int64_t held = segment.matrix_range().count();
    padding += segment.count - held;
    for (const Tensor& tensor : tensors)
      dispatch_float(tensor.dtype(), [&](auto zero) {
        const auto* const values = of.slice(tensor, segment).data<decltype(zero)>();
        for (int64_t i = held; i < segment.count; ++i)
          TRIREME_CHECK(values[i] == zero, segment.spec->name, ": padding contains ", static_cast<double>(values[i]));
      });
  }
  return padding;
}

/// The logits of a text, by rank.
std::vector<std::vector<double>> logits_on(int tensor) {
  std::vector<std::vector<double>> all(static_cast<size_t>(tensor));
  run_ranks(tensor, [&](Communicator& world) {
    Config config = text_config("grouped", tensor, "fp64");
    config.model.vocab_size = kTokens;
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1, nullptr};
    Trainer trainer(ctx, world, config, false);
    draw_weights(trainer);
    all[static_cast<size_t>(world.rank())] = trainer.logits(std::vector<int32_t>{0, 4, 2, 3, 1, 4});
  });
  return all;
}

}  // namespace

TEST_CASE("rows of a parameter with too few rows for its ranks are split without gap and overlap") {
  for (const int ranks : {4, 7, 8}) {
    int64_t end = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(ranks, rank);
      const ParamSpec spec = split_rows("w", {kTokens, 3}, 2, {rank, ranks}, ranks);
      CHECK(spec.box.start[0] == end);
      CHECK(spec.box.extent[0] >= 0);
      end += spec.box.extent[0];
      CHECK(end <= kTokens);
      CHECK(spec.local == std::array<int64_t, 2>{(kTokens + ranks - 1) / ranks, 3});
    }
    CHECK(end == kTokens);
  }
}

TEST_CASE("the padding of the stored vocabulary stays zero in weights, gradients and optimizer states") {
  std::vector<ParityCase> cases = {{ParityModel::kLlama, {}},
                                   {ParityModel::kLlama, {{.tensor = 2, .data = 3, .zero = 3, .sequence_parallel = true}}},
                                   {ParityModel::kLlamaGrouped, {{.tensor = 4, .pipeline = 2, .data = 2, .zero = 2}}},
                                   {ParityModel::kGpt2, {{.pipeline = 2, .data = 2, .zero = 1}}}};
  cases.back().layout.optimizer = Optimizer::kLion;
  for (const auto& [model, layout] : cases) {
    for (const char* const precision : {"fp64", "bf16"}) {
      INFO(name_of(model) << " " << layout.str() << " " << precision);
      const Config config = parity_config(model, layout, precision);
      std::atomic<int64_t> padding = 0;
      run_ranks(layout.world(), [&](Communicator& world) {
        Arena arena(Device::kCpu);
        Context ctx{Device::kCpu, &arena, 1, nullptr};
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
        for (int step = 0; step < 4; ++step) {
          trainer.step(data, step, 1e-2);
          for (const auto& stage : trainer.stages())
            for (int unit = 0; unit < std::ssize(stage->params().units()); ++unit) padding += expect_zero_padding(*stage, unit);
        }
      });
      // The vocabulary of 61: three rows in each copy on one rank, one and two on two ranks, none, none, none and three rows of 16 on four.
      CHECK(padding > 0);
    }
  }
}

TEST_CASE("with a tensor rank without vocabulary, training and evaluation equal one rank") {
  const RunRecord one = train_on_threads(config_of(ParityModel::kLlamaGrouped, 1), 2, Device::kReference);
  const RunRecord four = train_on_threads(config_of(ParityModel::kLlamaGrouped, kRanks), 2, Device::kReference, true);
  CHECK(difference(one, four, 1e-10) == "");
}

TEST_CASE("with a tensor rank without vocabulary, logits equal one rank") {
  const std::vector<double> expected = logits_on(1)[0];
  REQUIRE(expected.size() == 6 * kTokens);
  for (const std::vector<double>& logits : logits_on(kRanks)) {
    REQUIRE(logits.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) CHECK(std::abs(logits[i] - expected[i]) <= 1e-10);
  }
}

}  // namespace trireme::test
