// Attacks on the privacy of the training data, through the real trainer: a model without privacy gives away who is in its data, one with a small epsilon
// does not.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/core/rng.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/private_random.h"
#include "trainer/privacy/accountant.h"

namespace trireme::test {
namespace {

constexpr int64_t kVocabulary = 32, kLength = 16, kMembers = 256, kCanaries = 8;
constexpr int64_t kSecret = 4;        ///< words at the end of a canary that nothing predicts
constexpr int64_t kCandidates = 256;  ///< secrets that an attacker compares
constexpr double kDelta = 1e-3;

/// A language of which a word mostly follows from the one before it. Sample i < kCanaries of the members is a canary: its last words are random.
class Text final : public Dataset {
 public:
  /// `secret`: other last words for all canaries.
  explicit Text(uint64_t key, uint64_t secret = 0) : key_(key), secret_(secret) {}
  int64_t sequences() const override { return kMembers; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    constexpr auto kWords = static_cast<uint64_t>(kVocabulary);
    const auto draw = [&](uint64_t key, int64_t t) {
      return random_bits(key, static_cast<uint64_t>(std::max<int64_t>(sample, 0) * (kLength + 1) + t));
    };
    auto word = static_cast<int32_t>(draw(key_, kLength) % kWords);
    for (int64_t t = 0; t < kLength; ++t) {
      tokens[t] = word;
      const uint64_t drawn = draw(key_, t);
      const bool secret = sample < kCanaries && t >= kLength - kSecret;
      word = static_cast<int32_t>(secret            ? draw(key_ + 1 + secret_, t) % kWords
                                  : drawn % 10 >= 7 ? drawn / 10 % kWords
                                                    : (static_cast<uint64_t>(word) * 5 + 3) % kWords);
      targets[t] = sample < 0 ? -1 : word;
    }
    segments.push_back(kLength);
  }

 private:
  uint64_t key_, secret_;
};

/// One sequence of other data.
class One final : public Dataset {
 public:
  One(const Dataset& data, int64_t sample) : data_(data), sample_(sample) {}
  int64_t sequences() const override { return 1; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    data_.read(sample < 0 ? sample : sample_, tokens, targets, segments);
  }

 private:
  const Dataset& data_;
  int64_t sample_;
};

Config config_of(std::optional<double> clip) {
  ParityLayout layout;
  layout.layers = 1;
  Config config = parity_config(ParityModel::kLlama, layout, "fp32");
  config.model.hidden_size = 48;
  config.model.heads = 2;
  config.model.kv_heads = 2;
  config.model.head_size = 24;
  config.model.ffn_size = 96;
  config.model.vocab_size = kVocabulary;
  config.model.max_positions = kLength;
  config.training.sequence_length = kLength;
  config.training.micro_batch_size = 32;
  config.training.global_batch_size = 32;
  config.training.optimizer.weight_decay = 0;
  if (clip) config.security.privacy = {.clip = clip, .noise = 0, .target_epsilon = {}, .delta = kDelta, .key_file = "key"};
  return config;
}

struct Exposure {
  double canary = 0;      ///< mean over the canaries of log2(candidates / rank of the true secret): 0 to 8 bits, 1.44 by chance
  double membership = 0;  ///< probability that a member has a smaller loss than a sequence of other data: 0.5 by chance
  double loss = 0;        ///< of other data, nats
};

/// Trains and attacks. `epsilon`: 0 for training without privacy.
Exposure attack(double epsilon, int64_t steps) {
  const Config config = config_of(epsilon > 0 ? std::optional(0.5) : std::nullopt);
  Exposure exposure;
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    if (epsilon > 0) trainer.set_privacy(test_random(), privacy::noise_for(epsilon, 32.0 / kMembers, steps, kDelta));
    trainer.initialise();
    const Text members(1), others(1000);
    for (int64_t step = 0; step < steps; ++step) trainer.step(members, step, 5e-3 * (1 - static_cast<double>(step) / static_cast<double>(steps)));

    const auto loss = [&](const Dataset& data, int64_t sample) { return trainer.evaluate(One(data, sample), 0).nats; };
    exposure.loss = trainer.evaluate(others, 0).loss;
    std::vector<double> of_others;
    for (int64_t i = kCanaries; i < kMembers; ++i) of_others.push_back(loss(others, i));
    std::ranges::sort(of_others);
    for (int64_t i = kCanaries; i < kMembers; ++i) {
      const auto above = of_others.end() - std::ranges::upper_bound(of_others, loss(members, i));
      exposure.membership += static_cast<double>(above) / static_cast<double>(of_others.size()) / static_cast<double>(kMembers - kCanaries);
    }
    for (int64_t canary = 0; canary < kCanaries; ++canary) {
      const double own = loss(members, canary);
      int64_t rank = 1;
      for (int64_t secret = 1; secret < kCandidates; ++secret) rank += loss(Text(1, static_cast<uint64_t>(secret)), canary) < own ? 1 : 0;
      exposure.canary += std::log2(static_cast<double>(kCandidates) / static_cast<double>(rank)) / static_cast<double>(kCanaries);
    }
  });
  return exposure;
}

}  // namespace

TEST_CASE("private: canaries and members are exposed without privacy, and not at epsilon 3", "[slow]") {
  const char* const given = std::getenv("TRIREME_ATTACK_STEPS");
  const int64_t steps = given ? std::atoi(given) : 400;
  const Exposure open = attack(0, steps), closed = attack(3, steps);
  UNSCOPED_INFO("without privacy: canaries " << open.canary << " bits, membership " << open.membership << ", loss " << open.loss);
  UNSCOPED_INFO("epsilon 3: canaries " << closed.canary << " bits, membership " << closed.membership << ", loss " << closed.loss);
  CHECK(open.canary > 5);
  CHECK(open.membership > 0.75);
  // By chance: 1.44 bits with a standard deviation of 0.51 over eight canaries, and 0.5 with one of 0.026.
  CHECK(closed.canary < 1.44 + 4 * 0.51);
  CHECK(std::abs(closed.membership - 0.5) < 4 * 0.026);
}

}  // namespace trireme::test
