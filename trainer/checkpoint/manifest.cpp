#include "trainer/checkpoint/manifest.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

#include "kernels/core/counted.h"
#include "trainer/files/digest.h"
#include "trainer/files/strict_json.h"

namespace trireme {

using nlohmann::json;

namespace {

constexpr const char* kFormat = "trireme-checkpoint";
constexpr int64_t kVersion = 3;
constexpr std::string_view kHead = "{\n \"digest\": \"xxh3-128:";  // followed by the digits, the only characters that the digest does not cover
constexpr size_t kDigits = 32;

LossScale parse_loss_scale(const json& object, const std::string& where) {
  const json& value = object_member(object, "loss_scale", where);
  require_known_keys(value, {"scale", "clean_steps"}, where);
  const LossScale loss_scale{integer_member(value, "scale", where, 1), integer_member(value, "clean_steps", where)};
  if (!std::has_single_bit(static_cast<uint64_t>(loss_scale.scale)))
    throw DataError(concat(where, ": \"scale\": is ", loss_scale.scale, "; allowed powers of two"));
  return loss_scale;
}

std::vector<ConfigChange> parse_branch(const json& object, int64_t step, int64_t samples, const std::string& where) {
  constexpr int64_t kMost = int64_t{1} << 53;  // so that places computed from a forged manifest cannot overflow
  std::vector<ConfigChange> branch;
  for (const json& value : array_member(object, "branch", where)) {
    const std::string at = concat(where, ": \"branch\"");
    require_known_keys(value, {"step", "sample", "changes"}, at);
    const int64_t after = branch.empty() ? 0 : branch.back().step + 1;
    branch.push_back({integer_member(value, "step", at, after, step), integer_member(value, "sample", at, 0, std::min(samples, kMost)),
                      object_member(value, "changes", at)});
    for (const auto& [key, pair] : branch.back().changes.items())
      if (!pair.is_array() || pair.size() != 2) throw DataError(concat(at, ": ", json(key).dump(), ": is not a pair of old and new value"));
  }
  return branch;
}

StopState parse_early_stopping(const json& object, int64_t step, const std::string& where) {
  const json& value = object_member(object, "early_stopping", where);
  const std::string at = where + ": \"early_stopping\"";
  require_known_keys(value, {"step", "without_improvement", "best", "best_step"}, at);
  StopState state;
  state.step = integer_member(value, "step", at, 1, step);
  state.without_improvement = integer_member(value, "without_improvement", at, 0, state.step);
  if (!value.contains("best")) return state;
  if (!value["best"].is_number()) throw DataError(at + ": \"best\": is not a number");
  state.best = value["best"].get<double>();
  state.best_step = integer_member(value, "best_step", at, 1, state.step);
  return state;
}

std::vector<StepFigures> parse_anomaly_window(const json& object, const std::string& where) {
  std::vector<StepFigures> window;
  const std::string at = where + ": \"anomaly_window\"";
  for (const json& pair : array_member(object, "anomaly_window", where)) {
    const bool numbers = pair.is_array() && pair.size() == 2 && pair[0].is_number() && pair[1].is_number();
    if (!numbers) throw DataError(at + ": is not a list of pairs of loss and gradient norm");
    window.push_back({pair[0].get<double>(), pair[1].get<double>()});
    if (!(window.back().loss > 0 && window.back().grad_norm > 0)) throw DataError(at + ": contains a number that is not positive");
  }
  return window;
}

/// Numbers of steps, one for each island of the layout; none with one island.
std::vector<int64_t> parse_island_numbers(const json& object, const char* key, const CheckpointDescription& about, const std::string& where) {
  const int64_t islands = about.layout.contains("islands") ? integer_member(about.layout, "islands", where + ": \"layout\"", 2) : 1;
  const std::string at = concat(where, ": \"", key, "\"");
  std::vector<int64_t> numbers;
  if (islands == 1 && !object.contains(key)) return numbers;
  for (const json& value : array_member(object, key, where)) {
    numbers.push_back(integer(value, at));
    if (numbers.back() < 0 || numbers.back() > about.step) throw DataError(at + ": contains a number of steps that the run has not taken");
  }
  if (std::ssize(numbers) != islands || islands == 1)
    throw DataError(concat(at, ": has ", numbers.size(), " numbers for ", counted(islands, "island")));
  return numbers;
}

std::vector<int> parse_micro_batches(const json& object, const std::string& where) {
  const std::string at = where + ": \"micro_batches\"";
  std::vector<int> split;
  int64_t sum = 0;
  for (const json& value : array_member(object, "micro_batches", where)) {
    const int64_t count = integer(value, at);
    if (count < 1 || (sum += count) > std::numeric_limits<int>::max())
      throw DataError(at + ": contains a number of micro-batches that is not possible");
    split.push_back(static_cast<int>(count));
  }
  if (split.empty()) throw DataError(at + ": is empty");
  return split;
}

StoredTokenizer parse_tokenizer(const json& object, const std::string& where) {
  const json& value = object_member(object, "tokenizer", where);
  const std::string at = where + ": \"tokenizer\"";
  require_known_keys(value, {"name", "digest", "files"}, at);
  StoredTokenizer tokenizer{string_member(value, "name", at), string_member(value, "digest", at), {}};
  for (const json& file : array_member(value, "files", at)) {
    if (!file.is_string()) throw DataError(at + ": \"files\" contains an entry that is not a string");
    tokenizer.files.push_back(file.get<std::string>());
  }
  const bool copied = tokenizer.name != "bytes" && !tokenizer.name.empty();
  if (copied == tokenizer.files.empty()) throw DataError(concat(at, copied ? " has no files" : " lists files, but such a tokenizer has none"));
  return tokenizer;
}

/// A member of a manifest beside its format, its contents and the anchor of the audit log.
struct Member {
  const char* key;
  json (*write)(const CheckpointDescription& about);  ///< null: the member is left out
  /// Called after those of the members above. Errors: DataError, prefixed with `where`.
  void (*read)(const json& object, const std::string& where, CheckpointDescription& about);
  bool optional = false;  ///< it is read only if it is there
};

template <class Value>
json unless_empty(const Value& value) {
  return value.empty() ? json() : json(value);
}

json unless_zero(int64_t value) { return value == 0 ? json() : json(value); }

using About = CheckpointDescription;
constexpr bool kOptional = true;
constexpr Member kMembers[] = {
    {"step", [](const About& a) { return json(a.step); },
     [](const json& object, const std::string& where, About& a) { a.step = integer_member(object, "step", where); }},
    {"tokens", [](const About& a) { return json(a.tokens); },
     [](const json& object, const std::string& where, About& a) { a.tokens = integer_member(object, "tokens", where); }},
    {"samples", [](const About& a) { return json(a.samples); },
     [](const json& object, const std::string& where, About& a) { a.samples = integer_member(object, "samples", where); }},
    {"optimizer_steps", [](const About& a) { return json(a.optimizer_steps); },
     [](const json& object, const std::string& where, About& a) { a.optimizer_steps = integer_member(object, "optimizer_steps", where, 0, a.step); }},
    {"seed", [](const About& a) { return json(a.seed); },
     [](const json& object, const std::string& where, About& a) {
       a.seed = integer_member(object, "seed", where, std::numeric_limits<int64_t>::min());
     }},
    {"config", [](const About& a) { return json(a.config); },
     [](const json& object, const std::string& where, About& a) { a.config = string_member(object, "config", where); }},
    {"model", [](const About& a) { return a.model; },
     [](const json& object, const std::string& where, About& a) { a.model = object_member(object, "model", where); }},
    {"tokenizer",
     [](const About& a) {
       return json{{"name", a.tokenizer.name}, {"digest", a.tokenizer.digest}, {"files", a.tokenizer.files}};
     },
     [](const json& object, const std::string& where, About& a) { a.tokenizer = parse_tokenizer(object, where); }},
    {"training_data", [](const About& a) { return json(a.training_data); },
     [](const json& object, const std::string& where, About& a) { a.training_data = string_member(object, "training_data", where); }},
    {"layout", [](const About& a) { return a.layout; },
     [](const json& object, const std::string& where, About& a) { a.layout = object_member(object, "layout", where); }},
    {"loss_scale",
     [](const About& a) {
       return a.loss_scale ? json{{"scale", a.loss_scale->scale}, {"clean_steps", a.loss_scale->clean_steps}} : json();
     },
     [](const json& object, const std::string& where, About& a) { a.loss_scale = parse_loss_scale(object, where); }, kOptional},
    {"rejected_steps", [](const About& a) { return unless_zero(a.rejected_steps); },
     [](const json& object, const std::string& where, About& a) { a.rejected_steps = integer_member(object, "rejected_steps", where, 1, a.step); },
     kOptional},
    // It may be left out only by runs with one island.
    {"island_steps", [](const About& a) { return unless_empty(a.island_steps); },
     [](const json& object, const std::string& where, About& a) {
       a.island_steps = parse_island_numbers(object, "island_steps", a, where);
       if (!a.island_steps.empty() && a.island_steps.front() != a.optimizer_steps)
         throw DataError(where + ": \"island_steps\": does not begin with optimizer_steps");
     }},
    {"island_rejections", [](const About& a) { return a.rejected_steps > 0 ? unless_empty(a.island_rejections) : json(); },
     [](const json& object, const std::string& where, About& a) {
       a.island_rejections = parse_island_numbers(object, "island_rejections", a, where);
       if (!a.island_rejections.empty() && std::ranges::max(a.island_rejections) != a.rejected_steps)
         throw DataError(where + ": \"island_rejections\": the largest is not rejected_steps");
     },
     kOptional},
    {"micro_batches", [](const About& a) { return unless_empty(a.micro_batches); },
     [](const json& object, const std::string& where, About& a) { a.micro_batches = parse_micro_batches(object, where); }, kOptional},
    {"branch", [](const About& a) { return a.branch.empty() ? json() : json(to_json(a.branch)); },
     [](const json& object, const std::string& where, About& a) { a.branch = parse_branch(object, a.step, a.samples, where); }, kOptional},
    {"early_stopping", [](const About& a) { return a.early_stopping.step > 0 ? json(to_json(a.early_stopping)) : json(); },
     [](const json& object, const std::string& where, About& a) { a.early_stopping = parse_early_stopping(object, a.step, where); }, kOptional},
    {"anomaly_window",
     [](const About& a) {
       json window;
       for (const StepFigures& step : a.anomaly_window) window.push_back({step.loss, step.grad_norm});
       return window;
     },
     [](const json& object, const std::string& where, About& a) { a.anomaly_window = parse_anomaly_window(object, where); }, kOptional},
    {"product_algorithms", [](const About& a) { return unless_empty(a.product_algorithms); },
     [](const json& object, const std::string& where, About& a) {
       for (const auto& [gpu, algorithms] : object_member(object, "product_algorithms", where).items())
         a.product_algorithms[gpu] = strings_of(algorithms, where + ": \"product_algorithms\"");
     },
     kOptional},
    {"privacy", [](const About& a) { return a.privacy.empty() ? json() : json(privacy::to_json(a.privacy)); },
     [](const json& object, const std::string& where, About& a) { a.privacy = privacy::parse_history(object["privacy"], where + ": \"privacy\""); },
     kOptional},
};

/// The text of a manifest, with the digest at its beginning.
std::string text_of(const json& object) { return with_digest(concat(kHead, std::string(kDigits, '0'), "\",", object.dump(1).substr(1), "\n")); }

bool has_digest(std::string_view text) { return text.size() > kHead.size() + kDigits && text.substr(0, kHead.size()) == kHead; }

}  // namespace

nlohmann::ordered_json to_json(const std::vector<ConfigChange>& branch) {
  nlohmann::ordered_json result = nlohmann::ordered_json::array();
  for (const ConfigChange& change : branch)
    result.push_back({{"step", change.step}, {"sample", change.sample}, {"changes", nlohmann::ordered_json(change.changes)}});
  return result;
}

nlohmann::ordered_json to_json(const StopState& state) {
  nlohmann::ordered_json result = {{"step", state.step}, {"without_improvement", state.without_improvement}};
  if (!state.best) return result;
  result["best"] = *state.best;
  result["best_step"] = state.best_step;
  return result;
}

std::string manifest_text(const Manifest& manifest) {
  json result = to_json(manifest.contents);
  result.update({{"format", kFormat}, {"version", kVersion}});
  for (const Member& member : kMembers)
    if (json value = member.write(manifest.description); !value.is_null()) result[member.key] = std::move(value);
  if (manifest.audit) result["audit"] = to_json(*manifest.audit);
  return text_of(result);
}

std::string text_without_anchor(const std::string& text, const std::string& where) {
  json object = parse_object(text, where);
  object.erase("digest");
  if (text_of(object) != text) throw DataError(where + ": is not written as a manifest is");
  object.erase("audit");
  return text_of(object);
}

json to_json(const AuditAnchor& anchor) {
  json result = {{"records", anchor.records}, {"head", anchor.head}};
  if (!anchor.public_key.empty()) result.update({{"public_key", anchor.public_key}, {"signature", anchor.signature}});
  return result;
}

AuditAnchor parse_anchor(const json& object, const std::string& where) {
  require_known_keys(object, {"records", "head", "public_key", "signature"}, where);
  AuditAnchor anchor{integer_member(object, "records", where, 1), string_member(object, "head", where)};
  if (object.contains("public_key") || object.contains("signature")) {
    anchor.public_key = string_member(object, "public_key", where);
    anchor.signature = string_member(object, "signature", where);
    if (anchor.public_key.empty()) throw DataError(where + ": \"public_key\" is empty");
  }
  return anchor;
}

std::string with_digest(std::string text) {
  if (!has_digest(text)) throw DataError("the manifest does not begin with its digest");
  Digest digest;
  digest.update(std::string_view(text).substr(0, kHead.size()));
  digest.update(std::string_view(text).substr(kHead.size() + kDigits));
  const std::string found = digest.str();
  return text.replace(kHead.size(), kDigits, found.substr(found.size() - kDigits));
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  if (has_digest(text) && with_digest(text) != text) throw DataError(concat(where, ": damaged: does not match its digest"));
  const json object = parse_object(text, where);
  if (string_member(object, "format", where) != kFormat) throw DataError(concat(where, ": format is not \"", kFormat, "\""));
  const int64_t version = integer_member(object, "version", where);
  if (version != kVersion) throw DataError(concat(where, ": version ", version, " is not supported; allowed ", kVersion));
  if (!has_digest(text)) throw DataError(concat(where, ": does not begin with its digest"));  // older versions had none
  std::vector<std::string_view> known{"digest", "format", "version", "tensors", "files", "audit"};
  for (const Member& member : kMembers) known.emplace_back(member.key);
  require_known_keys(object, known, where);
  Manifest manifest;
  for (const Member& member : kMembers)
    if (!member.optional || object.contains(member.key)) member.read(object, where, manifest.description);
  manifest.contents = parse_contents(object, where);
  if (object.contains("audit")) manifest.audit = parse_anchor(object_member(object, "audit", where), where + ": \"audit\"");
  check_tiling(manifest.contents.tensors, where);
  check_files(manifest.contents, manifest.description.tokenizer.files, where);
  return manifest;
}

}  // namespace trireme
