// The lower bound of memory that prunes a search: no layout has less memory, and the bound is tight enough to prune.
#include "trainer/plan/memory/least_memory.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/catch.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/memory/trireme_memory.h"

namespace trireme {
namespace {

class RandomLayouts {
 public:
  int64_t whole(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(whole(0, std::ssize(values) - 1))];
  }

  Config config() {
    Config c;
    c.model.architecture = one_of<Architecture>({Architecture::kLlama, Architecture::kGpt2});
    c.model.tied_embeddings = whole(0, 1) == 1;
    c.model.layers = whole(8, 60);
    c.model.hidden_size = one_of<int64_t>({64, 256});
    c.model.heads = 8;
    c.model.vocab_size = one_of<int64_t>({256, 5003, 32000});
    c.training.steps = 1;
    c.training.sequence_length = one_of<int64_t>({16, 128});
    c.training.global_batch_size = one_of<int64_t>({72, 144});  // divided by any number of data ranks here
    c.training.precision = one_of<Arithmetic>({Arithmetic::kBf16, Arithmetic::kFp32});
    c.data.train = {"none"};
    if (whole(0, 3) == 0) {
      c.model.window = 8;
      c.model.window_layers = {0, 1, c.model.layers - 3};
    }
    return c;
  }

  Layout layout(const LayoutSpace& space) {
    const auto [tensor, pipeline, data] = one_of(space.degrees());
    const auto [schedule, stages] = one_of(space.pipelinings(pipeline));
    const auto [zero, replicate] = one_of(space.shardings(data));
    const int64_t micro_batch = one_of(space.micro_batches(data));
    const std::vector<bool> sequence_parallel = space.sequence_parallel(tensor, micro_batch);
    return {.tensor = tensor,
            .pipeline = pipeline,
            .data = data,
            .zero = zero,
            .replicate = replicate,
            .micro_batch = micro_batch,
            .sequence_parallel = sequence_parallel.back() && whole(0, 1) == 1,
            .schedule = schedule,
            .virtual_stages = stages,
            .recompute = kRecomputes[whole(0, 2)]};
  }

  /// Layers per stage, of which the first and the last stage may have none.
  std::vector<int64_t> split(int64_t layers, int64_t stages) {
    std::vector<int64_t> split(static_cast<size_t>(stages), 1);
    if (stages > 2 && whole(0, 1) == 1) split.front() = 0;
    if (stages > 2 && whole(0, 1) == 1) split.back() = 0;
    for (const int64_t blocks : std::vector<int64_t>(split)) layers -= blocks;
    for (; layers > 0; --layers) ++split[static_cast<size_t>(whole(0, stages - 1))];
    return split;
  }

 private:
  std::mt19937_64 random_{1600};
};

}  // namespace

TEST_CASE("no layout has less memory than its bound") {
  RandomLayouts random;
  std::map<ScheduleKind, double> nearest;
  for (int trial = 0; trial < 10; ++trial) {
    ClusterConfig cluster;
    cluster.nodes = random.whole(1, 3);
    cluster.devices_per_node = random.one_of<int64_t>({4, 6, 8});
    cluster = resolve_cluster(cluster);
    const Config given = random.config();
    const LayoutSpace space(given, cluster);
    PartProfiles profiles(space.base().model);
    for (int draw = 0; draw < 60; ++draw) {
      const Layout layout = random.layout(space);
      const std::vector<int64_t> split = random.split(space.base().model.layers, layout.stages());
      const Config config = space.config(layout, split);
      StepSchedule schedule = step_schedule(config);
      const LeastMemory memory(config, profiles);
      const double bound = memory.peak(layout, memory.ranks(layout, split)),
                   peak = largest_peak(trireme_memory(config, profiles, steady_lists(config, schedule)));
      CAPTURE(trial, draw, name_of(layout), split, config.model.architecture, config.model.tied_embeddings, config.training.precision, bound / peak);
      CHECK(bound <= peak);
      nearest[layout.schedule] = std::max(nearest[layout.schedule], bound / peak);
    }
  }
  for (const ScheduleKind kind : kScheduleKinds) {
    CAPTURE(name_of(kind), nearest[kind]);
    CHECK(nearest[kind] > 0.99);
  }
}

TEST_CASE("no layout has less memory than its bound if ranks have unequal numbers of micro-batches") {
  // Interleaved schedules have more micro-batches in flight with seven of them on four ranks than with eight.
  ClusterConfig cluster;
  cluster.devices_per_node = 8;
  cluster = resolve_cluster(cluster);
  double nearest = 0;
  for (int64_t batch = 13; batch <= 31; batch += 2) {
    Config given;
    given.model.layers = 16;
    given.model.hidden_size = 64;
    given.model.heads = 8;
    given.model.vocab_size = 256;
    given.training.steps = 1;
    given.training.sequence_length = 128;
    given.training.global_batch_size = batch;
    given.training.micro_batch_size = 1;
    given.resilience.elastic = Elastic::kReplicas;
    given.data.train = {"none"};
    const LayoutSpace space(given, cluster);
    PartProfiles profiles(space.base().model);
    for (const int64_t pipeline : {2, 4})
      for (const auto& [schedule, stages] : space.pipelinings(pipeline)) {
        const Layout layout{.pipeline = pipeline, .data = 8 / pipeline, .micro_batch = 1, .schedule = schedule, .virtual_stages = stages};
        const std::vector<int64_t> split = balance_equal_layers(16, 1, 0, 0, stage_ranks_of(layout), false);
        const Config config = space.config(layout, split);
        StepSchedule steps = step_schedule(config);
        const LeastMemory memory(config, profiles);
        const double bound = memory.peak(layout, memory.ranks(layout, split)),
                     peak = largest_peak(trireme_memory(config, profiles, steady_lists(config, steps)));
        CAPTURE(batch, name_of(layout), bound / peak);
        CHECK(bound <= peak);
        nearest = std::max(nearest, bound / peak);
      }
  }
  CHECK(nearest > 0.99);
}

}  // namespace trireme
