// The layout never changes the mathematics: compares training under any layout with one rank, for the same model, data and seed.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "tests/parity/layouts.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

constexpr int kSteps = 10;     // for the model of 5 layers
constexpr int kDeepSteps = 3;  // for the model of 13 layers: one for every gradient, two for its consequences
// In double precision only the order of sums differs between layouts: a few thousand roundings of 1e-16, amplified by ten AdamW steps.
constexpr double kDoubleTolerance = 1e-10;
// In fp32 the same roundings are 6e-8; ten steps amplify them to 3e-5 of a tensor's largest element at worst.
constexpr double kSingleTolerance = 1e-4;

int steps_of(int layers) { return layers == 5 ? kSteps : kDeepSteps; }

/// The run on one rank of the model that `layout` trains, of `steps` steps.
const RunRecord& one_rank(ParityModel model, const ParityLayout& layout, const std::string& precision, Device device, int steps) {
  const ParityLayout plain = layout.on_one_rank();
  static std::map<std::tuple<ParityModel, std::string, std::string, int>, RunRecord> records;
  RunRecord& record = records[{model, plain.str(), precision, steps}];
  if (record.loss.empty()) record = train_on_threads(parity_config(model, plain, precision), steps, device);
  return record;
}
const RunRecord& one_rank(ParityModel model, const ParityLayout& layout, const std::string& precision, Device device) {
  return one_rank(model, layout, precision, device, steps_of(layout.layers));
}

void check(const std::vector<ParityCase>& cases, const std::string& precision, Device device, double tolerance, bool poison) {
  size_t equal = 0;
  for (const ParityCase& c : cases) {
    INFO(name_of(c.model) << " " << c.layout.str());
    std::string found;
    try {
      const RunRecord record = train_on_threads(parity_config(c.model, c.layout, precision), steps_of(c.layout.layers), device, poison);
      found = difference(one_rank(c.model, c.layout, precision, device), record, tolerance);
    } catch (const std::exception& error) {
      found = error.what();
    }
    CHECK(found == "");
    equal += found.empty();
  }
  CHECK(equal == cases.size());
}

const std::vector<ParityCase>& pairs() {
  static const std::vector<ParityCase> cases = covering_parity_cases(2);
  return cases;
}

/// The same with AdamW only: Lion takes the sign of a momentum, and near zero that is the sign of its rounding error, so fp32 and bf16 have no
/// tolerance.
const std::vector<ParityCase>& smooth_pairs() {
  static const std::vector<ParityCase> cases = [] {
    std::vector<ParityCase> all = pairs();
    for (ParityCase& c : all) c.layout.optimizer = Optimizer::kAdamW;
    return all;
  }();
  return cases;
}

/// Every `stride`-th of the cases.
std::vector<ParityCase> every(size_t stride, const std::vector<ParityCase>& cases) {
  std::vector<ParityCase> some;
  for (size_t i = 0; i < cases.size(); i += stride) some.push_back(cases[i]);
  return some;
}

/// Without tensor parallelism: data, pipeline and ZeRO only reorder fp32 sums of gradients; one flipped bit of bf16 is 2^-8 of an element, and ten steps
/// amplify it.
void check_reordered_sums_in_bf16(const std::vector<ParityCase>& cases) {
  constexpr double kTolerance = 2e-2;
  for (const ParityCase& c : cases) {
    if (c.layout.tensor > 1) continue;
    INFO(name_of(c.model) << " " << c.layout.str());
    const RunRecord record = train_on_threads(parity_config(c.model, c.layout, "bf16"), kDeepSteps, Device::kCpu, true);
    CHECK(difference(one_rank(c.model, c.layout, "bf16", Device::kCpu), record, kTolerance) == "");
  }
}

/// Tensor parallelism also rounds each partial sum, which at most doubles the error of one rank in the mean over the parameters. A missing sum changes
/// one parameter by the size of its gradient. All compared figures are those of the first step.
void check_gradients_in_bf16(const std::vector<ParityCase>& cases) {
  for (const ParityCase& c : cases) {
    INFO(name_of(c.model) << " " << c.layout.str());
    const RunRecord& exact = one_rank(c.model, c.layout, "fp64", Device::kReference, 1);
    const RunRecord& serial = one_rank(c.model, c.layout, "bf16", Device::kCpu, 1);
    const RunRecord record = train_on_threads(parity_config(c.model, c.layout, "bf16"), 1, Device::kCpu);
    const GradientErrors unit = gradient_errors(exact, serial), errors = gradient_errors(exact, record);
    // About 5 successive roundings of 2^-9 per layer. An island has fewer samples over whose gradients they average out.
    // Gemma's blocks round more often, in two more norms each, and its plain loops alike: 0.32 in the worst parameter of 13 layers.
    if (c.layout.block == ParityBlock::kOwn && c.model != ParityModel::kGemma3)
      CHECK(unit.worst < 0.02 * c.layout.layers * std::sqrt(c.layout.islands));
    CHECK(errors.mean < 2 * unit.mean);
    CHECK(errors.worst < 0.5);
    CHECK(std::abs(record.loss[0] - exact.loss[0]) < 1e-2 * exact.loss[0]);
  }
}

using Combination = std::vector<std::pair<int, int>>;  ///< option and value

/// The combinations of values of any `strength` options in `choices`.
std::set<Combination> combinations(const std::vector<Choice>& choices, int strength) {
  std::set<Combination> found;
  for (const Choice& choice : choices)
    for (unsigned subset = 0; subset < 1U << kOptions; ++subset) {
      if (std::popcount(subset) != strength) continue;
      Combination combination;
      for (int option = 0; option < kOptions; ++option)
        if ((subset >> option & 1U) != 0) combination.emplace_back(option, choice[static_cast<size_t>(option)]);
      found.insert(combination);
    }
  return found;
}

/// Checks that every combination in random legal choices occurs in the covering ones. Of the covered combinations at most one in a thousand may be
/// too rare to have been drawn.
void check_covers(int strength, size_t draws) {
  const std::vector<Choice> choices = covering_choices(strength);
  for (const Choice& choice : choices) REQUIRE(is_legal(choice));
  const std::set<Combination> covered = combinations(choices, strength), drawn = combinations(random_choices(draws, 7), strength);
  CHECK(std::includes(covered.begin(), covered.end(), drawn.begin(), drawn.end()));
  CHECK(static_cast<double>(covered.size() - drawn.size()) < 1e-3 * static_cast<double>(covered.size()));
}

}  // namespace

TEST_CASE("the tested layouts cover every legal pair of option values, and no illegal one", "[slow]") {
  check_covers(2, 3000);
  // The cases for which options were added occur.
  int ragged = 0, uneven = 0, empty_end = 0;
  for (const auto& [model, layout] : pairs()) {
    const int64_t microbatches = 12 / (layout.data * layout.micro_batch);
    ragged += layout.stages_per_rank() > 1 && microbatches % layout.pipeline != 0;
    uneven += !layout.layers_per_stage.empty();
    empty_end += std::ranges::count(layout.layers_per_stage, 0) > 0;
  }
  CHECK(ragged > 2);
  CHECK(uneven > 10);
  CHECK(empty_end > 20);
}

TEST_CASE("the slow layouts cover every legal triple of option values", "[slow]") { check_covers(3, 60000); }

TEST_CASE("every pair of options trains the same model as one rank, in fp64, with in-flight buffers poisoned") {
  check(pairs(), "fp64", Device::kReference, kDoubleTolerance, true);
}

TEST_CASE("every triple of options trains the same model as one rank, in fp64, with in-flight buffers poisoned", "[slow]") {
  const std::vector<ParityCase> cases = covering_parity_cases(3);
  WARN(cases.size() << " layouts");
  check(cases, "fp64", Device::kReference, kDoubleTolerance, true);
}

TEST_CASE("500 random layouts train the same model as one rank, in fp64, with in-flight buffers poisoned", "[slow]") {
  std::vector<ParityCase> cases;
  for (const Choice& choice : random_choices(500, 20240229)) cases.push_back(case_of(choice));
  check(cases, "fp64", Device::kReference, kDoubleTolerance, true);
}

TEST_CASE("a twelfth of the pairs trains the same model as one rank on the CPU kernels in fp32") {
  check(every(12, smooth_pairs()), "fp32", Device::kCpu, kSingleTolerance, false);
}

TEST_CASE("a third of the pairs trains the same model as one rank on the CPU kernels in fp32", "[slow]") {
  check(every(3, smooth_pairs()), "fp32", Device::kCpu, kSingleTolerance, false);
}

TEST_CASE("in bf16 a sixth of the layouts without tensor parallelism trains the same model as one rank") {
  check_reordered_sums_in_bf16(every(6, smooth_pairs()));
}

TEST_CASE("in bf16 layouts without tensor parallelism train the same model as one rank", "[slow]") { check_reordered_sums_in_bf16(smooth_pairs()); }

TEST_CASE("in bf16 a sixth of the pairs is as close to the exact gradient as one rank") { check_gradients_in_bf16(every(6, smooth_pairs())); }

TEST_CASE("in bf16 every pair of options is as close to the exact gradient as one rank", "[slow]") { check_gradients_in_bf16(smooth_pairs()); }

TEST_CASE("bf16 gradient reduction rounds once per rank") {
  ParityLayout layout;
  layout.data = 4;
  for (const auto& [zero, replicate] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{2, 1}, std::pair{3, 2}}) {
    layout.zero = zero;
    layout.replicate = replicate;
    Config config = parity_config(ParityModel::kGpt2, layout, "fp32");
    config.training.reduce_dtype = ReduceDtype::kBf16;
    INFO(layout.str());
    const RunRecord record = train_on_threads(config, 1, Device::kCpu, true);
    const double error = gradient_error(one_rank(ParityModel::kGpt2, ParityLayout(), "fp32", Device::kCpu), record);
    CHECK(error > 1e-4);  // bf16 is really used
    CHECK(error < 1e-2);  // four roundings of 2^-9, and the roundings of their sums
  }
}

TEST_CASE("64 micro-batches give the gradient of one: bf16 gradients are accumulated in fp32") {
  Config config = parity_config(ParityModel::kLlama, {}, "bf16");
  config.training.global_batch_size = 64;
  const auto gradient_of = [&](int64_t micro_batch) {
    config.training.micro_batch_size = micro_batch;
    return train_on_threads(config, 1, Device::kCpu);
  };
  CHECK(gradient_error(gradient_of(64), gradient_of(1)) < 3e-3);  // sums of 64 terms in bf16 would lose 2^-9 of the sum at each of them
}

TEST_CASE("every legal layout of up to eight ranks, in fp64", "[slow]") {
  const std::vector<ParityCase> cases = all_parity_cases();
  WARN(cases.size() << " layouts");
  check(cases, "fp64", Device::kReference, kDoubleTolerance, false);
}

TEST_CASE("every legal layout of up to eight ranks, in fp32 on the CPU kernels", "[slow]") {
  check(all_parity_cases(), "fp32", Device::kCpu, kSingleTolerance, false);
}

TEST_CASE("a rerun and another schedule are bit-identical") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2Dropout}) {
    for (const auto& [precision, device] : {std::pair{"fp64", Device::kReference}, std::pair{"fp32", Device::kCpu}}) {
      ParityLayout layout;
      layout.tensor = 2;
      layout.pipeline = 2;
      layout.data = 2;
      layout.zero = 3;
      layout.sequence_parallel = true;
      INFO(name_of(model) << " " << precision);
      const RunRecord first = train_on_threads(parity_config(model, layout, precision), kSteps, device);
      CHECK(first == train_on_threads(parity_config(model, layout, precision), kSteps, device));
      layout.schedule = ScheduleKind::kGPipe;
      CHECK(first == train_on_threads(parity_config(model, layout, precision), kSteps, device));
    }
  }
}

TEST_CASE("training learns: the loss of the parity models falls") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGpt2Dropout}) {
    const RunRecord& record = one_rank(model, ParityLayout(), "fp64", Device::kReference);
    CHECK(record.loss.back() < record.loss.front() - 0.05);
  }
}

}  // namespace trireme::test
