// Asynchronous updates: one island trains as synchronous training does, islands in a given order of arrivals as a parameter server by hand, and a
// logged order repeats the bits.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/loop/memory.h"
#include "trainer/resilience/replica_check.h"

namespace trireme::test {
namespace {

const RaggedDataset kServedData(300, 12, 61);
constexpr double kServedRate = 3e-3;

struct Served {
  int islands = 2;
  int steps = 4;  ///< of a round
  int apply_after = 1;
  int staleness = 1;
  StalenessCompensation compensation = StalenessCompensation::kNone;
  bool backup = false;

  UpdateRules rules() const { return {.workers = islands, .apply_after = apply_after, .staleness = staleness, .discards_late = backup}; }
};

Config served(ParityModel model, const std::string& spec, const Served& how, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  Config config = parity_config(model, layout, precision);
  config.parallel.islands = how.islands;
  config.training.steps = 1000;  // no round is cut short
  config.training.global_batch_size = 24;
  config.training.gradient_clip = 0.5;  // low enough to clip
  config.training.asynchronous = {.mode = AsynchronousMode::kParameterServer,
                                  .steps = how.steps,
                                  .apply_after = how.apply_after,
                                  .staleness = how.staleness,
                                  .compensation = how.compensation,
                                  .delay_weight = 0.5};
  if (how.backup) config.resilience.backup_replicas = how.islands - how.apply_after;
  return config;
}

using Numbers = std::map<std::string, std::vector<double>>;

/// Weights or gradients of a trainer on one rank.
Numbers numbers_of(const Trainer& trainer, bool gradients) {
  Numbers all;
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const Tensor& from = gradients ? owned.gradient : owned.weight;
    std::vector<double>& values = all[owned.spec->name];
    values.insert(values.end(), from.data<double>(), from.data<double>() + from.numel());
  }
  return all;
}

void take_weights(Trainer& trainer, const Numbers& weights) {
  for (const OwnedBox& owned : trainer.owned_boxes())
    std::copy_n(weights.at(owned.spec->name).data(), owned.weight.numel(), owned.weight.data<double>());
  trainer.weights_changed();
}

/// All targets are masked but those of some places of a global batch.
class PartOfBatch final : public Dataset {
 public:
  int64_t sequences() const override { return kServedData.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    kServedData.read(sample, tokens, targets, segments);
    if (!own.contains(sample)) std::fill_n(targets, 12, -1);
  }
  std::set<int64_t> own;
};

struct Expected {
  std::vector<double> loss, grad_norm;
  std::vector<std::vector<int64_t>> staleness;
  Numbers weights;
};

/// Trains by the formulas of asynchronous SGD with AdamW, with gradients that one trainer on one rank computes. `order`: of all arrivals, round by
/// round.
Expected serve_by_hand(ParityModel model, const Served& how, int rounds, const std::vector<int>& order) {
  Config config = served(model, "tp1", how);
  config.parallel.islands = 1;
  config.training.asynchronous = {};
  const OptimizerConfig& adam = config.training.optimizer;
  const double beta1 = adam.beta1, beta2 = *adam.beta2;
  Expected expected;
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    std::map<std::string, bool> decays;
    for (const OwnedBox& owned : trainer.owned_boxes()) decays[owned.spec->name] = owned.spec->decay;
    Numbers weights = numbers_of(trainer, false), first = weights, second = weights;
    for (Numbers* moments : {&first, &second})
      for (auto& [name, values] : *moments) std::ranges::fill(values, 0.0);
    size_t arrival = 0;
    for (int round = 0; round < rounds; ++round) {
      UpdateOrder rules(how.rules(), how.steps);
      std::map<int, std::pair<Assignment, Numbers>> computing;  // by worker
      const auto start = [&](const std::vector<Assignment>& assignments) {
        for (const Assignment& one : assignments) computing[one.worker] = {one, weights};
      };
      start(rules.first());
      for (int update = 0; update < how.steps; ++update) {
        const int64_t step = round * how.steps + update;
        double loss = 0, tokens = 0, norms = 0, factors = 0;
        std::vector<int64_t> staleness;
        Numbers sum;
        std::vector<Assignment> starts;
        for (bool applies = false; !applies;) {
          const int worker = order.at(arrival++);
          const auto [of, then] = computing.at(worker);
          const Arrival arrived = rules.arrive(worker);
          applies = arrived.applies;
          staleness.push_back(arrived.staleness);
          computing.erase(worker);
          if (!arrived.counts) {
            start(arrived.starts);
            continue;
          }
          const int64_t data_step = round * how.steps + of.batch / how.apply_after;
          const int64_t size = config.training.global_batch_size / how.apply_after, begin = of.batch % how.apply_after * size;
          PartOfBatch part;
          for (int64_t place = begin; place < begin + size; ++place) part.own.insert(trainer.batches().sample(kServedData, data_step, place));
          take_weights(trainer, then);
          const StepResult one = trainer.step(part, data_step, 0);  // a learning rate of 0 leaves the weights
          Numbers gradient = numbers_of(trainer, true);
          const auto targets = static_cast<double>(one.targets);
          const double clip = std::min(1.0, config.training.gradient_clip / one.grad_norm);
          TRIREME_CHECK(clip < 1, "not clipped");
          for (auto& [name, values] : gradient) {
            sum[name].resize(values.size());
            for (size_t i = 0; i < values.size(); ++i) {
              if (how.compensation == StalenessCompensation::kDelay)
                values[i] += 0.5 * values[i] * values[i] * (weights.at(name)[i] - then.at(name)[i]);
              sum.at(name)[i] += clip * values[i] * targets;
            }
          }
          loss += one.loss * targets;
          tokens += targets;
          norms += one.grad_norm / how.apply_after;
          factors += 1.0 / static_cast<double>(std::max<int64_t>(1, arrived.staleness)) / how.apply_after;
          if (!applies) start(arrived.starts);
          starts = arrived.starts;
        }
        const double rate = kServedRate * (how.compensation == StalenessCompensation::kLearningRate ? factors : 1);
        const auto count = static_cast<double>(step + 1);
        for (auto& [name, values] : weights) {
          for (size_t i = 0; i < values.size(); ++i) {
            const double g = sum.at(name)[i] / tokens;
            double &m = first.at(name)[i], &v = second.at(name)[i];
            m = beta1 * m + (1 - beta1) * g;
            v = beta2 * v + (1 - beta2) * g * g;
            if (decays.at(name)) values[i] -= rate * adam.weight_decay * values[i];
            values[i] -= rate * (m / (1 - std::pow(beta1, count))) / (std::sqrt(v / (1 - std::pow(beta2, count))) + adam.epsilon);
          }
        }
        start(starts);
        expected.loss.push_back(loss / tokens);
        expected.grad_norm.push_back(norms);
        expected.staleness.push_back(staleness);
      }
      while (!rules.is_over()) rules.arrive(order.at(arrival++));  // late ones
    }
    expected.weights = weights;
  });
  return expected;
}

struct ServedRun {
  std::vector<StepResult> steps;  ///< of rank 0
  Numbers weights;
  std::map<std::string, std::vector<char>> state;
  std::map<int64_t, std::vector<int>> order;
};

/// `order`: as set_order(). Checks that all ranks report the same, and that islands and replicas agree at the end of each round.
ServedRun train_served(const Config& config, int steps, const std::map<int64_t, std::vector<int>>& order = {}) {
  ServedRun result;
  GatheredState state;
  std::mutex mutex;
  std::map<int, std::vector<StepResult>> of_ranks;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    trainer.updates().set_order(order);
    std::vector<StepResult> mine;
    for (int step = 0; step < steps; ++step) {
      mine.push_back(trainer.step(kServedData, step, kServedRate));
      if (!trainer.updates().rounds().ends_after(step + 1)) continue;
      const std::string differences = replica_differences(trainer);
      TRIREME_CHECK(differences.empty(), differences);
    }
    RunRecord record;
    Numbers weights;
    if (config.training.precision == Arithmetic::kFp64)
      for (const auto& [name, tensor] : gather(trainer, Gathered::kWeight, 1, record)) weights[name] = tensor.values;
    TRIREME_CHECK(!record.disagreement && record.unheld.empty(), "copies differ");
    state.add(trainer);
    const std::lock_guard lock(mutex);
    const int rank = trainer.mesh().world.rank();
    if (rank == 0) result.weights = std::move(weights);
    of_ranks[rank] = std::move(mine);
  });
  result.state = state.whole();
  result.steps = of_ranks.at(0);
  for (const auto& [rank, mine] : of_ranks) {
    for (size_t step = 0; step < mine.size(); ++step) {
      const StepResult &a = mine[step], &b = result.steps[step];
      CHECK((a.loss == b.loss && a.grad_norm == b.grad_norm && a.learning_rate == b.learning_rate && a.targets == b.targets));
      CHECK((a.applied->workers == b.applied->workers && a.applied->staleness == b.applied->staleness));
    }
  }
  for (size_t step = 0; step < result.steps.size(); ++step) result.order[static_cast<int64_t>(step)] = result.steps[step].applied->workers;
  return result;
}

/// An order of arrivals of some rounds, drawn at random among the possible ones, and by step.
struct RandomOrder {
  std::vector<int> all;
  std::map<int64_t, std::vector<int>> of_steps;
};
RandomOrder random_order(const Served& how, int rounds, unsigned seed) {
  std::minstd_rand random(seed);
  RandomOrder order;
  for (int round = 0; round < rounds; ++round) {
    UpdateOrder rules(how.rules(), how.steps);
    while (!rules.is_over()) {
      std::vector<int> computing;
      for (int worker = 0; worker < how.islands; ++worker)
        if (rules.is_computing(worker)) computing.push_back(worker);
      const int worker = computing[random() % computing.size()];
      if (rules.has_updates_left()) order.of_steps[round * how.steps + rules.version()].push_back(worker);
      order.all.push_back(worker);
      rules.arrive(worker);
    }
  }
  return order;
}

void check_close(const Numbers& actual, const Numbers& expected, double tolerance) {
  REQUIRE(actual.size() == expected.size());
  for (const auto& [name, values] : expected) {
    INFO(name);
    REQUIRE(actual.at(name).size() == values.size());
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(actual.at(name)[i] - values[i]));
    CHECK(worst < tolerance);
  }
}

}  // namespace

TEST_CASE("asynchronous: one island is synchronous training, to the bit, in any layout") {
  struct Case {
    const char* layout;
    const char* precision;
    Optimizer optimizer;
    bool average;
    ParameterEncoding parameters = ParameterEncoding::kNone;
  };
  for (const Case& c : {Case{"tp1", "fp64", Optimizer::kAdamW, false}, Case{"dp2z3", "fp64", Optimizer::kLion, true},
                        Case{"tp2", "fp32", Optimizer::kAdamW, true}, Case{"pp2dp2z1", "bf16", Optimizer::kAdamW, false},
                        Case{"dp2z0", "bf16", Optimizer::kLion, false}, Case{"dp3z2", "fp32", Optimizer::kAdamW, false, ParameterEncoding::kInt8}}) {
    INFO(c.layout << " " << c.precision);
    for (const StalenessCompensation compensation :
         {StalenessCompensation::kNone, StalenessCompensation::kLearningRate, StalenessCompensation::kDelay}) {
      if (compensation != StalenessCompensation::kNone && c.layout != std::string("tp2")) continue;
      Config config = served(ParityModel::kGpt2Dropout, c.layout, {.islands = 1, .compensation = compensation}, c.precision);
      config.training.optimizer.name = c.optimizer;
      config.training.optimizer.beta2 = traits_of(c.optimizer).default_beta2;
      if (c.average) config.training.ema.decay = 0.9;
      config.training.compression.parameters = c.parameters;
      Config plain = config;
      plain.training.asynchronous = {};
      std::vector<StepResult> expected;
      GatheredState state;
      std::mutex mutex;
      on_ranks(plain, [&](Trainer& trainer) {
        trainer.initialise();
        std::vector<StepResult> mine;
        for (int step = 0; step < 8; ++step) mine.push_back(trainer.step(kServedData, step, kServedRate));
        state.add(trainer);
        const std::lock_guard lock(mutex);
        expected = mine;
      });
      const ServedRun actual = train_served(config, 8);
      for (size_t step = 0; step < 8; ++step) {
        CHECK(actual.steps[step].loss == expected[step].loss);
        CHECK(actual.steps[step].grad_norm == expected[step].grad_norm);
        CHECK(actual.steps[step].learning_rate == kServedRate);
        CHECK(actual.steps[step].targets == expected[step].targets);
      }
      CHECK(actual.state == state.whole());
    }
  }
}

TEST_CASE("asynchronous: updates of all islands without staleness are steps of synchronous training") {
  for (const auto& [islands, optimizer] : {std::pair{2, Optimizer::kAdamW}, {3, Optimizer::kAdamW}, {2, Optimizer::kSgd}}) {
    Config config = served(ParityModel::kLlamaGrouped, "tp2", {.islands = islands, .apply_after = islands, .staleness = 0});
    config.training.optimizer.name = optimizer;
    config.training.optimizer.beta2 = traits_of(optimizer).default_beta2;
    config.training.gradient_clip = 0;  // each gradient would be clipped by its own norm
    Config plain = config;
    plain.training.asynchronous = {};
    plain.parallel.islands = 1;
    plain.parallel.tensor = 1;
    const ServedRun actual = train_served(config, 8);
    on_ranks(plain, [&](Trainer& trainer) {
      trainer.initialise();
      for (size_t step = 0; step < 8; ++step)
        CHECK(actual.steps[step].loss == Approx(trainer.step(kServedData, static_cast<int64_t>(step), kServedRate).loss).epsilon(1e-12));
      check_close(actual.weights, numbers_of(trainer, false), 1e-12);
    });
    for (const StepResult& step : actual.steps) CHECK(*std::ranges::max_element(step.applied->staleness) == 0);
  }
}

TEST_CASE("asynchronous: islands in any layout and order of arrivals equal a parameter server by hand") {
  struct Case {
    Served how;
    ParityModel model;
    std::vector<const char*> layouts;
  };
  const auto llama = ParityModel::kLlamaGrouped, gpt2 = ParityModel::kGpt2Dropout;
  for (const Case& c :
       {Case{{}, gpt2, {"tp1", "tp2", "pp2", "dp2z0", "dp2z1", "dp3z2", "dp2z3-mb2"}},
        Case{{.islands = 3, .steps = 5, .apply_after = 2, .staleness = 1}, gpt2, {"tp1", "dp2z1"}},
        Case{{.islands = 4, .steps = 6, .apply_after = 1, .staleness = 2, .compensation = StalenessCompensation::kLearningRate},
             llama,
             {"tp1", "dp2z3"}},
        Case{{.islands = 3, .steps = 5, .apply_after = 1, .staleness = 2, .compensation = StalenessCompensation::kDelay}, llama, {"tp2sp", "dp2z1"}},
        Case{{.islands = 2, .steps = 3, .apply_after = 2, .staleness = 2, .compensation = StalenessCompensation::kDelay}, llama, {"tp2pp2dp2z3sp"}},
        Case{{.islands = 3, .steps = 2, .apply_after = 1, .staleness = 0}, llama, {"tp1", "dp4rep2z1"}},
        Case{{.islands = 3, .steps = 4, .apply_after = 2, .staleness = 0, .backup = true}, gpt2, {"tp1", "dp2z3", "tp2pp2"}}}) {
    constexpr int kRounds = 2;
    const RandomOrder order = random_order(c.how, kRounds, 7);
    const Expected expected = serve_by_hand(c.model, c.how, kRounds, order.all);
    for (const char* const layout : c.layouts) {
      INFO(name_of(c.model) << " " << layout << ", islands " << c.how.islands << ", apply_after " << c.how.apply_after);
      const ServedRun actual = train_served(served(c.model, layout, c.how), kRounds * c.how.steps, order.of_steps);
      CHECK(actual.order == order.of_steps);
      for (size_t step = 0; step < expected.loss.size(); ++step) {
        CHECK(actual.steps[step].applied->staleness == expected.staleness[step]);
        CHECK(actual.steps[step].loss == Approx(expected.loss[step]).epsilon(1e-10));
        CHECK(actual.steps[step].grad_norm == Approx(expected.grad_norm[step]).epsilon(1e-9));
      }
      check_close(actual.weights, expected.weights, 1e-10);
    }
  }
}

TEST_CASE("asynchronous: a run in the order of its arrivals is repeated to the bit from its log, and a part of the log") {
  const auto backup = GENERATE(false, true);
  const Served how{.islands = 3, .steps = 10, .apply_after = backup ? 2 : 1, .staleness = backup ? 0 : 3, .backup = backup};
  const Config config = served(ParityModel::kGpt2Dropout, "dp2z1", how, "fp32");
  const ServedRun first = train_served(config, 20), again = train_served(config, 20, first.order);
  CHECK(again.order == first.order);
  CHECK(again.state == first.state);
  for (size_t step = 0; step < 20; ++step) CHECK(again.steps[step].loss == first.steps[step].loss);
  std::map<int64_t, std::vector<int>> part;
  for (int64_t step = 0; step < 4; ++step) part[step] = first.order.at(step);
  const ServedRun partly = train_served(config, 20, part);
  for (size_t step = 0; step < 4; ++step) CHECK(partly.steps[step].loss == first.steps[step].loss);
}

TEST_CASE("asynchronous: a run that is resumed after a round has the bits of one that was not") {
  const auto backup = GENERATE(false, true);
  const Served how{.islands = 3, .steps = 2, .apply_after = backup ? 2 : 1, .staleness = backup ? 0 : 1, .backup = backup};
  const RandomOrder order = random_order(how, 3, 3);
  for (const char* const layout : {"dp2z3", "tp2", "pp2dp2z1"}) {
    const TemporaryDirectory directory;
    const Config config = served(ParityModel::kGpt2Dropout, layout, how);
    GatheredState through, resumed;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      trainer.updates().set_order(order.of_steps);
      std::vector<double> all, parts;
      for (int step = 0; step < 6; ++step) all.push_back(trainer.step(kServedData, step, kServedRate).loss);
      through.add(trainer);
      for (int first = 0; first < 6; first += 2) {
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1};
        Trainer part(ctx, trainer.mesh().world, config, true);
        part.updates().set_order(order.of_steps);
        if (first == 0) {
          part.initialise();
        } else {
          CheckpointReader reader(directory.path / checkpoint_name(first));
          TRIREME_CHECK(load_state(part, reader).empty(), "a note");
        }
        for (int step = first; step < first + 2; ++step) parts.push_back(part.step(kServedData, step, kServedRate).loss);
        save(part, directory.path, first + 2);
        if (first == 4) resumed.add(part);
      }
      TRIREME_CHECK(parts == all, "other losses after a resume");
    });
    CHECK(through.whole() == resumed.whole());
    // The checkpoint is that of synchronous training: one rank reads it.
    Config one = served(ParityModel::kGpt2Dropout, "tp1", {});
    one.parallel.islands = 1;
    one.training.asynchronous = {};
    on_ranks(one, [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(4));
      TRIREME_CHECK(load_state(trainer, reader).empty(), "a note");
    });
  }
}

TEST_CASE("asynchronous: an evaluation is that of one rank, whatever the number of gradients in an update") {
  std::vector<double> losses;
  for (const auto& [islands, apply_after] : {std::pair{1, 1}, {3, 1}, {3, 2}, {3, 3}}) {
    on_ranks(served(ParityModel::kGpt2, "tp1", {.islands = islands, .apply_after = apply_after}), [&](Trainer& trainer) {
      trainer.initialise();
      const Trainer::Evaluation all = trainer.evaluate(kServedData, 0);
      if (trainer.mesh().world.rank() == 0) losses.push_back(all.loss);
    });
  }
  for (const double loss : losses) CHECK(loss == Approx(losses.front()).epsilon(1e-12));
}

TEST_CASE("asynchronous: the forecast of memory equals the measurement, and the bytes of a gradient are those of two transfers") {
  for (const char* const layout : {"tp1", "tp2", "dp2z1", "pp2dp2z3"}) {
    for (const auto& [apply_after, compensation] :
         {std::pair{1, StalenessCompensation::kNone}, {2, StalenessCompensation::kNone}, {1, StalenessCompensation::kDelay}}) {
      for (const char* const precision : {"fp64", "bf16"}) {
        const Config config = served(ParityModel::kLlamaGrouped, layout,
                                     {.islands = 2, .steps = 2, .apply_after = apply_after, .compensation = compensation}, precision);
        std::vector<RankMemory> measured(static_cast<size_t>(world_of(config)));
        run_ranks(world_of(config), [&](Communicator& world) {
          Arena arena(Device::kReference, true);
          Context ctx{Device::kReference, &arena, 1};
          Trainer trainer(ctx, world, config, true);
          trainer.initialise();
          for (int step = 0; step < 2; ++step) trainer.step(kServedData, step, kServedRate);
          arena.set_phase(MemoryPhase::kSave);
          trainer.evaluate(kServedData, 1);
          for (int step = 2; step < 4; ++step) trainer.step(kServedData, step, kServedRate);
          measured[static_cast<size_t>(world.rank())] = measured_memory(arena);
        });
        for (int rank = 0; rank < world_of(config); ++rank) {
          INFO(layout << " " << precision << ", rank " << rank);
          const RankMemory forecast = forecast_memory(config, rank, world_of(config));
          CHECK(forecast.peak == measured[static_cast<size_t>(rank)].peak);
          CHECK(forecast.peak_total == measured[static_cast<size_t>(rank)].peak_total);
          CHECK(forecast.server_bytes > 0);
        }
      }
    }
  }
}

}  // namespace trireme::test
