#include "trainer/checkpoint/contents.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "trainer/files/strict_json.h"

namespace trireme {

using nlohmann::json;

namespace {

json to_json(const std::array<int64_t, 2>& pair, int dims) { return dims == 1 ? json{pair[0]} : json{pair[0], pair[1]}; }

/// Reads [a] or [a, b]; for a vector the second number is `fill`.
std::array<int64_t, 2> pair_member(const json& object, const char* key, int dims, int64_t fill, const std::string& where) {
  const json& list = array_member(object, key, where);
  if (static_cast<int>(list.size()) != dims) throw DataError(concat(where, ": \"", key, "\" does not have ", dims, " numbers"));
  return {integer(list[0], where), dims == 1 ? fill : integer(list[1], where)};
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

bool inside(const Box& box, const std::array<int64_t, 2>& shape) {
  for (size_t dim = 0; dim < 2; ++dim)
    if (box.extent[dim] <= 0 || box.extent[dim] > shape[dim] || box.start[dim] > shape[dim] - box.extent[dim]) return false;
  return true;
}

}  // namespace

std::string entry_name(const std::string& tensor, const Box& box) { return concat(tensor, "@", box.start[0], ",", box.start[1]); }

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

std::string contents_text(const Contents& contents) { return to_json(contents).dump() + "\n"; }

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

}  // namespace trireme
