// The search as an adviser: why the best layout wins, better batches, numbers of nodes, odd requests.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/node_search.h"
#include "trainer/plan/place.h"
#include "trainer/plan/proposal.h"
#include "trainer/plan/report.h"
#include "trainer/plan/search.h"

namespace trireme {
namespace {

using Catch::Matchers::Contains;

Config model_of(int64_t layers, int64_t hidden, int64_t heads, int64_t batch) {
  Config c;
  c.model.layers = layers;
  c.model.hidden_size = hidden;
  c.model.heads = heads;
  c.model.vocab_size = 32000;
  c.training.steps = 10;
  c.training.sequence_length = 512;
  c.training.global_batch_size = batch;
  c.training.precision = Arithmetic::kBf16;
  c.data.train = {"tokens"};
  return c;
}

ClusterConfig gpus(int64_t nodes, int64_t devices_per_node) {
  ClusterConfig c;
  c.nodes = nodes;
  c.devices_per_node = devices_per_node;
  c.device.price_per_hour = 2;
  return resolve_cluster(c);
}

double rate_of(const SearchResult& found) { return found.layouts.at(0).forecast.tokens_per_second_per_device; }

}  // namespace

TEST_CASE("the reason of the best layout names the parts of the step that decide, from the forecasts") {
  SearchResult result;
  RankedLayout best, other;
  best.layout = "dp8z1", other.layout = "pp2dp4";
  best.forecast.step_seconds = 10, other.forecast.step_seconds = 11.5;
  best.forecast.parts = {.compute = 8, .bubble = 0, .gather = 1, .reduce = 1};
  other.forecast.parts = {.compute = 8.5, .bubble = 2, .gather = 0, .reduce = 1};
  best.forecast.memory = {{.peak = 70e9}}, other.forecast.memory = {{.peak = 40e9}};
  best.forecast.memory_limit = other.forecast.memory_limit = 80e9;
  other.config.parallel.pipeline = 2;
  result.layouts = {best, best, other};  // the second differs in nothing that decides
  CHECK(winning_reason(result) ==
        "dp8z1 takes 1.50 s less per step than pp2dp4, the next one with another tensor degree, pipeline degree or schedule: it saves 2.00 s of "
        "bubble and 0.50 s of compute but spends "
        "1.00 s more on parameter gathers. It needs 70.0 GB of a device's 80.0 GB, and the other one 40.0 GB.");
  result.layouts.pop_back();
  result.layouts[1].layout = "dp8z2";
  CHECK(winning_reason(result) == "dp8z1 is as fast as dp8z2, the next layout. It needs 70.0 GB of a device's 80.0 GB, and the other one 70.0 GB.");
  result.layouts.pop_back();
  CHECK(winning_reason(result).empty());
}

TEST_CASE("the reason of a best layout that is slower than a tight one says so") {
  SearchResult result;
  RankedLayout best, other;
  best.layout = "dp8z1", other.layout = "pp2dp4";
  best.forecast.step_seconds = 10, other.forecast.step_seconds = 9.85;
  best.forecast.parts = {.compute = 10}, other.forecast.parts = {.compute = 9.85};
  best.forecast.memory = {{.peak = 60e9}}, other.forecast.memory = {{.peak = 78e9}};
  best.forecast.memory_limit = other.forecast.memory_limit = 80e9;
  other.forecast.tight = true;
  other.config.parallel.pipeline = 2;
  result.layouts = {best, other};
  const std::string next = " pp2dp4, the next one with another tensor degree, pipeline degree or schedule";
  CHECK(winning_reason(result) ==
        "dp8z1 takes 0.15 s more per step than" + next +
            ": it spends 0.15 s more on compute. The other one is faster, but tight: it needs 78.0 GB of a device's 80.0 GB, "
            "and dp8z1 60.0 GB.");
  result.layouts[1].forecast.step_seconds = 10;
  result.layouts[1].forecast.parts = best.forecast.parts;
  CHECK(winning_reason(result) ==
        "dp8z1 is as fast as" + next + ". The other one is tight: it needs 78.0 GB of a device's 80.0 GB, and dp8z1 60.0 GB.");
  result.layouts[1].forecast.step_seconds = 10.15;
  result.layouts[1].forecast.parts.compute = 10.15;
  CHECK_THAT(winning_reason(result), Contains("dp8z1 takes 0.15 s less per step than") && !Contains("tight"));
}

TEST_CASE("a search says why its first layout wins") {
  const SearchResult result = search_layouts(model_of(8, 512, 8, 16), gpus(1, 8));
  REQUIRE(result.layouts.size() > 1);
  CHECK_THAT(result.why, Contains(result.layouts[0].layout));
  CHECK(std::ranges::count(result.why, '.') >= 2);
}

TEST_CASE("batches near one that leaves ranks idle are named only if a search confirms that they are better") {
  int64_t named = 0;
  for (const auto& [batch, devices] : {std::pair(17, 8), std::pair(6, 4), std::pair(10, 4), std::pair(13, 4), std::pair(11, 8), std::pair(30, 8)}) {
    const ClusterConfig cluster = gpus(1, devices);
    const Config config = model_of(16, 1024, 16, batch);
    const SearchResult result = search_layouts(config, cluster);
    CAPTURE(batch, devices);
    REQUIRE(!result.layouts.empty());
    CHECK(result.batches.size() <= 2);
    int smaller = 0;
    for (const BetterBatch& better : result.batches) {
      Config other = config;
      other.training.global_batch_size = better.batch;
      const SearchResult found = search_layouts(other, cluster);
      CAPTURE(better.batch, better.layout);
      CHECK(found.layouts.at(0).layout == better.layout);
      CHECK(rate_of(found) == better.tokens_per_second_per_device);
      CHECK(rate_of(found) >= 1.02 * rate_of(result));
      smaller += better.batch < batch ? 1 : 0;
      ++named;
    }
    CHECK(smaller <= 1);
  }
  CHECK(named >= 3);
  CHECK(search_layouts(model_of(16, 1024, 16, 16), gpus(1, 8)).batches.empty());
}

TEST_CASE("a better batch is one that the configuration's own layout allows") {
  int64_t named = 0;
  for (const auto& [devices, data, micro_batch, batch] : {std::array<int64_t, 4>{6, 2, 4, 16}, {12, 1, 8, 32}, {6, 4, 2, 16}, {6, 3, 2, 12}}) {
    Config config = model_of(16, 1024, 16, batch);
    config.training.micro_batch_size = micro_batch;
    config.parallel.data = data;
    CAPTURE(devices, data, micro_batch, batch);
    REQUIRE_NOTHROW(resolve(config));
    for (const BetterBatch& better : search_layouts(config, gpus(1, devices)).batches) {
      CAPTURE(better.batch);
      config.training.global_batch_size = better.batch;
      CHECK_NOTHROW(resolve(config));
      ++named;
    }
  }
  CHECK(named >= 3);
}

TEST_CASE("a better batch is one that a search takes, also with keys that need several data ranks") {
  Config config = model_of(24, 2048, 16, 36);
  config.model.vocab_size = 1000;
  config.training.sequence_length = 2048;
  config.parallel.data.reset();
  config.parallel.pipeline = 2;
  config.parallel.zero_stage = 1;
  config.parallel.replicate = 2;
  const ClusterConfig cluster = gpus(3, 8);
  CHECK(allows_search(config, cluster.devices()));  // 12 data ranks
  config.training.global_batch_size = 40;
  CHECK(!allows_search(config, cluster.devices()));  // nor one, which `replicate` does not divide
  config.training.global_batch_size = 36;
  for (const BetterBatch& better : search_layouts(config, cluster).batches) {
    config.training.global_batch_size = better.batch;
    CAPTURE(better.batch);
    CHECK(allows_search(config, cluster.devices()));
  }
}

TEST_CASE("a batch with which no layout is legal has the nearest batch with a layout as a remedy") {
  Config config = model_of(1, 384, 3, 7);  // a single layer has no pipeline
  const ClusterConfig cluster = gpus(5, 1);
  const SearchResult result = search_layouts(config, cluster);
  REQUIRE(result.legal == 0);
  REQUIRE(result.batches.size() == 2);
  CHECK(result.batches[0].batch == 5);
  CHECK(result.batches[1].batch == 10);
  CHECK_THAT(result.advice, Contains("with training.global_batch_size 5"));
}

TEST_CASE("a search over numbers of nodes finds the fewest, the cheapest and the fastest") {
  Config config = model_of(24, 2048, 16, 64);
  ClusterConfig cluster = gpus(1, 2);
  cluster.device.memory = 12e9;
  const NodeSearch search = search_nodes(config, cluster);
  REQUIRE(search.counts.size() >= 3);
  const NodeCount& fewest = search.counts.front();
  CHECK(fewest.cluster.nodes > 1);
  ClusterConfig one_less = fewest.cluster;
  --one_less.nodes;
  CHECK(search_layouts(config, one_less, {}, {.advise = false}).layouts.empty());
  for (size_t i = 0; i < search.counts.size(); ++i) {
    const NodeCount& count = search.counts[i];
    CAPTURE(count.cluster.nodes);
    if (i > 0) CHECK(count.cluster.nodes > search.counts[i - 1].cluster.nodes);
    const RankedLayout& best = count.best();
    CHECK(best.forecast.fits);
    const double tokens = static_cast<double>(64 * 512), hours = best.forecast.step_seconds / 3600 * static_cast<double>(count.cluster.devices());
    CHECK(count.device_hours == Approx(hours / tokens * 1e9));
    CHECK(*count.cost == Approx(2 * count.device_hours));
    CHECK(count.device_hours >= search.counts[search.cheapest].device_hours);
    CHECK(best.forecast.step_seconds >= search.counts[search.fastest].best().forecast.step_seconds);
    CHECK(best.layout == search_layouts(config, count.cluster).layouts.at(0).layout);
  }
  const nlohmann::ordered_json json = node_search_json(search);
  CHECK(json[0]["fewest"] == true);
  CHECK(json[search.cheapest]["cheapest"] == true);
  CHECK(json[search.fastest]["fastest"] == true);
  CHECK_THAT(node_search_text(search), Contains("cheapest") && Contains("fastest") && Contains("fewest") && Contains("cost per 1e9 tokens"));
}

TEST_CASE("a number of nodes whose best layout is tight says so") {
  NodeSearch search;
  for (const int64_t nodes : {1, 2}) {
    NodeCount& count = search.counts.emplace_back(NodeCount{.cluster = gpus(nodes, 8), .found = {}});
    count.found.layouts.emplace_back().layout = "dp8z3";
    count.found.layouts.back().forecast.tight = nodes == 1;
  }
  search.cheapest = search.fastest = 1;
  const std::string text = node_search_text(search);
  CHECK_THAT(text, Contains("fewest, tight\n") && Contains("cheapest, fastest\n"));
}

TEST_CASE("a search over numbers of nodes names better batches for the cheapest number") {
  const Config config = model_of(16, 1024, 16, 30);
  const NodeSearch search = search_nodes(config, gpus(1, 8));
  const NodeCount& cheapest = search.counts.at(search.cheapest);
  CAPTURE(cheapest.cluster.nodes);
  const std::vector<BetterBatch> batches = search_layouts(config, cheapest.cluster).batches;
  REQUIRE(!batches.empty());
  REQUIRE(cheapest.found.batches.size() == batches.size());
  for (size_t i = 0; i < batches.size(); ++i) CHECK(cheapest.found.batches[i].batch == batches[i].batch);
  const std::string text = search_text(cheapest.found);
  CHECK_THAT(text, Contains(concat("  training.global_batch_size ", batches[0].batch, " gives ")));
  CHECK(text.find("ranks idle") == text.rfind("ranks idle"));
}

TEST_CASE("eight virtual stages of a deep model are considered") {
  const LayoutSpace space(model_of(96, 512, 8, 64), gpus(1, 8));
  for (const int64_t pipeline : {2, 4, 8}) {
    std::set<int64_t> stages;
    for (const LayoutSpace::Pipelining& one : space.pipelinings(pipeline))
      if (one.schedule == ScheduleKind::kInterleaved1F1B) stages.insert(one.virtual_stages);
    for (int64_t virtual_stages = 2; virtual_stages <= 96 / pipeline; ++virtual_stages) CHECK(stages.contains(virtual_stages));
  }
}

TEST_CASE("as many virtual stages are considered as the rules allow") {
  const ClusterConfig cluster = gpus(1, 8);
  for (const int64_t batch : {64, 20000, 400000}) {
    const Config given = model_of(96, 512, 8, batch);
    for (const int64_t pipeline : {2, 8}) {
      std::vector<int64_t> allowed, considered;
      for (int64_t virtual_stages = 2; virtual_stages <= 96; ++virtual_stages) {
        Config c = given;
        c.parallel.pipeline = pipeline;
        c.parallel.data = 1;
        c.parallel.schedule = "interleaved_1f1b";
        c.parallel.virtual_stages = virtual_stages;
        c.training.micro_batch_size = 1;
        try {
          resolve(c, pipeline);
          allowed.push_back(virtual_stages);
        } catch (const ConfigError&) {
        }
      }
      for (const LayoutSpace::Pipelining& one : LayoutSpace(given, cluster).pipelinings(pipeline))
        if (one.schedule == ScheduleKind::kInterleaved1F1B) considered.push_back(one.virtual_stages);
      CAPTURE(batch, pipeline);
      CHECK(considered == allowed);
    }
  }
}

namespace {

/// Requests as nobody would make them: sizes without divisors, up to 65,536 GPUs, hardly any memory, a million tokens.
class OddRequests {
 public:
  explicit OddRequests(unsigned seed) : random_(seed) {}
  int64_t whole(int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random_); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[whole(0, std::ssize(values) - 1)];
  }
  ClusterConfig cluster() {
    ClusterConfig cluster = gpus(1, one_of<int64_t>({1, 2, 3, 4, 5, 7, 8, 8, 8, 16}));
    cluster.nodes = one_of<int64_t>({1, 1, 2, 3, 4, 7, 8, 13, 32, 97, 128, 512, 1021, 4096, 65536}) / cluster.devices_per_node + 1;
    if (whole(0, 3) == 0) cluster.device.memory = one_of({1e6, 1e8, 1e9, 4e9});
    return cluster;
  }
  Config config() {
    const int64_t heads = one_of<int64_t>({1, 2, 3, 7, 8, 13, 16, 32});
    Config c = model_of(one_of<int64_t>({1, 2, 3, 5, 7, 8, 12, 13, 24, 31}), heads * one_of<int64_t>({8, 24, 62, 64, 128}), heads,
                        one_of<int64_t>({1, 2, 3, 7, 8, 12, 16, 31, 48, 64, 97, 256}));
    c.model.vocab_size = one_of<int64_t>({256, 257, 5003, 32000, 128256});
    c.model.tied_embeddings = whole(0, 1) == 1;
    c.training.sequence_length = one_of<int64_t>({1, 17, 512, 4096, 1 << 20});
    c.model.max_positions = std::max<int64_t>(c.training.sequence_length, 2048);
    c.training.precision = one_of<Arithmetic>({Arithmetic::kBf16, Arithmetic::kFp16, Arithmetic::kFp32});
    return c;
  }
  /// A legal layout, drawn without the search's enumeration; nullopt if this draw is not legal.
  std::optional<Config> layout(const Config& given, const ClusterConfig& cluster) {
    const int64_t world = cluster.devices();
    const auto divisor = [&](int64_t n) {
      std::vector<int64_t> all;
      for (int64_t d = 1; d <= n; ++d)
        if (n % d == 0) all.push_back(d);
      return all[static_cast<size_t>(whole(0, std::ssize(all) - 1))];
    };
    Config c = given;
    ParallelConfig& p = c.parallel;
    p.tensor = divisor(cluster.devices_per_node);
    p.pipeline = divisor(world / p.tensor);
    p.data = world / p.tensor / p.pipeline;
    p.zero_stage = whole(0, 3);
    p.sequence_parallel = p.tensor > 1 && whole(0, 1) == 1;
    p.schedule = p.pipeline == 1 ? "1f1b" : name_of(kScheduleKinds[whole(0, std::ssize(kScheduleKinds) - 1)]);
    if (p.schedule == "interleaved_1f1b") p.virtual_stages = whole(2, 5);
    c.training.micro_batch_size = divisor(c.training.global_batch_size);
    c.training.recompute = one_of({RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull});
    try {
      return resolve(c, world);
    } catch (const ConfigError&) {
      return std::nullopt;
    }
  }

 private:
  std::mt19937_64 random_;
};

/// Searches odd requests, and compares the best layout of each with layouts that are drawn without the search.
void check_odd_requests(int requests, unsigned seed) {
  OddRequests odd(seed);
  int legal = 0, fitting = 0, compared = 0;
  for (int i = 0; i < requests; ++i) {
    Config config = odd.config();
    ClusterConfig cluster = odd.cluster();
    if (odd.whole(0, 1) == 0) config.training.global_batch_size = cluster.devices() * odd.whole(1, 4);  // with which layouts are legal
    // Half of the devices have just enough memory for a drawn layout, so that most others do not fit.
    const std::optional<Config> tight = odd.layout(config, cluster);
    if (tight && odd.whole(0, 1) == 0) cluster.device.memory = 1.01 * largest_peak(formula_memory(*tight, cluster));
    CAPTURE(i, cluster.devices(), cluster.devices_per_node, config.model.layers, config.model.heads, config.training.global_batch_size,
            config.training.sequence_length, config.training.precision, *cluster.device.memory);
    const SearchResult result = search_layouts(config, cluster, {}, {.advise = i % 8 == 0});
    legal += result.legal > 0 ? 1 : 0;
    fitting += result.layouts.empty() ? 0 : 1;
    for (size_t at = 0; at < result.layouts.size(); ++at) {
      const Forecast& forecast = result.layouts[at].forecast;
      CHECK(forecast.fits);
      CHECK(largest_peak(forecast.memory) <= *cluster.device.memory);
      CHECK(std::isfinite(forecast.step_seconds));
      CHECK(forecast.step_seconds > 0);
      if (at > 0) CHECK(ranking_seconds(result.layouts[at - 1].forecast) <= ranking_seconds(forecast) * (1 + 1e-12));
    }
    for (const RankedLayout& layout : result.too_large) CHECK(!layout.forecast.fits);
    for (int draw = 0; draw < 20; ++draw) {
      const std::optional<Config> drawn = odd.layout(config, cluster);
      if (!drawn) continue;
      REQUIRE(result.legal > 0);
      Forecast by_formula = forecast_time(*drawn, cluster);
      set_memory(by_formula, formula_memory(*drawn, cluster), *cluster.device.memory, config.plan.memory_margin);
      if (!by_formula.fits) continue;
      ++compared;
      CAPTURE(draw, name_of(layout_of(*drawn)));
      REQUIRE(!result.layouts.empty());
      const double first = (1 - 1e-9) * ranking_seconds(result.layouts[0].forecast);
      if (ranking_seconds(by_formula) >= first) continue;
      // The memory of the first layout is counted. A better layout is one that is better with counted memory, too.
      Forecast by_count = by_formula;
      set_memory(by_count, memory_of(*drawn, cluster), *cluster.device.memory, config.plan.memory_margin);
      CHECK((!by_count.fits || ranking_seconds(by_count) >= first));
    }
  }
  CAPTURE(legal, fitting, compared);
  CHECK(legal >= requests / 4);
  CHECK(fitting >= requests / 8);
  CHECK(compared >= requests / 4);
}

}  // namespace

TEST_CASE("odd requests: no layout that does not fit is ranked, and no drawn one is better") { check_odd_requests(40, 1584); }

TEST_CASE("200 odd requests: no layout that does not fit is ranked, and no drawn one is better", "[slow]") { check_odd_requests(200, 1585); }

}  // namespace trireme
