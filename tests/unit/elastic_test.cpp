// Layouts of a job that continues with fewer data ranks.
#include <numeric>

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "trainer/layout/elastic.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/layout/resolve.h"

using namespace trireme;

namespace {

Config elastic_config(int64_t data, int64_t minimum = 1) {
  Config c;
  c.training.steps = 5;
  c.training.global_batch_size = 8;
  c.training.micro_batch_size = 1;
  c.parallel.data = data;
  c.data.tokenizer = "none";
  c.model.vocab_size = 300;
  c.resilience.elastic = Elastic::kReplicas;
  c.resilience.minimum_replicas = minimum;
  return c;
}

}  // namespace

TEST_CASE("elastic: the worlds of a job, from parallel.data to the minimum") {
  CHECK(legal_worlds(resolve(elastic_config(4))) == std::vector<int>{4, 3, 2, 1});
  CHECK(legal_worlds(resolve(elastic_config(4, 3))) == std::vector<int>{4, 3});
  Config tensor = elastic_config(4, 2);
  tensor.parallel.tensor = 2;
  tensor.parallel.pipeline = 2;
  CHECK(legal_worlds(resolve(tensor)) == std::vector<int>{16, 12, 8});
  Config rigid = elastic_config(4);
  rigid.resilience.elastic = Elastic::kNone;
  CHECK(legal_worlds(resolve(rigid)) == std::vector<int>{4});
}

TEST_CASE("elastic: with replicas, shard groups keep their size") {
  Config config = elastic_config(6);
  config.training.global_batch_size = 12;
  config.parallel.zero_stage = 3;
  config.parallel.replicate = 3;
  CHECK(legal_worlds(resolve(config)) == std::vector<int>{6, 4, 2});
  const Config four = resolve(config, 4);
  CHECK(four.parallel.data == 4);
  CHECK(four.parallel.replicate == 2);
  CHECK_FALSE(with_data_ranks(resolve(config), 5));
  Config secondary = elastic_config(8);
  secondary.parallel.zero_stage = 3;
  secondary.parallel.secondary_shards = 2;
  CHECK(legal_worlds(resolve(secondary)) == std::vector<int>{8, 6, 4});  // of 2 data ranks, two would be all
}

TEST_CASE("elastic: the number of started ranks decides the data degree, within the limits") {
  const Config config = elastic_config(4, 2);
  CHECK(resolve(config).parallel.data == 4);
  for (const int64_t world : {2, 3, 4}) CHECK(resolve(config, world).parallel.data == world);
  for (const int64_t world : {1, 5, 8}) {
    INFO(world);
    CHECK_THROWS_AS(resolve(config, world), ConfigError);
  }
  Config rigid = config;
  rigid.resilience.elastic = Elastic::kNone;
  rigid.resilience.minimum_replicas = 1;
  CHECK_THROWS_AS(resolve(rigid, 2), ConfigError);
  CHECK(resolve(resolve(config, 3), 3).parallel.data == 3);
}

TEST_CASE("elastic: data ranks share the batch as evenly as possible") {
  const auto split = [](int64_t data, int64_t batch, int64_t rows) {
    Config config = elastic_config(data);
    config.training.global_batch_size = batch;
    config.training.micro_batch_size = rows;
    return even_split(resolve(config));
  };
  CHECK(split(4, 8, 1) == MicroBatchSplit{2, 2, 2, 2});
  CHECK(split(3, 8, 1) == MicroBatchSplit{3, 3, 2});
  CHECK(split(3, 8, 2) == MicroBatchSplit{2, 1, 1});
  CHECK(split(3, 15, 3) == MicroBatchSplit{2, 2, 1});
  for (int64_t data = 1; data <= 13; ++data)
    for (int64_t batch = data; batch <= 40; ++batch) {
      const MicroBatchSplit parts = split(data, batch, 1);
      INFO(data << " data ranks, batch " << batch);
      REQUIRE(std::reduce(parts.begin(), parts.end()) == batch);
      REQUIRE(std::ranges::max(parts) - std::ranges::min(parts) <= 1);
      REQUIRE(std::ranges::min(parts) >= 1);
    }
}
