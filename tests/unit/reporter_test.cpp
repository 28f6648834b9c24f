// Exact output of every Reporter method: metrics.jsonl and console.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/reporter_output.h"
#include "tests/support/scratch.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/memory_table.h"

using namespace trireme;
using namespace trireme::test;

namespace {

/// The output of a Reporter of `steps` steps after `body`. `terminal`: treat standard output as a terminal.
ReporterOutput written(bool terminal, int64_t steps, const std::function<void(Reporter& reporter, const std::string& metrics)>& body,
                       const RunHistory& history = {}) {
  Config config;
  config.run.name = "pinned";
  config.model.layers = 2;
  config.model.hidden_size = 64;
  config.model.heads = 4;
  config.training.steps = steps;
  config.training.sequence_length = 16;
  ReportedRun run{.config = resolve(config), .history = history, .steps = steps};
  run.environment = {{"version", "9.8.7"}, {"world_size", 1}, {"layout", {{"pipeline", 1}, {"tensor", 1}}}};
  if (terminal) {
    run.width = [] { return size_t{200}; };
    RunForecast& forecast = run.forecast.emplace();
    forecast.time.step_seconds = 0.5;
    forecast.time.mfu = 0.125;
    forecast.source = "no figures";
    forecast.peak_flops = 1e9;
  }
  return reporter_output(std::move(run), body);
}

StepResult result_of(double loss, double grad_norm, std::optional<int64_t> loss_scale = {}) {
  return {loss, grad_norm, 3e-4, 128, true, loss_scale, false, ""};
}

StepResult rejected(const std::string& offender, bool overflow = false) {
  return {2, std::numeric_limits<double>::quiet_NaN(), 1e-3, 128, false, overflow ? std::optional<int64_t>(65536) : std::nullopt, overflow, offender};
}

RankMemory memory_of(int64_t bytes) {
  RankMemory memory;
  memory.peak_total = bytes;
  return memory;
}

}  // namespace

TEST_CASE("reporter: exact text of metrics.jsonl and console output", "[metrics]") {
  const std::vector<RankMemory> planned = {memory_of(1 << 20)}, measured = {memory_of(1 << 21)};
  const ReporterOutput text = written(false, 9, [&](Reporter& reporter, const std::string&) {
    reporter.step(1, result_of(0.1 + 0.2, 1.0 / 3), 0.5);
    StepResult masked = result_of(0, 0);
    masked.targets = 0;
    reporter.step(2, masked, 0.5);
    reporter.step(3, rejected("head.weight"), 0.25);
    reporter.step(4, rejected(""), 0.25);
    reporter.step(5, rejected("head.weight", true), 0.25);
    reporter.evaluation(5, 2.5, {});
    reporter.evaluation(6, std::numeric_limits<double>::quiet_NaN(), {{"prose", 3.0}, {"code", 2.0}});
    reporter.saved({5, 4096, 0.125, 2, std::nullopt});
    reporter.saved({6, 0, 0, 0, "no space"});
    reporter.event("diverged", {}, {{"rejected_steps", 2}, {"limit", 3}});
    reporter.memory(9, planned, measured);
    reporter.forecast(9, 0.5, 0.25, 1 << 20, 1 << 21);
    reporter.message("done");
    reporter.sync();
    CHECK(reporter.write_error().empty());
  });
  const std::string memory =
      R"({"event":"memory","step":9,"forecast":)" + memory_json(planned).dump() + R"(,"measured":)" + memory_json(measured).dump() + "}\n";
  CHECK(text.metrics == R"({"event":"start","step":0,"steps":9,"parameters":123200,"world_size":1,"layout":{"pipeline":1,"tensor":1},)"
                        R"("version":"9.8.7","forecast":null})"
                        "\n"
                        R"({"step":1,"loss":0.30000000000000004,"grad_norm":0.3333333333333333,"learning_rate":0.0003,"tokens":128,)"
                        R"("step_seconds":0.5,"tokens_per_second":256.0,"model_tflops":0.000191889408,"mfu":null})"
                        "\n"
                        R"({"step":2,"loss":null,"grad_norm":0.0,"learning_rate":0.0003,"tokens":256,"step_seconds":0.5,)"
                        R"("tokens_per_second":256.0,"model_tflops":0.000191889408,"mfu":null})"
                        "\n"
                        R"({"event":"no_target","step":2})"
                        "\n"
                        R"({"step":3,"loss":2.0,"grad_norm":null,"learning_rate":0.001,"tokens":384,"step_seconds":0.25,)"
                        R"("tokens_per_second":512.0,"model_tflops":0.000383778816,"mfu":null})"
                        "\n"
                        R"({"event":"rejected_step","step":3,"parameter":"head.weight"})"
                        "\n"
                        R"({"step":4,"loss":2.0,"grad_norm":null,"learning_rate":0.001,"tokens":512,"step_seconds":0.25,)"
                        R"("tokens_per_second":512.0,"model_tflops":0.000383778816,"mfu":null})"
                        "\n"
                        R"({"event":"rejected_step","step":4,"parameter":""})"
                        "\n"
                        R"({"step":5,"loss":2.0,"grad_norm":null,"learning_rate":0.001,"tokens":640,"step_seconds":0.25,)"
                        R"("tokens_per_second":512.0,"model_tflops":0.000383778816,"mfu":null,"loss_scale":65536})"
                        "\n"
                        R"({"event":"overflow","step":5,"parameter":"head.weight"})"
                        "\n"
                        R"({"step":5,"validation_loss":2.5})"
                        "\n"
                        R"({"step":6,"validation_loss":null,"validation":{"prose":3.0,"code":2.0}})"
                        "\n"
                        R"({"event":"checkpoint","checkpoint":"step-00000005","bytes":4096,"stall_seconds":0.125,"write_seconds":2.0})"
                        "\n"
                        R"({"event":"checkpoint_failed","checkpoint":"step-00000006","reason":"no space"})"
                        "\n"
                        R"({"event":"diverged","rejected_steps":2,"limit":3})"
                        "\n" +
                            memory +
                            R"({"event":"forecast","step":9,"step_seconds":{"forecast":0.5,"measured":0.25,"ratio":2.0},)"
                            R"("memory_bytes":{"forecast":1048576.0,"measured":2097152.0,"ratio":0.5}})"
                            "\n");
  CHECK(text.out ==
        "step 1/9  loss 0.3000  grad_norm 0.333  lr 0.0003  256 tokens/s  left 4s\n"
        "step 2/9  loss nan     grad_norm 0.000  lr 0.0003  256 tokens/s  left 4s\n"
        "step 3/9  loss 2.0000  grad_norm nan    lr 0.001   512 tokens/s  left 3s\n"
        "step 4/9  loss 2.0000  grad_norm nan    lr 0.001   512 tokens/s  left 2s\n"
        "step 5/9  loss 2.0000  grad_norm nan    lr 0.001   512 tokens/s  scale 65536  left 2s\n"
        "step 5/9  validation loss 2.5000\n"
        "step 6/9  validation loss nan  prose 3.0000  code 2.0000\n");
  CHECK(text.messages ==
        "pinned: llama with 123200 parameters, tensor 1 x pipeline 1 x data 1, ZeRO-0, fp32; 9 steps of 8 x 16 tokens\n"
        "warning: step 2 has no loss and its gradients are zero: every target of its batch is masked, as prompt targets are\n"
        "step 3 rejected on every rank: the gradient of head.weight is not finite; weights are unchanged\n"
        "step 4 rejected on every rank: the gradient is not finite; weights are unchanged\n"
        "checkpoint of step 6 was not saved: no space; older checkpoints remain valid\n"
        "memory per rank, forecast and measured:\n" +
            memory_table(planned, measured) +
            "\n"
            "forecast vs measured: step time 0.5 s vs 0.25 s (200 %); peak memory of a rank at most 1 MiB vs 2 MiB (50 %)\n"
            "done\n");
}

TEST_CASE("reporter: padding is in no rate and no number of tokens", "[metrics]") {
  const ReporterOutput text = written(false, 9, [&](Reporter& reporter, const std::string&) {
    StepResult padded = result_of(2, 1);
    padded.padding = 32;
    reporter.step(1, padded, 0.5, nlohmann::ordered_json::object(), 32);
    padded.padding = 64;
    reporter.step(2, padded, 0.5, nlohmann::ordered_json::object(), 96);
  });
  CHECK_THAT(text.metrics, Catch::Matchers::Contains(R"("tokens":96,"step_seconds":0.5,"tokens_per_second":192.0,"model_tflops":0.000143917056,)"));
  CHECK_THAT(text.metrics, Catch::Matchers::Contains(R"("tokens":160,"step_seconds":0.5,"tokens_per_second":128.0,"model_tflops":9.5944704e-05,)"));
  CHECK_THAT(text.out, Catch::Matchers::Contains("  192 tokens/s"));
}

TEST_CASE("reporter: a resumed run counts on from the tokens that its history has, whatever the batches of then were", "[metrics]") {
  RunHistory history;
  history.step = 5;
  history.tokens = 5 * 7;
  const auto resumed = [](Reporter& reporter, const std::string&) { reporter.step(7, result_of(2, 1), 0.5, nlohmann::ordered_json::object(), 3); };
  CHECK_THAT(written(false, 9, resumed, history).metrics, Catch::Matchers::Contains(R"("tokens":288,)"));  // 35 + 2 steps of 128 - 3
}

TEST_CASE("reporter: MFU with a forecast, and one rewritten line on a terminal", "[metrics]") {
  const ReporterOutput text = written(true, 2, [](Reporter& reporter, const std::string&) {
    reporter.step(1, result_of(2, 1, 65536), 0.5);
    reporter.message("between");
    reporter.step(2, result_of(1.5, 1), 0.5);
    reporter.evaluation(2, 2.5, {});
  });
  CHECK(text.metrics == R"({"event":"start","step":0,"steps":2,"parameters":123200,"world_size":1,"layout":{"pipeline":1,"tensor":1},)"
                        R"("version":"9.8.7","forecast":{"step_seconds":0.5,"step_low":0.0,"step_high":0.0,"mfu":0.125,"bubble":0.0,)"
                        R"("figures":"no figures"}})"
                        "\n"
                        R"({"step":1,"loss":2.0,"grad_norm":1.0,"learning_rate":0.0003,"tokens":128,"step_seconds":0.5,"tokens_per_second":256.0,)"
                        R"("model_tflops":0.000191889408,"mfu":0.191889408,"loss_scale":65536})"
                        "\n"
                        R"({"step":2,"loss":1.5,"grad_norm":1.0,"learning_rate":0.0003,"tokens":256,"step_seconds":0.5,"tokens_per_second":256.0,)"
                        R"("model_tflops":0.000191889408,"mfu":0.191889408})"
                        "\n"
                        R"({"step":2,"validation_loss":2.5})"
                        "\n");
  CHECK(
      text.out ==
      "\rstep 1/2  loss 2.0000  grad_norm 1.000  lr 0.0003  256 tokens/s  scale 65536  mfu 19.2%  left 1s  [===================>                  ]\n"
      "\rstep 2/2  loss 1.5000  grad_norm 1.000  lr 0.0003  256 tokens/s  mfu 19.2%  left 0s  [======================================]\n"
      "step 2/2  validation loss 2.5000\n");
  CHECK(text.messages ==
        "pinned: llama with 123200 parameters, tensor 1 x pipeline 1 x data 1, ZeRO-0, fp32; 2 steps of 8 x 16 tokens\n"
        "between\n");
}

TEST_CASE("reporter: an empty step of private training is no warning, parameter servers are no islands, and one step is one", "[metrics]") {
  const auto of_empty_step = [](const Config& config) {
    ReportedRun run{.config = config, .steps = 1};
    run.environment = {{"version", "9.8.7"}, {"world_size", 2}, {"layout", {{"islands", 2}}}};
    return reporter_output(std::move(run), [](Reporter& reporter, const std::string&) {
      StepResult empty = result_of(0, 0);
      empty.targets = 0;
      reporter.step(1, empty, 0.5);
      reporter.step(2, rejected("head.weight"), 0.5);
    });
  };
  Config config;
  config.training.steps = 1;
  config.parallel.islands = 2;
  config.training.local.steps = 1;
  config = resolve(config);
  const ReporterOutput islands = of_empty_step(config);
  CHECK_THAT(islands.messages, Catch::Matchers::Contains("; 1 step of "));
  CHECK_THAT(islands.metrics, Catch::Matchers::Contains(R"({"event":"no_target","step":1,"island":0})"));
  CHECK_THAT(islands.messages, Catch::Matchers::Contains("\nisland 0: step 2 rejected on every rank: "));
  config.training.asynchronous.mode = AsynchronousMode::kParameterServer;
  const ReporterOutput servers = of_empty_step(config);
  CHECK_THAT(servers.metrics, Catch::Matchers::Contains(R"({"event":"no_target","step":1})"));
  CHECK_THAT(servers.messages, Catch::Matchers::Contains("\nwarning: step 1 has no loss"));
  CHECK_THAT(servers.messages, Catch::Matchers::Contains("\nstep 2 rejected on every rank: "));
  config.security.privacy.clip = 1;
  const ReporterOutput hidden = of_empty_step(config);
  CHECK(hidden.metrics.find("no_target") == std::string::npos);
  CHECK(hidden.messages.find("has no loss") == std::string::npos);
  CHECK_THAT(hidden.metrics, Catch::Matchers::Contains(R"({"step":1,"loss":null,)"));
}

TEST_CASE("reporter: events that two islands have kept are those of their own, and percentages of a forecast are rounded", "[metrics]") {
  const ReporterOutput text = written(false, 9, [&](Reporter& reporter, const std::string&) {
    Reporter second, third;
    CHECK(second.take_island_events().empty());  // none are kept
    second.step(1, rejected("lost"), 0.5);
    second.keep_island_events();
    third.keep_island_events();
    CHECK(second.take_island_events().empty());
    second.step(3, rejected("head.weight"), 0.5);
    second.step(4, result_of(2, 1), 0.5);
    second.step(5, rejected("embedding.weight", true), 0.5);  // an overflow is expected
    third.step(6, rejected("norm.weight"), 0.5);
    third.anomaly(7, result_of(9, 8), {.loss = 3.5, .grad_norm = 1.25}, "warn", {{"outliers", {2}}}, "");
    reporter.report_island_events(2, third.take_island_events());
    reporter.report_island_events(1, second.take_island_events());
    CHECK(second.take_island_events().empty());
    reporter.forecast(9, 1, 3, 2 << 20, 3 << 20);
    reporter.forecast(9, 2, 3, 1.5 * (1 << 20), 1 << 20);
  });
  const std::string events = text.metrics.substr(text.metrics.find('\n') + 1);
  CHECK_THAT(events,
             Catch::Matchers::StartsWith(
                 R"({"event":"rejected_step","step":6,"parameter":"norm.weight","island":2})"
                 "\n"
                 R"({"event":"anomaly","step":7,"action":"warn","measured":{"loss":9.0,"grad_norm":8.0},"limit":{"loss":3.5,"grad_norm":1.25},)"
                 R"("outliers":[2],"island":2})"
                 "\n"
                 R"({"event":"rejected_step","step":3,"parameter":"head.weight","island":1})"
                 "\n"
                 R"({"event":"forecast",)"));
  CHECK(text.messages.substr(text.messages.find('\n') + 1) ==
        "island 2: step 6 rejected on every rank: the gradient of norm.weight is not finite; weights are unchanged\n"
        "island 1: step 3 rejected on every rank: the gradient of head.weight is not finite; weights are unchanged\n"
        "forecast vs measured: step time 1 s vs 3 s (33 %); peak memory of a rank at most 2 MiB vs 3 MiB (67 %)\n"
        "forecast vs measured: step time 2 s vs 3 s (67 %); peak memory of a rank at most 1.5 MiB vs 1 MiB (150 %)\n");
}

TEST_CASE("reporter: a full disk is reported once, until there is space again", "[metrics]") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto restore = std::signal(SIGXFSZ, SIG_IGN);
  std::string error;
  const ReporterOutput text = written(false, 99, [&](Reporter& reporter, const std::string& path) {
    int64_t step = 0;
    const auto next = [&] { reporter.step(++step, result_of(2, 1), 0.5); };
    while (step < 20) next();
    const rlimit full{slurp(path).size(), before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
    next();
    next();
    error = reporter.write_error();
    ::setrlimit(RLIMIT_FSIZE, &before);
    next();
    CHECK(reporter.write_error().empty());
    CHECK(error == "cannot write " + path + ": File too large");
  });
  std::signal(SIGXFSZ, restore);
  CHECK(std::count(text.metrics.begin(), text.metrics.end(), '\n') == 24);
  CHECK(text.messages.substr(text.messages.find('\n') + 1) == error + "; its lines are buffered until there is space\n");
}
