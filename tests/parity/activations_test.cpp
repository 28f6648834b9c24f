// The largest activations are those of one rank in every layout, cost no unforecast byte and change no bit of what is trained.
#include <cmath>
#include <limits>
#include <mutex>

#include "kernels/ops/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

using Maxima = std::vector<std::pair<std::string, double>>;

constexpr const char* kLayouts[] = {
    "tp2", "tp2sp", "pp2", "dp4z2-rep2", "mb3-dp2z3", "tp2pp2sp", "pp2dp2z3-zb_h1", "pp2-zb_v-full", "pp2-vpp2-interleaved_1f1b-selective"};

ParityLayout layout_named(const char* text) {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(text);
  return layout;
}

Config recording(ParityModel model, const ParityLayout& layout, const std::string& precision = "fp64") {
  Config config = parity_config(model, layout, precision);
  config.observe.activations.every = 1;
  return config;
}

/// Calls `body` on each rank of a trainer with initial weights.
template <class Body>
void on_ranks(const Config& config, const ParityLayout& layout, Device device, const Body& body) {
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(device);
    Context ctx{device, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    body(trainer, data);
  });
}

/// The maxima of the second step, after an evaluation and a step that is not recorded. One rank does not record the first step, several do.
Maxima maxima_of(ParityModel model, const ParityLayout& layout, const std::string& precision = "fp64", Device device = Device::kReference) {
  Maxima maxima;
  on_ranks(recording(model, layout, precision), layout, device, [&](Trainer& trainer, const Dataset& data) {
    trainer.record_activations(layout.world() > 1);
    trainer.step(data, 0, 3e-2);
    trainer.record_activations(true);
    trainer.step(data, 1, 3e-2);
    trainer.record_activations(false);
    trainer.evaluate(data, 1);
    trainer.step(data, 2, 3e-3);
    const Maxima each = trainer.activation_maxima();
    if (trainer.mesh().world.rank() == 0) maxima = each;
  });
  return maxima;
}

/// The tokens of places [begin, end) of the global batch of the first step.
std::vector<int32_t> tokens_of(const Trainer& trainer, const Dataset& data, int64_t begin, int64_t end) {
  const auto length = static_cast<size_t>(trainer.config().training.sequence_length);
  std::vector<int32_t> all, targets(length);
  std::vector<int64_t> segments;
  for (int64_t place = begin; place < end; ++place) {
    all.resize(all.size() + length);
    data.read(trainer.batches().sample(data, 0, place), all.data() + all.size() - length, targets.data(), segments);
  }
  return all;
}

TEST_CASE("activations: the largest of each layer are those of one rank in every layout") {
  int layouts = 0;
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2Dropout}) {
    const Maxima one = maxima_of(model, ParityLayout().on_one_rank());
    REQUIRE(one.size() == 6);
    CHECK(one[0].first == "embedding");
    for (size_t block = 0; block < 5; ++block) {
      CHECK(one[1 + block].first == "blocks." + std::to_string(block));
      CHECK(one[1 + block].second > 0);
      CHECK(one[1 + block].second != one[block].second);
    }
    for (const char* text : kLayouts) {
      const ParityLayout layout = layout_named(text);
      CAPTURE(name_of(model), text);
      REQUIRE(is_legal(model, layout));
      ++layouts;
      const Maxima split = maxima_of(model, layout);
      REQUIRE(split.size() == one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        CAPTURE(one[i].first);
        CHECK(split[i].first == one[i].first);
        CHECK(split[i].second == Approx(one[i].second).epsilon(1e-12));
      }
    }
  }
  CHECK(layouts == 18);
}

TEST_CASE("activations: after the embedding the largest is that of the rows that the batch reads, and 16 bits differ by their rounding") {
  const ParityLayout layout = layout_named("tp2dp2");
  double largest = 0;
  Maxima maxima;
  on_ranks(recording(ParityModel::kLlama, layout), layout, Device::kReference, [&](Trainer& trainer, const Dataset& data) {
    RunRecord record;
    const GlobalTensor table = gather(trainer, Gathered::kWeight, 1, record).at("embedding.weight");
    trainer.record_activations(true);
    trainer.step(data, 0, 3e-3);
    const Maxima each = trainer.activation_maxima();
    if (trainer.mesh().world.rank() != 0) return;
    maxima = each;
    const int64_t width = trainer.config().model.hidden_size;
    for (const int32_t token : tokens_of(trainer, data, 0, trainer.config().training.global_batch_size))
      for (int64_t d = 0; d < width; ++d) largest = std::max(largest, std::abs(table.values[static_cast<size_t>(token * width + d)]));
  });
  CHECK(maxima.at(0).second == largest);
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    on_ranks(recording(ParityModel::kLlama, layout, precision), layout, Device::kCpu, [&](Trainer& trainer, const Dataset& data) {
      trainer.record_activations(true);
      trainer.step(data, 0, 3e-3);
      const Maxima rounded = trainer.activation_maxima();
      for (size_t i = 0; i < maxima.size(); ++i) {
        const double error = std::abs(rounded.at(i).second / maxima[i].second - 1);
        TRIREME_CHECK(error < (precision == "fp32" ? 1e-5 : 0.02), rounded[i].first, " in ", precision, ": ", error);
      }
    });
  }
}

TEST_CASE("activations: a value that is not a number on one rank is not hidden by the maximum over ranks") {
  const ParityLayout layout = layout_named("tp2pp2dp2sp");
  Maxima maxima;
  int finite_ranks = 0;
  std::mutex mutex;
  on_ranks(recording(ParityModel::kLlama, layout), layout, Device::kReference, [&](Trainer& trainer, const Dataset& data) {
    const std::vector<int32_t> first = tokens_of(trainer, data, 0, 6), second = tokens_of(trainer, data, 6, 12);
    const auto own = std::ranges::find_if(first, [&](int32_t token) { return std::ranges::count(second, token) == 0; });
    TRIREME_CHECK(own != first.end(), "every token is in both halves of the batch");
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      const Box& box = owned.box;
      if (owned.spec->name != "embedding.weight" || *own < box.start[0] || *own >= box.start[0] + box.extent[0]) continue;
      fill(trainer.context(), std::numeric_limits<double>::quiet_NaN(), owned.weight.flat((*own - box.start[0]) * box.extent[1], box.extent[1]));
    }
    trainer.weights_changed();
    trainer.record_activations(true);
    trainer.step(data, 0, 3e-3);
    const Maxima each = trainer.activation_maxima();
    const std::scoped_lock lock(mutex);
    finite_ranks += std::isfinite(trainer.stage().activation_maxima().data<double>()[0]) ? 1 : 0;
    if (trainer.mesh().world.rank() == 0) maxima = each;
  });
  CHECK(finite_ranks >= 4);  // those that do not have the token
  REQUIRE(maxima.size() == 6);
  for (const auto& [layer, largest] : maxima) {
    CAPTURE(layer);
    CHECK(std::isnan(largest));
  }
}

TEST_CASE("activations: recording changes no bit of training and no byte of the memory forecast") {
  for (const char* text : {"tp2pp2sp", "pp2dp2z3-zb_h1"}) {
    CAPTURE(text);
    const ParityLayout layout = layout_named(text);
    const Config config = recording(ParityModel::kLlama, layout, "fp32"), plain = parity_config(ParityModel::kLlama, layout, "fp32");
    std::vector<std::vector<double>> losses(2);
    std::vector<RankMemory> measured(static_cast<size_t>(layout.world()));
    for (const bool records : {false, true}) {
      on_ranks(records ? config : plain, layout, Device::kReference, [&](Trainer& trainer, const Dataset& data) {
        for (int64_t step = 0; step < 3; ++step) {
          trainer.record_activations(records && step > 0);
          const StepResult result = trainer.step(data, step, 3e-3);
          if (records && step > 0) trainer.activation_maxima();
          if (trainer.mesh().world.rank() == 0) losses[records].insert(losses[records].end(), {result.loss, result.grad_norm});
        }
        if (records) measured[static_cast<size_t>(trainer.mesh().world.rank())] = measured_memory(*trainer.context().arena);
      });
    }
    CHECK(losses[0] == losses[1]);
    for (int rank = 0; rank < layout.world(); ++rank) {
      const RankMemory forecast = forecast_memory(config, rank, layout.world());
      for (const MemoryPhase phase : {MemoryPhase::kForward, MemoryPhase::kBackward, MemoryPhase::kOptimizer})
        CHECK(forecast.phases[static_cast<size_t>(phase)].peak_total ==
              measured[static_cast<size_t>(rank)].phases[static_cast<size_t>(phase)].peak_total);
      CHECK(forecast.peak_total == measured[static_cast<size_t>(rank)].peak_total);
      const int64_t parts = forecast.peak_total - forecast_memory(plain, rank, layout.world()).peak_total;
      CHECK(parts > 0);
      CHECK(parts <= 16 * 128);  // a value for each part, in the arena's units
    }
  }
}

}  // namespace
}  // namespace trireme::test
