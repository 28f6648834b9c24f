// Attacks of one and two of eleven data ranks on a language model, through the real trainer: the mean collapses, robust rules do not.
#include <cmath>
#include <iostream>
#include <map>

#include "kernels/core/rng.h"
#include "parallel/sharding/robust_reducer.h"
#include "tests/parity/run_state.h"
#include "tests/support/byzantine.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

using enum AggregationRule;
constexpr AggregationRule kRobust[] = {kMedian, kTrimmedMean, kKrum, kMultiKrum, kBulyan, kGeometricMedian, kCenteredClipping};
constexpr int kDataRanks = 11;
constexpr int64_t kVocabulary = 32, kLength = 16;

/// A language of which each word follows from the one before it every other time, and is any word otherwise.
class Language final : public Dataset {
 public:
  Language(int64_t sequences, uint64_t key, uint64_t follow) : sequences_(sequences), key_(key), follow_(follow) {}
  int64_t sequences() const override { return sequences_; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    constexpr auto kWords = static_cast<uint64_t>(kVocabulary);
    const auto draw = [&](int64_t t) { return random_bits(key_, static_cast<uint64_t>(std::max<int64_t>(sample, 0) * (kLength + 1) + t)); };
    auto word = static_cast<int32_t>(draw(kLength) % kWords);
    for (int64_t t = 0; t < kLength; ++t) {
      tokens[t] = word;
      const uint64_t drawn = draw(t);
      word = static_cast<int32_t>(drawn % 10 < follow_ ? (static_cast<uint64_t>(word) * 5 + 3) % kWords : (drawn / 10) % kWords);
      targets[t] = sample < 0 ? -1 : word;
    }
    segments.push_back(kLength);
  }

 private:
  int64_t sequences_;
  uint64_t key_, follow_;
};

Config config_of(AggregationRule rule, int attackers) {
  ParityLayout layout;
  layout.data = kDataRanks;
  layout.zero = 1;
  layout.layers = 1;
  Config config = parity_config(ParityModel::kLlama, layout, "fp32");
  config.model.hidden_size = 16;
  config.model.heads = 2;
  config.model.kv_heads = 2;
  config.model.head_size = 8;
  config.model.ffn_size = 32;
  config.model.vocab_size = kVocabulary;
  config.model.max_positions = kLength;
  config.training.sequence_length = kLength;
  config.training.micro_batch_size = std::getenv("MB") ? std::atoi(std::getenv("MB")) : 1;
  config.training.global_batch_size = kDataRanks * config.training.micro_batch_size;
  config.training.optimizer.name = Optimizer::kAdamW;
  config.training.optimizer.weight_decay = 0;
  AggregationConfig& a = config.security.aggregation;
  a.rule = rule;
  if (rule == kMean) return config;
  a.byzantine = std::max(attackers, 1);
  a.momentum = std::getenv("MO") ? std::atof(std::getenv("MO")) : rule == kCenteredClipping ? 0.9 : 0.0;
  a.radius = 1;
  return config;
}

struct Result {
  double points = 0;  ///< geometric mean of the probability of the right word, in percent
  double loss = 0;    ///< nats
  int64_t rejected = 0;
  std::map<int, int64_t> suspected;  ///< steps by data rank
};

Result train_under(AggregationRule rule, Attack attack, int attackers, int64_t steps) {
  Result result;
  const Config config = config_of(rule, attackers);
  run_ranks(kDataRanks, [&](Communicator& world) {
    ByzantineCommunicator ranks(whole_world(world), attack, attackers);
    Arena arena(Device::kCpu, true);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, ranks, config, true);
    trainer.initialise();
    const uint64_t fo = std::getenv("FO") ? std::atoi(std::getenv("FO")) : 8;
    const Language data(100'000, 1, fo), validation(88, 2, fo);
    Result mine;
    for (int64_t step = 0; step < steps; ++step) {
      const double rate = (std::getenv("LR") ? std::atof(std::getenv("LR")) : 2e-2) * std::min(1.0, 2 * (1 - static_cast<double>(step) / static_cast<double>(steps)));
      const StepResult of_step = trainer.step(data, step, rate);
      mine.rejected += of_step.accepted ? 0 : 1;
      for (size_t rank = 0; rank < of_step.distances.size(); ++rank)
        if (of_step.distances[rank] > kSuspectDistance) ++mine.suspected[static_cast<int>(rank)];
    }
    mine.loss = trainer.evaluate(validation, 0).loss;
    mine.points = 100 * std::exp(-mine.loss);
    if (world.rank() == 0) result = mine;
  });
  return result;
}

const int64_t kSteps = std::getenv("ST") ? std::atoi(std::getenv("ST")) : 250;

}  // namespace

TEST_CASE("attacks: table", "[.table]") {
  for (const int attackers : {0, 1, 2}) {
    if (std::getenv("AT") && std::atoi(std::getenv("AT")) != attackers) continue;
    for (const Attack attack :
         {Attack::kNone, Attack::kSignFlip, Attack::kGaussian, Attack::kAlie, Attack::kInnerProduct, Attack::kZero, Attack::kNan}) {
      if ((attack == Attack::kNone) != (attackers == 0)) continue;
      std::cout << attackers << " " << name_of(attack) << ":";
      for (int rule = 0; rule < 8; ++rule) {
        if (std::getenv("RU") && std::string(std::getenv("RU")).find(std::to_string(rule)) == std::string::npos) continue;
        const Result result = train_under(static_cast<AggregationRule>(rule), attack, attackers, kSteps);
        int64_t good = 0, bad = 0;
        for (const auto& [rank, steps] : result.suspected) (rank >= kDataRanks - attackers ? bad : good) += steps;
        std::cout << "  " << kNames<AggregationRule>[static_cast<size_t>(rule)] << " " << result.points << " (" << result.loss << ", "
                  << result.rejected << ", " << good << "/" << bad << ")" << std::flush;
      }
      std::cout << std::endl;
    }
  }
}

}  // namespace trireme::test
