// Elastic averaging: islands in a given order of exchanges equal trainers of one rank and an exchange by hand, a logged order repeats the bits, and the
// state between two rounds is complete.
#include <algorithm>
#include <cmath>
#include <limits>
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

const RaggedDataset kElasticData(300, 12, 67);
constexpr double kElasticRate = 3e-3;

struct Elastic {
  int islands = 2;
  int steps = 6;  ///< of a round
  int every = 2;
  double moving_rate = 0.3;
};

Config elastic(ParityModel model, const std::string& spec, const Elastic& how, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  Config config = parity_config(model, layout, precision);
  config.parallel.islands = how.islands;
  config.training.steps = 1000;  // no round is cut short
  config.training.global_batch_size = 24;
  config.training.gradient_clip = 0.5;  // low enough to clip
  AsynchronousConfig& asynchronous = config.training.asynchronous;
  asynchronous.mode = AsynchronousMode::kElasticAveraging;
  asynchronous.steps = how.steps;
  asynchronous.every = how.every;
  asynchronous.moving_rate = how.moving_rate;
  return config;
}

using Weights = std::map<std::string, std::vector<double>>;

Weights weights_of(const Trainer& trainer) {
  Weights all;
  for (const OwnedBox& owned : trainer.owned_boxes())
    all[owned.spec->name].assign(owned.weight.data<double>(), owned.weight.data<double>() + owned.weight.numel());
  return all;
}

/// All targets are masked but those of some samples.
class SamplesOfIsland final : public Dataset {
 public:
  int64_t sequences() const override { return kElasticData.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    kElasticData.read(sample, tokens, targets, segments);
    if (!own.contains(sample)) std::fill_n(targets, 12, -1);
  }
  std::set<int64_t> own;
};

/// What `steps` steps of each island leave.
struct Averaged {
  std::vector<std::vector<double>> losses;  ///< by island
  Weights centre;
};

/// By one trainer on one rank for each island, and exchanges by hand in this order. `order`: of the rounds.
Averaged average_by_hand(ParityModel model, const Elastic& how, const std::vector<std::vector<int>>& order) {
  Config config = elastic(model, "tp1", how);
  config.parallel.islands = 1;
  config.training.asynchronous = {};
  Averaged result;
  run_ranks(1, [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    std::vector<std::unique_ptr<Trainer>> islands;
    for (int i = 0; i < how.islands; ++i) {
      islands.push_back(std::make_unique<Trainer>(ctx, world, config, true));
      islands.back()->initialise();
    }
    result.centre = weights_of(*islands.front());
    result.losses.resize(islands.size());
    const auto train_until = [&](size_t island, int64_t end) {
      Trainer& trainer = *islands[island];
      while (std::ssize(result.losses[island]) < end) {
        const int64_t step = std::ssize(result.losses[island]), share = 24 / how.islands;
        SamplesOfIsland data;
        for (int64_t place = 0; place < share; ++place)
          data.own.insert(trainer.batches().sample(kElasticData, step, static_cast<int64_t>(island) * share + place));
        result.losses[island].push_back(trainer.step(data, step, kElasticRate).loss);
      }
    };
    for (size_t round = 0; round < order.size(); ++round) {
      const int64_t begin = static_cast<int64_t>(round) * how.steps;
      std::map<int, int64_t> exchanges;
      for (const int worker : order[round]) {
        const auto island = static_cast<size_t>(worker);
        train_until(island, begin + ++exchanges[worker] * how.every);
        for (const OwnedBox& owned : islands[island]->owned_boxes()) {
          double* const x = owned.weight.data<double>();
          std::vector<double>& centre = result.centre.at(owned.spec->name);
          for (size_t i = 0; i < centre.size(); ++i) {
            const double d = how.moving_rate * (x[i] - centre[i]);
            x[i] -= d;
            centre[i] += d;
          }
        }
        islands[island]->weights_changed();
      }
      for (size_t island = 0; island < islands.size(); ++island) train_until(island, begin + how.steps);
    }
  });
  return result;
}

struct ElasticRun : Averaged {
  std::map<std::string, std::vector<char>> state;  ///< of the centre, and of the first island
  std::map<int64_t, std::vector<int>> order;       ///< by step of the first island
  double evaluation = 0;
};

/// `order`: as set_order(). Checks that the ranks of an island report the same, and that replicas agree and all islands know the same centre at the end
/// of each round.
ElasticRun train_elastic(const Config& config, int steps, const std::map<int64_t, std::vector<int>>& order = {}) {
  ElasticRun result;
  std::mutex mutex;
  std::map<int, std::vector<double>> of_ranks;
  result.losses.resize(static_cast<size_t>(config.parallel.islands));
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    trainer.updates().set_order(order);
    std::vector<StepResult> mine;
    for (int step = 0; step < steps; ++step) {
      mine.push_back(trainer.step(kElasticData, step, kElasticRate));
      if (!trainer.updates().rounds().ends_after(step + 1)) continue;
      const std::string differences = replica_differences(trainer);
      TRIREME_CHECK(differences.empty(), differences);
    }
    const double evaluation = trainer.evaluate(kElasticData, 1).loss;
    const SharedWeights shared(trainer.updates());
    Weights centre;
    RunRecord record;
    if (config.training.precision == Arithmetic::kFp64)
      for (const auto& [name, tensor] : gather(trainer, Gathered::kWeight, 1, record)) centre[name] = tensor.values;
    TRIREME_CHECK(!record.disagreement && record.unheld.empty(), "copies differ");
    const std::lock_guard lock(mutex);
    std::vector<double>& losses = result.losses[static_cast<size_t>(trainer.mesh().at.island)];
    std::vector<double> own;
    for (const StepResult& step : mine) own.push_back(step.loss);
    TRIREME_CHECK(losses.empty() || losses == own, "ranks of an island differ");
    losses = own;
    if (trainer.mesh().world.rank() != 0) return;
    result.centre = centre;
    result.evaluation = evaluation;
    for (size_t step = 0; step < mine.size(); ++step) {
      result.order[static_cast<int64_t>(step)] = mine[step].exchanged->workers;
      TRIREME_CHECK(mine[step].exchanged->staleness.size() == mine[step].exchanged->workers.size(), "a staleness is missing");
    }
  });
  return result;
}

/// An order of exchanges of some rounds, drawn at random, and as the first island logs it.
struct ExchangeOrder {
  std::vector<std::vector<int>> rounds;
  std::map<int64_t, std::vector<int>> of_steps;
};
ExchangeOrder random_exchanges(const Elastic& how, int rounds, unsigned seed) {
  std::minstd_rand random(seed);
  ExchangeOrder order;
  for (int round = 0; round < rounds; ++round) {
    const int each = how.steps / how.every;
    std::vector<int> all;
    for (int i = 0; i < how.islands * each; ++i) all.push_back(i % how.islands);
    std::shuffle(all.begin(), all.end(), random);
    order.rounds.push_back(all);
    int64_t step = round * how.steps;
    for (int i = 0; i < how.steps; ++i) order.of_steps[step + i];
    int own = 0;
    for (const int worker : all) {
      const int64_t at = own == each ? how.steps - 1 : (own + 1) * how.every - 1;
      order.of_steps[step + at].push_back(worker);
      own += worker == 0 ? 1 : 0;
    }
  }
  return order;
}

void check_near(const Weights& actual, const Weights& expected) {
  REQUIRE(actual.size() == expected.size());
  for (const auto& [name, values] : expected) {
    INFO(name);
    REQUIRE(actual.at(name).size() == values.size());
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(actual.at(name)[i] - values[i]));
    CHECK(worst < 1e-10);
  }
}

}  // namespace

TEST_CASE("elastic averaging: islands in any layout and order of exchanges equal trainers of one rank and exchanges by hand") {
  struct Case {
    Elastic how;
    ParityModel model;
    std::vector<const char*> layouts;
  };
  const auto llama = ParityModel::kLlamaGrouped, gpt2 = ParityModel::kGpt2;
  for (const Case& c : {Case{{}, gpt2, {"tp1", "tp2", "pp2", "dp2z0", "dp2z1", "dp3z2", "dp2z3-mb2"}},
                        Case{{.islands = 3, .steps = 4, .every = 1, .moving_rate = 0.9 / 3}, llama, {"tp1", "tp2sp", "dp2z3"}},
                        Case{{.islands = 2, .steps = 5, .every = 5, .moving_rate = 0.8}, llama, {"tp2pp2dp2z3sp", "dp4rep2z1"}}}) {
    const ExchangeOrder order = random_exchanges(c.how, 2, 11);
    const Averaged expected = average_by_hand(c.model, c.how, order.rounds);
    for (const char* const layout : c.layouts) {
      INFO(name_of(c.model) << " " << layout << ", islands " << c.how.islands << ", every " << c.how.every);
      const ElasticRun actual = train_elastic(elastic(c.model, layout, c.how), 2 * c.how.steps, order.of_steps);
      CHECK(actual.order == order.of_steps);
      for (size_t island = 0; island < expected.losses.size(); ++island) {
        REQUIRE(actual.losses[island].size() == expected.losses[island].size());
        for (size_t step = 0; step < expected.losses[island].size(); ++step)
          CHECK(actual.losses[island][step] == Approx(expected.losses[island][step]).epsilon(1e-10));
      }
      check_near(actual.centre, expected.centre);
    }
  }
}

TEST_CASE("elastic averaging: with a moving rate of 0 the islands are independent, and the centre stays where it was") {
  const Elastic how{.islands = 2, .steps = 4, .every = 2, .moving_rate = 0};
  const ElasticRun run = train_elastic(elastic(ParityModel::kGpt2, "tp1", how), 8);
  const Averaged alone = average_by_hand(ParityModel::kGpt2, how, {{}, {}});
  CHECK(run.losses == alone.losses);
  CHECK(run.centre == alone.centre);  // the initial weights
  on_ranks(elastic(ParityModel::kGpt2, "tp1", how), [&](Trainer& trainer) {
    trainer.initialise();
    CHECK(trainer.evaluate(kElasticData, 1).loss == run.evaluation);
  });
}

TEST_CASE("elastic averaging: a run in the order of its exchanges is repeated to the bit from its log, and a part of the log") {
  const Config config = elastic(ParityModel::kGpt2Dropout, "dp2z1", {.islands = 3, .steps = 6, .every = 2}, "fp32");
  const auto trained = [&](const std::map<int64_t, std::vector<int>>& order, std::map<std::string, std::vector<char>>& state) {
    const TemporaryDirectory directory;
    ElasticRun run;
    std::mutex mutex;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      trainer.updates().set_order(order);
      for (int step = 0; step < 12; ++step) {
        const StepResult result = trainer.step(kElasticData, step, kElasticRate);
        const std::lock_guard lock(mutex);
        if (trainer.mesh().world.rank() != 0) continue;
        run.order[step] = result.exchanged->workers;
        run.losses.resize(1);
        run.losses[0].push_back(result.loss);
      }
      save(trainer, directory.path, 12);
    });
    state = read_whole(directory.path / checkpoint_name(12));
    return run;
  };
  std::map<std::string, std::vector<char>> state, same, other;
  const ElasticRun first = trained({}, state), again = trained(first.order, same);
  CHECK(again.order == first.order);
  CHECK(again.losses == first.losses);
  CHECK(same == state);
  CHECK(state.contains("island_weight.2/final_norm.weight"));
  std::map<int64_t, std::vector<int>> part;
  for (int64_t step = 0; step < 4; ++step) part[step] = first.order.at(step);
  const ElasticRun partly = trained(part, other);
  for (size_t step = 0; step < 4; ++step) CHECK(partly.losses[0][step] == first.losses[0][step]);
}

TEST_CASE("elastic averaging: a run that is resumed after a round has the bits of one that was not, and other runs read the centre") {
  const Elastic how{.islands = 3, .steps = 2, .every = 1};
  const ExchangeOrder order = random_exchanges(how, 3, 5);
  for (const char* const layout : {"dp2z3", "tp2", "pp2dp2z1"}) {
    INFO(layout);
    const TemporaryDirectory directory;
    const Config config = elastic(ParityModel::kGpt2Dropout, layout, how);
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      trainer.updates().set_order(order.of_steps);
      std::vector<double> all, parts;
      for (int step = 0; step < 6; ++step) all.push_back(trainer.step(kElasticData, step, kElasticRate).loss);
      save(trainer, directory.path, 100);
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
        for (int step = first; step < first + 2; ++step) parts.push_back(part.step(kElasticData, step, kElasticRate).loss);
        save(part, directory.path, first + 2);
      }
      TRIREME_CHECK(parts == all, "other losses after a resume");
    });
    CHECK(read_whole(directory.path / checkpoint_name(100)) == read_whole(directory.path / checkpoint_name(6)));
  }
}

TEST_CASE("elastic averaging: the last round of a run may be short, and have no exchange") {
  for (const int last : {9, 5}) {
    Config config = elastic(ParityModel::kGpt2, "tp1", {.islands = 2, .steps = 4, .every = 2});
    config.training.steps = last;
    const ElasticRun run = train_elastic(config, last);
    size_t exchanges = 0;
    for (const auto& [step, workers] : run.order) exchanges += workers.size();
    CHECK(exchanges == static_cast<size_t>(2 * (last / 2)));
  }
}

TEST_CASE("elastic averaging: the forecast of memory equals the measurement, and an exchange moves the weights twice") {
  for (const char* const layout : {"tp1", "tp2", "dp2z1", "pp2dp2z3"}) {
    for (const char* const precision : {"fp64", "bf16"}) {
      const Config config = elastic(ParityModel::kLlamaGrouped, layout, {.islands = 2, .steps = 2, .every = 1}, precision);
      std::vector<RankMemory> measured(static_cast<size_t>(world_of(config)));
      run_ranks(world_of(config), [&](Communicator& world) {
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1};
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        for (int step = 0; step < 2; ++step) trainer.step(kElasticData, step, kElasticRate);
        arena.set_phase(MemoryPhase::kSave);
        trainer.evaluate(kElasticData, 1);
        for (int step = 2; step < 4; ++step) trainer.step(kElasticData, step, kElasticRate);
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

}  // namespace trireme::test
