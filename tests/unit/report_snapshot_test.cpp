// What `trireme report`, `goodput` and `compare` show of runs with two of everything: jobs, layouts, forecasts, evaluations, changes, slow ranks.
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/replaced.h"
#include "tests/support/scratch.h"
#include "tests/support/snapshot.h"
#include "trainer/files/clock_text.h"
#include "trainer/report/bars.h"
#include "trainer/report/comparison.h"
#include "trainer/report/csv.h"
#include "trainer/report/goodput_report.h"
#include "trainer/report/heat_map.h"
#include "trainer/report/page.h"
#include "trainer/report/run_facts.h"

namespace trireme::report::snapshots {
namespace {

using nlohmann::ordered_json;
using test::check_snapshot;
using test::replaced;
using test::Scratch;

/// Seconds after 22:59:20, so that a run passes midnight where it is longer than an hour.
std::string at(double seconds) {
  return utc_text(*time_of_utc("2026-11-23T22:59:20.000Z") + std::chrono::milliseconds(std::llround(1000 * seconds)));
}

/// The files of a run, line by line.
class RunWriter {
 public:
  RunWriter(const Scratch& scratch, std::string name) : scratch_(scratch), name_(std::move(name)) {}

  void metric(ordered_json line, double seconds) { add(metrics_, std::move(line), seconds); }
  void event(const std::string& kind, int64_t step, double seconds, ordered_json fields = ordered_json::object()) {
    ordered_json line{{"event", kind}, {"step", step}};
    line.update(fields);
    add(metrics_, std::move(line), seconds);
  }
  void job(const std::string& event, double seconds, ordered_json fields = ordered_json::object()) {
    ordered_json line{{"event", event}};
    line.update(fields);
    add(jobs_, std::move(line), seconds);
  }
  void step(int64_t number, double end, double duration, double loss, ordered_json more = ordered_json::object()) {
    ordered_json line{{"step", number},
                      {"loss", loss},
                      {"grad_norm", 0.5 + 0.01 * static_cast<double>(number % 9)},
                      {"learning_rate", 0.001 / static_cast<double>(1 + number / 50)},
                      {"tokens", 4096 * number},
                      {"step_seconds", duration},
                      {"tokens_per_second", 4096 / duration},
                      {"model_tflops", 12.5 / duration},
                      {"mfu", 0.375 / (1 + duration)}};
    line.update(more);
    metric(std::move(line), end);
  }
  RunRecord read(const std::string& yaml, const ordered_json& environment, const std::string& slurm = "") const {
    scratch_.write(name_ + "/config.yaml", replaced(yaml, "NAME", name_));
    scratch_.write(name_ + "/environment.json", environment.dump());
    scratch_.write(name_ + "/metrics.jsonl", metrics_);
    if (!jobs_.empty()) scratch_.write(name_ + "/jobs.jsonl", jobs_);
    if (!slurm.empty()) scratch_.write(name_ + "/slurm/jobs.jsonl", slurm);
    return read_run(scratch_ / name_);
  }

 private:
  static void add(std::string& text, ordered_json line, double seconds) {
    line["time"] = at(seconds);
    text += line.dump() + "\n";
  }

  const Scratch& scratch_;
  std::string name_, metrics_, jobs_;
};

const std::string kYaml = R"(run:
  name: NAME
  directory: runs/NAME
  seed: 1234
model:
  architecture: llama
  layers: 4
  hidden_size: 64
  heads: 4
  kv_heads: 2
  vocab_size: 256
training:
  steps: 620
  sequence_length: 64
  global_batch_size: 64
  precision: bf16
  optimizer:
    learning_rate: 0.001
    beta2: 0.9
parallel:
  tensor: 2
  pipeline: 3
  data: 25
  zero_stage: 3
data:
  train: [first, second]
checkpoint:
  every: 100
  asynchronous: true
security:
  audit:
    enabled: true
)";

const ordered_json kEnvironment = ordered_json::parse(
    R"({"version":"0.2.0-abc","host":{"name":"node1","cpu":"a CPU","cores":8},"layout":{"tensor":2,"pipeline":3,"data":25},"gpu":null})");

/// Four jobs of 150 ranks over 600 of 620 steps: one whose rank dies after step 210, one that hangs after 400, one that Slurm requeues after a wait, and one
/// by hand. Every fifth step and two ranks are slow. There are three evaluations with samples, six saves, and more events than the page lists.
RunRecord eventful_run(const Scratch& scratch) {
  RunWriter run(scratch, "eventful");
  double now = 0;
  int64_t saves = 0;
  const auto forecast = [](double seconds) {
    return ordered_json{{"steps", 620},
                        {"parameters", 1234567},
                        {"forecast", {{"step_seconds", seconds}, {"step_low", 0.75 * seconds}, {"step_high", 1.5 * seconds}}}};
  };
  const auto train = [&](int64_t first, int64_t last, double seconds) {
    for (int64_t number = first; number <= last; ++number) {
      const double duration = number % 5 == 0 ? 1.5 * seconds : seconds;
      now += duration + (number % 10 == 7 ? 0.125 : number % 10 == 2 ? 0.015 : 0);
      ordered_json more = ordered_json::object();
      if (number % 40 == 3) more["suspects"] = {{"3", 4.5}, {"17", nullptr}};
      if (number == 330) more["loss_scale"] = 512.0;
      run.step(number, now, duration, 6 - 0.005 * static_cast<double>(number) + 0.01 * static_cast<double>(number * 7 % 13), more);
      if (number % 2 == 0) {
        std::vector<double> busy(150, 0.8 * duration), data(150, 0.05 * duration), whole(150, duration);
        for (size_t rank = 0; rank < busy.size(); ++rank) busy[rank] += 0.001 * static_cast<double>(rank % 7);
        busy[10] *= 1.25;
        if (number > 300) busy[77] *= 1.5;
        ordered_json figures{{"steps", 2}, {"step_seconds", whole}, {"busy_seconds", busy}, {"data_seconds", data}};
        if (number % 50 == 0) figures["busy_seconds"][77] = nullptr;
        run.event("ranks", number, now, figures);
      }
      if (number % 200 == 0) {
        now += 4;
        const double loss = 6.25 - 0.005 * static_cast<double>(number) + (number == 600 ? 1.5 : 0);
        run.metric({{"step", number}, {"validation_loss", loss}, {"validation", {{"books", loss - 0.5}, {"code", loss + 0.5}}}}, now);
        run.event("sample", number, now, {{"prompt", "Once <b>"}, {"text", concat("upon a time ", number)}});
      }
      if (number % 100 == 0) {
        now += 0.5 + 0.25 * static_cast<double>(saves++ % 2);
        run.event("checkpoint", number, now,
                  {{"checkpoint", concat("step-00000", number)}, {"bytes", 1000}, {"stall_seconds", 0.5}, {"write_seconds", 2 + number / 100}});
        run.job("save", now, {{"seconds", 0.5}});
      }
      if (number % 6 == 1) run.event("rejected_step", number, now, {{"sample", 64 * number}});
    }
  };
  const auto start = [&](int64_t step, double launcher, double launched, double seconds, ordered_json more) {
    ordered_json fields{{"step", step},      {"launcher", at(launcher)}, {"launched", at(launched)},
                        {"joined", at(now)}, {"world_size", 150},        {"hosts", {"node1", "node2"}}};
    fields.update(more);
    run.job("start", now += 1, fields);
    run.event("start", step, now, forecast(seconds));
    now += 2;
    run.job("ready", now, {{"load_seconds", 0.75}});
  };
  now = 2;
  start(0, 0, 0, 0.5, {{"slurm_job", "41"}, {"slurm_restarts", 0}});
  run.event("change", 0, now, {{"from", "step 0"}, {"sample", 0}, {"changes", {{"training.optimizer.learning_rate", {0.002, 0.001}}}}});
  train(1, 200, 0.5);
  const double saved = now;
  now += 10 * 0.5;  // steps 201 to 210, which are lost
  run.job("exit", now + 6, {{"launcher", at(0)}, {"launched", at(0)}, {"code", 70}, {"failed", at(now + 2)}});
  const double second = now += 9;
  start(200, 0, second - 1.5, 0.75, {{"slurm_job", "41"}, {"slurm_restarts", 0}, {"discarded", {{"steps", 10}, {"until", at(saved + 5)}}}});
  run.event("exposed", 200, now, {{"step_seconds", 0.75}, {"compute", 0.5}, {"pipeline_bubble", 0.125}, {"tensor", 0.0625}, {"data_wait", 0.0625}});
  train(201, 400, 0.75);
  run.event("exposed", 300, now, {{"step_seconds", 0.8}, {"compute", 0.45}, {"zero_gather", 0.25}, {"other", 0.1}});
  run.event("checkpoint_failed", 400, now, {{"reason", "no space left"}});
  run.job("exit", now + 30, {{"launcher", at(0)}, {"launched", at(second - 1.5)}, {"code", 75}, {"failed", at(now + 10)}});
  now += 150;
  const double third = now;
  run.job("wait", now += 20, {{"seconds", 12}});
  start(400, third, third, 0.75, {{"slurm_job", "41"}, {"slurm_restarts", 1}});
  run.job("interval", now, {{"steps", 60}, {"save_seconds", 1.5}, {"step_seconds", 0.75}, {"mean_time_between_failures", 1800}});
  train(401, 500, 0.75);
  run.job("end", now += 1, {{"status", "stopped"}});
  run.job("exit", now += 1, {{"launcher", at(third)}, {"launched", at(third)}, {"code", 0}});
  now += 400;
  const double fourth = now;
  now += 2;
  start(500, fourth, fourth, 0.6, {{"slurm_job", "57"}, {"slurm_restarts", 0}});
  run.job("interval", now, {{"steps", 90}, {"save_seconds", 0.5}, {"step_seconds", 0.6}, {"mean_time_between_failures", 3600}});
  train(501, 600, 0.6);
  run.event("anomaly", 590, now, {{"action", "warn"}, {"measured", 9.5}, {"limit", 8}});
  const auto memory = [](double scale) {
    ordered_json ranks = ordered_json::array();
    for (int rank = 0; rank < 5; ++rank)
      ranks.push_back({{"parameters", scale * (30 + rank) * 1048576},
                       {"gradients", scale * (15 + rank) * 1048576},
                       {"peak", scale * (50 + 3 * ((rank * 2) % 5)) * 1048576}});
    return ranks;
  };
  run.event("memory", 600, now, {{"forecast", memory(1)}, {"measured", memory(1.0625)}});
  run.job("save_wait", now += 1, {{"seconds", 0.5}});
  run.job("end", now += 1, {{"status", "done"}});
  const std::string slurm =
      concat(R"({"event":"start","job":"41","restart":0,"time":")", at(-30), R"(","nodes":"node[1-2]","partition":"long","tasks":150})", "\n",
             R"({"event":"end","job":"41","restart":0,"seconds":500,"code":75,"next":"requeued"})", "\n",
             R"({"event":"start","job":"41","restart":1,"time":")", at(third - 5), R"(","nodes":"node[3-4]","partition":"long","tasks":150})", "\n",
             R"({"event":"start","job":"57","array":"50_7","restart":0,"time":")", at(fourth - 5),
             R"(","nodes":"node1","partition":"short","tasks":150})", "\n");
  RunRecord record = run.read(kYaml, kEnvironment, slurm);
  const double zero = std::chrono::duration<double>(time_of_utc(at(0))->time_since_epoch()).count();
  record.accounts.jobs = {{.job = "41",
                           .partition = "long",
                           .nodes = "node[1-2]",
                           .state = "REQUEUED",
                           .exit_code = "75:0",
                           .submitted = zero - 100,
                           .started = zero - 30,
                           .ended = zero + 470,
                           .cpus = 300,
                           .gpus = 16,
                           .max_rss = 3.5e9,
                           .joules = 7.2e6},
                          {.job = "41",
                           .partition = "long",
                           .nodes = "node[3-4]",
                           .state = "COMPLETED",
                           .exit_code = "0:0",
                           .submitted = zero + third - 105,
                           .started = zero + third - 5,
                           .ended = zero + third + 90,
                           .cpus = 300,
                           .gpus = 16,
                           .max_rss = 2.5e9,
                           .joules = 3.6e6}};
  record.accounts.note = "sacct knows nothing of job 57";
  return record;
}

/// Eight steps, of which the fifth has no loss, and two evaluations.
RunRecord short_run(const Scratch& scratch, const std::string& name, const std::string& yaml) {
  RunWriter run(scratch, name);
  run.event("start", 0, 100, {{"steps", 8}, {"parameters", 765}});
  for (int64_t number = 1; number <= 8; ++number)
    run.step(number, 102 + 1.25 * static_cast<double>(number), 1.25, number == 5 ? std::nan("") : 7 - 0.5 * static_cast<double>(number));
  run.metric({{"step", 4}, {"validation_loss", 5.5}}, 107.5);
  run.metric({{"step", 8}, {"validation_loss", 3.5}}, 113);
  return run.read(replaced(yaml, "steps: 620", "steps: 8"), kEnvironment);
}

std::string without_paths(const Scratch& scratch, const std::string& text) { return replaced(text, scratch / "", "DIRECTORY/"); }

/// What a page shows, without its style and script.
std::string shown_part(const std::string& page) {
  const size_t begin = page.find("<body");
  return page.substr(begin, page.find("<script") - begin);
}

}  // namespace

TEST_CASE("snapshot: report of a run with four jobs") {
  const Scratch scratch;
  const std::vector<RunRecord> runs{eventful_run(scratch)};
  const std::vector<RunView> views{RunView(runs[0], "eventful")};
  check_snapshot("report/eventful.html", without_paths(scratch, shown_part(page_html(views, "0.2.0"))));
  check_snapshot("report/slow-ranks.svg", heat_map_svg(runs[0].ranks));
  std::string bars;
  for (const Bars& one : memory_bars(runs[0])) bars += bars_svg(one) + "\n";
  check_snapshot("report/bars.svg", bars + bars_svg(*cause_bars(runs[0])));
}

TEST_CASE("snapshot: report of runs side by side") {
  const Scratch scratch;
  const std::string wider = replaced(kYaml, "hidden_size: 64", "hidden_size: 128");
  // Both optimizers have their automatic beta2 written out.
  const std::string lion = replaced(replaced(wider, "learning_rate: 0.001\n    beta2: 0.9", "name: lion\n    learning_rate: 0.0005\n    beta2: 0.99"),
                                    "seed: 1234", "seed: 77");
  std::vector<RunRecord> runs;
  runs.push_back(short_run(scratch, "short", replaced(kYaml, "beta2: 0.9", "beta2: 0.95")));
  runs.push_back(short_run(scratch, "a-name-of-twenty-letters", lion));
  for (const char* name : {"another-name-so-long", "a-third-name-as-long", "a-fourth-name-so-big", "the-last-of-all-runs"})
    runs.push_back(short_run(scratch, name, wider));
  const std::vector<std::string> labels = labels_of(runs);
  std::vector<RunView> views;
  for (size_t i = 0; i < runs.size(); ++i) views.emplace_back(runs[i], labels[i]);
  check_snapshot("report/side-by-side.html", without_paths(scratch, shown_part(page_html(views, "0.2.0"))));
  check_snapshot("report/short.csv", csv_of({views.data(), 2}));
  std::vector<Plot> plots;
  for (const NamedPlot& plot : all_plots(views)) plots.push_back(plot.plot);
  check_snapshot("report/plots.svg", plots_svg(plots));
}

TEST_CASE("snapshot: goodput of a run with four jobs") {
  const Scratch scratch;
  const RunRecord run = eventful_run(scratch);
  const std::optional<Goodput> goodput = goodput_of(run);
  REQUIRE(goodput);
  check_snapshot("report/goodput.txt", without_paths(scratch, goodput_report_text(run, *goodput)));
  check_snapshot("report/goodput.json", without_paths(scratch, goodput_report_json(run, *goodput).dump(2)));
}

TEST_CASE("snapshot: compare of runs that differ in everything, from different steps on") {
  const Scratch scratch;
  const auto run_of = [&](const std::string& name, bool second) {
    RunWriter run(scratch, name);
    const auto job = [&](int64_t step, double time, const std::string& host, int ranks) {
      run.job("start", time,
              {{"step", step},
               {"launcher", at(0)},
               {"launched", at(time)},
               {"joined", at(time)},
               {"world_size", ranks},
               {"threads", 2},
               {"hosts", {host, "node9"}},
               {"keys", {{"parallel.tensor", ranks}}}});
      run.event("start", step, time, {{"steps", 12}});
    };
    job(0, 0, "node1", 2);
    for (int64_t step = 1; step <= 12; ++step) {
      const auto time = static_cast<double>(10 * step);
      if (step == 5) job(4, time - 5, second ? "node2" : "node1", second ? 4 : 2);
      const auto change = [&](int64_t after, const char* key, int64_t from, int64_t to) {
        run.event("change", after, time - 2, {{"from", "here"}, {"sample", 8 * after}, {"changes", {{key, {from, to}}}}});
      };
      if (second && step == 4) change(3, "run.seed", 1234, 5);
      if (!second && step == 7) change(6, "training.global_batch_size", 64, 32);
      for (const int64_t decided : second ? std::vector<int64_t>{2, 6} : std::vector<int64_t>{2, 9})
        if (step == decided) run.event("rebalance", step, time - 1, {{"micro_batches", {3, step > 2 ? step : 4, 1}}});
      ordered_json more = ordered_json::object();
      if (second && step >= 8) more["learning_rate"] = 0.0005;
      run.step(step, time, 0.5, 6 - 0.25 * static_cast<double>(step) - (second && step >= 6 ? 0.125 : 0), more);
      if (step % 4 == 0)
        run.metric({{"step", step},
                    {"validation_loss", 5 - 0.125 * static_cast<double>(step)},
                    {"validation", {{"books", 4.5}, {"code", second && step == 8 ? 5.25 : 5.5}}}},
                   time + 1);
    }
    std::string yaml = replaced(kYaml, "steps: 620", "steps: 12");
    if (second) {
      yaml =
          replaced(replaced(yaml, "seed: 1234", "seed: 5"), "beta2: 0.9", "beta1: 0.8\n    beta2: 0.95\n    weight_decay: 0.2\n    epsilon: 1.0e-6");
      yaml = replaced(replaced(yaml, "tensor: 2", "tensor: 4"), "pipeline: 3", "pipeline: 2");
      yaml = replaced(replaced(yaml, "every: 100", "every: 4"), "[first, second]", "[first, third]");
      yaml = replaced(yaml, "sequence_length: 64", "sequence_length: 128");
    } else {
      yaml = replaced(yaml, "global_batch_size: 64", "global_batch_size: 32");
    }
    return run.read(
        yaml, second ? ordered_json::parse(R"({"version":"0.2.0-def","host":{"name":"node2","cpu":"another CPU","cores":16},"gpu":{"name":"a GPU"}})")
                     : kEnvironment);
  };
  const RunRecord a = run_of("a", false), b = run_of("b", true);
  CheckpointComparison checkpoints;
  checkpoints.steps = {4, 8};
  checkpoints.only = {std::vector<int64_t>{12}, std::vector<int64_t>{2, 6}};
  checkpoints.tensors = {{.step = 8, .tensor = "weight/blocks.2.ffn.up.weight", .elements = ElementDifference{{40000, 3}, {0.5, 0.25}, 17, 33}},
                         {.step = 8, .tensor = "exp_avg/blocks.2.ffn.up.weight", .what = "float [4, 2] and float [2, 4]"},
                         {.step = 8, .tensor = "exp_avg/blocks.3.ffn.up.weight", .elements = ElementDifference{{1, 2}, {0.5, 0.75}, 1, 1}}};
  checkpoints.damaged = {{.step = 4, .tensor = "weight/embedding.weight", .damage = {"", "its digest is 17, the manifest says 18"}},
                         {.step = 8, .tensor = "weight/blocks.0.norm.weight", .damage = {"its digest is 19, the manifest says 20", ""}}};
  checkpoints.unreadable = {"b/checkpoints/step-00000002"};
  checkpoints.training_data = {"17", "18"};
  checkpoints.tokenizer = {"bytes-v1", "bytes-v1"};
  for (const bool swapped : {false, true}) {
    const Comparison all = swapped ? compare(b, a, checkpoints) : compare(a, b, checkpoints);
    const std::string name = swapped ? "report/compare-swapped" : "report/compare";
    check_snapshot(name + ".txt", without_paths(scratch, comparison_text(all)));
    check_snapshot(name + ".json", without_paths(scratch, comparison_json(all).dump(2)));
  }
}

TEST_CASE("snapshot: ticks of a time axis around midnight") {
  const double midnight = std::chrono::duration<double>(time_of_utc("2026-11-24T00:00:00.000Z")->time_since_epoch()).count();
  std::string shown;
  for (const double half : {400.0, 1700.0, 5400.0, 40'000.0, 400'000.0}) {
    Axis axis;
    axis.quantity = Quantity::kClock;
    axis.low = midnight - half;
    axis.high = midnight + 1.5 * half;
    for (const Tick& tick : ticks_of(axis, 8)) shown += concat(tick.label, "; ");
    shown += "\n";
  }
  check_snapshot("report/time-axis.txt", shown);
}

}  // namespace trireme::report::snapshots
