// Local updates: islands that take steps alone equal trainers on one rank that are averaged by hand, in any layout of an island, saved and resumed.
#include "trainer/islands/local_updates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "parallel/comm/timed.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/loop/memory.h"
#include "trainer/resilience/replica_check.h"

namespace trireme::test {
namespace {

const RaggedDataset kIslandData(300, 12, 61);  // more than the longest run reads: a sample is in one island only
constexpr double kIslandRate = 3e-3;

struct Outer {
  int islands = 2;
  int round = 3;
  double learning_rate = 0.7;
  double momentum = 0.9;
  int fragments = 1;
  int delay = 0;
  double blend = 1;
};
constexpr Outer kMean{.islands = 1, .round = 3, .learning_rate = 1, .momentum = 0};

Config islands_of(ParityModel model, const std::string& spec, const Outer& outer, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  Config config = parity_config(model, layout, precision);
  config.parallel.islands = outer.islands;
  config.training.global_batch_size = 24;
  config.training.gradient_clip = 0.5;  // low enough to clip
  config.training.local = {outer.round, outer.learning_rate, outer.momentum, outer.fragments, outer.delay, outer.blend};
  return config;
}

/// The data of one island: all targets of samples that are not its own in this step are masked.
class IslandView final : public Dataset {
 public:
  int64_t sequences() const override { return kIslandData.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    kIslandData.read(sample, tokens, targets, segments);
    if (!own.contains(sample)) std::fill_n(targets, 12, -1);
  }
  std::set<int64_t> own;
};

using Named = std::map<std::string, std::vector<double>>;

Named weights_of(const Trainer& trainer) {
  Named weights;
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    const double* const from = owned.weight.data<double>();
    std::vector<double>& all = weights[owned.spec->name];
    all.insert(all.end(), from, from + owned.weight.numel());
  }
  return weights;
}

void set_weights(Trainer& trainer, const Named& weights) {
  std::map<std::string, size_t> begin;
  for (const OwnedBox& owned : trainer.owned_boxes()) {
    size_t& at = begin[owned.spec->name];
    std::copy_n(weights.at(owned.spec->name).data() + at, owned.weight.numel(), owned.weight.data<double>());
    at += static_cast<size_t>(owned.weight.numel());
  }
  trainer.weights_changed();
}

struct Emulated {
  std::vector<double> loss;  ///< of island 0
  Named weights;             ///< of island 0
  Named shared;
  double outer_grad_norm = 0, drift = 0;  ///< of the last round
};

/// The fragment of a parameter: blocks in turn, everything else in the first.
int fragment_by_hand(const std::string& name, int fragments) { return name.starts_with("blocks.") ? (name[7] - '0') % fragments : 0; }

/// Trains one trainer on one rank for each island, on the whole global batch with the samples of other islands masked, and takes the outer steps by
/// the formulas of DiLoCo and streaming DiLoCo. `last`: after this step all fragments take one.
Emulated emulate(ParityModel model, const Outer& outer, int steps, int last = 10) {
  Config config = islands_of(model, "tp1", outer);
  config.parallel.islands = 1;
  config.training.local = {};
  Emulated result;
  run_ranks(1, [&](Communicator& world) {
    std::vector<std::unique_ptr<Arena>> arenas;
    std::vector<Context> contexts;
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int i = 0; i < outer.islands; ++i) {
      arenas.push_back(std::make_unique<Arena>(Device::kReference));
      contexts.push_back({Device::kReference, arenas.back().get(), 1});
    }
    for (Context& ctx : contexts) {
      trainers.push_back(std::make_unique<Trainer>(ctx, world, config, true));
      trainers.back()->initialise();
    }
    Named theta = weights_of(*trainers.front()), momentum, sent;
    for (const auto& [name, values] : theta) momentum[name].assign(values.size(), 0);
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < outer.islands; ++i) {
        IslandView view;
        const int64_t part = config.training.global_batch_size / outer.islands;
        for (int64_t place = i * part; place < (i + 1) * part; ++place) view.own.insert(trainers.front()->batches().sample(kIslandData, step, place));
        const StepResult one = trainers[static_cast<size_t>(i)]->step(view, step, kIslandRate);
        TRIREME_CHECK(one.grad_norm > config.training.gradient_clip, "not clipped");
        if (i == 0) result.loss.push_back(one.loss);
      }
      std::vector<Named> all;
      for (const auto& trainer : trainers) all.push_back(weights_of(*trainer));
      const bool ends = step + 1 == last;
      const int part = outer.round / outer.fragments;
      // After step `at`, true for a parameter whose fragment ends its part of the round.
      const auto due = [&](const std::string& name, int at) {
        return at % part == 0 && (at / part - 1) % outer.fragments == fragment_by_hand(name, outer.fragments);
      };
      double squares = 0, drift = 0, size = 0;
      for (auto& [name, values] : theta) {
        std::vector<double>& mean = sent[name];
        if (ends || due(name, step + 1 + outer.delay)) {
          mean.assign(values.size(), 0);
          for (const Named& one : all)
            for (size_t k = 0; k < values.size(); ++k) mean[k] += one.at(name)[k] / outer.islands;
        }
        if (!ends && !due(name, step + 1)) continue;
        for (size_t k = 0; k < values.size(); ++k) {
          const double delta = values[k] - mean[k];
          for (const Named& one : all) drift += std::pow(one.at(name)[k] - mean[k], 2) / outer.islands;
          double& velocity = momentum[name][k];
          velocity = outer.momentum * velocity + delta;
          values[k] -= outer.learning_rate * (delta + outer.momentum * velocity);
          for (Named& one : all) one.at(name)[k] = ends ? values[k] : outer.blend * values[k] + (1 - outer.blend) * one.at(name)[k];
          squares += delta * delta;
          size += values[k] * values[k];
        }
      }
      if (size > 0) {
        result.outer_grad_norm = std::sqrt(squares);
        result.drift = std::sqrt(drift / size);
      }
      for (size_t i = 0; i < all.size(); ++i) set_weights(*trainers[i], all[i]);
    }
    result.weights = weights_of(*trainers.front());
    result.shared = theta;
  });
  return result;
}

struct Islands {
  std::vector<double> loss;  ///< of island 0
  Named weights;
  OuterResult last;
};

Islands train_islands(const Config& config, int steps) {
  Islands result;
  std::mutex mutex;
  run_ranks(world_of(config),
            [&](Communicator& world) {
              Arena arena(Device::kReference, true);
              Context ctx{Device::kReference, &arena, 1};
              Trainer trainer(ctx, world, config, true);
              trainer.initialise();
              Islands mine;
              for (int step = 0; step < steps; ++step) {
                const StepResult one = trainer.step(kIslandData, step, kIslandRate);
                TRIREME_CHECK(one.outer.has_value() == trainer.updates().rounds().has_outer_step(step + 1), "outer step after step ", step + 1);
                mine.loss.push_back(one.loss);
                if (one.outer) mine.last = *one.outer;
              }
              RunRecord record;
              for (const auto& [name, tensor] : gather(trainer, Gathered::kWeight, 1, record)) mine.weights[name] = tensor.values;
              TRIREME_CHECK(!record.disagreement && record.unheld.empty(), "copies differ");
              const std::string differences = replica_differences(trainer);
              TRIREME_CHECK(differences.empty(), differences);
              const std::lock_guard lock(mutex);
              if (world.rank() == 0) result = std::move(mine);
            },
            {.poison = true});
  return result;
}

double largest_difference(const Named& a, const Named& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (const auto& [name, values] : a) {
    const std::vector<double>& other = b.at(name);
    REQUIRE(values.size() == other.size());
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - other[i]));
  }
  return worst;
}

struct LayoutCase {
  ParityModel model;
  const char* layout;
};
/// Each axis alone, every ZeRO stage, replicas, and all together.
constexpr LayoutCase kIslandLayouts[] = {{ParityModel::kGpt2Dropout, "tp1"},        {ParityModel::kGpt2Dropout, "tp2"},
                                         {ParityModel::kGpt2Dropout, "pp2"},        {ParityModel::kGpt2Dropout, "dp2z0"},
                                         {ParityModel::kGpt2Dropout, "dp2z1"},      {ParityModel::kGpt2Dropout, "dp3z2"},
                                         {ParityModel::kGpt2Dropout, "dp2z3-mb2"},  {ParityModel::kGpt2Dropout, "dp4rep2z3"},
                                         {ParityModel::kLlamaGrouped, "tp2sp"},     {ParityModel::kLlamaGrouped, "pp2vpp2-interleaved_1f1b"},
                                         {ParityModel::kLlamaGrouped, "dp4rep2z1"}, {ParityModel::kLlamaGrouped, "tp2pp2dp2z3sp"}};

}  // namespace

TEST_CASE("local updates: two islands in any layout equal two trainers averaged by hand") {
  const Outer outer;
  constexpr int kSteps = 6;
  for (const ParityModel model : {ParityModel::kGpt2Dropout, ParityModel::kLlamaGrouped}) {
    const Emulated expected = emulate(model, outer, kSteps);
    for (const auto& [of, layout] : kIslandLayouts) {
      if (of != model) continue;
      INFO(name_of(model) << " " << layout);
      const Islands actual = train_islands(islands_of(model, layout, outer), kSteps);
      for (size_t step = 0; step < kSteps; ++step) CHECK(actual.loss[step] == Approx(expected.loss[step]).epsilon(1e-10));
      CHECK(largest_difference(actual.weights, expected.weights) < 1e-10);
      CHECK(actual.last.gradient_norm == Approx(expected.outer_grad_norm).epsilon(1e-8));
      CHECK(actual.last.drift == Approx(expected.drift).epsilon(1e-8));
    }
  }
}

TEST_CASE("local updates: three and four islands, rounds of one and two steps") {
  for (const auto& [islands, round] : {std::pair{3, 1}, {3, 2}, {4, 1}, {4, 2}}) {
    const Outer outer{.islands = islands, .round = round, .learning_rate = 0.8, .momentum = 0.5};
    const Emulated expected = emulate(ParityModel::kLlama, outer, 4);
    const Islands actual = train_islands(islands_of(ParityModel::kLlama, "dp2z1", outer), 4);
    CHECK(largest_difference(actual.weights, expected.weights) < 1e-10);
  }
}

/// Trainers with fragments that synchronise at once or with a delay, averaged by hand. Each layout meets every `stride`-th of the four ways.
static void check_fragments(size_t stride) {
  struct Case {
    Outer outer;
    int steps;  // more than a round, and none in flight at their end
  };
  size_t way = 0;
  for (const auto& [outer, steps] :
       {Case{{.round = 6, .fragments = 3}, 8}, Case{{.round = 6, .fragments = 2, .delay = 2, .blend = 0.5}, 9},
        Case{{.islands = 3, .round = 4, .delay = 1}, 6}, Case{{.round = 6, .fragments = 3, .delay = 1, .blend = 0.25}, 8}}) {
    ++way;
    for (const ParityModel model : {ParityModel::kGpt2Dropout, ParityModel::kLlamaGrouped}) {
      const Emulated expected = emulate(model, outer, steps);
      for (size_t i = 0; i < std::size(kIslandLayouts); ++i) {
        const auto& [of, layout] = kIslandLayouts[i];
        if (of != model || (i + way) % stride != 0 || world_of(islands_of(model, layout, outer)) > 8) continue;
        INFO(name_of(model) << " " << layout << ", fragments " << outer.fragments << ", delay " << outer.delay);
        const Islands actual = train_islands(islands_of(model, layout, outer), steps);
        for (size_t step = 0; step < static_cast<size_t>(steps); ++step) CHECK(actual.loss[step] == Approx(expected.loss[step]).epsilon(1e-10));
        CHECK(largest_difference(actual.weights, expected.weights) < 1e-10);
        CHECK(actual.last.gradient_norm == Approx(expected.outer_grad_norm).epsilon(1e-8));
        CHECK(actual.last.drift == Approx(expected.drift).epsilon(1e-8));
      }
    }
  }
}

TEST_CASE("local updates: fragments that synchronise in turn, at once or with a delay, equal trainers averaged by hand, in any layout") {
  check_fragments(3);
}

TEST_CASE("local updates: every way of fragments in every layout equals trainers averaged by hand", "[slow]") { check_fragments(1); }

TEST_CASE("local updates: a delay takes the weights that were sent, with communication that does not overlap and with one island") {
  const Outer outer{.round = 4, .fragments = 2, .delay = 1, .blend = 0.5};
  for (const char* const layout : {"tp1", "pp2", "dp2z3"}) {
    Config config = islands_of(ParityModel::kLlama, layout, outer);
    const Islands overlapped = train_islands(config, 6);
    config.parallel.overlap = false;
    const Islands blocking = train_islands(config, 6);
    CHECK(blocking.loss == overlapped.loss);
    CHECK(blocking.weights == overlapped.weights);
    CHECK((blocking.last.gradient_norm == overlapped.last.gradient_norm && blocking.last.drift == overlapped.last.drift));
  }
  const Outer alone{.islands = 1, .round = 4, .fragments = 2, .delay = 1};
  const Emulated expected = emulate(ParityModel::kLlama, alone, 6);
  const Islands delayed = train_islands(islands_of(ParityModel::kLlama, "dp2z1", alone), 6);
  CHECK(largest_difference(delayed.weights, expected.weights) < 1e-10);
  CHECK(delayed.last.gradient_norm == Approx(expected.outer_grad_norm).epsilon(1e-8));
  CHECK(delayed.last.drift == Approx(expected.drift).epsilon(1e-8));
}

TEST_CASE("local updates: blocks that share a unit may be in different fragments") {
  const Outer outer{.round = 4, .fragments = 2, .delay = 1, .blend = 0.5};
  const Emulated expected = emulate(ParityModel::kGpt2, outer, 6);
  for (const char* const layout : {"dp2z3", "pp2"}) {
    Config config = islands_of(ParityModel::kGpt2, layout, outer);
    config.parallel.bucket_size = int64_t{1} << 40;
    CHECK(largest_difference(train_islands(config, 6).weights, expected.weights) < 1e-10);
  }
}

TEST_CASE("local updates: after the last step of a run all fragments have the shared weights, whatever was in flight") {
  const Outer outer{.round = 6, .fragments = 2, .delay = 2, .blend = 0.5};
  for (const int last : {5, 6, 7}) {  // in flight, due, and neither
    Config config = islands_of(ParityModel::kLlama, "dp2z1", outer);
    config.training.steps = last;
    const Emulated expected = emulate(ParityModel::kLlama, outer, last, last);
    const Islands actual = train_islands(config, last);
    CHECK(largest_difference(actual.weights, expected.shared) < 1e-10);
    CHECK(largest_difference(expected.weights, expected.shared) == 0);
  }
}

TEST_CASE("local updates: an evaluation is of the weights that islands share, and leaves their own") {
  const Config config = islands_of(ParityModel::kGpt2, "tp2dp2z3", {.round = 4, .fragments = 2, .delay = 1, .blend = 0.5});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 4; ++step) trainer.step(kIslandData, step, kIslandRate);
    const auto states = [&] {
      std::vector<std::vector<double>> all;
      for (const OwnedBox& owned : trainer.owned_boxes())
        for (const auto& [name, tensor] : owned.kept()) all.emplace_back(tensor.data<double>(), tensor.data<double>() + tensor.numel());
      return all;
    };
    const auto before = states();
    const double evaluated = trainer.evaluate(kIslandData, 1).loss;
    TRIREME_CHECK(states() == before, "an evaluation has changed the weights");
    {
      const SharedWeights held(trainer.updates());
      TRIREME_CHECK(trainer.evaluate(kIslandData, 1).loss == evaluated, "the evaluation was of other weights where the shared ones are held");
    }
    TRIREME_CHECK(states() == before, "holding the shared weights has changed the weights");
    for (const OwnedBox& owned : trainer.owned_boxes()) std::copy_n(owned.shared.data<double>(), owned.shared.numel(), owned.weight.data<double>());
    trainer.weights_changed();
    TRIREME_CHECK(trainer.evaluate(kIslandData, 1).loss == evaluated, "the evaluation was of other weights");
    TRIREME_CHECK(replica_differences(trainer).empty(), "differences");
  });
}

TEST_CASE("local updates: one island with outer learning rate 1 and no momentum is plain training, to the bit") {
  struct Case {
    const char* layout;
    const char* precision;
    Optimizer optimizer;
  };
  for (const Case& c : {Case{"tp1", "fp64", Optimizer::kAdamW}, Case{"dp2z3", "fp64", Optimizer::kLion}, Case{"tp2", "fp32", Optimizer::kAdamW},
                        Case{"pp2dp2z1", "bf16", Optimizer::kAdamW}, Case{"dp2z0", "bf16", Optimizer::kLion}}) {
    INFO(c.layout << " " << c.precision);
    Config local = islands_of(ParityModel::kGpt2, c.layout, kMean, c.precision);
    local.training.optimizer.name = c.optimizer;
    local.training.optimizer.beta2 = traits_of(c.optimizer).default_beta2;
    Config plain = local;
    plain.training.local = {};
    std::map<std::string, std::vector<char>> states[2];
    std::vector<double> losses[2];
    for (const bool is_local : {false, true}) {
      GatheredState state;
      std::mutex mutex;
      on_ranks(is_local ? local : plain, [&](Trainer& trainer) {
        trainer.initialise();
        std::vector<double> mine;
        for (int step = 0; step < 7; ++step) mine.push_back(trainer.step(kIslandData, step, kIslandRate).loss);
        state.add(trainer);
        const std::lock_guard lock(mutex);
        losses[is_local] = mine;
      });
      states[is_local] = state.whole();
    }
    CHECK(losses[0] == losses[1]);
    for (const auto& [name, bytes] : states[0]) CHECK(states[1].at(name) == bytes);
    CHECK(states[1].contains("outer_momentum/final_norm.weight"));
  }
}

TEST_CASE("local updates: within a round no rank exchanges anything with another island") {
  const Config config = islands_of(ParityModel::kGpt2, "tp2dp2z3", {.islands = 2, .round = 3});
  run_ranks(world_of(config), [&](Communicator& world) {
    CommunicationLog log;
    const std::unique_ptr<Communicator> measured = timed(world, log);
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, *measured, config, true);
    trainer.initialise();
    for (int step = 0; step < 6; ++step) {
      DeviceClock clock(ctx, DeviceClock::Host::now());
      log.start(clock);
      trainer.step(kIslandData, step, kIslandRate);
      std::set<std::string> groups;
      for (const TimedOperation& operation : log.stop()) groups.insert(operation.group);
      const bool ends = (step + 1) % 3 == 0;
      TRIREME_CHECK(groups.contains("step") && groups.contains("shard"), "no norm was recorded");
      TRIREME_CHECK(groups.contains("islands") == ends && groups.contains("world") == ends, "step ", step + 1);
    }
  });
}

TEST_CASE("local updates: a run that is resumed after a round has the bits of one that was not") {
  struct Case {
    LayoutCase of;
    Outer outer;
  };
  for (const auto& [of, outer] :
       {Case{{ParityModel::kGpt2Dropout, "tp2dp2z1"}, {.round = 2}}, Case{{ParityModel::kLlamaGrouped, "pp2dp2z3"}, {.round = 2}},
        Case{{ParityModel::kGpt2Dropout, "dp2z1"}, {.islands = 4, .round = 2}},
        Case{{ParityModel::kLlamaGrouped, "pp2dp2z3"}, {.round = 2, .fragments = 2, .blend = 0.5}},
        Case{{ParityModel::kGpt2Dropout, "tp2dp2z2"}, {.round = 2, .delay = 1}}}) {
    const auto& [model, layout] = of;
    INFO(layout << ", fragments " << outer.fragments << ", delay " << outer.delay);
    const TemporaryDirectory directory;
    const Config config = islands_of(model, layout, outer);
    GatheredState through, resumed;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.initialise();
      std::vector<double> all, parts;
      for (int step = 0; step < 6; ++step) all.push_back(trainer.step(kIslandData, step, kIslandRate).loss);
      through.add(trainer);
      for (int first = 0; first < 6; first += 2) {
        Arena arena(Device::kReference, true);
        Context ctx{Device::kReference, &arena, 1};
        Trainer part(ctx, trainer.mesh().world, config, true);
        if (first == 0) {
          part.initialise();
        } else {
          CheckpointReader reader(directory.path / checkpoint_name(first));
          TRIREME_CHECK(load_state(part, reader).empty(), "a note");
        }
        for (int step = first; step < first + 2; ++step) parts.push_back(part.step(kIslandData, step, kIslandRate).loss);
        save(part, directory.path, first + 2);
        if (first == 4) resumed.add(part);
      }
      TRIREME_CHECK(all == parts, "losses differ");
    });
    CHECK(through.whole() == resumed.whole());
    CHECK(through.whole() == read_whole(directory.path / checkpoint_name(6)));
  }
}

TEST_CASE("local updates: a checkpoint of plain training, with a moving average or without one, starts local updates from its weights") {
  std::map<std::string, std::vector<char>> after[2];
  for (const bool averaged : {false, true}) {
    const TemporaryDirectory directory;
    const Config local = islands_of(ParityModel::kGpt2, "dp2z1", {.islands = 1, .round = 2});
    Config plain = local;
    plain.training.local = {};
    if (averaged) plain.training.ema.decay = 0.9;
    on_ranks(plain, [&](Trainer& trainer) {
      trainer.initialise();
      for (int step = 0; step < 2; ++step) trainer.step(kIslandData, step, kIslandRate);
      save(trainer, directory.path, 2);
    });
    GatheredState state;
    on_ranks(local, [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(2));
      TRIREME_CHECK(reader.has_kind(kAverageName) == averaged, "the moving average");
      TRIREME_CHECK(load_state(trainer, reader) == "the checkpoint has no momentum of the outer step, which starts at zero", "another note");
      for (int step = 2; step < 4; ++step) {
        const StepResult one = trainer.step(kIslandData, step, kIslandRate);
        TRIREME_CHECK(!one.outer || one.outer->gradient_norm < 0.5, "the outer gradient is ", one.outer->gradient_norm);
      }
      state.add(trainer);
    });
    after[averaged] = state.whole();
  }
  CHECK(after[0] == after[1]);
}

TEST_CASE("local updates: a resume that keeps no weights of each island says so") {
  const TemporaryDirectory directory;
  const Outer streaming{.round = 2, .fragments = 2, .blend = 0.5};
  on_ranks(islands_of(ParityModel::kGpt2, "tp1", streaming), [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 2; ++step) trainer.step(kIslandData, step, kIslandRate);
    save(trainer, directory.path, 2);
  });
  const std::string weights = "the weights of each island in the checkpoint are dropped: training starts from the weights that the islands share";
  on_ranks(islands_of(ParityModel::kGpt2, "tp1", {.round = 2}), [&](Trainer& trainer) {
    CheckpointReader reader(directory.path / checkpoint_name(2));
    TRIREME_CHECK(load_state(trainer, reader) == weights, "another note");
  });
  const Config one_island = islands_of(ParityModel::kGpt2, "tp1", {.islands = 1, .round = 2, .fragments = 2, .blend = 0.5});
  Config plain = one_island;
  plain.training.local = {};
  on_ranks(one_island, [&](Trainer& trainer) {
    trainer.initialise();
    save(trainer, directory.path, 4);
  });
  on_ranks(plain, [&](Trainer& trainer) {
    CheckpointReader reader(directory.path / checkpoint_name(4));
    const std::string note = load_state(trainer, reader);
    TRIREME_CHECK(note == "the momentum of the outer step in the checkpoint is dropped: this run has no training.local; " + weights, note);
  });
}

TEST_CASE("local updates: another layout of the islands loads every island's state") {
  const TemporaryDirectory directory;
  const Outer outer{.islands = 2, .round = 2, .fragments = 2};
  on_ranks(islands_of(ParityModel::kLlamaGrouped, "tp2dp2z3", outer), [&](Trainer& trainer) {
    trainer.initialise();
    for (int step = 0; step < 4; ++step) trainer.step(kIslandData, step, kIslandRate);
    save(trainer, directory.path, 4);
  });
  const auto saved = read_whole(directory.path / checkpoint_name(4));
  for (const char* const kind :
       {"weight", "exp_avg", "exp_avg_sq", "exp_avg.1", "exp_avg_sq.1", "outer_momentum", "island_weight", "island_weight.1"})
    CHECK(saved.contains(std::string(kind) + "/embedding.weight"));
  CHECK(saved.at("exp_avg/embedding.weight") != saved.at("exp_avg.1/embedding.weight"));
  CHECK(saved.at("island_weight/embedding.weight") != saved.at("island_weight.1/embedding.weight"));
  CHECK(!saved.contains("weight.1/embedding.weight"));
  for (const char* const layout : {"tp1", "pp2", "dp3z1"}) {
    GatheredState loaded;
    on_ranks(islands_of(ParityModel::kLlamaGrouped, layout, outer), [&](Trainer& trainer) {
      CheckpointReader reader(directory.path / checkpoint_name(4));
      load_state(trainer, reader);
      loaded.add(trainer);
    });
    CHECK(loaded.whole() == saved);
  }
}

TEST_CASE("local updates: a checkpoint lacks one island's moments, and the load fails") {
  const TemporaryDirectory directory;
  const Config config = islands_of(ParityModel::kGpt2, "tp1", {.islands = 2, .round = 1});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    trainer.step(kIslandData, 0, kIslandRate);
    save(trainer, directory.path, 1, [](std::vector<StateTensor>& tensors) {
      std::erase_if(tensors, [](const StateTensor& one) { return one.name == "exp_avg.1/final_norm.weight"; });
    });
    CheckpointReader reader(directory.path / checkpoint_name(1));
    std::string error;
    try {
      load_state(trainer, reader);
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    TRIREME_CHECK(error.find("exp_avg.1/final_norm.weight") != error.npos, error);
  });
}

TEST_CASE("local updates: an island that rejects a step keeps its weights and its count, and the others continue") {
  const Config config = islands_of(ParityModel::kGpt2, "dp2z1", {.islands = 2, .round = 2});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    const bool second = trainer.mesh().at.island == 1;
    const StepResult result = trainer.step(kIslandData, 0, kIslandRate, {.grad_norm = second ? 0 : std::numeric_limits<double>::infinity()});
    TRIREME_CHECK(result.accepted != second, "accepted ", result.accepted);
    const StepResult next = trainer.step(kIslandData, 1, kIslandRate);
    TRIREME_CHECK(next.accepted && next.outer && next.outer->drift > 0, "no outer step");
    TRIREME_CHECK(island_numbers(trainer, trainer.scalars().accepted_steps()) == (std::vector<int64_t>{2, 1}), "counts");
    TRIREME_CHECK(replica_differences(trainer).empty(), "differences");
  });
}

TEST_CASE("local updates: after a round the replica check compares islands, too") {
  const Config config = islands_of(ParityModel::kGpt2, "tp2", {.islands = 2, .round = 1});
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    trainer.step(kIslandData, 0, kIslandRate);
    TRIREME_CHECK(replica_differences(trainer).empty(), "differences");
    for (const OwnedBox& owned : trainer.owned_boxes())
      if (owned.spec->name == "final_norm.weight" && trainer.mesh().at.island == 1) owned.weight.data<double>()[0] += 1;
    const std::string found = replica_differences(trainer);
    TRIREME_CHECK(found.find("weight/final_norm.weight") != found.npos && found.find("ranks 2, 3") != found.npos, found);
  });
}

TEST_CASE("local updates: islands share an evaluation") {
  double one_rank = 0;
  for (const int islands : {1, 2, 3}) {
    on_ranks(islands_of(ParityModel::kGpt2, islands == 1 ? "tp1" : "pp2", {.islands = islands}), [&](Trainer& trainer) {
      trainer.initialise();
      const Trainer::Evaluation all = trainer.evaluate(kIslandData, 0);
      if (islands == 1) one_rank = all.loss;
      TRIREME_CHECK(std::abs(all.loss - one_rank) < 1e-12, all.loss, " instead of ", one_rank);
    });
  }
}

TEST_CASE("local updates: the forecast of memory is exact to the byte, and that of bytes sent") {
  for (const auto& [model, layout] : {LayoutCase{ParityModel::kGpt2Dropout, "dp2z0"}, LayoutCase{ParityModel::kLlamaGrouped, "tp2dp2z3"},
                                      LayoutCase{ParityModel::kLlama, "pp2dp3z1"}}) {
    for (const char* const precision : {"fp64", "bf16", "fp32"}) {
      const bool streams = std::string(precision) == "fp32";
      const Outer outer =
          streams ? Outer{.islands = 2, .round = 2, .fragments = 2, .blend = 0.5} : Outer{.islands = 2, .round = 2, .delay = precision[0] == 'b'};
      const Config config = islands_of(model, layout, outer, precision);
      const MeasuredRun run = measured_run(config, kIslandData, 4);
      for (int rank = 0; rank < world_of(config); ++rank) {
        INFO(layout << " " << precision << ", rank " << rank);
        const RankMemory forecast = checked_forecast(config, run, rank);
        // Two rounds, and an evaluation sends its count of tokens, 8 bytes.
        CHECK(2 * forecast.outer_bytes ==
              Approx(run.communication[static_cast<size_t>(rank)].entry("islands", "all_reduce").wire_bytes - 8).epsilon(1e-12));
        CHECK(forecast.outer_bytes > 0);
      }
    }
  }
}

TEST_CASE("local updates: rounds") {
  const Rounds three{.round = 3, .last = 8}, plain;
  for (int64_t step = 1; step <= 8; ++step) {
    CHECK(three.ends_after(step) == (step == 3 || step == 6 || step == 8));
    CHECK(three.end_of(step) == (step <= 3 ? 3 : step <= 6 ? 6 : 8));
    CHECK(plain.ends_after(step));
    CHECK(plain.end_of(step) == step);
    for (int64_t every = 0; every < 5; ++every) CHECK(plain.is_due(step, every) == (every > 0 && step % every == 0));
  }
  CHECK((three.is_due(3, 2) && three.is_due(6, 2) && three.is_due(8, 2) && !three.is_due(4, 2)));
  CHECK((three.is_due(6, 5) && !three.is_due(3, 5) && !three.is_due(8, 5) && !three.is_due(8, 0)));
  const Rounds streaming{.round = 6, .last = 20, .fragments = 3};
  for (int64_t step = 1; step <= 20; ++step) {
    CHECK(streaming.fragment_after(step) == (step % 2 == 0 ? std::optional((step - 2) / 2 % 3) : std::nullopt));
    CHECK(streaming.has_outer_step(step) == (step % 2 == 0));
    CHECK(streaming.ends_after(step) == (step % 6 == 0 || step == 20));
  }
  CHECK(Rounds{.round = 6, .last = 7, .fragments = 3}.has_outer_step(7));
  const Rounds delayed{.round = 6, .last = 11, .fragments = 2, .delay = 2};
  for (int64_t step = 1; step <= 11; ++step) {
    CHECK(streaming.sent_after(step) == std::nullopt);
    CHECK(delayed.sent_after(step) == (step % 6 == 1 ? std::optional(0) : step % 6 == 4 ? std::optional(1) : std::nullopt));
    CHECK(delayed.may_wait_after(step) == (step % 3 < 2 || step == 11));
  }
  for (const char* const name : {"embedding.weight", "position.weight", "final_norm.weight", "head.weight"}) CHECK(fragment_of(name, 3) == 0);
  CHECK((fragment_of("blocks.4.mlp_norm.weight", 3) == 1 && fragment_of("blocks.12.mlp_norm.weight", 5) == 2 && fragment_of("blocks.7.a", 1) == 0));
}

}  // namespace trireme::test
