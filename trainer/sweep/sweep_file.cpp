#include "trainer/sweep/sweep_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/config/check_fields.h"
#include "trainer/config/fields.h"
#include "trainer/config/tree.h"
#include "trainer/config/yaml.h"
#include "trainer/sweep/axis_reader.h"

namespace trireme::sweep {
namespace {

/// The children of the section `key`, which are taken out of the tree.
std::vector<YamlNode> take_section(YamlNode& root, const std::string& key) {
  const auto found = std::ranges::find(root.children, key, &YamlNode::key);
  if (found == root.children.end() || found->kind != YamlNode::Kind::kMapping) return {};
  return std::exchange(found->children, {});
}

void check_zip(const SweepFile& file, Violations& out) {
  const std::vector<std::string>& zip = file.config.zip;
  const auto broken = [&](const std::string& value, const std::string& rule, const std::string& allowed) {
    out.add({file.sources.locate("zip"), "zip", value, rule, allowed});
  };
  const Axis* first = nullptr;
  for (size_t i = 0; i < zip.size(); ++i) {
    const auto axis = std::ranges::find(file.axes, zip[i], &Axis::key);
    if (std::find(zip.begin(), zip.begin() + static_cast<std::ptrdiff_t>(i), zip[i]) != zip.begin() + static_cast<std::ptrdiff_t>(i)) {
      broken(zip[i], "given twice", "each axis once");
    } else if (axis == file.axes.end()) {
      broken(zip[i], "not a key of axes", "keys of axes");
    } else if (axis->random()) {
      broken(zip[i], "a random axis; random axes are drawn together anyway", "axes with lists or grids");
    } else if (first == nullptr) {
      first = &*axis;
    } else if (axis->values.size() != first->values.size()) {
      broken(zip[i], concat(axis->values.size(), " values, but ", first->key, " has ", first->values.size()), "axes with equally many values");
    }
  }
}

void check_samples(const SweepFile& file, Violations& out) {
  const bool random = std::ranges::any_of(file.axes, &Axis::random);
  if (random && !file.config.samples)
    out.add({file.sources.locate("axes"), "samples", "", "required key is missing, because an axis is random", "integer from 1 to 10000"});
  for (const char* key : {"samples", "seed"})
    if (!random && file.sources.given(key)) out.add({file.sources.locate(key), key, "", "has no effect: no axis is random; remove the key"});
}

/// Adds what makes a run a range test.
void make_range_test(SweepFile& file, Violations& out) {
  const SweepRangeTest& test = file.config.range_test;
  const auto at = [&](const char* key) { return file.sources.locate(concat("range_test.", key)); };
  if (!test.from && !test.to && !test.steps) return;
  const auto broken = [&](const std::string& key, const std::string& rule, const std::string& allowed) {
    out.add({file.sources.locate(key), key, "", rule, allowed});
  };
  if (!test.from || !test.to || !test.steps) return broken("range_test", "from, to and steps are not all given", "all three");
  if (*test.from >= *test.to) return broken("range_test.to", concat("not above from=", setting_text(*test.from, false)), "a larger number than from");
  if (!file.axes.empty()) broken("axes", "a range test is one run and has no axes", "axes, or range_test");
  if (file.config.halving.first_steps) broken("halving.first_steps", "a range test is one run", "halving, or range_test");
  if (file.sources.given("objective")) broken("objective", "a range test reads the training loss", "objective, or range_test");
  file.config.objective = {.metric = SweepMetric::kLoss};
  file.fixed.push_back({"training.optimizer.learning_rate", setting_text(*test.from, false), at("from")});
  file.fixed.push_back({"training.schedule.name", "exponential", at("from")});
  file.fixed.push_back({"training.schedule.warmup_steps", "0", at("from")});
  file.fixed.push_back({"training.schedule.final_learning_rate", setting_text(*test.to, false), at("to")});
  file.fixed.push_back({"training.steps", std::to_string(*test.steps), at("steps")});
}

void check_objective(const SweepFile& file, Violations& out) {
  const SweepObjective& objective = file.config.objective;
  const auto broken = [&](const char* key, const std::string& value, const std::string& rule, const std::string& allowed) {
    if (!out.touch(key)) out.add({file.sources.locate(key), key, value, rule, allowed});
  };
  if (objective.metric == SweepMetric::kTokensPerSecond && objective.goal == SweepGoal::kMinimise)
    broken("objective.goal", "minimise", "tokens_per_second is better if it is larger", "maximise");
  if (objective.metric != SweepMetric::kTokensPerSecond && objective.goal == SweepGoal::kMaximise)
    broken("objective.goal", "maximise", concat(objective.metric, " is better if it is smaller"), "minimise");
  if (objective.metric == SweepMetric::kValidationLoss && objective.average > 1)
    broken("objective.average", std::to_string(objective.average), "an evaluation is a mean over many batches already", "1");
}

void check_rules(SweepFile& file, Violations& out) {
  if (file.axes.empty() && !out.touch("axes") && !file.config.range_test.from && !file.sources.given("range_test"))
    out.add({file.sources.locate("axes"), "axes", "", "no axis is given", "at least one axis, or range_test"});
  for (const auto& [key, text] : {std::pair("directory", &file.config.directory), std::pair("base", &file.config.base)})
    if (const std::string control = control_character_in(*text); !control.empty())
      out.add({file.sources.locate(key), key, "", control + " in the path", "text without control characters"});
  check_zip(file, out);
  check_samples(file, out);
  check_objective(file, out);
  make_range_test(file, out);
  if (file.sources.given("halving.eta") && !file.config.halving.first_steps)
    out.add({file.sources.locate("halving.eta"), "halving.eta", "", "has no effect: halving.first_steps is not set; remove the key"});
  if (file.config.where.place == SweepPlace::kSlurm && file.config.halving.first_steps)
    out.add({file.sources.locate("where.place"), "where.place", "slurm", "the tasks of an array do not wait for each other, but rungs do", "local"});
  if (file.config.where.place == SweepPlace::kSlurm && file.config.budget.hours)
    out.add({file.sources.locate("budget.hours"), "budget.hours", "",
             "no process counts the hours of the tasks of an array; remove the key, or set --time of "
             "sbatch"});
  for (const Setting& one : file.fixed)
    if (std::ranges::find(file.axes, one.key, &Axis::key) != file.axes.end())
      out.add({one.at, concat("set.", one.key), one.value, "also an axis", "either set or axes"});
}

/// The name of the file without characters that are not plain; for a directory.
std::string plain_stem(const std::string& path) {
  std::string stem = std::filesystem::path(path).stem().string();
  for (char& c : stem)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7F) c = '_';
  return stem.empty() ? "sweep" : stem;
}

/// A path that `file` names relative to its own directory, relative to the working directory.
std::string relative_to_file(const std::string& path, const std::string& file) {
  namespace fs = std::filesystem;
  return fs::path(path).is_absolute() ? path : (fs::path(file).parent_path() / path).lexically_normal().string();
}

}  // namespace

std::string setting_text(double value, bool integer) {
  if (integer) return std::to_string(std::llround(value));
  std::string text = text_of(FieldValue(value));
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");  // YAML 1.1 reads 1e-05 as text
  return text;
}

SweepFile parse_sweep(const std::string& text, const std::string& path) {
  SweepFile file;
  file.path = path;
  file.sources.file = path;
  Violations violations;
  YamlNode root = parse_yaml(text, 0, file.sources, violations);
  require_sections(root, "a sweep file", file.sources, violations);
  const std::vector<YamlNode> set = take_section(root, "set"), axes = take_section(root, "axes");
  bind(root, file.config, file.sources, violations);
  check_fields(table_of(file.config), file.sources, violations);
  AxisReader reader(violations);
  for (const YamlNode& node : set) reader.read_fixed(node, file.fixed);
  for (const YamlNode& node : axes) reader.read_axis(node, file.axes);
  check_rules(file, violations);
  violations.raise(file.sources);
  file.base = relative_to_file(file.config.base, path);
  file.directory = file.config.directory.empty() ? "runs/" + plain_stem(path) : file.config.directory;
  return file;
}

SweepFile load_sweep(const std::string& path) { return parse_sweep(read_yaml_file(path, "sweep file"), path); }

}  // namespace trireme::sweep
