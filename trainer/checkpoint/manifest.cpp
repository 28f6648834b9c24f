#include "trainer/checkpoint/manifest.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
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

json to_json(const std::array<int64_t, 2>& pair, int dims) { return dims == 1 ? json{pair[0]} : json{pair[0], pair[1]}; }

/// Reads [a] or [a, b]; for a vector the second number is `fill`.
std::array<int64_t, 2> pair_member(const json& object, const char* key, int dims, int64_t fill, const std::string& where) {
  const json& list = array_member(object, key, where);
  if (static_cast<int>(list.size()) != dims) throw DataError(concat(where, ": \"", key, "\" does not have ", dims, " numbers"));
  return {integer(list[0], where), dims == 1 ? fill : integer(list[1], where)};
}

json to_json(const Contents& contents) {
  json result = {{"tensors", json::object()}, {"files", json::object()}};
  for (const auto& [name, tensor] : contents.tensors) {
    json boxes = json::array();
    for (const StoredBox& stored : tensor.boxes) {
      boxes.push_back({{"start", to_json(stored.box.start, tensor.dims)},
                       {"extent", to_json(stored.box.extent, tensor.dims)},
                       {"file", stored.file},
                       {"bytes", {stored.begin, stored.end}},
                       {"digest", stored.digest}});
      if (stored.non_finite > 0) boxes.back()["non_finite"] = stored.non_finite;
    }
    result["tensors"][name] = {{"dtype", name_of(tensor.dtype)}, {"shape", to_json(tensor.shape, tensor.dims)}, {"boxes", std::move(boxes)}};
  }
  for (const auto& [name, file] : contents.files) {
    result["files"][name] = {{"bytes", file.bytes}, {"digest", file.digest}};
    if (!file.sha256.empty()) result["files"][name]["sha256"] = file.sha256;
  }
  return result;
}

DType dtype_member(const json& object, const std::string& where) {
  const std::string name = string_member(object, "dtype", where);
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8})
    if (name == name_of(dtype)) return dtype;
  throw DataError(concat(where, ": unknown dtype ", json(name).dump()));
}

StoredBox parse_box(const json& value, int dims, const Contents& contents, const std::string& where) {
  require_known_keys(value, {"start", "extent", "file", "bytes", "digest", "non_finite"}, where);
  StoredBox stored;
  stored.box = {pair_member(value, "start", dims, 0, where), pair_member(value, "extent", dims, 1, where)};
  stored.file = string_member(value, "file", where);
  const auto file = contents.files.find(stored.file);
  if (file == contents.files.end()) throw DataError(concat(where, ": file ", json(stored.file).dump(), " is not listed"));
  const auto range = pair_member(value, "bytes", 2, 0, where);
  stored.begin = range[0];
  stored.end = range[1];
  if (stored.end < stored.begin || stored.end > file->second.bytes)
    throw DataError(concat(where, ": bytes [", stored.begin, ", ", stored.end, "] lie outside ", stored.file));
  stored.digest = string_member(value, "digest", where);
  if (value.contains("non_finite")) stored.non_finite = integer_member(value, "non_finite", where, 1, stored.end - stored.begin);
  return stored;
}

StoredTensor parse_tensor(const json& value, const Contents& contents, const std::string& where) {
  require_known_keys(value, {"dtype", "shape", "boxes"}, where);
  StoredTensor tensor;
  tensor.dtype = dtype_member(value, where);
  const size_t dims = array_member(value, "shape", where).size();
  if (dims != 1 && dims != 2) throw DataError(concat(where, ": has ", dims, " dimensions; allowed 1 and 2"));
  tensor.dims = static_cast<int>(dims);
  tensor.shape = pair_member(value, "shape", tensor.dims, 1, where);
  for (const json& item : array_member(value, "boxes", where)) tensor.boxes.push_back(parse_box(item, tensor.dims, contents, where));
  return tensor;
}

Contents parse_contents(const json& object, const std::string& where) {
  Contents contents;
  for (const auto& [name, value] : object_member(object, "files", where).items()) {
    const std::string at = concat(where, ": file \"", name, "\"");
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name == kManifestName)
      throw DataError(at + ": not a plain file name");
    require_known_keys(value, {"bytes", "digest", "sha256"}, at);
    contents.files[name] = {integer_member(value, "bytes", at), string_member(value, "digest", at),
                            value.contains("sha256") ? string_member(value, "sha256", at) : ""};
  }
  for (const auto& [name, value] : object_member(object, "tensors", where).items())
    contents.tensors[name] = parse_tensor(value, contents, concat(where, ": tensor \"", name, "\""));
  return contents;
}

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

/// Checks that the boxes tile the data of every file; tokenizer files must contain no boxes.
void check_files(const Contents& contents, const std::vector<std::string>& tokenizer, const std::string& where) {
  for (const std::string& file : tokenizer)
    if (!contents.files.contains(file)) throw DataError(concat(where, ": \"tokenizer\": file ", json(file).dump(), " is not listed"));
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>> ranges;
  for (const auto& [name, tensor] : contents.tensors)
    for (const StoredBox& stored : tensor.boxes) ranges[stored.file].emplace_back(stored.begin, stored.end);
  for (const auto& [name, file] : contents.files) {
    auto& pieces = ranges[name];
    if (std::find(tokenizer.begin(), tokenizer.end(), name) != tokenizer.end()) {
      if (!pieces.empty()) throw DataError(concat(where, ": file \"", name, "\" belongs to the tokenizer but contains tensors"));
      continue;
    }
    if (pieces.empty()) throw DataError(concat(where, ": file \"", name, "\" contains no tensor"));
    std::sort(pieces.begin(), pieces.end());
    int64_t covered = pieces.front().first;
    for (const auto& [begin, end] : pieces) {
      if (begin != covered)
        throw DataError(
            concat(where, ": file \"", name, "\": tensors ", begin < covered ? "overlap" : "leave a gap", " at byte ", std::min(begin, covered)));
      covered = end;
    }
    if (covered != file.bytes) throw DataError(concat(where, ": file \"", name, "\": ", file.bytes - covered, " bytes after the last tensor"));
  }
}

/// The text of a manifest, with the digest at its beginning.
std::string text_of(const json& object) { return with_digest(concat(kHead, std::string(kDigits, '0'), "\",", object.dump(1).substr(1), "\n")); }

bool has_digest(std::string_view text) { return text.size() > kHead.size() + kDigits && text.substr(0, kHead.size()) == kHead; }

bool inside(const Box& box, const std::array<int64_t, 2>& shape) {
  for (size_t dim = 0; dim < 2; ++dim)
    if (box.extent[dim] <= 0 || box.extent[dim] > shape[dim] || box.start[dim] > shape[dim] - box.extent[dim]) return false;
  return true;
}

}  // namespace

std::string entry_name(const std::string& tensor, const Box& box) { return concat(tensor, "@", box.start[0], ",", box.start[1]); }

std::string contents_text(const Contents& contents) { return to_json(contents).dump() + "\n"; }

Contents parse_contents(const std::string& text, const std::string& where) {
  const json object = parse_object(text, where);
  require_known_keys(object, {"tensors", "files"}, where);
  return parse_contents(object, where);
}

void merge(Contents& into, const Contents& part, const std::string& where) {
  for (const auto& [name, file] : part.files)
    if (!into.files.emplace(name, file).second) throw DataError(concat(where, ": file \"", name, "\" was written twice"));
  for (const auto& [name, tensor] : part.tensors) {
    StoredTensor& whole = into.tensors.try_emplace(name, StoredTensor{tensor.dtype, tensor.dims, tensor.shape, {}}).first->second;
    if (whole.dtype != tensor.dtype || whole.dims != tensor.dims || whole.shape != tensor.shape)
      throw DataError(concat(where, ": tensor \"", name, "\": ranks disagree on its dtype or shape"));
    whole.boxes.insert(whole.boxes.end(), tensor.boxes.begin(), tensor.boxes.end());
  }
}

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
  const CheckpointDescription& about = manifest.description;
  json result = to_json(manifest.contents);
  result.update({{"format", kFormat},
                 {"version", kVersion},
                 {"step", about.step},
                 {"tokens", about.tokens},
                 {"samples", about.samples},
                 {"optimizer_steps", about.optimizer_steps},
                 {"seed", about.seed},
                 {"config", about.config},
                 {"model", about.model},
                 {"tokenizer", {{"name", about.tokenizer.name}, {"digest", about.tokenizer.digest}, {"files", about.tokenizer.files}}},
                 {"training_data", about.training_data},
                 {"layout", about.layout}});
  if (about.loss_scale) result["loss_scale"] = {{"scale", about.loss_scale->scale}, {"clean_steps", about.loss_scale->clean_steps}};
  if (about.rejected_steps > 0) result["rejected_steps"] = about.rejected_steps;
  if (!about.island_steps.empty()) result["island_steps"] = about.island_steps;
  if (!about.micro_batches.empty()) result["micro_batches"] = about.micro_batches;
  if (about.rejected_steps > 0 && !about.island_rejections.empty()) result["island_rejections"] = about.island_rejections;
  if (!about.branch.empty()) result["branch"] = json(to_json(about.branch));
  if (about.early_stopping.step > 0) result["early_stopping"] = json(to_json(about.early_stopping));
  for (const StepFigures& step : about.anomaly_window) result["anomaly_window"].push_back({step.loss, step.grad_norm});
  if (!about.product_algorithms.empty()) result["product_algorithms"] = about.product_algorithms;
  if (!about.privacy.empty()) result["privacy"] = json(privacy::to_json(about.privacy));
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

namespace {

/// The members of a manifest.
const std::initializer_list<std::string_view> kKeys = {"digest",
                                                       "format",
                                                       "version",
                                                       "step",
                                                       "tokens",
                                                       "samples",
                                                       "optimizer_steps",
                                                       "seed",
                                                       "config",
                                                       "model",
                                                       "tokenizer",
                                                       "training_data",
                                                       "layout",
                                                       "loss_scale",
                                                       "rejected_steps",
                                                       "branch",
                                                       "early_stopping",
                                                       "product_algorithms",
                                                       "tensors",
                                                       "files",
                                                       "anomaly_window",
                                                       "island_steps",
                                                       "island_rejections",
                                                       "micro_batches",
                                                       "privacy",
                                                       "audit"};

}  // namespace

Manifest parse_manifest(const std::string& text, const std::string& where) {
  if (has_digest(text) && with_digest(text) != text) throw DataError(concat(where, ": damaged: does not match its digest"));
  const json object = parse_object(text, where);
  if (string_member(object, "format", where) != kFormat) throw DataError(concat(where, ": format is not \"", kFormat, "\""));
  const int64_t version = integer_member(object, "version", where);
  if (version != kVersion) throw DataError(concat(where, ": version ", version, " is not supported; allowed ", kVersion));
  if (!has_digest(text)) throw DataError(concat(where, ": does not begin with its digest"));  // older versions had none
  require_known_keys(object, kKeys, where);
  Manifest manifest;
  CheckpointDescription& about = manifest.description;
  about.step = integer_member(object, "step", where);
  about.tokens = integer_member(object, "tokens", where);
  about.samples = integer_member(object, "samples", where);
  about.optimizer_steps = integer_member(object, "optimizer_steps", where, 0, about.step);
  about.seed = integer_member(object, "seed", where, std::numeric_limits<int64_t>::min());
  about.config = string_member(object, "config", where);
  about.model = object_member(object, "model", where);
  about.tokenizer = parse_tokenizer(object, where);
  about.training_data = string_member(object, "training_data", where);
  about.layout = object_member(object, "layout", where);
  if (object.contains("loss_scale")) about.loss_scale = parse_loss_scale(object, where);
  if (object.contains("rejected_steps")) about.rejected_steps = integer_member(object, "rejected_steps", where, 1, about.step);
  about.island_steps = parse_island_numbers(object, "island_steps", about, where);
  if (object.contains("island_rejections")) about.island_rejections = parse_island_numbers(object, "island_rejections", about, where);
  if (!about.island_steps.empty() && about.island_steps.front() != about.optimizer_steps)
    throw DataError(where + ": \"island_steps\": does not begin with optimizer_steps");
  if (!about.island_rejections.empty() && std::ranges::max(about.island_rejections) != about.rejected_steps)
    throw DataError(where + ": \"island_rejections\": the largest is not rejected_steps");
  if (object.contains("micro_batches")) about.micro_batches = parse_micro_batches(object, where);
  if (object.contains("branch")) about.branch = parse_branch(object, about.step, about.samples, where);
  if (object.contains("early_stopping")) about.early_stopping = parse_early_stopping(object, about.step, where);
  if (object.contains("anomaly_window")) about.anomaly_window = parse_anomaly_window(object, where);
  if (object.contains("product_algorithms"))
    for (const auto& [gpu, algorithms] : object_member(object, "product_algorithms", where).items())
      about.product_algorithms[gpu] = strings_of(algorithms, where + ": \"product_algorithms\"");
  if (object.contains("privacy")) about.privacy = privacy::parse_history(object["privacy"], where + ": \"privacy\"");
  manifest.contents = parse_contents(object, where);
  if (object.contains("audit")) manifest.audit = parse_anchor(object_member(object, "audit", where), where + ": \"audit\"");
  check_tiling(manifest.contents.tensors, where);
  check_files(manifest.contents, about.tokenizer.files, where);
  return manifest;
}

void check_tiling(const std::map<std::string, StoredTensor>& tensors, const std::string& where) {
  for (const auto& [name, tensor] : tensors) {
    const auto refuse = [&, &label = name](const char* what, const Box& at) {  // clang before 16 cannot capture a structured binding
      throw DataError(concat(where, ": tensor \"", label, "\": the box at [", at.start[0], ", ", at.start[1], "] ", what));
    };
    int64_t numel = 0, bytes = 0;
    if (__builtin_mul_overflow(tensor.shape[0], tensor.shape[1], &numel) || __builtin_mul_overflow(numel, size_of(tensor.dtype), &bytes))
      throw DataError(concat(where, ": tensor \"", name, "\" is too large"));
    std::vector<Box> boxes;
    for (const StoredBox& stored : tensor.boxes) {
      if (!inside(stored.box, tensor.shape)) refuse("is out of range", stored.box);
      if (stored.end - stored.begin != stored.box.numel() * size_of(tensor.dtype)) refuse("has a byte range of the wrong size", stored.box);
      boxes.push_back(stored.box);
    }
    std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.start < b.start; });
    // Sweep over the rows. The boxes at the current row are disjoint, so a box that begins there can only overlap its two neighbours.
    std::map<int64_t, int64_t> open;                // first column, and one past the last column
    std::set<std::pair<int64_t, int64_t>> closing;  // row where a box ends, and its first column
    for (const Box& box : boxes) {
      for (; !closing.empty() && closing.begin()->first <= box.start[0]; closing.erase(closing.begin())) open.erase(closing.begin()->second);
      const int64_t begin = box.start[1], end = begin + box.extent[1];
      const auto next = open.lower_bound(begin);
      if ((next != open.end() && next->first < end) || (next != open.begin() && std::prev(next)->second > begin)) refuse("overlaps another box", box);
      open.emplace_hint(next, begin, end);
      closing.emplace(box.start[0] + box.extent[0], begin);
      numel -= box.numel();
    }
    // All boxes are in range and disjoint, so remaining elements are a gap.
    if (numel != 0) throw DataError(concat(where, ": tensor \"", name, "\": ", numel, " elements are not in any box"));
  }
}

}  // namespace trireme
