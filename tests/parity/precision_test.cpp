// The final loss of runs in half precision against fp32, and bit-exact reproducibility in each precision on one and two threads.
#include <cmath>
#include <cstring>

#include "kernels/core/rng.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

constexpr int64_t kTokens = 64, kSequence = 64;  // the model's vocabulary is 256: it must learn that the other tokens do not occur
constexpr int kSteps = 80;

/// A random walk: token t is followed by 5t + 1 with probability 2/3, else by a random token. So the achievable loss is limited.
class WalkDataset final : public Dataset {
 public:
  explicit WalkDataset(std::string_view name) : key_(random_key(1, name)) {}
  int64_t sequences() const override { return 64; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    segments.push_back(kSequence);
    auto token = static_cast<int32_t>(draw(sample, 0) % kTokens);
    for (int64_t t = 0; t < kSequence; ++t) {
      tokens[t] = token;
      const uint64_t next = draw(sample, t + 1);
      token = next % 3 != 0 ? (5 * token + 1) % static_cast<int32_t>(kTokens) : static_cast<int32_t>(next / 3 % kTokens);
      targets[t] = token;
    }
  }

 private:
  uint64_t draw(int64_t sample, int64_t place) const { return random_bits(key_, static_cast<uint64_t>(sample), static_cast<uint64_t>(place)); }
  uint64_t key_;
};

Config small_model(const std::string& precision) {
  const std::string text =
      "model: {layers: 2, hidden_size: 64, heads: 4, kv_heads: 2, ffn_size: 176, vocab_size: 256}\n"
      "training: {steps: 80, sequence_length: 64, micro_batch_size: 4, global_batch_size: 8, optimizer: {learning_rate: 5.0e-3}}\n"
      "data: {train: [none]}\n";
  return resolve(parse_config(text, "a small model", {"training.precision=" + precision}));
}

struct Outcome {
  std::vector<double> losses;
  double validation_loss = 0;
  std::vector<std::string> state;  ///< the bytes of master weights and moments
};

Outcome train(const std::string& precision, int threads, int steps) {
  const Config config = small_model(precision);
  SelfCommunicator world("world");
  Arena arena(Device::kCpu, true);
  Context ctx{.device = Device::kCpu, .arena = &arena, .threads = threads, .gpu = nullptr};
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const WalkDataset data("walk"), held_out("held out");
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const double decay = 0.5 + 0.5 * std::cos(M_PI * step / steps);
    outcome.losses.push_back(trainer.step(data, step, config.training.optimizer.learning_rate * decay).loss);
  }
  outcome.validation_loss = trainer.evaluate(held_out, 0).loss;
  for (const OwnedBox& owned : trainer.owned_boxes())
    for (const auto& [kind, tensor] : owned.kept())
      outcome.state.emplace_back(static_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
  return outcome;
}

}  // namespace

TEST_CASE("training in half precision ends within 1 % of fp32") {
  const double expected = train("fp32", 1, kSteps).validation_loss;
  const double ignorance = std::log(static_cast<double>(kTokens));
  CAPTURE(expected, ignorance);
  REQUIRE(expected < 0.75 * ignorance);  // the fp32 model has learned something
  for (const char* precision : {"bf16", "fp16"}) {
    const double actual = train(precision, 1, kSteps).validation_loss;
    CAPTURE(precision, actual);
    CHECK(std::abs(actual - expected) <= 0.01 * expected);
  }
}

TEST_CASE("a run is bit-reproducible on one thread and on two") {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    for (const int threads : {1, 2}) {
      CAPTURE(precision, threads);
      const Outcome first = train(precision, threads, 6), again = train(precision, threads, 6);
      CHECK(first.losses == again.losses);
      CHECK(first.validation_loss == again.validation_loss);
      CHECK(first.state == again.state);
    }
  }
}

}  // namespace trireme::test
