#include "trainer/sweep/point_runs.h"

#include <map>
#include <set>
#include <sstream>

#include "kernels/core/check.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/run/run_data.h"
#include "trainer/sweep/halving.h"

namespace trireme::sweep {
namespace {

constexpr const char* kSetPrefix = "--set:";

std::vector<std::string> sets_of(const SweepFile& file, const Point& point) {
  std::vector<std::string> sets;
  for (const std::vector<Setting>* settings : {&file.fixed, &point.settings})
    for (const Setting& one : *settings) sets.push_back(concat(one.key, "=", one.value));
  return sets;
}

/// Collects what configurations refuse, once each, with the position in the sweep file in place of that of the override.
class Refusals {
 public:
  explicit Refusals(const SweepFile& file) : file_(file) {}

  void add(const Point& point, const std::string& message) {
    std::istringstream lines(message);
    for (std::string line; std::getline(lines, line);) {
      const std::string placed = place(point, line);
      if (seen_.insert(placed).second && ++count_ <= kMost)
        text_ += concat(text_.empty() ? "" : "\n", placed, " (point ", point.index, ": ", label_of(point), ")");
    }
  }
  void raise() const {
    if (count_ > kMost) throw ConfigError(concat(text_, "\n", file_.path, ": and ", count_ - kMost, " more violations"));
    if (count_ > 0) throw ConfigError(text_);
  }

 private:
  static constexpr size_t kMost = 20;

  std::string place(const Point& point, const std::string& line) const {
    if (!line.starts_with(kSetPrefix)) return line;
    const std::string key = line.substr(std::string(kSetPrefix).size(), line.find(' ') - std::string(kSetPrefix).size());
    for (const std::vector<Setting>* settings : {&point.settings, &file_.fixed})
      for (const Setting& one : *settings)
        if (one.key == key) return file_.sources.name_of(one.at) + line.substr(line.find(' '));
    return line;
  }

  const SweepFile& file_;
  std::set<std::string> seen_;
  size_t count_ = 0;
  std::string text_;
};

bool is_not_label(const std::string& key) { return key != "run.name" && key != "run.directory"; }

/// Checks the data once for each configuration of them, and returns the number of training sequences.
class DataChecks {
 public:
  int64_t sequences(const Config& resolved) {
    const std::string key = to_yaml(resolved, [](const std::string& path) {
      return path.starts_with("data.") || path == "model.vocab_size" || path == "training.sequence_length";
    });
    const auto found = sequences_.find(key);
    if (found != sequences_.end()) return found->second;
    return sequences_[key] = open_run_data(resolved).train.sequences();
  }

 private:
  std::map<std::string, int64_t> sequences_;
};

/// Checks that every point has a value of the objective where it is needed. Errors: ConfigError.
void check_evaluations(const SweepFile& file, const std::vector<PointRun>& runs) {
  if (file.config.objective.metric != SweepMetric::kValidationLoss || file.config.range_test.from) return;
  const auto refuse = [&](const std::string& key, const std::string& text) {
    throw ConfigError(concat(file.sources.name_of(file.sources.locate(key)), " ", key, "=", text));
  };
  int64_t longest = 0;
  for (const PointRun& run : runs) longest = std::max(longest, run.steps);
  for (const PointRun& run : runs) {
    if (run.config.data.validation.empty())
      refuse("objective.metric",
             "validation_loss: the points have no validation set; allowed loss, tokens_per_second or step_seconds, or data.validation");
    const int64_t every = run.config.training.evaluate.every;
    for (const int64_t rung : rungs_of(file.config.halving, longest))
      if (rung < run.steps && (every == 0 || rung % every != 0))
        refuse("halving.first_steps",
               concat(*file.config.halving.first_steps, ": no evaluation at the end of the rung of ", rung, " steps, as training.evaluate.every is ",
                      every, "; allowed rungs at its multiples, or objective.metric=loss"));
  }
}

}  // namespace

std::string run_directory(const std::string& sweep_directory, const std::string& name) { return concat(sweep_directory, "/points/", name); }

std::vector<PointRun> load_points(const SweepFile& file, const std::vector<Point>& points) {
  Refusals refusals(file);
  std::vector<PointRun> runs;
  std::map<std::string, const Point*> first;
  for (const Point& point : points) {
    try {
      PointRun run{point, name_of(point), resolve(load_config(file.base, sets_of(file, point)))};
      const auto [other, fresh] = first.emplace(to_yaml(run.config, is_not_label), &point);
      if (!fresh)
        throw ConfigError(concat(file.sources.name_of(file.sources.locate("axes")), " axes: points ", other->second->index, " and ", point.index,
                                 " are the same run; allowed different points"));
      run.config.run.name = run.name;
      run.config.run.directory = run_directory(file.directory, run.name);
      run.ranks = mesh_shape(run.config.parallel).world();
      runs.push_back(std::move(run));
    } catch (const ConfigError& error) {
      refusals.add(point, error.what());
    }
  }
  refusals.raise();
  DataChecks data;
  for (PointRun& run : runs) run.steps = total_steps(run.config, data.sequences(run.config));
  check_evaluations(file, runs);
  return runs;
}

std::optional<Config> base_config(const SweepFile& file) {
  try {
    return resolve(load_config(file.base, sets_of(file, {})));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace trireme::sweep
