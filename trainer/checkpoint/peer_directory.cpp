#include "trainer/checkpoint/peer_directory.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_directory.h"
#include "trainer/files/digest.h"
#include "trainer/files/durable_file.h"
#include "trainer/files/strict_json.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kHolder = "holder-";

std::string name_of_generation(const PeerGeneration& generation) {
  return concat(checkpoint_name(generation.step), ".", generation.session, ".", generation.ranks);
}

template <class T>
bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

std::optional<PeerGeneration> parse_generation(const std::string& name) {
  const size_t first = name.find('.'), last = name.rfind('.');
  PeerGeneration generation;
  if (first == name.npos || first == last || !name.starts_with("step-")) return std::nullopt;
  generation.session = name.substr(first + 1, last - first - 1);
  if (!read_number(std::string_view(name).substr(5, first - 5), generation.step) || !read_number(name.substr(last + 1), generation.ranks))
    return std::nullopt;
  return name_of_generation(generation) == name ? std::optional(generation) : std::nullopt;
}

/// The number of "PREFIX00003SUFFIX".
std::optional<int> numbered(const std::string& name, const std::string& prefix, const std::string& suffix) {
  int number = 0;
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) return std::nullopt;
  if (!read_number(std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size()), number)) return std::nullopt;
  return number;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator item(directory, error), end; !error && item != end; item.increment(error)) found.push_back(item->path());
  return found;
}

/// Any user can create directories in a shared one.
bool is_own(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid();
}

nlohmann::ordered_json to_json(const PeerGeneration& generation) {
  return {{"step", generation.step}, {"session", generation.session}, {"ranks", generation.ranks}};
}

}  // namespace

PeerDirectory::PeerDirectory(const fs::path& place, const fs::path& run_directory) : place_(place) {
  std::error_code error;
  const fs::path run = fs::weakly_canonical(fs::absolute(run_directory), error);
  const std::string digest = digest_of((error ? fs::absolute(run_directory) : run).string());
  name_ = concat("trireme-", ::geteuid(), "-", digest.substr(digest.find(':') + 1, 16));
  path_ = place_ / name_;
  // Where another user has taken the name, the directory has a random part behind it. Names of other users are passed over.
  std::set<fs::path> own;
  for (const fs::path& entry : entries_of(place_))
    if (const std::string name = entry.filename().string(); (name == name_ || name.starts_with(name_ + "-")) && is_own(entry)) own.insert(entry);
  if (!own.empty()) path_ = *own.begin();
}

fs::path PeerDirectory::of(int holder, const PeerGeneration& generation) const {
  return path_ / (kHolder + padded(holder, 5)) / name_of_generation(generation);
}

void PeerDirectory::check() const {
  std::error_code error;
  if (!fs::is_directory(place_, error))
    throw ConfigError(concat("resilience.peer_directory=", place_.string(),
                             ": not a directory here; allowed a directory in memory that every host has, such as /dev/shm"));
}

std::string PeerDirectory::create() {
  try {
    make_own();
  } catch (const IoError&) {
    const fs::path other = make_temporary_directory((place_ / (name_ + "-")).string());
    if (other.empty()) throw IoError(concat(path_.string(), ": cannot be created: ", std::strerror(errno)));
    path_ = other;
  }
  return path_.filename();
}

void PeerDirectory::use(const std::string& name) { path_ = place_ / name; }

void PeerDirectory::make_own() const {
  make_directories_in(place_, path_.filename(), 0700);
  if (!is_own(path_)) throw IoError(concat(path_.string(), ": is not a directory of this user"));
  if (::chmod(path_.c_str(), 0700) != 0) throw IoError(concat(path_.string(), ": ", std::strerror(errno)));
}

void PeerDirectory::create(int holder, const PeerGeneration& generation) const {
  make_own();
  make_directories_in(path_, of(holder, generation).lexically_relative(path_));
}

std::vector<PeerPart> PeerDirectory::parts() const {
  std::vector<PeerPart> found;
  if (!is_own(path_)) return found;
  for (const fs::path& of_holder : entries_of(path_)) {
    const std::optional<int> holder = numbered(of_holder.filename().string(), kHolder, "");
    if (!holder) continue;
    for (const fs::path& of_state : entries_of(of_holder)) {
      const std::optional<PeerGeneration> generation = parse_generation(of_state.filename().string());
      std::error_code error;
      if (!generation) continue;
      const bool has_description = fs::is_regular_file(of_state / kPeerAboutName, error);
      for (const fs::path& file : entries_of(of_state))
        if (const std::optional<int> source = numbered(file.filename().string(), "rank-", ".json"); source && (*source > 0 || has_description))
          found.push_back({*generation, *source, *holder});
    }
  }
  return found;
}

void PeerDirectory::keep_only(int holder, const std::function<bool(const PeerGeneration&)>& keeps) const {
  if (!is_own(path_)) return;
  std::error_code ignored;
  for (const fs::path& of_holder : entries_of(path_)) {
    const std::optional<int> owner = numbered(of_holder.filename().string(), kHolder, "");
    if (holder >= 0 && owner != holder) continue;
    if (!owner) fs::remove_all(of_holder, ignored);  // left by a job that ended while it loaded
    if (!owner) continue;
    for (const fs::path& of_state : entries_of(of_holder)) {
      const std::optional<PeerGeneration> generation = parse_generation(of_state.filename().string());
      if (!generation || !keeps(*generation)) fs::remove_all(of_state, ignored);
    }
  }
}

void PeerDirectory::remove() const {
  std::error_code ignored;
  if (is_own(path_)) fs::remove_all(path_, ignored);
}

int64_t PeerDirectory::bytes() const {
  int64_t sum = 0;
  std::error_code error;
  if (!is_own(path_)) return 0;
  for (fs::recursive_directory_iterator item(path_, error), end; !error && item != end; item.increment(error)) {
    std::error_code gone;
    if (item->is_regular_file(gone)) sum += static_cast<int64_t>(item->file_size(gone));
  }
  return sum;
}

std::string PeerDirectory::host() const {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), HOST_NAME_MAX);
  struct stat status {};
  ::stat(place_.c_str(), &status);
  return concat(name.data(), " ", status.st_dev, ":", status.st_ino);
}

bool is_first_of_host(const std::vector<std::string>& hosts, int rank) {
  return std::ranges::find(hosts, hosts[static_cast<size_t>(rank)]) - hosts.begin() == rank;
}

std::optional<PeerRecord> read_peer_record(const fs::path& run_directory) {
  const fs::path path = run_directory / kPeerRecordName;
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {  // the copies are not worth an error
    const nlohmann::json object = parse_object(read_text(path, 1 << 16), path.string());
    PeerRecord record{object.at("session").get<std::string>()};
    if (object.contains("before")) {
      const nlohmann::json& before = object.at("before");
      record.before = {before.at("step").get<int64_t>(), before.at("session").get<std::string>(), before.at("ranks").get<int>()};
    }
    return record;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void write_peer_record(const fs::path& run_directory, const PeerRecord& record) {
  nlohmann::ordered_json object = {{"session", record.session}};
  if (record.before) object["before"] = to_json(*record.before);
  write_durably(run_directory / kPeerRecordName, object.dump() + "\n");
}

}  // namespace trireme
