#include "trainer/checkpoint/checkpoint_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "trainer/checkpoint/box_copy.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/foreign_files.h"

namespace fs = std::filesystem;

namespace trireme {

/// What a folder without a manifest is that other programs have made, if it is known.
static std::string foreign_advice(const fs::path& folder) {
  std::error_code ignored;
  if (const std::string what = foreign_folder(folder); !what.empty()) return "; it " + what;
  if (fs::exists(folder / "config.json", ignored)) return "; it is a Hugging Face folder, of which `trireme checkpoint import` makes a checkpoint";
  return "";
}

CheckpointReader::CheckpointReader(const fs::path& directory, Absent absent)
    : directory_(directory.has_filename() ? directory : directory.parent_path()) {
  constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
  std::error_code error;
  // `latest` may be replaced during the read, so the link is followed once.
  if (const fs::path target = fs::read_symlink(directory_, error); !error) directory_ = directory_.parent_path() / target;
  if (!fs::is_directory(directory_, error)) throw MissingFileError(concat("checkpoint ", directory.string(), " does not exist"));
  const fs::path path = directory_ / kManifestName;
  if (!fs::exists(fs::symlink_status(path, error)))
    throw DataError(concat("checkpoint ", directory_.string(), " is incomplete: ", kManifestName, " is missing", foreign_advice(directory_)));
  manifest_ = parse_manifest(read_text(path, kMaxManifestBytes, Links::kRefuse), path.string());
  for (const auto& [name, expected] : files()) {
    const std::string shard = (directory_ / name).string();
    struct stat status {};
    const bool exists = ::lstat(shard.c_str(), &status) == 0;
    if (!exists && errno == ENOENT && absent == Absent::kAllowed) continue;
    if (!exists) throw DataError(concat(shard, ": cannot be read: ", std::generic_category().message(errno)));
    if (!S_ISREG(status.st_mode)) throw DataError(concat(shard, ": not a regular file"));
    if (status.st_size != expected.bytes) throw DataError(concat(shard, ": has ", status.st_size, " bytes, the manifest says ", expected.bytes));
  }
  for (const auto& [name, stored] : tensors())
    for (const StoredBox& box : stored.boxes) pieces_[box.file][entry_name(name, box.box)] = {&name, &stored, &box};
}

int64_t CheckpointReader::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, file] : files()) sum += file.bytes;
  return sum;
}

bool CheckpointReader::has_kind(const std::string& kind) const {
  const auto first = tensors().lower_bound(kind + "/");
  return first != tensors().end() && first->first.starts_with(kind + "/");
}

const StoredTensor& CheckpointReader::tensor(const std::string& name) const {
  const auto found = tensors().find(name);
  if (found == tensors().end()) throw DataError(concat((directory_ / kManifestName).string(), ": tensor \"", name, "\" is missing"));
  return found->second;
}

std::string CheckpointReader::tokenizer_spec() const {
  const StoredTokenizer& tokenizer = description().tokenizer;
  for (const std::string& name : tokenizer.files) {
    const fs::path path = directory_ / name;
    const StoredFile& expected = files().at(name);
    if (const std::string digest = digest_of(read_text(path, expected.bytes, Links::kRefuse)); digest != expected.digest)
      throw DataError(concat(path.string(), ": damaged: its digest is ", digest, ", the manifest says ", expected.digest));
  }
  return tokenizer.files.empty() ? tokenizer.name : (directory_ / tokenizer.files.front()).string();
}

SafetensorsFile& CheckpointReader::file(const std::string& name) {
  auto& opened = files_[name];
  if (!opened) {
    auto candidate = std::make_unique<SafetensorsFile>(directory_ / name);
    check_header(*candidate, name);
    opened = std::move(candidate);
  }
  return *opened;
}

void CheckpointReader::check_header(const SafetensorsFile& file, const std::string& name) const {
  const std::string where = (directory_ / name).string();
  const std::map<std::string, Piece>& pieces = pieces_.at(name);
  std::map<std::string, std::string> digests;
  for (const auto& [entry, piece] : pieces) digests[entry] = piece.box->digest;
  const std::string digest = file.digest(digests), &expected = files().at(name).digest;
  if (digest != expected) throw DataError(concat(where, ": damaged header: its digest is ", digest, ", the manifest says ", expected));
  for (const auto& [key, piece] : pieces) {
    const SafetensorsEntry& entry = file.entry(key);
    const Box& box = piece.box->box;
    const std::vector<int64_t> shape(box.extent.begin(), box.extent.begin() + piece.stored->dims);
    if (entry.begin != piece.box->begin || entry.end != piece.box->end || entry.dtype != piece.stored->dtype || entry.shape != shape)
      throw DataError(concat(where, ": tensor \"", *piece.tensor, "\": differs from the manifest in dtype, shape or place"));
  }
  for (const auto& [key, entry] : file.entries())
    if (!pieces.contains(key)) throw DataError(concat(where, ": tensor \"", key, "\" is not in the manifest"));
}

std::span<const std::byte> CheckpointReader::data(const std::string& tensor, const StoredBox& box, int64_t* non_finite) {
  const SafetensorsFile& source = file(box.file);
  const SafetensorsEntry& entry = source.entry(entry_name(tensor, box.box));
  if (non_finite != nullptr || !checked_.contains(&box)) {
    if (const std::string digest = source.digest(entry, non_finite); digest != box.digest)
      throw DataError(concat((directory_ / box.file).string(), ": tensor \"", tensor, "\": damaged in bytes ", box.begin, " to ", box.end,
                             ": their digest is ", digest, ", the manifest says ", box.digest));
    checked_.insert(&box);
  }
  return source.data(entry);
}

void CheckpointReader::read(const std::string& name, const Box& box, DType dtype, void* out) {
  const StoredTensor& stored = tensor(name);
  const std::string where = concat(directory_.string(), ": tensor \"", name, "\"");
  if (dtype != stored.dtype && !(is_floating(dtype) && is_floating(stored.dtype)))
    throw DataError(concat(where, ": stored as ", name_of(stored.dtype), ", requested as ", name_of(dtype)));
  if (!lies_in(box, stored.shape))
    throw DataError(concat(where, ": has shape [", stored.shape[0], ", ", stored.shape[1], "]; requested [", box.extent[0], ", ", box.extent[1],
                           "] from [", box.start[0], ", ", box.start[1], "]"));
  if (absent_ != nullptr) std::memset(out, 0, static_cast<size_t>(box.numel() * size_of(dtype)));
  for (const StoredBox& piece : stored.boxes) {
    const Box common = intersection(piece.box, box);
    if (common.extent[0] <= 0 || common.extent[1] <= 0) continue;
    if (absent_ != nullptr) {
      if (!fs::exists(directory_ / piece.file)) absent_->insert(piece.file);
      continue;
    }
    const StoredMatrix matrix{data(name, piece).data(), stored.dtype, piece.box.extent[1], 1, piece.box.start};
    const auto [begin, end] = matrix.bytes_of(common);
    file(piece.file).load(piece.begin + begin, piece.begin + end);
    copy_box(matrix, common, box, dtype, static_cast<std::byte*>(out));
    file(piece.file).drop(piece.begin + begin, piece.begin + end);
  }
}

std::set<std::string> CheckpointReader::absent_files_of(const std::function<void()>& reads) {
  std::set<std::string> absent;
  absent_ = &absent;
  try {
    reads();
  } catch (...) {
    absent_ = nullptr;
    throw;
  }
  absent_ = nullptr;
  return absent;
}

NonFinite CheckpointReader::verify_digests(const std::function<void(int64_t bytes)>& progress) {
  NonFinite found;
  tokenizer_spec();
  for (const auto& [name, pieces] : pieces_) {
    file(name);
    for (const auto& [key, piece] : pieces) {
      int64_t count = 0;
      data(*piece.tensor, *piece.box, &count);
      if (count > 0) found[*piece.tensor] += count;
      progress(piece.box->end - piece.box->begin);
    }
  }
  return found;
}

NonFinite recorded_non_finite(const std::map<std::string, StoredTensor>& tensors) {
  NonFinite found;
  for (const auto& [name, tensor] : tensors)
    for (const StoredBox& box : tensor.boxes)
      if (box.non_finite > 0) found[name] += box.non_finite;
  return found;
}

std::string CheckpointReader::name_mismatch() const {
  const std::string name = directory_.filename().string(), expected = checkpoint_name(description().step);
  if (!is_checkpoint_name(name) || name == expected) return "";
  return concat(directory_.string(), ": the manifest says step ", description().step, "; expected directory name ", expected);
}

fs::path checkpoint_at(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found)
    throw MissingFileError(concat(directory.string(), ": does not exist; expected a checkpoint or a run directory"));
  if (status.type() == fs::file_type::none) throw IoError(concat(directory.string(), ": ", error.message()));
  if (const std::string what = foreign_file(directory); !what.empty()) throw DataError(concat(directory.string(), ": ", what));
  if (!fs::is_directory(status)) throw DataError(concat(directory.string(), ": not a directory; expected a checkpoint or a run directory"));
  if (fs::exists(fs::symlink_status(directory / kManifestName, error)) || !fs::is_directory(directory / "checkpoints", error)) return directory;
  const std::vector<fs::path> checkpoints = checkpoints_of(directory);
  if (checkpoints.empty()) throw MissingFileError(concat(directory.string(), ": this run has no checkpoint yet"));
  return checkpoints.front();
}

std::vector<fs::path> checkpoints_of(const fs::path& run_directory) {
  const fs::path directory = run_directory / "checkpoints";
  std::vector<fs::path> candidates;
  std::error_code error;
  fs::directory_iterator items(directory, error);
  // Ignore a non-directory at this path; creating the run directory reports it.
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw IoError(concat(directory.string(), ": cannot be read: ", error.message()));
  for (const auto& item : items) {
    const std::string name = item.path().filename().string();
    if (is_checkpoint_name(name)) candidates.push_back(item.path());
  }
  // Steps are zero-padded to eight digits, so a longer name is a higher step.
  const auto newer = [](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename().string(), right = b.filename().string();
    return left.size() != right.size() ? left.size() > right.size() : left > right;
  };
  std::sort(candidates.begin(), candidates.end(), newer);
  const fs::path latest = fs::read_symlink(directory / "latest", error);
  if (error) return candidates;
  const auto first = std::find_if(candidates.begin(), candidates.end(), [&](const fs::path& path) { return !newer(path, latest); });
  std::rotate(candidates.begin(), first, candidates.end());
  return candidates;
}

std::optional<fs::path> find_newest_checkpoint(const fs::path& run_directory, std::vector<std::string>& warnings) {
  const std::vector<fs::path> candidates = checkpoints_of(run_directory);
  for (const fs::path& candidate : candidates) {
    try {
      const CheckpointReader reader(candidate);
      if (const std::string problem = reader.name_mismatch(); !problem.empty()) throw DataError(problem);
      return candidate;
    } catch (const Error& reason) {
      warnings.push_back(concat("skipping ", candidate.string(), ": ", reason.what()));
    }
  }
  if (!candidates.empty())  // starting over could destroy recoverable data
    throw DataError(concat("no checkpoint in ", (run_directory / "checkpoints").string(), " can be read: ", warnings.back(), "; ", kStartAgain));
  return std::nullopt;
}

}  // namespace trireme
