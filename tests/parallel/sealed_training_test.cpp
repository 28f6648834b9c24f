// Training over sealed messages: encryption changes no bit.
#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"

namespace trireme::test {
namespace {

std::vector<RunRecord> records(const Config& config, int ranks, const RankOptions& options) {
  std::vector<RunRecord> all(static_cast<size_t>(ranks));
  run_ranks(
      ranks, [&](Communicator& world) { all[static_cast<size_t>(world.rank())] = train(world, config, 3, Device::kCpu); }, options);
  return all;
}

}  // namespace

TEST_CASE("sealed: training has the bits of the plain run with the same algorithm, under every kind of parallelism") {
  const MessageCosts costs{.ranges = {{0, 2e-6, 4e9}}, .sums = {}};
  const StepwiseOptions ring{.algorithm = CollectiveAlgorithm::kRing, .within = costs, .between = costs};
  for (const char* text : {"tp2dp2z3", "pp2dp2z2", "dp4z1"}) {
    INFO(text);
    ParityLayout layout;
    static_cast<Layout&>(layout) = parse_layout(text);
    const Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp32");
    const std::vector<RunRecord> plain = records(config, layout.world(), {.collectives = ring});
    for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1}}) {
      const std::vector<RunRecord> encrypted = records(config, layout.world(), {.collectives = ring, .hosts = hosts});
      for (size_t rank = 0; rank < plain.size(); ++rank) CHECK(encrypted[rank] == plain[rank]);
    }
  }
}

}  // namespace trireme::test
