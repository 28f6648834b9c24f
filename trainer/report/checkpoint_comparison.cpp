#include "trainer/report/checkpoint_comparison.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "kernels/core/check.h"
#include "trainer/checkpoint/box_copy.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

/// A checkpoint whose tensors are read as they are stored. CheckpointReader refuses data that do not match their digest, but here the difference is
/// the result.
class StoredCheckpoint {
 public:
  explicit StoredCheckpoint(const fs::path& directory) : reader_(directory) {
    for (const auto& [name, tensor] : reader_.tensors())
      for (const StoredBox& box : tensor.boxes) digests_[box.file][entry_name(name, box.box)] = box.digest;
  }

  const CheckpointReader& reader() const { return reader_; }

  /// Why the stored bytes of a tensor are not those that were saved; empty if they are.
  std::string damage(const std::string& name) {
    for (const StoredBox& box : reader_.tensor(name).boxes) {
      const Opened& opened = open(box.file);
      if (!opened.damage.empty()) return opened.damage;
      const auto entry = opened.file->entries().find(entry_name(name, box.box));
      if (entry == opened.file->entries().end()) return concat((reader_.directory() / box.file).string(), ": tensor \"", name, "\" is missing");
      const std::string found = opened.file->digest(entry->second);
      if (found != box.digest)
        return concat((reader_.directory() / box.file).string(), ", bytes ", box.begin, " to ", box.end, ": their digest is ", found,
                      ", the manifest says ", box.digest);
    }
    return "";
  }

  /// False if a file cannot be read at all.
  bool read(const std::string& name, const Box& wanted, std::byte* out) {
    const StoredTensor& stored = reader_.tensor(name);
    for (const StoredBox& piece : stored.boxes) {
      const Box common = intersection(piece.box, wanted);
      if (common.extent[0] <= 0 || common.extent[1] <= 0) continue;
      const Opened& opened = open(piece.file);
      if (!opened.file || !opened.file->entries().contains(entry_name(name, piece.box))) return false;
      const std::span<const std::byte> data = opened.file->data(opened.file->entry(entry_name(name, piece.box)));
      if (static_cast<int64_t>(data.size()) != piece.end - piece.begin) return false;
      copy_box({data.data(), stored.dtype, piece.box.extent[1], 1, piece.box.start}, common, wanted, stored.dtype, out);
    }
    return true;
  }

 private:
  struct Opened {
    std::unique_ptr<SafetensorsFile> file;  ///< null if its header cannot be read
    std::string damage;                     ///< of the header
  };

  const Opened& open(const std::string& name) {
    const auto [found, fresh] = files_.try_emplace(name);
    if (!fresh) return found->second;
    Opened& opened = found->second;
    try {
      opened.file = std::make_unique<SafetensorsFile>(reader_.directory() / name);
      const std::string digest = opened.file->digest(digests_.at(name)), &expected = reader_.files().at(name).digest;
      if (digest != expected)
        opened.damage = concat((reader_.directory() / name).string(), ": its header's digest is ", digest, ", the manifest says ", expected);
    } catch (const DataError& error) {
      opened.damage = error.what();
    }
    return opened;
  }

  CheckpointReader reader_;
  std::map<std::string, std::map<std::string, std::string>> digests_;  ///< of the entries of each file
  std::map<std::string, Opened> files_;
};

/// Weights before moments, and "blocks.2" before "blocks.10".
std::pair<int, std::string> place_in_model(const std::string& name) {
  std::string padded;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    if (end == i) {
      padded += name[i++];
      continue;
    }
    padded += std::string(end - i < 8 ? 8 - (end - i) : 0, '0') + name.substr(i, end - i);
    i = end;
  }
  const size_t slash = padded.find('/');
  const std::string kind = padded.substr(0, slash), rest = slash == padded.npos ? "" : padded.substr(slash + 1);
  const int part = rest.starts_with("embedding") ? 0 : rest.starts_with("blocks") ? 1 : 2;
  return {kind == "weight" ? 0 : 1, concat(kind, "/", part, rest)};
}

double value_at(DType dtype, const std::byte* data) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, data, sizeof value);
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::kF64: return as(double{});
    case DType::kF32: return as(float{});
    case DType::kBF16: return as(bfloat16{});
    case DType::kF16: return as(float16{});
    case DType::kI32: return as(int32_t{});
    case DType::kI64: return as(int64_t{});
    default: return as(uint8_t{});
  }
}

std::string shape_text(const StoredTensor& tensor) {
  return concat(name_of(tensor.dtype), " [", tensor.shape[0], tensor.dims > 1 ? concat(", ", tensor.shape[1]) : "", "]");
}

class Pair {
 public:
  Pair(const fs::path& a, const fs::path& b, const std::function<void(int64_t bytes)>& progress)
      : a_(std::make_unique<StoredCheckpoint>(a)), b_(std::make_unique<StoredCheckpoint>(b)), progress_(progress) {}

  int64_t step() const { return a_->reader().description().step; }

  /// Names in either checkpoint, in the order of the model.
  std::vector<std::string> names() const {
    std::set<std::string> all;
    for (const StoredCheckpoint* one : {a_.get(), b_.get()})
      for (const auto& [name, tensor] : one->reader().tensors()) all.insert(name);
    std::vector<std::string> ordered(all.begin(), all.end());
    std::ranges::stable_sort(ordered, {}, place_in_model);
    return ordered;
  }

  std::optional<TensorDifference> compare(const std::string& name) {
    TensorDifference found{.step = step(), .tensor = name, .what = {}, .elements = {}, .damage = {}};
    const auto &in_a = a_->reader().tensors(), &in_b = b_->reader().tensors();
    if (!in_a.contains(name) || !in_b.contains(name)) {
      found.what = in_a.contains(name) ? "only in the first run" : "only in the second run";
      return found;
    }
    const StoredTensor &a = in_a.at(name), &b = in_b.at(name);
    found.damage = {a_->damage(name), b_->damage(name)};
    if (a.dtype != b.dtype || a.dims != b.dims || a.shape != b.shape)
      found.what = concat(shape_text(a), " in the first run, ", shape_text(b), " in the second");
    else
      found.elements = differing_elements(name, a);
    progress_(2 * a.shape[0] * a.shape[1] * size_of(a.dtype));
    if (found.what.empty() && !found.elements && found.damage[0].empty() && found.damage[1].empty()) return std::nullopt;
    return found;
  }

 private:
  std::optional<ElementDifference> differing_elements(const std::string& name, const StoredTensor& tensor) {
    constexpr int64_t kMostBytes = int64_t{64} << 20;
    const int64_t size = size_of(tensor.dtype), columns = tensor.shape[1];
    const int64_t rows = std::max<int64_t>(1, kMostBytes / std::max<int64_t>(1, size * columns));
    ElementDifference found;
    std::vector<std::byte> a, b;
    for (int64_t row = 0; row < tensor.shape[0]; row += rows) {
      const Box box{{row, 0}, {std::min(rows, tensor.shape[0] - row), columns}};
      a.resize(static_cast<size_t>(box.numel() * size));
      b.resize(a.size());
      if (!a_->read(name, box, a.data()) || !b_->read(name, box, b.data())) return std::nullopt;  // the damage says why
      if (std::memcmp(a.data(), b.data(), a.size()) == 0) continue;
      for (int64_t i = 0; i < box.numel(); ++i) add(found, tensor.dtype, a.data() + i * size, b.data() + i * size, {row + i / columns, i % columns});
    }
    return found.elements > 0 ? std::optional(found) : std::nullopt;
  }

  static void add(ElementDifference& found, DType dtype, const std::byte* a, const std::byte* b, std::array<int64_t, 2> at) {
    const auto size = static_cast<size_t>(size_of(dtype));
    if (std::memcmp(a, b, size) == 0) return;
    if (found.elements++ == 0) {
      found.first = at;
      found.values = {value_at(dtype, a), value_at(dtype, b)};
    }
    for (size_t i = 0; i < size; ++i) found.bits += std::popcount(static_cast<unsigned char>(a[i] ^ b[i]));
  }

  std::unique_ptr<StoredCheckpoint> a_, b_;
  const std::function<void(int64_t bytes)>& progress_;
};

/// The checkpoints of a run by step.
std::map<int64_t, fs::path> by_step(const fs::path& run) {
  std::map<int64_t, fs::path> found;
  for (const fs::path& checkpoint : checkpoints_of(run)) {
    const std::string name = checkpoint.filename().string();
    if (name.size() <= 20) found[std::stoll(name.substr(name.find('-') + 1))] = checkpoint;
  }
  return found;
}

void describe_data(const std::map<int64_t, fs::path>& checkpoints, std::string& data, std::string& tokenizer) {
  for (auto newest = checkpoints.rbegin(); newest != checkpoints.rend() && tokenizer.empty(); ++newest) {
    try {
      const CheckpointDescription about = CheckpointReader(newest->second).description();
      data = about.training_data;
      tokenizer = about.tokenizer.digest;
    } catch (const Error&) {  // compared and reported below, or not of both runs
    }
  }
}

}  // namespace

CheckpointComparison compare_checkpoints(const std::array<fs::path, 2>& runs, const std::function<void(int64_t bytes)>& progress) {
  const std::function<void(int64_t)> report = progress ? progress : [](int64_t) {};
  CheckpointComparison result;
  const std::map<int64_t, fs::path> a = by_step(runs[0]), b = by_step(runs[1]);
  describe_data(a, result.training_data[0], result.tokenizer[0]);
  describe_data(b, result.training_data[1], result.tokenizer[1]);
  for (const auto& [step, path] : a) (b.contains(step) ? result.steps : result.only[0]).push_back(step);
  for (const auto& [step, path] : b)
    if (!a.contains(step)) result.only[1].push_back(step);
  for (const int64_t step : result.steps) {
    std::optional<Pair> pair;
    try {
      pair.emplace(a.at(step), b.at(step), report);
    } catch (const IoError&) {
      throw;
    } catch (const Error& error) {
      result.unreadable.emplace_back(error.what());
      continue;
    }
    const bool first = result.tensors.empty();
    for (const std::string& name : pair->names()) {
      const std::optional<TensorDifference> found = pair->compare(name);
      if (!found) continue;
      if (first) result.tensors.push_back(*found);
      if (!found->damage[0].empty() || !found->damage[1].empty()) result.damaged.push_back(*found);
    }
  }
  return result;
}

int64_t bytes_to_compare(const std::array<fs::path, 2>& runs) {
  const std::map<int64_t, fs::path> a = by_step(runs[0]), b = by_step(runs[1]);
  int64_t bytes = 0;
  for (const auto& [step, path] : a) {
    if (!b.contains(step)) continue;
    for (const fs::path& one : {path, b.at(step)}) {
      std::error_code error;
      for (const auto& file : fs::directory_iterator(one, error))
        if (file.path().extension() == ".safetensors") bytes += static_cast<int64_t>(file.file_size(error));
    }
  }
  return bytes;
}

}  // namespace trireme::report
