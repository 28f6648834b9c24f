#include "trainer/report/comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "kernels/core/joined.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/dataset.h"
#include "trainer/plan/text.h"
#include "trainer/report/comparison_words.h"
#include "trainer/report/config_rows.h"
#include "trainer/report/key_history.h"

namespace trireme::report {
namespace {

using nlohmann::ordered_json;

/// The bits of both are equal; NaN stands for every value that the file has as null.
bool same_figure(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b)); }

// ---- environment ----

using Facts = std::map<std::string, std::string>;

void flatten(const ordered_json& value, const std::string& path, Facts& facts) {
  if (!value.is_object()) {
    facts[path] = value.is_string() ? value.get<std::string>() : value.is_null() ? "none" : value.dump();
    return;
  }
  for (const auto& [key, item] : value.items()) flatten(item, path.empty() ? key : path + "." + key, facts);
}

/// The members of environment.json that describe the program, or else the hardware. The layout is part of the configuration; a host's name and its
/// system's release are no hardware.
Facts facts_of(const RunRecord& run, bool code) {
  Facts all, chosen;
  flatten(run.environment, "", all);
  for (const auto& [key, value] : all) {
    if (key.starts_with("layout.") || key == "world_size" || key == "host.name" || key == "host.system" || key.empty()) continue;
    const bool of_code = key == "version" || key == "compiler" || key.starts_with("libraries.") || key == "gpu.driver" || key == "gpu.runtime";
    if (of_code == code) chosen[key] = value;
  }
  if (!code) return chosen;
  std::set<std::string> versions;  // a run may have been resumed by another version
  for (const EventRecord& event : run.events)
    if (event.kind == "start" && event.fields.contains("version")) versions.insert(value_text(event.fields["version"]));
  if (!versions.empty()) chosen["version"] = joined({versions.begin(), versions.end()}, " and ");
  return chosen;
}

Part compare_facts(const std::string& name, const Facts& a, const Facts& b) {
  if (a.empty() || b.empty()) return {name, Result::kUnknown, "environment.json is missing"};
  std::set<std::string> keys;
  for (const Facts* facts : {&a, &b})
    for (const auto& [key, value] : *facts) keys.insert(key);
  std::vector<std::string> different;
  for (const std::string& key : keys) {
    const auto value = [&](const Facts& facts) { return facts.contains(key) ? facts.at(key) : ""; };
    if (value(a) != value(b)) different.push_back(concat(key, ": ", shown(value(a)), " -> ", shown(value(b))));
  }
  if (!different.empty()) return {name, Result::kDifferent, joined(different, "; ")};
  const char* const main = name == "code" ? "version" : a.contains("gpu.name") ? "gpu.name" : "host.cpu";
  return {name, Result::kEqual, a.contains(main) ? a.at(main) : ""};
}

// ---- figures ----

/// The first common step at which a figure differs.
std::optional<StepDifference> first_difference(const StepTable& a, const StepTable& b, Figure figure) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a.step[i] != b.step[j]) {
      ++(a.step[i] < b.step[j] ? i : j);
      continue;
    }
    if (!same_figure(a[figure][i], b[figure][j]))
      return StepDifference{a.step[i], kFigureNames[static_cast<size_t>(figure)], {a[figure][i], b[figure][j]}};
    ++i, ++j;
  }
  return std::nullopt;
}

size_t common_steps(const StepTable& a, const StepTable& b) {
  std::vector<int64_t> common;
  std::ranges::set_intersection(a.step, b.step, std::back_inserter(common));
  return common.size();
}

/// Also each set that has a name; the first evaluated step that differs.
std::optional<StepDifference> first_validation_difference(const RunRecord& a, const RunRecord& b, size_t& compared) {
  std::map<int64_t, const EvaluationRecord*> of_b;
  for (const EvaluationRecord& one : b.evaluations) of_b[one.step] = &one;
  for (const EvaluationRecord& one : a.evaluations) {
    const auto other = of_b.find(one.step);
    if (other == of_b.end()) continue;
    ++compared;
    if (!same_figure(one.loss, other->second->loss)) return StepDifference{one.step, "validation_loss", {one.loss, other->second->loss}};
    for (const auto& [name, loss] : one.sets)
      for (const auto& [other_name, other_loss] : other->second->sets)
        if (name == other_name && !same_figure(loss, other_loss)) return StepDifference{one.step, "validation_loss of " + name, {loss, other_loss}};
  }
  return std::nullopt;
}

Part figure_part(const std::string& name, const std::optional<StepDifference>& found, size_t compared, const std::string& unit) {
  if (found) return {name, Result::kDifferent, concat("from step ", found->step, ": ", arrow(found->values))};
  if (compared == 0) return {name, Result::kUnknown, concat("no common ", unit)};
  return {name, Result::kEqual, counted(compared, unit)};
}

Part steps_part(const RunRecord& a, const RunRecord& b) {
  const auto last = [](const RunRecord& run) { return run.steps.size() == 0 ? int64_t{0} : run.steps.step.back(); };
  if (last(a) == last(b)) return {"steps", Result::kEqual, std::to_string(last(a))};
  return {"steps", Result::kDifferent, concat(last(a), " -> ", last(b))};
}

// ---- data and samples ----

Part data_part(const CheckpointComparison& checkpoints, const std::vector<KeyValues>& keys) {
  const std::array<std::string, 2>& data = checkpoints.training_data;
  if (!data[0].empty() && !data[1].empty()) {
    if (!same_data(data[0], data[1])) return {"data", Result::kDifferent, concat("identity of the tokens: ", data[0], " -> ", data[1])};
    if (checkpoints.tokenizer[0] != checkpoints.tokenizer[1])
      return {"data", Result::kDifferent, concat("tokenizer: ", checkpoints.tokenizer[0], " -> ", checkpoints.tokenizer[1])};
    return {"data", Result::kEqual, data[0]};
  }
  const auto path = std::ranges::find(keys, std::string("data.train"), &KeyValues::key);
  if (path != keys.end()) return {"data", Result::kDifferent, concat("paths: ", shown(path->values[0]), " -> ", shown(path->values[1]))};
  return {"data", Result::kUnknown, "equal paths; the tokens are identified by a checkpoint, which a run lacks"};
}

/// Sample ids are a function of seed, step, data and the keys that number samples, so they need not be recorded.
Part samples_part(const RunRecord& a, const RunRecord& b, const Part& data) {
  std::optional<int64_t> first;
  std::string why;
  for (const char* key : {"run.seed", "data.train", "data.weights", "data.document_mask", "data.packing", "data.packing_window",
                          "training.sequence_length", "training.global_batch_size"}) {
    if (std::string_view(key) == "data.train" && data.result == Result::kEqual) continue;  // a path of the same tokens
    const std::optional<int64_t> step = first_step_with_other_values(a, b, key);
    if (!step || (first && *first <= *step)) continue;
    first = step;
    why = key;
  }
  if (!first && data.result == Result::kDifferent) first = 1, why = "other tokens";
  if (first) return {"sample ids", Result::kDifferent, concat("from step ", *first, ": ", why)};
  if (data.result == Result::kUnknown) return {"sample ids", Result::kUnknown, "the data are not identified"};
  return {"sample ids", Result::kEqual, "a function of seed, step and data"};
}

/// Paths of data that are known to be the same do not count.
void excuse_paths(std::vector<KeyValues>& keys, const Part& data, const CheckpointComparison& checkpoints, const Part& validation) {
  for (KeyValues& one : keys) {
    const auto excuse = [&](const char* why) {
      one.counts = false;
      one.remark = why;
    };
    if (is_label(one.key)) excuse("a name or a directory");
    if (one.ends_equal) continue;  // the newest checkpoints say nothing of the values before
    if (one.key == "data.train" && data.result == Result::kEqual) excuse("the same tokens");
    if (one.key == "data.tokenizer" && !checkpoints.tokenizer[0].empty() && checkpoints.tokenizer[0] == checkpoints.tokenizer[1])
      excuse("the same tokenizer");
    if (one.key == "data.validation" && validation.result == Result::kEqual) excuse("equal validation losses");
  }
}

// ---- the verdict ----

Part checkpoints_part(const CheckpointComparison& checkpoints) {
  if (!checkpoints.unreadable.empty()) return {"checkpoints", Result::kDifferent, checkpoints.unreadable.front()};
  if (!checkpoints.tensors.empty()) {
    const TensorDifference& first = checkpoints.tensors.front();
    const size_t more = checkpoints.tensors.size() - 1;
    return {"checkpoints", Result::kDifferent,
            concat("from step ", first.step, ": ", first.tensor, more > 0 ? concat(" and ", counted(more, "more tensor")) : "")};
  }
  if (checkpoints.steps.empty()) return {"checkpoints", Result::kUnknown, "no common checkpoint"};
  std::vector<std::string> steps;
  for (const int64_t step : checkpoints.steps) steps.push_back(std::to_string(step));
  return {"checkpoints", Result::kEqual, concat("every byte of step", steps.size() > 1 ? "s " : " ", joined(steps, ", "))};
}

/// resilience.rebalance decides by measured times, so runs of one configuration may split their batches differently. No part if neither has decided
/// before the last step that both have. `from`: Comparison::splits_from.
std::optional<Part> splits_part(const RunRecord& a, const RunRecord& b, std::optional<int64_t>& from) {
  if (a.steps.step.empty() || b.steps.step.empty()) return std::nullopt;
  const int64_t last = std::min(a.steps.step.back(), b.steps.step.back());
  std::array<std::vector<std::pair<int64_t, std::string>>, 2> decisions;  // step, numbers of micro-batches
  for (size_t run = 0; run < 2; ++run)
    for (const EventRecord& event : (run == 0 ? a : b).events)
      if (event.kind == "rebalance" && event.after_step < last && event.fields.contains("micro_batches"))
        decisions[run].emplace_back(event.after_step, event.fields["micro_batches"].dump());
  const auto& [one, other] = decisions;
  if (one.empty() && other.empty()) return std::nullopt;
  const auto [x, y] = std::ranges::mismatch(one, other);
  if (x == one.end() && y == other.end()) return Part{"micro-batches", Result::kEqual, counted(one.size(), "decision")};
  from = 1 + (x == one.end() ? y->first : y == other.end() ? x->first : std::min(x->first, y->first));
  return Part{"micro-batches", Result::kDifferent, concat("split differently from step ", *from, " on")};
}

/// The last job that has trained `step`; null if it is not recorded.
const JobRecord* job_that_trained(const RunRecord& run, int64_t step) {
  const auto found =
      std::find_if(run.jobs.rbegin(), run.jobs.rend(), [&](const JobRecord& job) { return std::isfinite(job.started) && job.step < step; });
  return found == run.jobs.rend() ? nullptr : &*found;
}

/// What both jobs have recorded and is not the same.
JobDifference job_difference(const JobRecord& a, const JobRecord& b, int64_t step) {
  std::set<std::string> names;
  for (const JobRecord* job : {&a, &b})
    for (const auto& [name, value] : job->facts) names.insert(name);
  std::vector<std::string> layout;
  JobDifference found{.step = step, .layout = "", .hosts = ""};
  for (const std::string& name : names) {
    const bool is_key = name.find('.') != name.npos, in_a = a.facts.contains(name), in_b = b.facts.contains(name);
    if (is_key ? !a.has_keys || !b.has_keys : !in_a || !in_b) continue;
    const std::string from = in_a ? a.facts.at(name) : "default", to = in_b ? b.facts.at(name) : "default";
    if (from == to) continue;
    if (name == "hosts")
      found.hosts = concat(from, " -> ", to);
    else
      layout.push_back(concat(name, " ", from, " -> ", to));
  }
  found.layout = joined(layout, ", ");
  return found;
}

/// A run may be continued on other hosts and in another layout; its config.yaml and environment.json tell only of its last job.
std::vector<JobDifference> job_differences(const RunRecord& a, const RunRecord& b) {
  if (a.steps.step.empty() || b.steps.step.empty()) return {};
  const int64_t last = std::min(a.steps.step.back(), b.steps.step.back());
  std::set<int64_t> begins;
  for (const RunRecord* run : {&a, &b})
    for (const JobRecord& job : run->jobs)
      if (std::isfinite(job.started) && job.step < last) begins.insert(job.step + 1);
  std::vector<JobDifference> found;
  for (const int64_t step : begins) {
    const JobRecord *const of_a = job_that_trained(a, step), *const of_b = job_that_trained(b, step);
    if (of_a == nullptr || of_b == nullptr) continue;
    JobDifference one = job_difference(*of_a, *of_b, step);
    if (!one.layout.empty() || !one.hosts.empty()) found.push_back(std::move(one));
  }
  return found;
}

/// Jobs do not make results differ, so they are a part only where these do.
std::optional<Part> jobs_part(const Comparison& all) {
  if (all.jobs.empty() || (!all.step && !all.tensor)) return std::nullopt;
  const JobDifference& first = all.jobs.front();
  return Part{"jobs", Result::kDifferent,
              concat("from step ", first.step, ": ", first.layout, first.layout.empty() || first.hosts.empty() ? "" : ", ",
                     first.hosts.empty() ? "" : "hosts " + first.hosts)};
}

Part config_part(const RunRecord& a, const RunRecord& b, const std::vector<KeyValues>& keys) {
  if (a.config.empty() || b.config.empty()) return {"configuration", Result::kUnknown, "config.yaml is missing"};
  std::vector<std::string> counting;
  size_t excused = 0;
  for (const KeyValues& one : keys) {
    if (one.counts)
      counting.push_back(key_text(one));
    else
      ++excused;
  }
  constexpr size_t kMost = 4;
  if (counting.size() > kMost) {
    const size_t more = counting.size() - kMost;
    counting.resize(kMost);
    counting.push_back(concat("and ", more, " more"));
  }
  if (!counting.empty()) return {"configuration", Result::kDifferent, joined(counting, "; ")};
  return {"configuration", Result::kEqual, excused > 0 ? "except for names, directories and paths of equal data" : ""};
}

}  // namespace

const char* name_of(Result result) {
  constexpr std::array kNames{"equal", "different", "not recorded"};
  return kNames[static_cast<size_t>(result)];
}

bool Comparison::equal() const {
  return std::ranges::none_of(parts, [](const Part& one) { return one.result == Result::kDifferent; });
}

Comparison compare(const RunRecord& a, const RunRecord& b, CheckpointComparison checkpoints) {
  Comparison all{.runs = {a.directory.string(), b.directory.string()},
                 .parts = {},
                 .keys = differing_keys(a, b),
                 .step = {},
                 .splits_from = {},
                 .jobs = job_differences(a, b),
                 .tensor = {},
                 .checkpoints = std::move(checkpoints),
                 .cause = {}};
  const Part data = data_part(all.checkpoints, all.keys);
  size_t evaluations = 0;
  const std::optional<StepDifference> validation = first_validation_difference(a, b, evaluations);
  const Part validation_part = figure_part("validation losses", validation, evaluations, "evaluation");
  excuse_paths(all.keys, data, all.checkpoints, validation_part);

  all.parts = {config_part(a, b, all.keys),
               compare_facts("code", facts_of(a, true), facts_of(b, true)),
               compare_facts("hardware", facts_of(a, false), facts_of(b, false)),
               data,
               samples_part(a, b, data),
               steps_part(a, b)};
  if (const std::optional<Part> splits = splits_part(a, b, all.splits_from)) all.parts.push_back(*splits);
  const size_t steps = common_steps(a.steps, b.steps);
  const auto consider = [&](const std::optional<StepDifference>& found) {
    if (found && (!all.step || found->step < all.step->step)) all.step = found;
  };
  for (const auto& [name, figure] :
       {std::pair("losses", Figure::kLoss), {"gradient norms", Figure::kGradNorm}, {"learning rates", Figure::kLearningRate}}) {
    const std::optional<StepDifference> found = first_difference(a.steps, b.steps, figure);
    all.parts.push_back(figure_part(name, found, steps, "step"));
    consider(found);
  }
  all.parts.push_back(validation_part);
  consider(validation);
  all.parts.push_back(checkpoints_part(all.checkpoints));
  if (!all.checkpoints.tensors.empty()) all.tensor = all.checkpoints.tensors.front();
  if (const std::optional<Part> jobs = jobs_part(all)) all.parts.push_back(*jobs);
  all.cause = cause_of(all);
  return all;
}

}  // namespace trireme::report
