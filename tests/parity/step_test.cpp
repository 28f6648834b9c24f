// What parity tests cannot detect, because an error would be the same in every layout: gradients as derivatives, dropout, evaluation, rejected steps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

constexpr double kNoLearning = 0;  ///< a step at this rate changes no weight

/// A trainer on one rank, in fp64.
struct OneRank {
  explicit OneRank(Config config) : trainer(ctx, world, config, true) { trainer.initialise(); }
  SelfCommunicator world{"world"};
  Arena arena{Device::kReference, true};
  Context ctx{Device::kReference, &arena, 1};
  Trainer trainer;
};

Config whole_batch_config(ParityModel model) {
  ParityLayout layout;
  layout.micro_batch = 12;
  return parity_config(model, layout, "fp64");
}

/// A data set whose samples are all the same.
class OneSample final : public Dataset {
 public:
  explicit OneSample(const Dataset& data) : data_(data) {}
  int64_t sequences() const override { return data_.sequences(); }
  void read(int64_t, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override { data_.read(0, tokens, targets, segments); }

 private:
  const Dataset& data_;
};

const RaggedDataset kData(29, 12, 61);

std::vector<double> values(const Tensor& tensor) { return {tensor.data<double>(), tensor.data<double>() + tensor.numel()}; }

void add_to(const Tensor& tensor, const std::vector<double>& direction, double factor) {
  for (size_t i = 0; i < direction.size(); ++i) tensor.data<double>()[i] += factor * direction[i];
}

/// Values by box and kind.
using State = std::vector<std::vector<double>>;

/// Bitwise, so NaN equals itself.
bool same_bits(const State& a, const State& b) {
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

State state_of(const Trainer& trainer) {
  State state;
  for (const OwnedBox& owned : trainer.owned_boxes())
    for (const auto& [kind, tensor] : owned.kept()) state.push_back(values(tensor));
  return state;
}

}  // namespace

TEST_CASE("every gradient is the derivative of the loss, also with dropout") {
  constexpr double kStep = 1e-5;  // central differences: error 1e-10 by the third derivative, 1e-11 by rounding
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2Dropout}) {
    OneRank rank(whole_batch_config(model));
    rank.trainer.step(kData, 0, kNoLearning);
    std::vector<std::vector<double>> gradients;
    for (const OwnedBox& owned : rank.trainer.owned_boxes()) gradients.push_back(values(owned.gradient));
    const auto loss_at = [&](const OwnedBox& owned, const std::vector<double>& direction, double distance) {
      const std::vector<double> before = values(owned.weight);
      add_to(owned.weight, direction, distance);
      rank.trainer.weights_changed();
      const double loss = rank.trainer.step(kData, 0, kNoLearning).loss;
      std::copy(before.begin(), before.end(), owned.weight.data<double>());
      return loss;
    };
    const std::vector<OwnedBox> boxes = rank.trainer.owned_boxes();
    for (size_t b = 0; b < boxes.size(); ++b) {
      std::vector<double> direction(gradients[b].size());
      double along = 0, size = 0;
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = random_normal(random_key(1, boxes[b].spec->name), i);
        along += direction[i] * gradients[b][i];
        size += gradients[b][i] * gradients[b][i];
      }
      const double measured = (loss_at(boxes[b], direction, kStep) - loss_at(boxes[b], direction, -kStep)) / (2 * kStep);
      INFO(name_of(model) << " " << boxes[b].spec->name << ": measured " << measured << ", gradient " << along);
      CHECK(std::abs(measured - along) < 1e-5 * std::sqrt(size) + 1e-7);
    }
  }
}

TEST_CASE("dropout draws a different mask in each step, and none in evaluation") {
  const OneSample one(kData);
  OneRank with(whole_batch_config(ParityModel::kGpt2Dropout)), without(whole_batch_config(ParityModel::kGpt2));
  CHECK(with.trainer.evaluate(kData, 0).loss == without.trainer.evaluate(kData, 0).loss);
  const double first = with.trainer.step(one, 0, kNoLearning).loss;
  CHECK(first != with.trainer.step(one, 1, kNoLearning).loss);
  CHECK(first == with.trainer.step(one, 0, kNoLearning).loss);
  CHECK(without.trainer.step(one, 0, kNoLearning).loss == without.trainer.step(one, 1, kNoLearning).loss);
}

TEST_CASE("the validation loss is a mean over tokens for any batch size") {
  std::vector<double> losses;
  for (const int64_t batch : {1, 4, 29}) {
    Config config = parity_config(ParityModel::kLlama, {}, "fp64");
    config.training.global_batch_size = batch;
    const Trainer::Evaluation evaluation = OneRank(config).trainer.evaluate(kData, 0);
    losses.push_back(evaluation.loss);
    std::vector<int32_t> tokens(12), targets(12);
    std::vector<int64_t> segments;
    int64_t valid = 0;
    for (int64_t s = 0; s < kData.sequences(); ++s) {
      kData.read(s, tokens.data(), targets.data(), segments);
      valid += std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
    }
    CHECK(evaluation.tokens == valid);
  }
  CHECK(losses[1] == Approx(losses[0]).epsilon(1e-12));
  CHECK(losses[2] == Approx(losses[0]).epsilon(1e-12));
}

TEST_CASE("a non-finite gradient on one rank rejects the step on all ranks and changes nothing") {
  ParityLayout layout;
  layout.tensor = layout.pipeline = layout.data = 2;
  layout.zero = 3;
  layout.sequence_parallel = true;
  const Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  struct Case {
    const char* offender;  ///< first by name of the parameters with a non-finite gradient
    std::function<void(const OwnedBox& owned, bool last_rank)> spoil;
  };
  const auto spoil_one_weight = [](double bad) {
    return [bad](const OwnedBox& owned, bool last_rank) {
      if (last_rank && owned.spec->name == "head.weight") owned.weight.data<double>()[0] = bad;
    };
  };
  // With a zero weight of the final norm no gradient flows through it, while its own gradient is of the size of the head: its square overflows on the
  // one rank that owns and counts it, and all other gradients are zero.
  const auto spoil_one_gradient = [](const OwnedBox& owned, bool) {
    const double factor = owned.spec->name == "head.weight" ? 1e160 : owned.spec->name == "final_norm.weight" ? 0 : 1;
    for (double& weight : std::span(owned.weight.data<double>(), static_cast<size_t>(owned.weight.numel()))) weight *= factor;
  };
  for (const Case& c : {Case{"blocks.0.attention.key.bias", spoil_one_weight(std::numeric_limits<double>::quiet_NaN())},
                        Case{"blocks.0.attention.key.bias", spoil_one_weight(std::numeric_limits<double>::infinity())},
                        Case{"final_norm.weight", spoil_one_gradient}}) {
    run_ranks(layout.world(), [&](Communicator& world) {
      Arena arena(Device::kReference, true);
      Context ctx{Device::kReference, &arena, 1};
      Trainer disturbed(ctx, world, config, true), undisturbed(ctx, world, config, true);
      for (Trainer* trainer : {&disturbed, &undisturbed}) {
        trainer->initialise();
        trainer->step(kData, 0, 1e-3);
      }
      const State good = state_of(disturbed);
      for (const OwnedBox& owned : disturbed.owned_boxes()) c.spoil(owned, world.rank() == world.size() - 1);
      disturbed.weights_changed();
      const State spoiled = state_of(disturbed);
      const StepResult result = disturbed.step(kData, 5, 1e-3);
      TRIREME_CHECK(!result.accepted, "accepted");
      TRIREME_CHECK(result.offender == c.offender, result.offender, " is named instead of ", c.offender);
      TRIREME_CHECK(same_bits(state_of(disturbed), spoiled), "the rejected step changed the state");
      const std::vector<OwnedBox> boxes = disturbed.owned_boxes();
      size_t at = 0;
      for (const OwnedBox& box : boxes)
        for (const auto& [kind, tensor] : box.kept()) std::ranges::copy(good[at++], tensor.data<double>());
      disturbed.weights_changed();
      for (Trainer* trainer : {&disturbed, &undisturbed}) TRIREME_CHECK(trainer->step(kData, 1, 1e-3).accepted, "rejected");
      TRIREME_CHECK(disturbed.scalars().accepted_steps() == 2, disturbed.scalars().accepted_steps(), " accepted steps");
      TRIREME_CHECK(same_bits(state_of(disturbed), state_of(undisturbed)), "the step after it differs");
    });
  }
}

TEST_CASE("every layout option changes a rank's action list") {
  const auto list = [](const auto& change) {
    ParityLayout layout;
    layout.pipeline = layout.data = 2;
    layout.zero = 3;
    change(layout);
    NullCommunicator world(0, layout.world(), "world");
    Arena arena(Device::kMeta);
    Context ctx{Device::kMeta, &arena, 1};
    return to_string(Trainer(ctx, world, parity_config(ParityModel::kGpt2, layout, "fp64"), true).program().training_list());
  };
  std::vector<std::string> lists = {
      list([](ParityLayout&) {}),
      list([](ParityLayout& layout) { layout.schedule = ScheduleKind::kGPipe; }),
      list([](ParityLayout& layout) { layout.reshard = Reshard::kAfterStep; }),
      list([](ParityLayout& layout) { layout.gradient_accumulation = GradientAccumulation::kFull; }),
      list([](ParityLayout& layout) { layout.prefetch = 0; }),
      list([](ParityLayout& layout) { layout.prefetch = 2; }),
      list([](ParityLayout& layout) { layout.micro_batch = 2; }),
      list([](ParityLayout& layout) {
        layout.layers_per_stage = {1, 4};
      }),
      list([](ParityLayout& layout) { layout.zero = 1; }),
      list([](ParityLayout& layout) { layout.schedule = ScheduleKind::kZbH1; }),
      list([](ParityLayout& layout) { layout.schedule = ScheduleKind::kZbH2; }),
      list([](ParityLayout& layout) { layout.schedule = ScheduleKind::kZbV, layout.virtual_stages = 2; }),
      list([](ParityLayout& layout) { layout.schedule = ScheduleKind::kInterleaved1F1B, layout.virtual_stages = 2; }),
      list([](ParityLayout& layout) { layout.bucket_blocks = 2; }),
  };
  std::sort(lists.begin(), lists.end());
  CHECK(std::adjacent_find(lists.begin(), lists.end()) == lists.end());
}

}  // namespace trireme::test
