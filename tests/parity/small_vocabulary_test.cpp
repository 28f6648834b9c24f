// A vocabulary too small for its tensor ranks: the last rank's rows of the embedding are all padding.
#include <cmath>
#include <mutex>

#include "parallel/comm/self.h"
#include "tests/parity/text_models.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/model/declare.h"

namespace trireme::test {
namespace {

constexpr int64_t kTokens = 5;  // two rows per rank: the third of four ranks has one row of padding, the fourth two
constexpr int kRanks = 4;

Config config_of(ParityModel model, int tensor) {
  ParityLayout layout;
  layout.tensor = tensor;
  Config config = parity_config(model, layout, "fp64");
  config.model.vocab_size = kTokens;
  return config;
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
