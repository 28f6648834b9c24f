#include "trainer/run/change.h"

#include <algorithm>
#include <array>
#include <optional>

#include "trainer/config/fields.h"
#include "trainer/layout/lowered_schedule.h"

namespace trireme {

using nlohmann::json;

namespace {

constexpr const char* kData = "data.train";
constexpr const char* kAnotherRun = "; use a different run.directory for a different run";

bool is_in(const std::string& key, const std::string& name) { return key == name || key.starts_with(name + "."); }

/// A configuration in which every key that can decide what is trained does so: a constant schedule ignores the length of training.
FieldTable known_keys() {
  Config config;
  config.training.schedule.name = LearningRateSchedule::kCosine;
  return table_of(config);
}

/// Why no resumed run may change the key; empty if it may.
std::string reason_against(const std::string& key) {
  if (key == "model.frozen" || key == "adapter.rank" || key == "adapter.targets")
    return "the checkpoint has the optimizer state of other parameters; training.initial_weights starts a run from its weights";
  if (is_in(key, "model")) return "the model decides what the tensors of the checkpoint mean";
  if (key == "parallel.islands") return "the checkpoint contains the optimizer state of each of its islands";
  if (key == "training.asynchronous.mode")
    return "the state differs: parameter servers have one for all islands, elastic averaging has a centre, and other islands have neither";
  if (key == "training.optimizer.name") return "the checkpoint contains the state of its own optimizer only";
  if (key == "data.tokenizer") return "another tokenizer gives the trained token ids another meaning; only its path may change, without --change";
  return "";
}

/// The end of a message about an unknown key.
std::string suggestion(const FieldTable& known, const std::string& name) {
  std::vector<std::string> paths;
  for (const FieldRow& row : known.fields)
    if (row.field.decides == Aspect::kMathematics && reason_against(row.path).empty()) paths.push_back(row.path);
  for (const SectionRow& section : known.sections) paths.push_back(section.path);
  const std::string nearest = nearest_word(name, paths);
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

/// As in a file, but null for a key that is not written there.
json json_of(const FieldRow& row) {
  if (written_value(row).empty()) return nullptr;
  if (is_auto(row)) return row.field.auto_name;
  return std::visit(
      [](const auto& value) -> json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>)
          return nullptr;
        else
          return value;
      },
      row.value);
}

/// The differences that `named` does not allow.
std::vector<KeyDifference> refused(const Config& saved, const Config& now, const std::set<std::string>& named) {
  std::vector<KeyDifference> found = differences(saved, now);
  // A key that follows is refused only if nothing that it could follow differs.
  const bool causes = std::any_of(found.begin(), found.end(), [](const KeyDifference& one) { return !one.follows; });
  std::erase_if(found, [&](const KeyDifference& one) { return named.contains(one.key) || (one.follows && causes); });
  return found;
}

/// Why these two values cannot follow each other in one run; empty if they can.
std::string conflict(const Config& saved, const Config& now, const std::string& key) {
  if (key == "training.precision" && precision_of(saved.training).master != precision_of(now.training).master)
    return "fp64 keeps weights and optimizer state in fp64, all other precisions in fp32";
  return reason_against(key);
}

}  // namespace

std::set<std::string> changeable_keys(const std::vector<std::string>& names) {
  const FieldTable known = known_keys();
  std::set<std::string> keys;
  for (const std::string& name : names) {
    bool exists = false, found = false;
    for (const FieldRow& row : known.fields) {
      if (!is_in(row.path, name)) continue;
      exists = true;
      if (row.field.decides != Aspect::kMathematics || !reason_against(row.path).empty()) continue;
      found = true;
      keys.insert(row.path);
    }
    if (!exists) throw ConfigError(concat("--change ", name, ": unknown key", suggestion(known, name)));
    if (found) continue;
    if (const std::string reason = reason_against(name); !reason.empty())
      throw ConfigError(concat("--change ", name, ": a resumed run can never change it: ", reason));
    throw ConfigError(concat("--change ", name, ": a resumed run may change it without this option"));
  }
  return keys;
}

std::vector<KeyDifference> differences(const Config& saved, const Config& now, const std::set<std::string>& named) {
  std::vector<KeyDifference> found;
  for (const auto& [before, after, from, to] : differing_fields(saved, now)) {
    const bool matters = before.field.decides == Aspect::kMathematics || after.field.decides == Aspect::kMathematics;
    if (!matters && !named.contains(before.path)) continue;
    const bool follows = (before.field.without_effect == nullptr) != (after.field.without_effect == nullptr);
    found.push_back({before.path, from, to, json_of(before), json_of(after), follows});
  }
  return found;
}

std::string mathematical_difference(const Config& saved, const Config& now, const std::set<std::string>& named) {
  std::string lines;
  const auto shown = [](const std::string& value) { return value.empty() ? "not set" : value; };
  for (const KeyDifference& one : refused(saved, now, named))
    lines += concat("  checkpoint: ", one.key, ": ", shown(one.before), "\n  now:        ", one.key, ": ", shown(one.now), "\n");
  return lines;
}

std::string advice_to_change(const Config& saved, const Config& now, const std::set<std::string>& named, bool own_run) {
  for (const KeyDifference& one : differences(saved, now))
    if (const std::string reason = conflict(saved, now, one.key); !reason.empty())
      return concat(one.key, " can never change in a resumed run: ", reason, own_run ? kAnotherRun : "; start a different run without --resume");
  std::string add;
  for (const KeyDifference& one : refused(saved, now, named)) add += (add.empty() ? "" : ",") + one.key;
  return concat("to continue from this checkpoint with the new values, add --change ", add, own_run ? kAnotherRun : "");
}

bool restarts_loss_scale(const ConfigChange& change) {
  const auto of_the_scale = [](const auto& item) { return item.key() == "training.precision" || is_in(item.key(), "training.loss_scale"); };
  auto items = change.changes.items();  // not const, as nlohmann before 3.11 needs
  return std::any_of(items.begin(), items.end(), of_the_scale);
}

DataStart data_start(const std::vector<ConfigChange>& branch) {
  return branch.empty() ? DataStart{} : DataStart{branch.back().step, branch.back().sample};
}

ConfigChange change_of(const CheckpointDescription& about, const Config& saved, const Config& now, bool same_tokens,
                       const std::set<std::string>& named) {
  const DataStart start = data_start(about.branch);
  ConfigChange change{about.step, start.place + (about.step - start.step) * saved.training.global_batch_size};
  for (const KeyDifference& one : differences(saved, now, named)) {
    if (const std::string reason = conflict(saved, now, one.key); !reason.empty())
      throw ConfigError(concat(one.key, " can never change from ", one.before, " to ", one.now, " in a resumed run: ", reason));
    change.changes[one.key] = json::array({one.old_value, one.new_value});
  }
  if (!same_tokens && !change.changes.contains(kData)) change.changes[kData] = json::array({saved.data.train, now.data.train});
  // Decide what a sample is.
  constexpr std::array kSampleKeys{"data.weights", "data.document_mask", "data.packing", "data.packing_window", "training.sequence_length"};
  if (!same_tokens || std::ranges::any_of(kSampleKeys, [&](const char* key) { return change.changes.contains(key); })) change.sample = 0;
  return change;
}

void check_epochs(const Config& now, const std::vector<ConfigChange>& branch) {
  const DataStart start = data_start(branch);
  if (!now.training.epochs || start.place == start.step * now.training.global_batch_size) return;
  throw ConfigError(
      concat("training.epochs=", *now.training.epochs,
             ": the batch size or the training data changed during the run, so epochs do not determine the number of steps; allowed training.steps"));
}

}  // namespace trireme
