// metrics.jsonl and the console lines.
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>
#include <vector>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "tests/support/scratch.h"
#include "trainer/files/durable_file.h"
#include "trainer/run/console_sink.h"
#include "trainer/run/metrics_sink.h"

using namespace trireme;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

using test::TemporaryDirectory;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Event metrics_of(int64_t step) {
  return {"step",
          step,
          {{"loss", 0.1 + 0.2},
           {"grad_norm", 1.0 / 3},
           {"learning_rate", 3e-4},
           {"tokens", step * 4096},
           {"step_seconds", 0.5},
           {"tokens_per_second", 8192.0},
           {"model_tflops", 0.25},
           {"mfu", nullptr}}};
}

Event evaluation_of(int64_t step, double loss) { return {"evaluation", step, {{"validation_loss", loss}}}; }

const nlohmann::ordered_json kTwoSets = {{"validation_loss", 1.5}, {"validation", {{"prose", 2.0}, {"code", 1.0}}}};

/// What `body` prints to its two streams.
template <class Body>
std::pair<std::string, std::string> printed(Body&& body) {
  char* texts[2] = {};
  size_t sizes[2] = {};
  std::FILE* out = ::open_memstream(&texts[0], &sizes[0]);
  std::FILE* messages = ::open_memstream(&texts[1], &sizes[1]);
  body(out, messages);
  std::fclose(out);
  std::fclose(messages);
  std::pair<std::string, std::string> result{{texts[0], sizes[0]}, {texts[1], sizes[1]}};
  std::free(texts[0]);
  std::free(texts[1]);
  return result;
}

}  // namespace

TEST_CASE("metrics: lines are written immediately, in order, with exact numbers", "[metrics]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  MetricsSink writer(path);
  writer.write({"start", {}, {{"version", "1"}, {"world_size", 8}}});
  writer.write(metrics_of(1));
  Event odd = metrics_of(2);
  odd.fields["loss"] = std::numeric_limits<double>::quiet_NaN();
  odd.fields["grad_norm"] = std::numeric_limits<double>::infinity();
  odd.fields["mfu"] = 0.5;
  odd.fields["loss_scale"] = 32768;
  writer.write(odd);
  writer.write(evaluation_of(2, 5e-324));
  writer.write({"evaluation", 2, kTwoSets});

  const auto lines = lines_of(read_text(path));  // the writer is still open
  REQUIRE(lines.size() == 5);
  CHECK(lines[0] == R"({"event":"start","version":"1","world_size":8})");
  CHECK(lines[1] == R"({"step":1,"loss":0.30000000000000004,"grad_norm":0.3333333333333333,"learning_rate":0.0003,"tokens":4096,)"
                    R"("step_seconds":0.5,"tokens_per_second":8192.0,"model_tflops":0.25,"mfu":null})");
  const json second = json::parse(lines[2]);
  CHECK(second["loss"].is_null());
  CHECK(second["loss_scale"] == 32768);
  CHECK(second["grad_norm"].is_null());
  CHECK(second["mfu"] == 0.5);
  CHECK(json::parse(lines[3]) == json{{"step", 2}, {"validation_loss", 5e-324}});
  CHECK(lines[4] == R"({"step":2,"validation_loss":1.5,"validation":{"prose":2.0,"code":1.0}})");
  REQUIRE_THROWS_AS(MetricsSink(directory.path / "missing" / "metrics.jsonl"), IoError);
}

TEST_CASE("metrics: after truncation each step occurs once", "[metrics]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  {
    MetricsSink writer(path);
    writer.write({"start"});
    for (int64_t step : {1, 2, 3}) writer.write(metrics_of(step));
    writer.write(evaluation_of(3, 2.5));
    writer.write({"start", {}, {{"resumed_from", 3}}});
    for (int64_t step : {4, 5}) writer.write(metrics_of(step));
    writer.write({"start", {}, {{"resumed_from", 5}}});
    writer.write(metrics_of(6));
  }
  std::ofstream(path, std::ios::app) << R"({"step":7,"lo)";  // incomplete after a crash
  const auto summary = [&] {
    std::string result;
    for (const std::string& line : lines_of(read_text(path))) {
      const json object = json::parse(line);
      result += object.contains("event") ? "S" : object["step"].dump() + (object.contains("validation_loss") ? "v" : "");
    }
    return result;
  };
  SECTION("only the incomplete line") {
    MetricsSink::truncate_after(path, 6);
    CHECK(summary() == "S1233vS45S6");
  }
  SECTION("to a checkpoint before a resume") {
    MetricsSink::truncate_after(path, 3);
    CHECK(summary() == "S1233vS");
    MetricsSink(path).write(metrics_of(4));
    CHECK(summary() == "S1233vS4");
    MetricsSink::truncate_after(path, 2);
    CHECK(summary() == "S12");
  }
  SECTION("to the beginning") {
    MetricsSink::truncate_after(path, 0);
    CHECK(summary().empty());
  }
  SECTION("no file") {
    MetricsSink::truncate_after(directory.path / "other", 1);
    CHECK_FALSE(fs::exists(directory.path / "other"));
  }
}

TEST_CASE("metrics: the history has the last step, the last evaluation, and the last checkpoint saved or resumed from", "[metrics]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  const auto check = [&](int64_t steps, const std::string& checkpoint) {
    const MetricsHistory history = MetricsSink::history(path);
    CHECK(history.steps == steps);
    CHECK(history.checkpoint == checkpoint);
  };
  check(0, "");
  MetricsSink writer(path);
  writer.write({"start", 0});
  check(0, "");
  for (int64_t step : {1, 2}) writer.write(metrics_of(step));
  writer.write({"checkpoint_failed", {}, {{"checkpoint", "step-00000002"}}});
  check(2, "");
  writer.write({"checkpoint", {}, {{"checkpoint", "step-00000002"}, {"bytes", 7}}});
  writer.write(metrics_of(3));
  writer.write(evaluation_of(3, 2.5));
  check(3, "step-00000002");
  CHECK(MetricsSink::history(path).evaluated == 3);
  writer.write({"start", 3, {{"from_peers", true}}});  // from copies in memory, which are no checkpoint
  check(3, "step-00000002");
  std::ofstream(path, std::ios::app) << R"({"event":"checkpoint","checkpoint":"step-000)";  // incomplete after a crash
  check(3, "step-00000002");
  // The save's own line was truncated, as it came after the next step, but the start event shows that the checkpoint existed.
  std::ofstream(path) << R"({"event":"start","step":4})"
                      << "\n";
  check(0, "step-00000004");
}

TEST_CASE("metrics: a file that contains steps is renamed to a free name", "[metrics]") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  CHECK(MetricsSink::rename_existing(path).empty());
  {
    MetricsSink writer(path);
    writer.write({"start", 0});
    CHECK(MetricsSink::rename_existing(path).empty());
    writer.write(metrics_of(1));
  }
  std::ofstream(directory.path / "metrics-1.jsonl") << "an older one";
  const std::string text = read_text(path);
  CHECK(MetricsSink::rename_existing(path) == directory.path / "metrics-2.jsonl");
  CHECK(read_text(directory.path / "metrics-2.jsonl") == text);
  CHECK(read_text(directory.path / "metrics-1.jsonl") == "an older one");
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("console: plain lines in a log, one rewritten line on a terminal, messages on a separate stream", "[metrics]") {
  const auto [log, log_messages] = printed([](std::FILE* out, std::FILE* messages) {
    ConsoleSink console(100, 1, {}, out, messages);
    console.write(metrics_of(1));
    console.write({.kind = "", .text = "saved"});
    console.write(evaluation_of(1, 2.5));
    console.write({"evaluation", 1, kTwoSets});
  });
  CHECK(log ==
        "step 1/100    loss 0.3000  grad_norm 0.333  lr 0.0003  8192 tokens/s  left 50s\nstep 1/100    validation loss 2.5000\n"
        "step 1/100    validation loss 1.5000  prose 2.0000  code 1.0000\n");
  CHECK(log_messages == "saved\n");

  const auto [screen, screen_messages] = printed([](std::FILE* out, std::FILE* messages) {
    ConsoleSink console(
        100, 50, [] { return size_t{200}; }, out, messages);
    Event first = metrics_of(1);
    first.fields["tokens_per_second"] = 12345.0;
    first.fields["mfu"] = 0.421;
    first.fields["step_seconds"] = 20.0;  // it warms up, and later steps forget it
    console.write(first);
    console.write(metrics_of(2));
    console.write({.kind = "", .text = "saved"});
    console.write(metrics_of(3));
  });
  CHECK(screen == "\rstep 1/100    loss 0.3000  grad_norm 0.333  lr 0.0003  12.3k tokens/s  mfu 42.1%  left 33m00s  " + progress_bar(0.01, 40) +
                      "\rstep 2/100    loss 0.3000  grad_norm 0.333  lr 0.0003  8192 tokens/s   left 49s     " + progress_bar(0.02, 40) +
                      std::string(11, ' ') + "\n\rstep 3/100    loss 0.3000  grad_norm 0.333  lr 0.0003  8192 tokens/s   left 49s     " +
                      progress_bar(0.03, 40) + "\n");
  CHECK(screen_messages == "saved\n");
}

TEST_CASE("console: a long evaluation shows how long it will take, once in a log and continuously on a terminal", "[metrics]") {
  const auto evaluate = [](ConsoleSink& console, double batch_seconds) {
    for (int64_t done = 0; done < 50; ++done) console.evaluating(7, done, 50, batch_seconds * static_cast<double>(done));
    console.write(evaluation_of(7, 2.5));
  };
  const auto without_clock = [](const std::string& text) {
    return std::regex_replace(text, std::regex("(\\d+-\\d\\d-\\d\\d )?\\d\\d:\\d\\d:\\d\\d  "), "");
  };
  const std::string result = "step 7/100    validation loss 2.5000\n";
  const auto [log, log_messages] = printed([&](std::FILE* out, std::FILE* messages) {
    ConsoleSink console(100, {}, nullptr, out, messages);
    for (const double seconds : {0.1, 4.0, 4.0}) evaluate(console, seconds);
  });
  const std::string line = "step 7/100    evaluation batch 3 of 50  in 12s  left 3m08s\n";
  CHECK(without_clock(log) == result + line + result + line + result);
  CHECK(log_messages.empty());
  const auto [screen, screen_messages] = printed([&](std::FILE* out, std::FILE* messages) {
    ConsoleSink console(
        100, {}, [] { return 80; }, out, messages);
    for (int64_t done = 0; done < 4; ++done) console.evaluating(7, done, 50, 0.15 * static_cast<double>(done));
    console.write(evaluation_of(7, 2.5));
  });
  CHECK(without_clock(screen) == "\rstep 7/100    evaluation batch 2 of 50  in 0s  left 7s  [>          ]\n" + result);
  CHECK(screen_messages.empty());
}

TEST_CASE("console: durations", "[metrics]") {
  CHECK(format_duration(0.4) == "0s");
  CHECK(format_duration(59.6) == "1m00s");
  CHECK(format_duration(245) == "4m05s");
  CHECK(format_duration(3 * 3600 + 7 * 60 + 20) == "3h07m");
  CHECK(format_duration(2 * 86400 + 4 * 3600) == "2d04h");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "11574d01h");
}

TEST_CASE("metrics: the newest evaluation and checkpoint of a log, and what a resumed run discards and keeps of it") {
  const test::Scratch scratch;
  const std::string path = scratch / "metrics.jsonl";
  CHECK(MetricsSink::lines_after(path, 0).until.empty());
  const std::vector<std::string> lines = {
      R"({"event":"start","step":0,"time":"t0"})",
      R"({"step":1,"loss":4,"time":"t1"})",
      R"({"step":2,"loss":3,"time":"t2"})",
      R"({"step":2,"validation_loss":3.5,"time":"t3"})",
      R"({"event":"checkpoint","checkpoint":"step-00000002","time":"t4"})",
      R"({"step":3,"loss":null,"time":"t5"})",
      R"({"event":"ranks","step":3,"loss":1,"time":"t6"})",
      R"({"step":3,"validation_loss":null,"time":"t7"})",
      R"({"event":"checkpoint","checkpoint":"step-00000003","time":"t8"})",
      R"({"event":"start","step":2,"time":"t9"})",
      R"({"step":3,"loss":2,"time":"t10"})",
      R"({"step":4,"loss":1,"time":"t11"})",
      R"({"step":4,"validation_loss":1.25,"time":"t12"})",
      R"({"event":"checkpoint_failed","checkpoint":"step-00000004"})",
  };
  const auto first = [&](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += lines[i] + "\n";
    return text;
  };
  const auto history = [&](size_t count) {
    scratch.write("metrics.jsonl", first(count));
    return MetricsSink::history(path);
  };
  CHECK((history(4).steps == 2 && history(4).evaluated == 2 && history(4).loss == 3.5 && history(4).checkpoint.empty()));
  CHECK((history(5).steps == 2 && history(5).checkpoint == "step-00000002"));
  CHECK((history(9).steps == 3 && history(9).evaluated == 3 && std::isnan(history(9).loss) && history(9).checkpoint == "step-00000003"));
  CHECK(history(10).checkpoint == "step-00000002");  // the run began again from it
  CHECK((history(14).steps == 4 && history(14).evaluated == 4 && history(14).loss == 1.25 && history(14).checkpoint == "step-00000002"));
  // Lines from the first of a later step on are discarded, also those of other events and of earlier steps behind it.
  const auto discarded = [&](int64_t step) {
    const MetricsSink::Discarded found = MetricsSink::lines_after(path, step);
    return concat(found.steps, " until ", found.until);
  };
  CHECK(discarded(0) == "5 until t12");
  CHECK(discarded(1) == "4 until t12");
  CHECK(discarded(2) == "3 until t12");
  CHECK(discarded(3) == "1 until t12");
  CHECK(discarded(4) == "0 until ");
  for (const auto& [step, kept] : {std::pair<int64_t, size_t>{4, 14}, {3, 11}, {2, 5}, {1, 2}, {0, 0}}) {
    CAPTURE(step);
    scratch.write("metrics.jsonl", first(14));
    MetricsSink::truncate_after(path, step);
    CHECK(test::slurp(path) == first(kept));
  }
}

TEST_CASE("metrics: the splits of micro-batches after a step, which a resumed run repeats") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  CHECK(MetricsSink::splits_after(path, 0).last_step == 0);
  MetricsSink writer(path);
  const auto rebalance_of = [](MetricsSink& sink, int64_t step, const std::vector<int>& split) {
    sink.write({"rebalance", step, {{"micro_batches", split}}});
  };
  const auto rebalance = [&](int64_t step, const std::vector<int>& split) { rebalance_of(writer, step, split); };
  const auto step = [&](int64_t number) {
    Event event = metrics_of(number);
    event.fields["imbalance"] = 0.5;
    writer.write(event);
  };
  writer.write(metrics_of(19));
  CHECK(MetricsSink::splits_after(path, 0).last_step == 0);  // was trained without the key
  step(20);
  rebalance(20, {7, 3});
  step(40);
  rebalance(40, {6, 4});
  writer.write({"diverged", {}, {{"rejected_steps", 3}}});
  step(47);
  std::ofstream(path, std::ios::app) << R"({"event":"rebalance","step":60,"micro_ba)";  // cut by a kill
  const LoggedSplits all = MetricsSink::splits_after(path, 0), later = MetricsSink::splits_after(path, 20);
  CHECK(all.last_step == 47);
  CHECK(all.after_step == std::map<int64_t, std::vector<int>>{{20, {7, 3}}, {40, {6, 4}}});
  CHECK(later.after_step == std::map<int64_t, std::vector<int>>{{40, {6, 4}}});
  // A job that repeats these steps after step 20 ends before it has repeated the decision.
  MetricsSink::truncate_after(path, 20);
  MetricsSink repeated(path);
  repeated.write({"rebalance_again", 20, {{"last_step", 47}, {"micro_batches", {{"40", {6, 4}}}}}});
  const LoggedSplits again = MetricsSink::splits_after(path, 20), earlier = MetricsSink::splits_after(path, 0);
  CHECK((again.last_step == 47 && again.after_step == later.after_step));
  CHECK((earlier.last_step == 47 && earlier.after_step == all.after_step));
  // It reaches the step, and logs the decision in its place: the same step has two lines now.
  rebalance_of(repeated, 40, {6, 4});
  CHECK(MetricsSink::splits_after(path, 0).after_step == all.after_step);
  // A job in another layout repeats nothing.
  repeated.write({"rebalance_again", 20, {{"last_step", 20}, {"micro_batches", nlohmann::ordered_json::object()}}});
  CHECK((MetricsSink::splits_after(path, 20).last_step == 20 && MetricsSink::splits_after(path, 20).after_step.empty()));
}

TEST_CASE("metrics: the order of arrivals after a step, which a resumed run repeats") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  CHECK(MetricsSink::order_after(path, 0).empty());
  MetricsSink writer(path);
  const auto step = [](MetricsSink& sink, int64_t number, const std::vector<int>& workers) {
    Event event = metrics_of(number);
    event.fields["workers"] = workers;
    sink.write(event);
  };
  writer.write(metrics_of(1));  // was trained without the key
  step(writer, 2, {0});
  step(writer, 3, {1});
  step(writer, 4, {1});
  writer.write({"staleness", 4, {{"gradients", {1, 2}}}});
  std::ofstream(path, std::ios::app) << R"({"step":5,"loss":1,"workers":[0)";  // cut by a kill
  const LoggedOrder later{{3, {1}}, {4, {1}}};
  CHECK(MetricsSink::order_after(path, 0) == LoggedOrder{{2, {0}}, {3, {1}}, {4, {1}}});
  CHECK(MetricsSink::order_after(path, 2) == later);
  // A job that repeats these steps after step 2 ends when it has repeated one of them.
  MetricsSink::truncate_after(path, 2);
  MetricsSink repeated(path);
  repeated.write({"arrivals", 2, {{"workers", {{"3", {1}}, {"4", {1}}}}}});
  CHECK(MetricsSink::order_after(path, 2) == later);
  step(repeated, 3, {1});
  CHECK(MetricsSink::order_after(path, 2) == later);
  CHECK(MetricsSink::order_after(path, 3) == LoggedOrder{{4, {1}}});
}

TEST_CASE("metrics: lines that do not fit on the disk are buffered and written later, complete and in order") {
  const TemporaryDirectory directory;
  const fs::path path = directory.path / "metrics.jsonl";
  MetricsSink writer(path);
  writer.write(metrics_of(1));
  const auto first = static_cast<rlim_t>(fs::file_size(path));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto restore = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{first + first / 2, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  writer.write(metrics_of(2));
  const std::string error = writer.write_error();
  const auto with_half_a_line = fs::file_size(path);
  writer.write({"checkpoint_failed", {}, {{"checkpoint", "step-00000002"}}});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, restore);
  CHECK_THAT(error, Catch::Matchers::Contains(path.string()));
  CHECK(with_half_a_line == first);  // the incomplete line was truncated
  writer.write(metrics_of(3));
  CHECK(writer.write_error().empty());
  const std::vector<std::string> lines = lines_of(read_text(path));
  REQUIRE(lines.size() == 4);
  CHECK(json::parse(lines[1])["step"] == 2);
  CHECK(json::parse(lines[2])["event"] == "checkpoint_failed");
  CHECK(json::parse(lines[3])["step"] == 3);
}
