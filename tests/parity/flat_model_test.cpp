// The update that a member of a federation sends: its elements and their numbers do not depend on the length of messages or on the layout.
#include "trainer/federation/flat_model.h"

#include <mutex>

#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"

namespace trireme::test {
namespace {

struct Update {
  std::vector<double> values;
  std::vector<int> visits;
  size_t longest = 0;
};

/// The update of two steps, visited in runs of at most `longest` elements.
Update update_of(const std::string& spec, int64_t longest) {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  const Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  const RaggedDataset data(29, 12, 61);
  Update update;
  std::mutex mutex;
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(Device::kReference);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    const federation::FlatModel model(trainer);
    for (const int64_t step : {0, 1}) trainer.step(data, step, 1e-2);
    {
      const std::lock_guard lock(mutex);
      update.values.resize(static_cast<size_t>(model.numel()));
      update.visits.resize(update.values.size());
      model.visit_update(longest, [&](int64_t first, std::span<const double> values) {
        update.longest = std::max(update.longest, values.size());
        for (size_t i = 0; i < values.size(); ++i) {
          update.values.at(static_cast<size_t>(first) + i) = values[i];
          ++update.visits[static_cast<size_t>(first) + i];
        }
      });
    }
    const double squares = model.update_squares();
    double expected = 0;
    world.barrier();
    for (const double value : update.values) expected += value * value;
    TRIREME_CHECK(squares > 0 && std::abs(squares - expected) < 1e-12 * expected, squares, " and ", expected);
  });
  return update;
}

TEST_CASE("flat model: an update is the same in messages of any length and in every layout") {
  const Update whole = update_of("tp1pp1dp1z0", int64_t{1} << 20);
  REQUIRE(whole.longest > 100);
  for (const char* const spec : {"tp1pp1dp1z0", "tp2pp1dp2z3", "tp1pp2dp2z1", "pp2-vpp2-interleaved_1f1b"}) {
    for (const int64_t longest : {1, 7, 100}) {
      CAPTURE(spec, longest);
      const Update update = update_of(spec, longest);
      CHECK(update.longest <= static_cast<size_t>(longest));
      CHECK(update.visits == std::vector<int>(whole.visits.size(), 1));
      REQUIRE(update.values.size() == whole.values.size());
      double furthest = 0;
      for (size_t i = 0; i < whole.values.size(); ++i) furthest = std::max(furthest, std::abs(update.values[i] - whole.values[i]));
      CHECK(furthest < 1e-9);
    }
  }
}

}  // namespace
}  // namespace trireme::test
