#include "trainer/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kPartial = ".partial";
constexpr const char* kOld = ".old";

/// "step-00000100" and its suffix: empty for a checkpoint, ".<session>-<number>.partial" for one that is being written or removed, the same plus
/// ".old" for one that is being replaced.
struct StepName {
  int64_t step = 0;
  std::string suffix;
};

std::optional<StepName> parse_step_name(const std::string& name) {
  StepName parsed;
  if (name.rfind("step-", 0) != 0) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), parsed.step);
  if (error != std::errc() || parsed.step < 0) return std::nullopt;
  parsed.suffix.assign(end, name.data() + name.size());
  if (parsed.suffix.empty() || parsed.suffix.ends_with(kPartial) || parsed.suffix.ends_with(kOld)) return parsed;
  return std::nullopt;
}

/// Unpublished entries: directories, and temporary links that were to become `latest`.
std::vector<fs::path> unpublished(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;  // what is no directory is refused where checkpoints are saved
  for (fs::directory_iterator item(directory, error), end; !error && item != end; item.increment(error)) {
    const std::string name = item->path().filename().string();
    const auto step = parse_step_name(name);
    if ((name.starts_with("latest.") && item->is_symlink(error)) || (step && !step->suffix.empty())) found.push_back(item->path());
  }
  return found;
}

/// Removes a leftover. An ".old" directory whose replacement was never published gets its name back instead.
void remove_or_mend(const fs::path& path, std::error_code& error) {
  const auto name = parse_step_name(path.filename().string());
  const fs::path target = name ? path.parent_path() / checkpoint_name(name->step) : fs::path();
  if (name && name->suffix.ends_with(kOld) && !fs::exists(target)) {
    fs::rename(path, target, error);
    if (!error) sync_directory(path.parent_path());
  } else {
    fs::remove_all(path, error);
  }
}

/// The `count` complete checkpoints with the lowest recorded loss; of equal losses the earlier step is better.
std::set<int64_t> best_of(const fs::path& directory, const std::vector<int64_t>& steps, int64_t count) {
  if (count == 0) return {};
  std::vector<std::pair<double, int64_t>> losses;
  for (const int64_t step : steps)
    if (const auto loss = recorded_loss(directory / checkpoint_name(step))) losses.emplace_back(*loss, step);
  std::sort(losses.begin(), losses.end());
  std::set<int64_t> best;
  for (const auto& [loss, step] : losses)
    if (static_cast<int64_t>(best.size()) < count && description_of(directory / checkpoint_name(step))) best.insert(step);
  return best;
}

/// Decides which complete checkpoints are kept; they must be passed newest first.
class Keeper {
 public:
  Keeper(const CheckpointDescription& newest, int64_t keep) : newest_(newest), left_(keep) {}

  bool keeps(const CheckpointDescription& about) {
    const bool among_newest = left_-- > 0;
    return (rejecting() && is_refuge(about)) || among_newest;
  }
  /// True if no older checkpoint can be kept.
  bool done() const { return left_ <= 0 && (!rejecting() || (found_accepted_ && found_earlier_)); }

 private:
  bool rejecting() const { return newest_.rejected_steps > 0; }
  /// Rejected steps change no weight, so checkpoints saved during a series of them have no more value than two from before it: the last one saved
  /// after an accepted step, and the last one followed by an accepted step. The weights of the former may be what makes the gradients infinite.
  bool is_refuge(const CheckpointDescription& about) {
    const bool accepted = !found_accepted_ && about.rejected_steps == 0;
    const bool earlier = !found_earlier_ && about.optimizer_steps < newest_.optimizer_steps;
    found_accepted_ |= accepted;
    found_earlier_ |= earlier;
    return accepted || earlier;
  }

  const CheckpointDescription& newest_;
  int64_t left_;
  bool found_accepted_ = false, found_earlier_ = false;
};

}  // namespace

std::optional<CheckpointDescription> description_of(const fs::path& checkpoint) {
  try {
    const CheckpointReader reader(checkpoint);
    if (reader.name_mismatch().empty()) return reader.description();
  } catch (const std::exception&) {
  }
  return std::nullopt;
}

std::string padded(int64_t number, size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

std::string checkpoint_name(int64_t step) { return "step-" + padded(step, 8); }

bool is_checkpoint_name(const std::string& name) {
  return name.size() >= 13 && name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos;
}

fs::path partial_directory(const fs::path& directory, int64_t step, const std::string& session, int64_t number) {
  return directory / concat(checkpoint_name(step), ".", session, "-", number, kPartial);
}

void move_into_place(const fs::path& partial, const fs::path& target) {
  std::error_code ignored;
  if (fs::exists(target) && ::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0)
    return sync_directory(target.parent_path());
  if (!fs::exists(target)) return rename_durably(partial, target);
  // This file system does not support RENAME_EXCHANGE. remove_unpublished() repairs a crash between the two renames.
  const fs::path old = partial.string() + kOld;
  rename_durably(target, old);
  try {
    rename_durably(partial, target);
  } catch (...) {
    if (!fs::exists(target, ignored)) fs::rename(old, target, ignored);
    throw;
  }
}

void point_latest(const fs::path& directory, const std::string& checkpoint, const std::string& session) {
  std::error_code error;
  if (fs::read_symlink(directory / "latest", error) == checkpoint) return;
  if (fs::is_directory(fs::symlink_status(directory / "latest", error)))
    throw IoError(concat((directory / "latest").string(), ": is a directory; expected a symbolic link to the newest checkpoint; remove it"));
  const fs::path link = directory / concat("latest.", session);
  fs::remove(link, error);
  fs::create_symlink(checkpoint, link, error);
  if (error) throw IoError(concat("cannot create ", link.string(), ": ", error.message()));
  try {
    rename_durably(link, directory / "latest");
  } catch (...) {
    fs::remove(link, error);
    throw;
  }
}

void record_loss(const fs::path& checkpoint, int64_t step, double loss) {
  write_durably(checkpoint / kLossName, nlohmann::json({{"step", step}, {"validation_loss", loss}}).dump() + "\n");
}

std::optional<double> recorded_loss(const fs::path& checkpoint) {
  const std::string path = (checkpoint / kLossName).string();
  try {
    const nlohmann::json object = parse_object(read_text(path, 1 << 10, Links::kRefuse), path);
    if (object.contains("validation_loss") && object["validation_loss"].is_number()) return object["validation_loss"].get<double>();
  } catch (const std::exception&) {  // none, or damaged: the checkpoint then counts as not evaluated
  }
  return std::nullopt;
}

void remove_old_checkpoints(const fs::path& directory, const CheckpointDescription& newest, const Retention& retention,
                            const std::string& session) noexcept try {
  if (retention.keep == 0) return;
  const int64_t step = newest.step;
  Keeper keeper(newest, retention.keep);
  std::vector<int64_t> steps;
  for (const auto& item : fs::directory_iterator(directory)) {
    const auto name = parse_step_name(item.path().filename().string());
    if (name && name->suffix.empty() && name->step <= step && item.path().filename() == checkpoint_name(name->step)) steps.push_back(name->step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  const std::set<int64_t> best = best_of(directory, steps, retention.best);
  for (const int64_t candidate : steps) {
    const fs::path old = directory / checkpoint_name(candidate);
    if (!keeper.done()) {
      const std::optional<CheckpointDescription> about = description_of(old);
      if (!about || keeper.keeps(*about)) continue;
    }
    if (best.contains(candidate) || (retention.every && candidate % *retention.every == 0)) continue;
    // Rename first: a partly removed checkpoint must not look complete.
    const fs::path renamed = partial_directory(directory, candidate, session, 0);
    fs::rename(old, renamed);
    fs::remove_all(renamed);
  }
} catch (const std::exception&) {
}

void remove_partials(const fs::path& directory, const std::string& session, int64_t number) noexcept try {
  const std::string ours = "." + session + "-";
  std::error_code ignored;
  for (const fs::path& path : unpublished(directory)) {
    const auto name = parse_step_name(path.filename().string());
    if (!name || !name->suffix.starts_with(ours)) continue;
    int64_t save = 0;
    std::from_chars(name->suffix.data() + ours.size(), name->suffix.data() + name->suffix.size(), save);
    if (save <= number) remove_or_mend(path, ignored);
  }
} catch (const std::exception&) {
}

void remove_unpublished(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory, error)) return;
  for (const fs::path& path : unpublished(directory)) remove_or_mend(path, error);  // ignores errors: a file kept open by a dying rank is harmless
}

bool has_unpublished(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(directory, ignored) && !unpublished(directory).empty();
}

std::optional<std::string> free_space_error(const fs::path& directory, int64_t bytes) {
  fs::path existing = directory;
  struct statvfs system {};
  while (::statvfs(existing.empty() ? "." : existing.c_str(), &system) != 0) {
    if (errno != ENOENT || existing.empty()) return std::nullopt;  // the save itself reports the error
    existing = existing.parent_path();
  }
  // Manifest, headers and directories take about 300 bytes per box.
  const int64_t needed = bytes + bytes / 256 + (int64_t{1} << 20);
  const auto free = static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize);
  if (system.f_blocks == 0 || free >= static_cast<double>(needed)) return std::nullopt;  // 0 blocks: no limit
  return concat(directory.string(), ": a checkpoint needs ", needed, " bytes, ", static_cast<int64_t>(free), " are free");
}

}  // namespace trireme
