// Layouts: parsing, formatting, and conversion from and to configuration keys.
#include "trainer/layout/layout.h"

#include "tests/support/catch.h"
#include "tests/support/check_throws.h"

namespace trireme::test {

TEST_CASE("layout words may be in any order, joined or separated") {
  const Layout plain = parse_layout("tp1");
  CHECK(plain.world() == 1);
  CHECK(plain.str() == "tp1");
  const Layout spec = parse_layout("z3sp-interleaved_1f1b+pp2,dp4:rep2_tp8vpp3mb2-full_grads-selective,after_step");
  CHECK(spec.tensor == 8);
  CHECK(spec.pipeline == 2);
  CHECK(spec.data == 4);
  CHECK(spec.zero == 3);
  CHECK(spec.replicate == 2);
  CHECK(spec.virtual_stages == 3);
  CHECK(spec.micro_batch == 2);
  CHECK(spec.sequence_parallel);
  CHECK(spec.schedule == ScheduleKind::kInterleaved1F1B);
  CHECK(spec.gradient_accumulation == GradientAccumulation::kFull);
  CHECK(spec.recompute == RecomputeMode::kSelective);
  CHECK(spec.reshard == Reshard::kAfterStep);
  CHECK(spec.stages() == 6);
  CHECK(parse_layout(spec.str()) == spec);
  CHECK(parse_layout("tp2pp2vpp2-interleaved_1f1b").stages() == 4);
  CHECK(parse_layout("pp2-interleaved_1f1b").stages() == 4);  // two virtual stages by default
  CHECK(parse_layout("pp3zb_v").stages() == 6);
  CHECK(parse_layout("pp2full").recompute == RecomputeMode::kFull);
  CHECK(parse_layout("gpipepp2").schedule == ScheduleKind::kGPipe);
  CHECK(parse_layout("1f1bpp2").pipeline == 2);
  CHECK(parse_layouts("  tp2   pp2 ").size() == 2);
}

TEST_CASE("an invalid layout is refused with the position and the allowed words") {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    INFO(text);
    check_throws<ConfigError>([&] { parse_layout(text); }, parts);
  };
  refused("tp2xp3", {"'tp2xp3'", "character 4", "unknown word 'xp3'", "allowed tpN"});
  refused("tp", {"tp needs a number"});
  refused("tp0", {"tp0 is out of range"});
  refused("dp99999999999999999999", {"out of range"});
  refused("z4", {"z4 is out of range, 0 to 3"});
  refused("tp2dp2tp4", {"duplicate tp"});
  refused("gpipe-1f1b", {"duplicate schedule"});
  refused("dp21f1b", {"needs a separator"});
  refused("--", {"empty layout"});
  refused("TP2", {"unknown word"});
  check_throws<ConfigError>([] { parse_layouts(" "); }, {"no layout given"});
}

/// A configuration in which every key of the layout differs from its default.
Config every_key_set() {
  Config config;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 3;
  config.parallel.data = 8;
  config.parallel.zero_stage = 3;
  config.parallel.replicate = 4;
  config.parallel.sequence_parallel = true;
  config.parallel.schedule = "interleaved_1f1b";
  config.parallel.virtual_stages = 5;
  config.parallel.gradient_accumulation = GradientAccumulation::kFull;
  config.parallel.reshard = Reshard::kAfterStep;
  config.parallel.prefetch = 7;
  config.parallel.bucket_size = 1000;
  config.training.micro_batch_size = 6;
  config.training.recompute = RecomputeMode::kSelective;
  return config;
}

TEST_CASE("converting a configuration to a layout and back keeps all keys") {
  const Config config = every_key_set();
  const Layout layout = layout_of(config);
  CHECK(layout.str() == "tp2pp3vpp5dp8z3rep4mb6sp-full_grads-after_step-selective-interleaved_1f1b");
  CHECK(parse_layout(layout.str()) == layout);
  CHECK(layout.parallel(config.parallel) == config.parallel);
  // Keys that are not part of a layout have their defaults.
  ParallelConfig others = layout.parallel();
  CHECK(others.prefetch == ParallelConfig{}.prefetch);
  CHECK(!others.bucket_size);
  others.prefetch = 7;
  others.bucket_size = 1000;
  CHECK(others == config.parallel);
}

TEST_CASE("every schedule is a layout word, and a schedule file counts as 1f1b") {
  for (const ScheduleKind kind : kScheduleKinds) {
    Config config = every_key_set();
    config.parallel.schedule = name_of(kind);
    INFO(name_of(kind));
    CHECK(layout_of(config).schedule == kind);
    CHECK(layout_of(config).parallel().schedule == name_of(kind));
    CHECK(parse_layout(name_of(kind)).schedule == kind);
  }
  Config config = every_key_set();
  config.parallel.schedule = "file";
  CHECK(layout_of(config).schedule == ScheduleKind::k1F1B);
}

TEST_CASE("a layout without virtual stages has the default of its schedule") {
  CHECK(Layout{}.stages_per_rank() == 1);
  CHECK(Layout{.pipeline = 3, .schedule = ScheduleKind::kZbV}.stages() == 6);
  CHECK(Layout{.pipeline = 3, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 4}.stages() == 12);
}

}  // namespace trireme::test
