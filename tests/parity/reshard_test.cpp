// Checkpoints are independent of the layout: a run saved under one layout continues identically under any other.
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

constexpr int kSaved = 2;             // steps before the checkpoint
constexpr int kFurther = 2;           // after it: the first depends on the weights, the second on both moments and the step count
constexpr double kTolerance = 1e-10;  // see parity_test.cpp

/// Records the samples that are read, in order.
class RecordingDataset final : public Dataset {
 public:
  int64_t sequences() const override { return data_.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    samples_.push_back(sample);
    data_.read(sample, tokens, targets, segments);
  }
  std::vector<int64_t> take() const { return std::exchange(samples_, {}); }

 private:
  RaggedDataset data_{29, 12, 61};
  mutable std::vector<int64_t> samples_;
};

/// Expected results of a step in every layout.
struct Step {
  double loss = 0, grad_norm = 0;
  std::vector<int64_t> samples;  ///< by place in the global batch
};

constexpr int kVariants = 4;

struct Order {
  ScheduleKind schedule;
  int virtual_stages;
};
constexpr Order kOrders[] = {{ScheduleKind::kGPipe, 1}, {ScheduleKind::k1F1B, 1}, {ScheduleKind::kInterleaved1F1B, 2},
                             {ScheduleKind::kZbV, 2},   {ScheduleKind::kZbH1, 1}, {ScheduleKind::kZbH2, 1}};

/// One of the variants of a shape; over the variants and shapes all other options take all their values.
ParityLayout with_variant(ParityLayout layout, ParityModel model, int variant) {
  layout.zero = (variant + layout.tensor + layout.pipeline) % 4;
  if (layout.zero > 0 && layout.data % 2 == 0 && variant % 2 == 1) layout.replicate = 2;
  if (layout.zero > 0 && layout.data == 3 && variant == 3) layout.replicate = 3;
  layout.sequence_parallel = layout.tensor > 1 && (variant / 2 + layout.data) % 2 == 0;
  const Order& order = kOrders[(variant + 3 * layout.pipeline + 4 * layout.data + 3 * layout.tensor) % 6];
  if (layout.pipeline * order.virtual_stages <= layout.layers) {
    layout.schedule = order.schedule;
    layout.virtual_stages = order.virtual_stages;
  }
  layout.reshard = layout.zero == 3 && variant % 2 == 0 ? Reshard::kAfterStep : Reshard::kAfterUse;
  const int64_t stages = layout.stages();
  if (stages > 1 && (variant + layout.data) % 2 == 0) {
    std::vector<int64_t>& split = layout.layers_per_stage;
    split.assign(static_cast<size_t>(stages), 1);
    size_t most = static_cast<size_t>(variant) % split.size();
    if (variant != 3) {  // both ends have none, or one of two stages
      const bool first = stages > 2 || variant != 1, last = stages > 2 || !first;
      if (first) split.front() = 0;
      if (last) split.back() = 0;
      most = first ? 1 : 0;
    }
    split[most] += layout.layers - std::accumulate(split.begin(), split.end(), int64_t{0});
  }
  layout.bucket_blocks = 1 + variant / 2;
  layout.micro_batch = variant == 2 ? 2 : 1;
  if (!is_legal(model, layout)) layout.micro_batch = 1;
  return layout;
}

/// Every legal shape with tensor x pipeline x data <= 8.
std::vector<ParityLayout> shapes_of(ParityModel model) {
  std::vector<ParityLayout> shapes;
  for (int tensor = 1; tensor <= 8; ++tensor)
    for (int pipeline = 1; tensor * pipeline <= 8; ++pipeline)
      for (int data = 1; tensor * pipeline * data <= 8; ++data) {
        ParityLayout layout;
        layout.tensor = tensor;
        layout.pipeline = pipeline;
        layout.data = data;
        if (is_legal(model, layout)) shapes.push_back(layout);
      }
  return shapes;
}

ParityLayout shape(int tensor, int pipeline, int data) {
  ParityLayout layout;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.data = data;
  return layout;
}

/// Takes step `step` and, if `expected` is given, compares this rank's part of it.
void take_step(Trainer& trainer, int step, const Step* expected, Step* record = nullptr) {
  const RecordingDataset data;
  const StepResult result = trainer.step(data, step, 3e-3 / (1 + step % 2));
  const std::vector<int64_t> samples = data.take();
  TRIREME_CHECK(result.accepted, "step ", step, " was rejected: non-finite gradient of ", result.offender);
  if (record != nullptr) *record = {result.loss, result.grad_norm, samples};
  if (expected == nullptr) return;
  const auto near = [&](const char* what, double a, double b) {
    TRIREME_CHECK(std::abs(a - b) <= kTolerance * std::abs(a), what, " of step ", step, ": ", a, " expected, got ", b);
  };
  near("loss", expected->loss, result.loss);
  near("grad_norm", expected->grad_norm, result.grad_norm);
  const auto first = expected->samples.begin() + trainer.mesh().data->rank() * static_cast<std::ptrdiff_t>(samples.size());
  TRIREME_CHECK(samples.size() * static_cast<size_t>(trainer.mesh().data->size()) == expected->samples.size() &&
                    std::equal(samples.begin(), samples.end(), first),
                "step ", step, " reads different samples or in a different order");
}

/// The checkpoints of one model with their state, and the run's steps on one rank.
class Checkpoints {
 public:
  explicit Checkpoints(ParityModel model) : model_(model) {
    on_ranks(parity_config(model, {}, "fp64"), [&](Trainer& trainer) {
      trainer.initialise();
      for (int step = 0; step < kSaved + kFurther; ++step) take_step(trainer, step, nullptr, &steps_.emplace_back());
    });
  }

  /// Trains to the checkpoint under `layout` and saves it, on the first call.
  void make(const ParityLayout& layout) {
    Saved& saved = saved_[layout.str()];
    if (!saved.directory.empty()) return;
    saved.directory = files_.path / std::to_string(saved_.size());
    on_ranks(parity_config(model_, layout, "fp64"), [&](Trainer& trainer) {
      trainer.initialise();
      for (int step = 0; step < kSaved; ++step) take_step(trainer, step, &steps_[static_cast<size_t>(step)]);
      saved.state.add(trainer);
      save(trainer, saved.directory, kSaved);
    });
    if (saved.state.whole() != read_whole(saved.directory / checkpoint_name(kSaved)))
      throw InternalError(layout.str() + ": the checkpoint does not contain the saved state");
  }

  /// Loads each of `sources` under `layout`, one after the other into the same trainers: nothing of the previous one may remain.
  void load(const ParityLayout& layout, const std::vector<ParityLayout>& sources) {
    std::vector<GatheredState> loaded(sources.size());
    const fs::path again = files_.path / "again";
    const ParityLayout* at = nullptr;
    try {
      on_ranks(parity_config(model_, layout, "fp64"), [&](Trainer& trainer) {
        Communicator& world = trainer.mesh().world;
        for (size_t i = 0; i < sources.size(); ++i) {
          const Saved& saved = saved_.at(sources[i].str());
          world.barrier();
          if (world.rank() == 0) at = &sources[i];
          CheckpointReader reader(saved.directory / checkpoint_name(kSaved));
          load_state(trainer, reader);
          TRIREME_CHECK(trainer.scalars().accepted_steps() == kSaved, trainer.scalars().accepted_steps(), " accepted steps");
          loaded[i].add(trainer);
          save(trainer, again, kSaved);
          if (world.rank() == 0) {
            TRIREME_CHECK(loaded[i].whole() == saved.state.whole(), "the loaded state is not the saved one");
            TRIREME_CHECK(read_whole(again / checkpoint_name(kSaved)) == saved.state.whole(), "saving it again changes the state");
            fs::remove_all(again);
          }
          for (int64_t step = reader.description().step; step < kSaved + kFurther; ++step)
            take_step(trainer, static_cast<int>(step), &steps_[static_cast<size_t>(step)]);
        }
      });
    } catch (const std::exception& error) {
      throw InternalError(concat(name_of(model_), ": ", at == nullptr ? "?" : at->str(), " -> ", layout.str(), ": ", error.what()));
    }
  }

 private:
  struct Saved {
    fs::path directory;
    GatheredState state;
  };
  ParityModel model_;
  TemporaryDirectory files_;
  std::vector<Step> steps_;  ///< of one rank
  std::map<std::string, Saved> saved_;
};

struct Pair {
  ParityLayout from, to;
};

/// Saves and loads all pairs; returns their number.
size_t check_pairs(ParityModel model, const std::vector<Pair>& pairs) {
  Checkpoints checkpoints(model);
  std::map<std::string, std::pair<ParityLayout, std::vector<ParityLayout>>> sources;
  for (const Pair& pair : pairs) {
    checkpoints.make(pair.from);
    auto& [to, from] = sources[pair.to.str()];
    to = pair.to;
    from.push_back(pair.from);
  }
  for (const auto& [name, loads] : sources) checkpoints.load(loads.first, loads.second);
  return pairs.size();
}

/// Checks that all legal values of all options occur on both sides.
void check_spread(const std::vector<Pair>& pairs) {
  for (const ParityLayout Pair::*side : {&Pair::from, &Pair::to}) {
    std::set<std::pair<std::string, int64_t>> seen;
    for (const Pair& pair : pairs) {
      const ParityLayout& layout = pair.*side;
      seen.insert({"zero", layout.zero});
      seen.insert({"replicate", layout.replicate});
      seen.insert({"sequence parallel", layout.sequence_parallel});
      seen.insert({"layers per stage", !layout.layers_per_stage.empty()});
      const std::vector<int64_t>& split = layout.layers_per_stage;
      seen.insert({"empty first stage", !split.empty() && split.front() == 0});
      seen.insert({"empty last stage", !split.empty() && split.back() == 0});
      seen.insert({"bucket", layout.bucket_blocks});
      if (layout.pipeline > 1) seen.insert({name_of(layout.schedule), layout.stages_per_rank()});
    }
    for (const Order& order : kOrders) {
      INFO(name_of(order.schedule));
      CHECK(seen.contains({name_of(order.schedule), order.virtual_stages}));
    }
    for (const auto& value : {std::pair<std::string, int64_t>{"zero", 0},
                              {"zero", 1},
                              {"zero", 2},
                              {"zero", 3},
                              {"replicate", 1},
                              {"replicate", 2},
                              {"sequence parallel", 0},
                              {"sequence parallel", 1},
                              {"bucket", 1},
                              {"bucket", 2},
                              {"empty first stage", 0},
                              {"empty first stage", 1},
                              {"empty last stage", 0},
                              {"empty last stage", 1},
                              {"layers per stage", 0},
                              {"layers per stage", 1}}) {
      INFO(value.first << " " << value.second);
      CHECK(seen.contains(value));
    }
  }
}

}  // namespace

TEST_CASE("a checkpoint of any layout loads in any other, bit for bit, and the run continues as on one rank: selected layouts") {
  // [tensor, pipeline, data, variant] of both sides.
  using Place = std::array<int, 4>;
  const std::map<ParityModel, std::vector<std::pair<Place, Place>>> spread = {
      {ParityModel::kLlamaGrouped,
       {{{1, 1, 1, 0}, {4, 1, 2, 0}},
        {{4, 1, 2, 0}, {1, 1, 1, 0}},
        {{4, 2, 1, 1}, {2, 2, 2, 0}},
        {{1, 2, 4, 1}, {4, 2, 1, 1}},
        {{1, 1, 3, 2}, {4, 1, 2, 0}},
        {{4, 1, 2, 0}, {1, 1, 3, 2}},
        {{6, 1, 1, 0}, {1, 1, 3, 2}},
        {{1, 5, 1, 3}, {4, 1, 2, 0}}}},
      {ParityModel::kLlama,
       {{{1, 1, 1, 0}, {2, 2, 2, 1}},
        {{2, 2, 2, 1}, {1, 1, 1, 0}},
        {{3, 1, 2, 3}, {1, 4, 2, 2}},
        {{1, 4, 2, 2}, {2, 2, 2, 1}},
        {{1, 3, 2, 1}, {3, 1, 2, 3}},
        {{1, 1, 6, 1}, {1, 4, 2, 2}},
        {{2, 2, 2, 1}, {1, 1, 6, 1}},
        {{2, 2, 2, 3}, {2, 2, 2, 1}}}},
      {ParityModel::kGpt2,
       {{{1, 1, 1, 1}, {2, 4, 1, 2}},
        {{2, 4, 1, 2}, {1, 1, 1, 1}},
        {{2, 4, 1, 2}, {1, 1, 4, 3}},
        {{1, 1, 4, 3}, {3, 2, 1, 0}},
        {{3, 2, 1, 0}, {2, 4, 1, 2}},
        {{2, 1, 4, 2}, {1, 1, 4, 3}}}},
      {ParityModel::kGpt2Dropout, {{{1, 1, 3, 1}, {2, 2, 2, 2}}, {{2, 2, 2, 2}, {1, 5, 1, 0}}, {{1, 5, 1, 0}, {2, 2, 2, 2}}}},
  };
  std::vector<Pair> all;
  for (const auto& [model, places] : spread) {
    std::vector<Pair> pairs;
    for (const auto& [from, to] : places) {
      const auto layout = [&, m = model](const Place& p) { return with_variant(shape(p[0], p[1], p[2]), m, p[3]); };
      pairs.push_back({layout(from), layout(to)});
    }
    CHECK_NOTHROW(check_pairs(model, pairs));
    all.insert(all.end(), pairs.begin(), pairs.end());
  }
  CHECK(all.size() == 25);
  check_spread(all);
}

TEST_CASE("a checkpoint of every layout of up to eight ranks loads in every other, bit for bit, and the run continues as on one rank", "[slow]") {
  size_t count = 0;
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGpt2Dropout}) {
    const std::vector<ParityLayout> shapes = shapes_of(model);
    std::vector<Pair> pairs;
    for (size_t a = 0; a < shapes.size(); ++a)
      for (size_t b = 0; b < shapes.size(); ++b) {
        // Each shape is saved and loaded in each of its variants; the pairing rotates.
        const auto variant = [&](size_t shape, size_t turn) { return with_variant(shapes[shape], model, static_cast<int>(turn % kVariants)); };
        pairs.push_back({variant(a, a + b), variant(b, a + 2 * b + a / kVariants)});
      }
    check_spread(pairs);
    CHECK_NOTHROW(count += check_pairs(model, pairs));
  }
  WARN(count << " pairs");
}

TEST_CASE("fp32 and bf16 checkpoints stay bit-identical from layout to layout") {
  for (const std::string precision : {"fp32", "bf16"}) {
    const ParityModel model = ParityModel::kLlamaGrouped;
    const TemporaryDirectory directory;
    std::vector<GatheredState> states(4);
    int64_t turn = 0;
    for (const ParityLayout& layout : {with_variant(shape(1, 1, 3), model, 1), with_variant(shape(4, 1, 2), model, 2),
                                       with_variant(shape(2, 2, 2), model, 3), with_variant(shape(1, 1, 1), model, 0)}) {
      INFO(precision << " " << layout.str());
      on_ranks(parity_config(model, layout, precision), [&](Trainer& trainer) {
        if (turn == 0) {
          trainer.initialise();
          for (int step = 0; step < kSaved; ++step) trainer.step(RecordingDataset(), step, 3e-3);
        } else {
          CheckpointReader reader(directory.path / checkpoint_name(kSaved + turn));
          load_state(trainer, reader);
        }
        states[static_cast<size_t>(turn)].add(trainer);
        save(trainer, directory.path, kSaved + turn + 1);
      });
      CHECK(states[static_cast<size_t>(turn)].whole() == states[0].whole());
      ++turn;
    }
    CHECK(read_whole(directory.path / checkpoint_name(kSaved + turn)) == states[0].whole());
  }
}

}  // namespace trireme::test
