// Attacks of one and two of eleven data ranks on a language model, through the real trainer: the mean collapses, robust rules do not.
#include <cmath>
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
constexpr double kRadius = 0.3;  ///< of centred clipping

/// A language of which a word follows from the one before it `follow` times in ten, and is any word otherwise.
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
      word = static_cast<int32_t>(drawn % 10 < follow_ ? (static_cast<uint64_t>(word) * 5 + 3) % kWords : drawn / 10 % kWords);
      targets[t] = sample < 0 ? -1 : word;
    }
    segments.push_back(kLength);
  }

 private:
  int64_t sequences_;
  uint64_t key_, follow_;
};

/// How a model is trained: sequences of a data rank in a step, steps, learning rate at first.
struct Task {
  int64_t sequences, steps;
  double rate;
  uint64_t follow = 8;
};

Config config_of(AggregationRule rule, int attackers, const Task& task, double momentum) {
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
  config.training.micro_batch_size = task.sequences;
  config.training.global_batch_size = kDataRanks * task.sequences;
  config.training.optimizer.weight_decay = 0;
  AggregationConfig& a = config.security.aggregation;
  a.rule = rule;
  if (rule == kMean) return config;
  a.byzantine = std::max(attackers, 1);
  a.momentum = momentum;
  a.radius = kRadius;
  return config;
}

struct Result {
  double loss = 0;  ///< nats
  int64_t rejected = 0;
  std::vector<int64_t> suspected = std::vector<int64_t>(kDataRanks);  ///< steps by data rank

  /// Geometric mean of the probability of the right word, in percent.
  double points() const { return 100 * std::exp(-loss); }
};

Result train_under(AggregationRule rule, Attack attack, int attackers, const Task& task, double momentum) {
  Result result;
  const Config config = config_of(rule, attackers, task, momentum);
  run_ranks(kDataRanks, [&](Communicator& world) {
    ByzantineCommunicator ranks(whole_world(world), attack, attackers);
    Arena arena(Device::kCpu, true);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, ranks, config, true);
    trainer.initialise();
    const Language data(100'000, 1, task.follow), validation(88, 2, task.follow);
    Result mine;
    for (int64_t step = 0; step < task.steps; ++step) {
      const double left = 1 - static_cast<double>(step) / static_cast<double>(task.steps);
      const StepResult of_step = trainer.step(data, step, task.rate * std::min(1.0, 2 * left));
      mine.rejected += of_step.accepted ? 0 : 1;
      for (size_t rank = 0; rank < of_step.distances.size(); ++rank)
        if (of_step.distances[rank] > kSuspectDistance) ++mine.suspected[rank];
    }
    mine.loss = trainer.evaluate(validation, 0).loss;
    if (world.rank() == 0) result = mine;
  });
  return result;
}

/// Centred clipping needs a momentum, and Bulyan's choice, which is Krum's, has one. The others show what they do without.
double usual_momentum(AggregationRule rule) { return rule == kCenteredClipping || rule == kBulyan ? 0.9 : 0; }

/// Which of the table's rules meet which attacks.
enum class Table { kWhole, kPart };

/// The table of results, under `attackers` of the eleven data ranks. In a part of it, each rule meets one or two of the attacks, and each attack one or
/// two rules; the mean meets those attacks of which something is known.
void check_attacks(int attackers, const Task& task, Table table = Table::kWhole) {
  std::map<AggregationRule, Result> without;
  for (int rule = 0; rule < 8; ++rule) {
    const auto each = static_cast<AggregationRule>(rule);
    without[each] = train_under(each, Attack::kNone, attackers, task, usual_momentum(each));
  }
  const double start = 100.0 / kVocabulary;  // of a model that has learned nothing
  for (const Attack attack : {Attack::kSignFlip, Attack::kGaussian, Attack::kAlie, Attack::kInnerProduct, Attack::kZero, Attack::kNan}) {
    const bool hides = attack == Attack::kAlie, small = attack == Attack::kInnerProduct || attack == Attack::kZero;
    INFO(name_of(attack) << " of " << attackers);
    if (!hides && !small) {
      const Result mean = train_under(kMean, attack, attackers, task, 0);
      INFO("mean: " << mean.points() << " of " << without[kMean].points() << " points");
      CHECK(without[kMean].points() - mean.points() > 10);
      if (attack == Attack::kNan) CHECK((mean.rejected == task.steps && mean.points() < start + 1));
    }
    for (const AggregationRule rule : kRobust) {
      if (const int sum = static_cast<int>(rule) + static_cast<int>(attack); table == Table::kPart && sum != 4 && sum != 7 && sum != 13) continue;
      const Result result = train_under(rule, attack, attackers, task, usual_momentum(rule));
      INFO(kNames<AggregationRule>[static_cast<size_t>(rule)] << ": " << result.points() << " of " << without[rule].points() << " points");
      CHECK(result.rejected == 0);
      if (rule == kKrum && small) {  // it follows one gradient, and small ones are nearest to all others
        CHECK(without[rule].points() - result.points() > 5);
        continue;
      }
      CHECK(without[rule].points() - result.points() < (hides ? 5 : 2));
      if (hides || small) continue;
      for (int rank = 0; rank < kDataRanks; ++rank) {
        const int64_t steps = result.suspected[static_cast<size_t>(rank)];
        CHECK((rank < kDataRanks - attackers ? steps < task.steps / 10 : steps > task.steps * 9 / 10));
      }
    }
  }
}

void check_without_attack(std::initializer_list<AggregationRule> rules) {
  const Task task{.sequences = 16, .steps = 400, .rate = 6e-3, .follow = 5};
  const double mean = train_under(kMean, Attack::kNone, 0, task, 0).loss;
  for (const AggregationRule rule : rules) {
    // Krum's single gradient has the noise of an eleventh of the batch, which a momentum averages.
    const double loss = train_under(rule, Attack::kNone, 1, task, rule == kKrum || rule == kCenteredClipping ? 0.9 : 0).loss;
    INFO(kNames<AggregationRule>[static_cast<size_t>(rule)] << ": " << loss << ", mean " << mean);
    CHECK(std::abs(loss - mean) < 0.01 * mean);
  }
}

}  // namespace

TEST_CASE("attacks: without one, a rule trains as well as the mean") {
  check_without_attack({kKrum, kCenteredClipping});  // of whole gradients, and one that iterates
}

TEST_CASE("attacks: without one, the other rules train as well as the mean", "[slow]") {
  check_without_attack({kMedian, kTrimmedMean, kMultiKrum, kBulyan, kGeometricMedian});
}

TEST_CASE("attacks: of two of eleven data ranks, the mean collapses and robust rules do not", "[slow]") {
  check_attacks(2, {.sequences = 4, .steps = 150, .rate = 1e-2}, Table::kPart);
}

TEST_CASE("attacks: the same with every rule against every attack, of two and of one", "[slow]") {
  for (const int attackers : {2, 1}) check_attacks(attackers, {.sequences = 4, .steps = 200, .rate = 1e-2});
}

}  // namespace trireme::test
