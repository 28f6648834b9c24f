// The update that a member of a federation sends, and the weights that it gets: elements and their numbers do not depend on the length of messages or on
// the layout.
#include "trainer/federation/flat_model.h"

#include <cstring>
#include <mutex>
#include <utility>

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

TEST_CASE("flat model: weights that arrive in pieces are in the places of their numbers, in every layout") {
  for (const char* const spec : {"tp1pp1dp1z0", "tp2pp1dp2z3", "tp1pp2dp2z1"}) {
    for (const std::string precision : {"fp64", "fp32"}) {
      CAPTURE(spec, precision);
      ParityLayout layout;
      static_cast<Layout&>(layout) = parse_layout(spec);
      const Config config = parity_config(ParityModel::kLlama, layout, precision);
      const Device device = precision == "fp64" ? Device::kReference : Device::kCpu;
      run_ranks(layout.world(), [&](Communicator& world) {
        Arena arena(device);
        Context ctx{device, &arena, 1};
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        federation::FlatModel model(trainer);
        const auto size = static_cast<int64_t>(size_of(model.dtype()));
        std::string sent(static_cast<size_t>(model.numel() * size), 0);  // every weight is its own number
        for (int64_t number = 0; number < model.numel(); ++number) {
          const auto as_double = static_cast<double>(number);
          const auto as_float = static_cast<float>(number);
          const void* const value = size == 8 ? static_cast<const void*>(&as_double) : &as_float;
          std::memcpy(sent.data() + number * size, value, static_cast<size_t>(size));
        }
        size_t done = 0;
        const bool arrived = model.receive(101 * size, [&](int64_t bytes) {
          const size_t begin = std::exchange(done, done + static_cast<size_t>(bytes));
          return sent.substr(begin, done - begin);
        });
        TRIREME_CHECK(arrived && done == sent.size(), done, " of ", sent.size(), " bytes");
        model.apply();
        model.visit_boxes([&](const OwnedBox& owned, std::span<const int64_t> numbers) {
          for (size_t i = 0; i < numbers.size(); ++i) {
            const double weight = size == 8 ? owned.weight.data<double>()[i] : static_cast<double>(owned.weight.data<float>()[i]);
            TRIREME_CHECK(weight == static_cast<double>(numbers[i]), owned.spec->name, ": element ", numbers[i], " is ", weight);
          }
        });
        int asked = 0;
        const bool complete =
            model.receive(101 * size, [&](int64_t bytes) { return std::string(++asked < 3 ? static_cast<size_t>(bytes) : 0, 'x'); });
        TRIREME_CHECK(!complete && asked == 3, "weights that end early are complete, or were asked for ", asked, " times");
      });
    }
  }
}

}  // namespace
}  // namespace trireme::test
