// Histograms of weights and gradients count every element once, in the bins of the definition, in every layout.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/histograms.h"

namespace trireme::test {
namespace {

struct Counted {
  std::vector<Histogram> histograms;
  std::vector<Histogram> expected;  ///< from the assembled tensors
};

void add_expected(const GlobalTensors& tensors, const std::string& kind, std::vector<Histogram>& histograms) {
  const std::vector<double>& limits = histogram_limits();
  for (const auto& [name, tensor] : tensors) {
    const auto found = std::ranges::find(histograms, kind + layer_group(name), &Histogram::name);
    for (const double value : tensor.values) ++found->counts[static_cast<size_t>(std::ranges::upper_bound(limits, value) - limits.begin())];
  }
}

/// After two steps of a model.
Counted counted(ParityModel model, const ParityLayout& layout, const std::string& precision = "fp64", Device device = Device::kReference) {
  const Config config = parity_config(model, layout, precision);
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  Counted result;
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(device);
    Context ctx{device, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    for (const OwnedBox& owned : trainer.owned_boxes()) {  // a key bias of 0 would move by the sign of a gradient that is only rounding
      if (!owned.spec->name.ends_with(".bias")) continue;
      const Box& box = owned.box;
      fill_normal(ctx, random_key(7, owned.spec->name), 0.1, owned.spec->shape[1], box.start[0], box.start[1],
                  owned.weight.view({box.extent[0], box.extent[1]}));
    }
    trainer.weights_replaced();
    double scale = 1;
    for (int64_t step = 0; step < 2; ++step) scale = static_cast<double>(trainer.step(data, step, 3e-3).loss_scale.value_or(1));
    const std::vector<Histogram> histograms = parameter_histograms(trainer, scale);
    RunRecord record;
    const GlobalTensors weights = gather(trainer, Gathered::kWeight, 1, record), gradients = gather(trainer, Gathered::kGradient, scale, record);
    if (world.rank() != 0) return;
    result = {histograms, histograms};
    for (Histogram& one : result.expected) std::ranges::fill(one.counts, 0);
    add_expected(weights, "weights/", result.expected);
    add_expected(gradients, "gradients/", result.expected);
  });
  return result;
}

/// `over_zero`: gradients of key biases are zero except for rounding, whose sign depends on the layout: the two bins beside zero count as one.
void check_equal(const std::vector<Histogram>& a, const std::vector<Histogram>& b, bool over_zero = false) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].name);
    CHECK(a[i].name == b[i].name);
    REQUIRE(a[i].counts.size() == b[i].counts.size());
    std::string differing;  // bins
    for (size_t bin = 0; bin < a[i].counts.size(); ++bin) {
      const bool beside_zero = over_zero && a[i].name.starts_with("gradients/") && (bin == 775 || bin == 776);
      const auto of = [&](const Histogram& one) { return beside_zero ? one.counts[775] + one.counts[776] : one.counts[bin]; };
      if (of(a[i]) != of(b[i])) differing += std::to_string(bin) + " ";
    }
    CHECK(differing == "");
  }
}

TEST_CASE("histograms: the bin of a value is the one of the definition") {
  const std::vector<double>& limits = histogram_limits();
  CHECK(std::ranges::is_sorted(limits));
  CHECK(limits.size() == 1551);
  CHECK(limits[775] == 0);
  CHECK(limits[776] == 1e-12);
  CHECK(limits[777] == 1e-12 * 1.1);
  const auto by_search = [&](double value) {
    return std::min(static_cast<size_t>(std::ranges::upper_bound(limits, value) - limits.begin()), limits.size() - 1);
  };
  int64_t wrong = 0;
  const auto check_bin = [&](double value) { wrong += histogram_bin(value) == by_search(value) ? 0 : 1; };
  for (const double limit : limits)
    for (const double value : {limit, std::nextafter(limit, 1e300), std::nextafter(limit, -1e300)}) check_bin(value);
  for (double value = 1e-320; value < 1e300; value *= 1.0123) {
    check_bin(value);
    check_bin(-value);
    check_bin(static_cast<double>(static_cast<float>(value)));
  }
  for (const double value : {0.0, -0.0, 5e-324, -5e-324, 3.5e38, -3.5e38}) check_bin(value);
  CHECK(wrong == 0);
}

TEST_CASE("histograms: every element is counted once, in every layout alike") {
  int layouts = 0;
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2}) {
    const Counted one = counted(model, ParityLayout().on_one_rank());
    check_equal(one.histograms, one.expected);
    CHECK(one.histograms.front().name == "weights/embedding");
    CHECK(one.histograms.back().name == (model == ParityModel::kLlama ? "gradients/head" : "gradients/final_norm"));
    for (const char* text : {"tp2", "tp4sp", "pp2", "dp2z1", "dp3z3", "dp4z2-rep2", "tp2pp2dp2z3-sp", "pp2-vpp2-interleaved_1f1b", "pp2-zb_v"}) {
      ParityLayout layout;
      static_cast<Layout&>(layout) = parse_layout(text);
      if (!is_legal(model, layout)) continue;
      CAPTURE(name_of(model), text);
      ++layouts;
      const Counted split = counted(model, layout);
      check_equal(split.histograms, split.expected);
      check_equal(split.histograms, one.histograms, true);
    }
  }
  CHECK(layouts >= 20);
}

TEST_CASE("histograms: of the fast kernels too, of gradients without the loss scale, and values that are not finite are left out") {
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 2;
  const auto center = [](const Histogram& histogram) {
    double sum = 0, number = 0;
    for (size_t bin = 0; bin < histogram.counts.size(); ++bin) {
      sum += std::abs(static_cast<double>(bin) - 776) * static_cast<double>(histogram.counts[bin]);
      number += static_cast<double>(histogram.counts[bin]);
    }
    return sum / number;
  };
  const Counted exact = counted(ParityModel::kLlama, layout);
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    CAPTURE(precision);
    const Counted rounded = counted(ParityModel::kLlama, layout, precision, Device::kCpu);
    check_equal(rounded.histograms, rounded.expected);
    for (size_t i = 0; i < exact.histograms.size(); ++i) {
      CAPTURE(exact.histograms[i].name);
      CHECK(center(rounded.histograms[i]) == Approx(center(exact.histograms[i])).margin(8));  // a loss scale would move it by 100 bins
    }
  }
  const Config config = parity_config(ParityModel::kLlama, ParityLayout().on_one_rank(), "fp32");
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    for (const OwnedBox& box : trainer.owned_boxes()) {
      fill(ctx, 0, box.weight);
      fill(ctx, 0, box.gradient);
      box.weight.data<float>()[0] = INFINITY;
      box.gradient.data<float>()[0] = NAN;
    }
    for (const Histogram& one : parameter_histograms(trainer, 1)) {
      const auto zeros = one.counts[776];
      TRIREME_CHECK(zeros > 0 && zeros == std::accumulate(one.counts.begin(), one.counts.end(), int64_t{0}), one.name);
    }
  });
}

}  // namespace
}  // namespace trireme::test
