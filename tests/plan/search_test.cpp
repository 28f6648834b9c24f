// Layout search: it covers all legal layouts, pruning does not change the result, proposals load and run, and the advice is correct if nothing fits.
#include <cstdio>
#include <ctime>
#include <numeric>
#include <random>
#include <set>
#include <tuple>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/layout.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/proposal.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/plan/search.h"

namespace trireme {
namespace {

using Catch::Matchers::Contains;

Config small_model(int64_t layers = 6) {
  Config c;
  c.model.layers = layers;
  c.model.hidden_size = 512;
  c.model.heads = 8;
  c.model.kv_heads = 2;
  c.model.vocab_size = 32000;
  c.training.steps = 10;
  c.training.sequence_length = 512;
  c.training.global_batch_size = 16;
  c.training.precision = Arithmetic::kBf16;
  c.data.train = {"tokens"};
  return c;
}

Config llama_405b() {
  Config c;
  c.model.layers = 126;
  c.model.hidden_size = 16384;
  c.model.heads = 128;
  c.model.kv_heads = 8;
  c.model.ffn_size = 53248;
  c.model.vocab_size = 128256;
  c.model.tied_embeddings = false;
  c.training.steps = 10;
  c.training.sequence_length = 8192;
  c.training.global_batch_size = 2048;
  c.training.precision = Arithmetic::kBf16;
  c.data.train = {"tokens"};
  return c;
}

ClusterConfig h100(int64_t nodes, int64_t devices_per_node = 8) {
  ClusterConfig c;
  c.nodes = nodes;
  c.devices_per_node = devices_per_node;
  return resolve_cluster(c);
}

/// Reference: tries every combination of the keys that make up a layout, and keeps those that the configuration's rules accept.
std::set<std::string> layouts_by_trying(const Config& config, const ClusterConfig& cluster) {
  std::set<std::string> names;
  const int64_t world = cluster.devices(), batch = config.training.global_batch_size;
  Layout s;
  const auto try_it = [&] {
    Config c = config;
    c.parallel = s.parallel();
    c.training.micro_batch_size = s.micro_batch;
    c.training.recompute = *s.recompute;
    try {
      resolve(c, world);
      names.insert(s.str());
    } catch (const ConfigError&) {
    }
  };
  const auto schedules = [&] {
    for (const ScheduleKind kind : kScheduleKinds) {
      s.schedule = kind;
      s.virtual_stages.reset();
      if (s.pipeline == 1 && kind != ScheduleKind::k1F1B) continue;
      if (kind != ScheduleKind::kInterleaved1F1B) try_it();
      for (int64_t v = 2; kind == ScheduleKind::kInterleaved1F1B && v <= config.model.layers; ++v) s.virtual_stages = v, try_it();
    }
  };
  for (s.tensor = 1; s.tensor <= cluster.devices_per_node; ++s.tensor)
    for (s.pipeline = 1; s.pipeline <= world; ++s.pipeline)
      for (s.data = 1; s.data <= world; ++s.data) {
        if (s.world() != world || cluster.devices_per_node % s.tensor != 0) continue;
        for (s.zero = 0; s.zero <= 3; ++s.zero)
          for (s.replicate = 1; s.replicate <= (s.zero == 0 ? 1 : s.data - 1); ++s.replicate)
            for (s.micro_batch = 1; s.micro_batch <= batch; ++s.micro_batch)
              for (const bool sp : {false, true})
                for (const RecomputeMode recompute : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull}) {
                  s.recompute = recompute;
                  s.sequence_parallel = sp;
                  if (batch % (s.micro_batch * s.data) == 0 && !(sp && s.tensor == 1)) schedules();
                }
      }
  return names;
}

std::vector<Layout> all_layouts(const LayoutSpace& space) {
  std::vector<Layout> out;
  for (const auto& [tensor, pipeline, data] : space.degrees()) {
    const auto pipelinings = space.pipelinings(pipeline);
    const auto shardings = space.shardings(data);
    for (const int64_t micro_batch : space.micro_batches(data))
      for (const bool sp : space.sequence_parallel(tensor, micro_batch))
        for (const auto& [schedule, stages] : pipelinings)
          for (const auto& [zero, replicate] : shardings)
            for (const RecomputeMode recompute : kRecomputes)
              out.push_back({.tensor = tensor,
                             .pipeline = pipeline,
                             .data = data,
                             .zero = zero,
                             .replicate = replicate,
                             .micro_batch = micro_batch,
                             .sequence_parallel = sp,
                             .schedule = schedule,
                             .virtual_stages = stages,
                             .recompute = recompute});
  }
  return out;
}

Config with_even_layers(const LayoutSpace& space, const Layout& layout) {
  const std::vector<int> rank_of = stage_ranks_of(layout);
  return space.config(layout, balance_equal_layers(space.base().model.layers, 1, 0, 0, rank_of, true));
}

/// Device memory with which this share of all layouts fits.
double memory_for(double share, const Config& config, const ClusterConfig& cluster) {
  const LayoutSpace space(config, cluster);
  std::vector<double> peaks;
  for (const Layout& layout : all_layouts(space)) {
    double peak = 0;
    for (const RankBytes& rank : formula_memory(with_even_layers(space, layout), cluster)) peak = std::max(peak, rank.peak);
    peaks.push_back(peak);
  }
  std::sort(peaks.begin(), peaks.end());
  return peaks[static_cast<size_t>(share * static_cast<double>(peaks.size() - 1))];
}

}  // namespace

TEST_CASE("a search considers exactly the layouts that the rules allow") {
  const ClusterConfig cluster = h100(2, 3);
  Config config = small_model(4);
  config.model.heads = 6;
  config.model.kv_heads = 6;
  config.model.head_size = 64;
  config.model.ffn_size = 1536;
  config.training.global_batch_size = 6;
  std::set<std::string> names;
  for (const Layout& layout : all_layouts(LayoutSpace(config, cluster))) REQUIRE(names.insert(name_of(layout)).second);
  const std::set<std::string> tried = layouts_by_trying(config, cluster);
  REQUIRE(tried.size() > 400);
  REQUIRE(names == tried);
  REQUIRE(search_layouts(config, cluster).legal == static_cast<int64_t>(tried.size()));
}

TEST_CASE("every layout of a search is a resolved configuration that verify can name") {
  for (const auto& [config, nodes] : {std::pair(llama_405b(), 2048), std::pair(small_model(), 2)}) {
    const ClusterConfig cluster = h100(nodes);
    const LayoutSpace space(config, cluster);
    const std::vector<Layout> all = all_layouts(space);
    std::mt19937 random(7);
    for (int i = 0; i < 100; ++i) {
      const Layout& layout = all[std::uniform_int_distribution<size_t>(0, all.size() - 1)(random)];
      INFO(name_of(layout));
      const Config drawn = with_even_layers(space, layout);
      REQUIRE(resolve(drawn, cluster.devices()) == drawn);
      const Layout spec = parse_layout(name_of(layout));
      REQUIRE(spec.str() == name_of(layout));
      REQUIRE(name_of(layout_of(drawn)) == name_of(layout));
      REQUIRE(spec.world() == cluster.devices());
      REQUIRE(spec.micro_batch == drawn.training.micro_batch_size);
    }
  }
}

TEST_CASE("a search keeps the encoding of parameters in layouts that gather them") {
  Config config = small_model();
  config.parallel.zero_stage = 1;
  config.parallel.data = 2;
  config.training.compression.parameters = ParameterEncoding::kInt8;
  const LayoutSpace space(config, h100(1));
  int64_t sharded = 0;
  for (const Layout& layout : all_layouts(space)) {
    const bool gathers = layout.zero > 0;
    sharded += gathers ? 1 : 0;
    REQUIRE((space.config(layout, {}).training.compression.parameters == ParameterEncoding::kInt8) == gathers);
  }
  CHECK(sharded > 0);
}

TEST_CASE("stage ranks of a search equal those of the schedules") {
  for (const ScheduleKind kind : kScheduleKinds)
    for (const int pipeline : {2, 3, 5}) {
      const int stages = kind == ScheduleKind::kInterleaved1F1B ? 3 : default_virtual_stages(kind);
      REQUIRE(stage_ranks_of(kind, pipeline, stages) == stage_ranks(make_schedule(kind, pipeline, stages, 7)));
    }
}

TEST_CASE("equal layers are split as by balance_layers, and evenly over ranks") {
  std::mt19937 random(3);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  for (int i = 0; i < 200; ++i) {
    const int stages = draw(1, 7), layers = draw(stages, 20);
    const double first = draw(0, 3), last = draw(0, 9);  // in units of layers, hence without rounding
    std::vector<int> rank_of(static_cast<size_t>(stages));
    std::iota(rank_of.begin(), rank_of.end(), 0);
    CAPTURE(stages, layers, first, last);
    REQUIRE(balance_equal_layers(layers, 1, first, last, rank_of, true) ==
            balance_layers(std::vector<double>(static_cast<size_t>(layers), 1), first, last, stages, true));
  }
  const std::vector<int> v = stage_ranks_of(ScheduleKind::kZbV, 3, 2);
  const std::vector<int64_t> split = balance_equal_layers(9, 1, 0, 0, v, true);
  for (size_t r = 0; r < 3; ++r) REQUIRE(split[r] + split[5 - r] == 3);
}

TEST_CASE("equal layers on ranks with several stages are split as if they came one by one") {
  std::mt19937 random(1609);
  const auto draw = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int i = 0; i < 2000; ++i) {
    const bool v = draw(0, 3) == 0;
    const int64_t pipeline = draw(1, 5), virtual_stages = v ? 2 : draw(1, 6), stages = pipeline * virtual_stages, layers = stages + draw(0, 30);
    const std::vector<int> rank_of = stage_ranks_of(v ? ScheduleKind::kZbV : ScheduleKind::kInterleaved1F1B, pipeline, virtual_stages);
    const int64_t layer = draw(1, 4), first = draw(0, 9), last = draw(0, 20);  // whole numbers, hence without rounding
    const bool empty_ends = stages > 1 && draw(0, 1) == 1;
    std::vector<int64_t> split(static_cast<size_t>(stages), 1);
    if (empty_ends) split.front() = split.back() = 0;
    const auto cost = [&](size_t s) { return split[s] * layer + (s == 0 ? first : 0) + (s + 1 == split.size() ? last : 0); };
    while (std::accumulate(split.begin(), split.end(), int64_t{0}) < layers) {
      std::vector<int64_t> load(static_cast<size_t>(pipeline));
      for (size_t s = 0; s < split.size(); ++s) load[static_cast<size_t>(rank_of[s])] += cost(s);
      size_t least = 0;
      const auto order = [&](size_t s) { return std::tuple(cost(s), load[static_cast<size_t>(rank_of[s])], -static_cast<int64_t>(s)); };
      for (size_t s = 1; s < split.size(); ++s)
        if (order(s) < order(least)) least = s;
      ++split[least];
    }
    CAPTURE(v, pipeline, virtual_stages, layers, layer, first, last, empty_ends);
    REQUIRE(balance_equal_layers(layers, static_cast<double>(layer), static_cast<double>(first), static_cast<double>(last), rank_of, empty_ends) ==
            split);
  }
}

TEST_CASE("pruning changes nothing in the ranking") {
  struct Case {
    int64_t nodes, devices, layers, batch;
    double fitting;
    std::vector<int64_t> window_layers = {};
  };
  int64_t tried = 0, all = 0;
  for (const Case& k :
       {Case{1, 8, 6, 16, 1}, Case{2, 4, 6, 16, 0.5}, Case{4, 2, 4, 24, 0.3}, Case{2, 4, 5, 16, 0.1}, Case{2, 4, 6, 16, 0.5, {0, 1, 2}}}) {
    ClusterConfig cluster = h100(k.nodes, k.devices);
    Config config = small_model(k.layers);
    config.training.global_batch_size = k.batch;
    if (!k.window_layers.empty()) {
      config.training.sequence_length = 8192;
      config.model.max_positions = 8192;
      config.model.window = 64;
      config.model.window_layers = k.window_layers;
    }
    cluster.device.memory = memory_for(k.fitting, config, cluster);
    const SearchResult pruned = search_layouts(config, cluster, {}, {.keep = 15});
    const SearchResult whole = search_layouts(config, cluster, {}, {.keep = 15, .prune = false});
    CAPTURE(k.nodes, k.devices, pruned.tried, whole.tried, whole.legal);
    REQUIRE(whole.tried == whole.legal);
    tried += pruned.tried;
    all += whole.tried;
    REQUIRE(pruned.layouts.size() >= 10);
    REQUIRE(pruned.layouts.size() == whole.layouts.size());
    for (size_t i = 0; i < whole.layouts.size(); ++i) {
      REQUIRE(pruned.layouts[i].layout == whole.layouts[i].layout);
      REQUIRE(pruned.layouts[i].forecast.step_seconds == whole.layouts[i].forecast.step_seconds);
      REQUIRE(pruned.layouts[i].config == whole.layouts[i].config);
    }
    REQUIRE(pruned.too_large.size() == whole.too_large.size());
    for (size_t i = 0; i < whole.too_large.size(); ++i) REQUIRE(pruned.too_large[i].layout == whole.too_large[i].layout);
  }
  REQUIRE(tried < all * 2 / 3);
}

TEST_CASE("pruning changes nothing in the layouts that are closest to fitting") {
  int64_t tried = 0, all = 0;
  for (const int64_t layers : {3, 4, 8})
    for (const int64_t batch : {6, 8, 24})
      for (const auto& [nodes, devices] : {std::pair(1, 4), std::pair(2, 3), std::pair(1, 8)}) {
        ClusterConfig cluster = h100(nodes, devices);
        cluster.device.memory = 1e6;
        Config config = small_model(layers);
        config.training.global_batch_size = batch;
        const SearchResult pruned = search_layouts(config, cluster, {}, {.advise = false}),
                           whole = search_layouts(config, cluster, {}, {.prune = false, .advise = false});
        CAPTURE(layers, batch, nodes, devices);
        REQUIRE(whole.layouts.empty());
        REQUIRE(pruned.layouts.empty());
        REQUIRE(!whole.too_large.empty());
        REQUIRE(pruned.too_large.size() == whole.too_large.size());
        for (size_t i = 0; i < whole.too_large.size(); ++i) CHECK(pruned.too_large[i].layout == whole.too_large[i].layout);
        tried += pruned.tried;
        all += whole.tried;
      }
  CHECK(tried < all * 9 / 10);
}

TEST_CASE("pruning changes nothing for other systems, on CPUs, and with unequal numbers of micro-batches") {
  struct Case {
    const char* stack;
    bool cpu, elastic;
    int64_t batch;
  };
  for (const Case& k : {Case{"torchtitan", false, false, 16}, Case{"llm-foundry", false, false, 24}, Case{"trireme", true, false, 16},
                        Case{"trireme", false, true, 23}, Case{"trireme", false, true, 15}}) {
    ClusterConfig cluster = h100(1, 8);
    if (k.cpu) {
      cluster = ClusterConfig{};
      cluster.device.type = "cpu";
      cluster.devices_per_node = 8;
      cluster.software.stack = "trireme";
      cluster = resolve_cluster(cluster);
    }
    cluster.software.stack = k.stack;
    Config config = small_model(16);
    config.training.global_batch_size = k.batch;
    if (k.elastic) config.resilience.elastic = Elastic::kReplicas;
    for (const double fitting : {0.02, 0.2, 0.6}) {
      cluster.device.memory = memory_for(fitting, config, cluster);
      const SearchResult pruned = search_layouts(config, cluster, {}, {.keep = 10, .advise = false}),
                         whole = search_layouts(config, cluster, {}, {.keep = 10, .prune = false, .advise = false});
      CAPTURE(k.stack, k.cpu, k.elastic, k.batch, fitting, *cluster.device.memory);
      REQUIRE(!whole.layouts.empty());
      REQUIRE(pruned.layouts.size() == whole.layouts.size());
      for (size_t i = 0; i < whole.layouts.size(); ++i) CHECK(pruned.layouts[i].layout == whole.layouts[i].layout);
      REQUIRE(pruned.too_large.size() == whole.too_large.size());
      for (size_t i = 0; i < whole.too_large.size(); ++i) CHECK(pruned.too_large[i].layout == whole.too_large[i].layout);
    }
  }
}

TEST_CASE("a search over 500 layers forecasts few of its layouts") {
  struct Case {
    int64_t hidden, batch;
    bool fits;
  };
  for (const Case& k : {Case{1024, 64, true}, Case{2048, 128, true}, Case{4096, 512, false}}) {
    Config config = small_model(500);
    config.model.hidden_size = k.hidden;
    config.model.heads = 16;
    config.model.kv_heads = 16;
    config.training.sequence_length = 2048;
    config.training.global_batch_size = k.batch;
    const SearchResult result = search_layouts(config, h100(1), {}, {.threads = 1, .advise = false});
    CAPTURE(k.hidden, k.batch, result.legal, result.tried);
    CHECK(!result.layouts.empty() == k.fits);
    CHECK(result.legal > 90000);
    CHECK(20 * result.tried < result.legal);
  }
}

TEST_CASE("a search on several threads has the result of a search on one") {
  ClusterConfig cluster = h100(2, 4);
  for (const double share : {1.0, 0.3}) {
    const Config config = small_model();
    cluster.device.memory = memory_for(share, config, cluster);
    const SearchResult one = search_layouts(config, cluster, {}, {.threads = 1}), many = search_layouts(config, cluster, {}, {.threads = 5});
    CHECK(one.tried == many.tried);
    CHECK(one.legal == many.legal);
    REQUIRE(one.layouts.size() == many.layouts.size());
    for (size_t i = 0; i < one.layouts.size(); ++i) {
      CHECK(one.layouts[i].config == many.layouts[i].config);
      CHECK(one.layouts[i].forecast.step_seconds == many.layouts[i].forecast.step_seconds);
      CHECK(largest_peak(one.layouts[i].forecast.memory) == largest_peak(many.layouts[i].forecast.memory));
    }
    REQUIRE(one.too_large.size() == many.too_large.size());
    for (size_t i = 0; i < one.too_large.size(); ++i) CHECK(one.too_large[i].layout == many.too_large[i].layout);
  }
}

TEST_CASE("layers with different costs are split by cost") {
  const ClusterConfig cluster = h100(1, 2);
  Config config = small_model(6);
  config.training.sequence_length = 32768;
  config.model.max_positions = 32768;
  config.model.window = 64;
  config.model.window_layers = {0, 1, 2, 3};
  const SearchResult result = search_layouts(config, cluster, {}, {.keep = 4000, .prune = false});
  int pipelines = 0;
  for (const RankedLayout& layout : result.layouts) {
    if (layout.config.parallel.pipeline != 2 || *layout.config.parallel.virtual_stages != 1 || microbatches_of(layout.config) == 1) continue;
    CAPTURE(layout.layout);
    const std::vector<int64_t>& split = *layout.config.parallel.layers_per_stage;
    CHECK(split.front() > split.back());
    Config even = layout.config;
    even.parallel.layers_per_stage = {3, 3};
    CHECK(layout.forecast.step_seconds <= forecast_time(even, cluster).step_seconds);
    ++pipelines;
  }
  CHECK(pipelines > 0);
}

TEST_CASE("the ranking equals that of forecasting each layout separately") {
  ClusterConfig cluster = h100(2, 4);
  const Config config = small_model();
  cluster.device.memory = memory_for(0.6, config, cluster);
  const SearchResult result = search_layouts(config, cluster, {}, {.keep = 30});
  REQUIRE(result.layouts.size() >= 20);
  for (size_t i = 0; i < result.layouts.size(); ++i) {
    const RankedLayout& layout = result.layouts[i];
    INFO(layout.layout);
    REQUIRE(layout.config == resolve(layout.config, cluster.devices()));
    const Forecast alone = forecast_time(layout.config, cluster);
    REQUIRE(layout.forecast.step_seconds == Approx(alone.step_seconds).epsilon(1e-12));
    REQUIRE(layout.forecast.fits);
    if (i > 0) REQUIRE(ranking_seconds(result.layouts[i - 1].forecast) <= ranking_seconds(layout.forecast) * (1 + 1e-12));
    REQUIRE(layout.reason.empty() == (i == 0));
  }
  // No layout with an even split is faster than the best by more than uneven layers could gain.
  const LayoutSpace space(config, cluster);
  std::vector<Layout> all = all_layouts(space);
  std::mt19937 random(5);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(400);
  for (const Layout& layout : all) {
    const Config even = with_even_layers(space, layout);
    double peak = 0;
    for (const RankBytes& rank : formula_memory(even, cluster)) peak = std::max(peak, rank.peak);
    if (peak <= *cluster.device.memory) REQUIRE(forecast_time(even, cluster).step_seconds > 0.98 * result.layouts[0].forecast.step_seconds);
  }
}

TEST_CASE("a model that barely fits is found, and is not found with less memory") {
  ClusterConfig cluster = h100(1, 4);
  const Config config = small_model(4);
  const double least = memory_for(0, config, cluster);
  cluster.device.memory = least * 1.02;
  const SearchResult tight = search_layouts(config, cluster);
  REQUIRE(!tight.layouts.empty());
  REQUIRE(!tight.too_large.empty());
  REQUIRE(tight.advice.empty());
  for (const RankedLayout& layout : tight.too_large) REQUIRE_THAT(layout.reason, Contains("does not fit: pipeline rank"));
  cluster.device.memory = least * 0.9;
  REQUIRE(search_layouts(config, cluster).layouts.empty());
}

TEST_CASE("layer balance accounts for embedding and head") {
  ClusterConfig cluster = h100(1, 4);
  Config config = small_model(12);
  config.model.vocab_size = 256000;  // the head takes longer than several layers
  const SearchResult result = search_layouts(config, cluster, {}, {.keep = 4000});
  int uneven = 0, waiting = 0, faster = 0;
  for (const RankedLayout& layout : result.layouts) {
    const std::vector<int64_t>& split = *layout.config.parallel.layers_per_stage;
    if (layout.config.parallel.pipeline != 4 || *layout.config.parallel.virtual_stages != 1) continue;
    INFO(layout.layout);
    REQUIRE(std::accumulate(split.begin(), split.end(), int64_t{0}) == 12);
    const bool waits = microbatches_of(layout.config) > 1;
    REQUIRE(split.back() == (waits ? 0 : 1));
    // Faster than with a layer in each stage, as `auto` of the configuration has.
    Config with_layer = layout.config;
    with_layer.parallel.layers_per_stage = {4, 4, 3, 1};
    const double with_layer_seconds = forecast_time(with_layer, cluster).step_seconds;
    REQUIRE(layout.forecast.step_seconds <= with_layer_seconds * (1 + 1e-9));
    faster += waits && layout.forecast.step_seconds < with_layer_seconds;
    waiting += waits;
    REQUIRE(resolve(layout.written, cluster.devices()).parallel.layers_per_stage == split);
    ++uneven;
  }
  REQUIRE(uneven > 0);
  REQUIRE(waiting > 0);
  REQUIRE(faster == waiting);
}

TEST_CASE("a search leaves no stage without layers where a layer costs nothing there") {
  const SearchResult result = search_layouts(small_model(12), h100(1, 4), {}, {.keep = 4000});
  for (const RankedLayout& layout : result.layouts) {
    INFO(layout.layout);
    REQUIRE(layout.config.parallel.layers_per_stage->front() > 0);
  }
}

TEST_CASE("a search for 16,384 devices takes seconds") {
  const ClusterConfig cluster = h100(2048);
  const std::clock_t begin = std::clock();  // CPU time of this process, independent of other load
  const SearchResult result = search_layouts(llama_405b(), cluster);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::printf("16,384 devices: %.2f s, %ld legal, %ld forecast; best %s, step %.2f s\n", seconds, static_cast<long>(result.legal),
              static_cast<long>(result.tried), result.layouts.at(0).layout.c_str(), result.layouts[0].forecast.step_seconds);
  REQUIRE(result.legal > 10000);
  REQUIRE(result.layouts[0].config.parallel.tensor * result.layouts[0].config.parallel.pipeline >= 8);
  REQUIRE(seconds < 20);  // documented: 5 s
}

TEST_CASE("a search ranks tight layouts behind roomy ones that are nearly as fast") {
  Config c = small_model(16);
  c.model.hidden_size = 2048;
  c.training.sequence_length = 2048;
  c.training.global_batch_size = 128;
  c.plan.memory_margin = 0;
  ClusterConfig cluster = h100(1);
  const RankedLayout fastest = search_layouts(c, cluster).layouts.front();
  const double peak = largest_peak(fastest.forecast.memory);
  cluster.device.memory = peak / 0.95;  // the fastest layout leaves 5 % free
  const SearchResult plain = search_layouts(c, cluster);
  CHECK(plain.layouts.front().layout == fastest.layout);
  CHECK_FALSE(plain.layouts.front().forecast.tight);
  c.plan.memory_margin = 0.08;
  const SearchResult careful = search_layouts(c, cluster, {}, {.keep = 100});
  const RankedLayout& first = careful.layouts.front();
  CAPTURE(fastest.layout, first.layout, first.forecast.step_seconds / fastest.forecast.step_seconds);
  CHECK_FALSE(first.forecast.tight);
  CHECK(first.forecast.step_seconds <= 1.02 * fastest.forecast.step_seconds);
  const auto found = std::ranges::find(careful.layouts, fastest.layout, &RankedLayout::layout);
  REQUIRE(found != careful.layouts.end());
  CHECK(found->forecast.tight);
  CHECK(found->reason.find("tight: needs") != std::string::npos);
  for (size_t i = 0; i + 1 < careful.layouts.size(); ++i)
    CHECK(ranking_seconds(careful.layouts[i].forecast) <= ranking_seconds(careful.layouts[i + 1].forecast) * (1 + 1e-12));
}

TEST_CASE("a layout that is tight only by its counted memory does not stay first before a roomy one that is nearly as fast") {
  int tight = 0, behind = 0;
  for (const int64_t layers : {4, 6, 8, 12, 16})
    for (const int64_t batch : {16, 64}) {
      Config c = small_model(layers);
      c.training.global_batch_size = batch;
      ClusterConfig cluster = h100(1);
      const RankedLayout fastest = search_layouts(c, cluster, {}, {.advise = false}).layouts.front();
      const double by_formula = largest_peak(formula_memory(fastest.config, cluster)), by_count = largest_peak(fastest.forecast.memory);
      if (by_count <= by_formula) continue;
      ++tight;
      cluster.device.memory = (by_formula + by_count) / 2 / (1 - c.plan.memory_margin);
      const SearchResult result = search_layouts(c, cluster, {}, {.keep = 100, .advise = false});
      const RankedLayout& first = result.layouts.front();
      CAPTURE(layers, batch, fastest.layout, first.layout, first.forecast.step_seconds / fastest.forecast.step_seconds);
      CHECK(largest_peak(first.forecast.memory) == largest_peak(memory_of(first.config, cluster)));
      for (size_t i = 0; i + 1 < result.layouts.size(); ++i)
        CHECK(ranking_seconds(result.layouts[i].forecast) <= ranking_seconds(result.layouts[i + 1].forecast) * (1 + 1e-12));
      behind += first.layout != fastest.layout ? 1 : 0;
    }
  CAPTURE(tight, behind);
  CHECK(behind >= 1);
}

TEST_CASE("if nothing fits, the advice makes the model fit") {
  const ClusterConfig cluster = h100(1);
  Config config = llama_405b();
  config.training.global_batch_size = 512;
  config.training.sequence_length = 4096;
  const SearchResult result = search_layouts(config, cluster);
  REQUIRE(result.layouts.empty());
  REQUIRE(!result.too_large.empty());
  REQUIRE_THAT(result.too_large[0].reason, Contains("does not fit"));
  REQUIRE(!result.remedies.empty());
  for (const Remedy& remedy : result.remedies) {
    INFO(remedy.text);
    REQUIRE_THAT(result.advice, Contains(remedy.text));
    REQUIRE(!search_layouts(remedy.config, remedy.cluster).layouts.empty());
  }
  ClusterConfig one_less = result.remedies[0].cluster;
  REQUIRE(one_less.nodes > cluster.nodes + 1);
  --one_less.nodes;
  REQUIRE(search_layouts(config, one_less, {}, {.advise = false}).layouts.empty());
}

TEST_CASE("a layout of a search lacks the keys that have no effect with it") {
  Config config = small_model(6);
  config.parallel.zero_stage = 1;
  config.training.compression.parameters = ParameterEncoding::kInt8;
  const SearchResult result = search_layouts(config, h100(1, 4), {}, {.keep = 30, .advise = false});
  int whole = 0, sharded = 0;
  for (const RankedLayout& layout : result.layouts) {
    CAPTURE(layout.layout);
    const bool shards = layout.written.parallel.zero_stage > 0;
    (shards ? sharded : whole) += 1;
    CHECK((layout.written.training.compression.parameters == ParameterEncoding::kInt8) == shards);
    CHECK(resolve(layout.written) == layout.config);
  }
  CHECK(whole > 0);
  CHECK(sharded > 0);
}

TEST_CASE("a larger device is one that can compute the configuration") {
  // The built-in types with the least memory above 15 GB are A100s.
  ClusterConfig cluster = h100(1);
  cluster.software.stack = "torchtitan";
  Config config = small_model(16);
  config.model.hidden_size = 4096;
  config.model.heads = 32;
  config.model.kv_heads = 32;
  config.training.sequence_length = 4096;
  config.training.global_batch_size = 8;
  cluster.device.memory = 8e9;
  const auto device = [&] {
    for (const Remedy& remedy : find_remedies(config, cluster))
      if (remedy.cluster.device.type != cluster.device.type || *remedy.cluster.device.memory != *cluster.device.memory)
        return remedy.cluster.device.type;
    return std::string("none");
  };
  CHECK(device() == "A100-40GB");
  cluster.software.fp8 = "tensorwise";
  CHECK(device() == "H200");  // not the H100 that the cluster has, whose memory was set to less
}

TEST_CASE("the best layout has the memory of its own forecast, for any stack") {
  for (const char* stack : {"trireme", "megatron-2021"}) {
    ClusterConfig cluster = h100(1);
    cluster.software.stack = stack;
    const SearchResult result = search_layouts(small_model(), cluster);
    REQUIRE(!result.layouts.empty());
    const RankedLayout& best = result.layouts.front();
    CAPTURE(stack, best.layout);
    CHECK(largest_peak(best.forecast.memory) == largest_peak(forecast(best.config, cluster).memory));
  }
}

TEST_CASE("a batch that no layout can divide is reported") {
  Config config = small_model(2);
  config.training.global_batch_size = 7;
  config.model.heads = 8;
  const SearchResult result = search_layouts(config, h100(5, 3));
  REQUIRE(result.layouts.empty());
  REQUIRE(result.legal == 0);
  REQUIRE_THAT(result.advice, Contains("is legal"));
  for (const Remedy& remedy : result.remedies) REQUIRE(!search_layouts(remedy.config, remedy.cluster).layouts.empty());
}

TEST_CASE("a proposed configuration loads again with the same forecast") {
  const std::string text =
      "model: {layers: 6, hidden_size: 512, heads: 8, kv_heads: 2, vocab_size: 32000}\n"
      "parallel: {bucket_size: 1000000}\n"
      "training: {steps: 10, sequence_length: 512, global_batch_size: 16, precision: bf16}\n"
      "data: {train: [tokens]}\n";
  const Config given = parse_config(text, "given.yaml").config;
  ClusterConfig cluster = h100(2, 4);
  cluster.device.memory = memory_for(0.6, given, cluster);
  const SearchResult result = search_layouts(given, cluster);
  REQUIRE(result.layouts.size() >= 10);
  for (const RankedLayout& layout : result.layouts) {
    const std::string yaml = proposed_yaml(layout, cluster);
    INFO(yaml);
    const Config again = resolve(parse_config(yaml, "proposed.yaml"), cluster.devices());
    REQUIRE(again == layout.config);
    REQUIRE(forecast_time(again, cluster).step_seconds == Approx(layout.forecast.step_seconds).epsilon(1e-12));
    REQUIRE_THAT(yaml, Contains("bucket_size: 1000000") && Contains("# Forecast: a step of") && !Contains("dropout") && !Contains("seed"));
  }
}

TEST_CASE("a slower layout states the reason") {
  RankedLayout best{resolve(small_model()), {}, "", {}, ""};
  best.forecast.step_seconds = 10;
  best.forecast.parts = {.compute = 8, .bubble = 1, .tensor = 1};
  best.forecast.memory = {{.peak = 50e9}};
  RankedLayout other = best;
  other.config.parallel.pipeline = 4;
  other.config.parallel.layers_per_stage = {2, 2, 1, 1};
  other.forecast.step_seconds = 12;
  other.forecast.parts = {.compute = 7, .bubble = 4, .tensor = 1};
  REQUIRE(slowdown_reason(other, best) == "20.0 % slower: bubble 4.00 s against 1.00 s (16 micro-batches on 4 pipeline ranks, 1f1b)");
  other.forecast.parts = {.compute = 8, .bubble = 1, .tensor = 1, .reduce = 2};
  REQUIRE(slowdown_reason(other, best) == "20.0 % slower: gradient reduction 2.00 s against none (ZeRO-0 over 1 data rank)");
  other.forecast.tight = true;
  REQUIRE(slowdown_reason(other, best) == "20.0 % slower: gradient reduction 2.00 s against none (ZeRO-0 over 1 data rank), tight");
  other.forecast = best.forecast;
  other.forecast.memory = {{.peak = 60e9}};
  REQUIRE(slowdown_reason(other, best) == "equally fast; needs 60.0 GB, the best 50.0 GB");
  other.forecast.memory_limit = 55e9;
  REQUIRE(memory_reason(other.forecast) == "does not fit: pipeline rank 0 needs 60.0 GB, a device has 55.0 GB");
}

}  // namespace trireme
