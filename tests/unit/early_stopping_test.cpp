// training.stop: which evaluations improve, and when a run ends.
#include <limits>

#include "tests/support/catch.h"
#include "trainer/run/early_stopping.h"

using namespace trireme;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The evaluation, from 1, after which a run with these losses ends; 0: none.
int64_t end_of(std::optional<int64_t> patience, double minimum, const std::vector<double>& losses) {
  EarlyStopping stopping({patience, minimum}, {});
  for (size_t i = 0; i < losses.size(); ++i) {
    stopping.add(static_cast<int64_t>(i + 1), losses[i]);
    if (stopping.reached()) return static_cast<int64_t>(i + 1);
  }
  return 0;
}

}  // namespace

TEST_CASE("early stopping: after `patience` evaluations in a row without improvement") {
  CHECK(end_of(2, 0, {5, 4, 4, 4.5}) == 4);  // an equal loss is no improvement
  CHECK(end_of(2, 0, {5, 4, 4.5, 3.9, 4, 3.8}) == 0);
  CHECK(end_of(1, 0, {5, 5}) == 2);
  CHECK(end_of(3, 0, {kNan, kNan, kNan, 1}) == 3);
  CHECK(end_of(3, 0, {kNan, kNan, 9, kNan, -std::numeric_limits<double>::infinity(), 8}) == 0);
  CHECK(end_of(std::nullopt, 0, {5, 6, 7, 8, 9}) == 0);
}

TEST_CASE("early stopping: an improvement is at least the minimum, measured from the last improvement") {
  CHECK(end_of(2, 0.5, {5, 4.75, 4.625}) == 3);
  CHECK(end_of(2, 0.5, {5, 4.75, 4.5, 4.25, 4}) == 0);  // two small decreases add up, and exactly the minimum is enough
  CHECK(end_of(2, 0.5, {5, 4.75, 4.5, 4.25, 4.125}) == 5);
}

TEST_CASE("early stopping: the state of a checkpoint continues, and an evaluation that it contains does not count twice") {
  const StopConfig config{3, 0.25};
  EarlyStopping first(config, {});
  for (const auto& [step, loss] : {std::pair{10, 3.0}, {20, 2.0}, {30, 1.875}, {40, 2.5}}) first.add(step, loss);
  CHECK(first.state() == StopState{40, 2, 2.0, 20});
  EarlyStopping second(config, first.state());
  second.add(40, 2.5);
  CHECK_FALSE(second.reached());
  second.add(50, 1.8);
  CHECK(second.reached());
  CHECK(second.text() == "the validation loss has not improved by 0.25 in 3 evaluations since 2 at step 20");
  CHECK(EarlyStopping({}, first.state()).state() == StopState{});  // without a patience the state is dropped
}
