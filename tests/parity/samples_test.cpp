// The logits that continue a text during training are those of one rank in every layout, before and after a step.
#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

using Logits = std::vector<std::vector<double>>;  // of each text

constexpr size_t kLengths[] = {1, 3, 4, 7, 11, 12};

std::vector<int32_t> text_of(size_t length) {
  std::vector<int32_t> text;
  for (size_t i = 0; i < length; ++i) text.push_back(static_cast<int32_t>((17 + 13 * i * i) % 61));
  return text;
}

/// After each text, with the weights after `steps` steps. Ranks of the last stage must agree.
Logits continued(ParityModel model, const ParityLayout& layout, int steps) {
  Config config = parity_config(model, layout, "fp64");
  config.observe.samples = {.every = 1, .prompts = {"a"}};
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  std::vector<Logits> of_ranks(static_cast<size_t>(layout.world()));
  std::vector<bool> last(of_ranks.size());
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    for (int step = 0; step < steps; ++step) trainer.step(data, step, 1e-2);
    Logits& mine = of_ranks[static_cast<size_t>(world.rank())];
    for (const size_t length : kLengths) mine.push_back(trainer.continuation_logits(text_of(length)));
    trainer.step(data, steps, 1e-2);  // training continues
    TRIREME_CHECK(measured_memory(arena).peak_total <= forecast_memory(config, world.rank(), world.size()).peak_total, "memory of rank ",
                  world.rank());
    for (const auto& stage : trainer.stages())
      if (stage->range().last()) last[static_cast<size_t>(world.rank())] = true;
  });
  Logits result;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::vector<double>& one : of_ranks[rank]) CHECK(one.size() == (last[rank] ? 61 : 0));
    if (last[rank] && result.empty()) result = of_ranks[rank];
    if (last[rank]) CHECK(of_ranks[rank] == result);
  }
  return result;
}

/// By the path of `trireme generate`.
Logits generated(ParityModel model) {
  Config config = parity_config(model, ParityLayout().on_one_rank(), "fp64");
  config.training.micro_batch_size = config.training.global_batch_size = 1;
  Logits all;
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, false);
    trainer.initialise();
    for (const size_t length : kLengths) all.push_back(trainer.next_token_logits(text_of(length)));
  });
  return all;
}

void check_close(const Logits& a, const Logits& b) {
  REQUIRE(a.size() == b.size());
  for (size_t text = 0; text < a.size(); ++text) {
    REQUIRE(a[text].size() == b[text].size());
    double most = 0;
    for (size_t i = 0; i < a[text].size(); ++i) most = std::max(most, std::abs(a[text][i] - b[text][i]));
    CHECK(most < 1e-10);
  }
}

TEST_CASE("samples: the logits after a text are those of generate, and of one rank in every layout") {
  int layouts = 0;
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2Dropout}) {
    const Logits before = continued(model, ParityLayout().on_one_rank(), 0), after = continued(model, ParityLayout().on_one_rank(), 1);
    check_close(before, generated(model));
    CHECK(std::abs(before[3][5] - after[3][5]) > 1e-4);
    for (const char* text : {"tp2", "tp2sp", "tp3sp", "pp2", "dp4z2-rep2", "mb3-dp2z3", "tp2pp2dp2z3-sp", "pp2dp2z3-zb_h1", "pp2-zb_v",
                             "tp2pp2-sp-vpp2-interleaved_1f1b"}) {
      ParityLayout layout;
      static_cast<Layout&>(layout) = parse_layout(text);
      if (!is_legal(model, layout)) continue;
      CAPTURE(name_of(model), text);
      ++layouts;
      check_close(continued(model, layout, 1), after);
    }
    ParityLayout ends;  // without layers
    static_cast<Layout&>(ends) = parse_layout("pp3dp2z3");
    CAPTURE(name_of(model));
    check_close(continued(model, ends.with_layers(5, {0, 5, 0}), 1), after);
  }
  CHECK(layouts >= 24);
}

}  // namespace
}  // namespace trireme::test
