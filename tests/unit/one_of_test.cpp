// OneOf: configuration keys with a fixed set of values, their table of names, and unknown values.
#include "tests/support/catch.h"
#include "tests/support/check_throws.h"
#include "trainer/config/fields.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"

namespace trireme::test {
namespace {

/// Checks that every name of E maps to its own value and back.
template <class E>
void check_names() {
  size_t value = 0;
  for (const std::string name : OneOf<E>::names()) {
    INFO(name);
    CHECK(OneOf<E>(name) == static_cast<E>(value));
    CHECK(name_of(OneOf<E>(name).value()) == name);
    CHECK(OneOf<E>(name).text() == name);
    ++value;
  }
}

std::string yaml(const std::string& recompute) {
  return "run: {name: a}\nmodel: {}\ntraining: {steps: 1, recompute: " + recompute + ", recompute_budget: 5000}\ndata: {train: [x]}\n";
}

}  // namespace

TEST_CASE("one of: each name maps to its own value") {
  check_names<RecomputeMode>();
  check_names<GradientAccumulation>();
  check_names<Reshard>();
  check_names<Optimizer>();
  check_names<LearningRateSchedule>();
  check_names<RopeScaling>();
}

TEST_CASE("one of: reading, writing, the schema and the range check share one table of names") {
  const LoadedConfig loaded = parse_config(yaml("budget"), "run.yaml", {});
  CHECK(loaded.config.training.recompute == RecomputeMode::kBudget);
  CHECK(to_yaml(loaded.config).find("\n  recompute: budget\n") != std::string::npos);
  const FieldRow row = table_of(loaded.config).at("training.recompute");
  CHECK(allowed_text(row.field, row.type) == "none | selective | full | budget");
  CHECK(std::get<std::string>(row.value) == "budget");
  CHECK(json_schema().find("\"budget\"") != std::string::npos);
}

TEST_CASE("one of: an unknown name is kept until it is refused, and equals no value") {
  const OneOf<RecomputeMode> unknown("Full");
  CHECK(unknown.text() == "Full");
  for (const RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull, RecomputeMode::kBudget})
    CHECK(unknown != mode);
  CHECK(unknown != OneOf<RecomputeMode>("none"));
  CHECK(unknown == OneOf<RecomputeMode>("Full"));
  CHECK_THROWS_AS(unknown.value(), InternalError);
  check_throws<ConfigError>(
      [] { parse_config(yaml("Full"), "run.yaml", {}); },
      {"run.yaml:3:33 training.recompute=Full: not one of the choices; allowed none | selective | full | budget; nearest valid full"});
  check_throws<ConfigError>([] { parse_config(yaml("[full]"), "run.yaml", {}); },
                            {"training.recompute: a list where text is expected; allowed none | selective | full | budget"});
  check_throws<ConfigError>([] { parse_config(yaml("\"\""), "run.yaml", {}); },
                            {"training.recompute: empty text; allowed none | selective | full | budget"});
}

}  // namespace trireme::test
