#include "trainer/doctor/probe_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "parallel/crypto/key_file.h"
#include "trainer/bench/measure.h"
#include "trainer/doctor/bounded.h"
#include "trainer/files/descriptor.h"
#include "trainer/files/printable.h"
#include "trainer/run/run_data.h"

namespace fs = std::filesystem;

namespace trireme::doctor {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct FileSystemKind {
  const char* name;
  bool network;
};

/// By the magic number of statfs(2).
FileSystemKind kind_of(const std::string& path) {
  constexpr std::array<std::pair<uint32_t, FileSystemKind>, 17> kKinds{{{0xef53, {"ext4", false}},
                                                                        {0x58465342, {"xfs", false}},
                                                                        {0x9123683e, {"btrfs", false}},
                                                                        {0x2fc12fc1, {"zfs", false}},
                                                                        {0xf2f52010, {"f2fs", false}},
                                                                        {0x01021994, {"tmpfs", false}},
                                                                        {0x858458f6, {"ramfs", false}},
                                                                        {0x794c7630, {"overlay", false}},
                                                                        {0x6969, {"nfs", true}},
                                                                        {0x0bd00bd0, {"lustre", true}},
                                                                        {0x47504653, {"gpfs", true}},
                                                                        {0x00c36400, {"ceph", true}},
                                                                        {0x19830326, {"beegfs", true}},
                                                                        {0xff534d42, {"cifs", true}},
                                                                        {0xfe534d42, {"smb2", true}},
                                                                        {0x01021997, {"9p", true}},
                                                                        {0x65735546, {"fuse", true}}}};
  struct statfs status {};
  if (::statfs(path.c_str(), &status) != 0) return {"an unknown file system", false};
  for (const auto& [magic, kind] : kKinds)
    if (magic == static_cast<uint32_t>(status.f_type)) return kind;
  return {"another file system", false};
}

/// Result of writing into a directory.
struct Written {
  std::string error;
  double rate = kNone, sync_seconds = kNone;
};

bool write_block(int file, const std::vector<char>& block, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = ::write(file, block.data() + done, bytes - done);
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) done += static_cast<size_t>(written);
  }
  return true;
}

/// Median time of a few small writes with fsync; then a large file until `seconds` have passed, with an fsync at its end.
Written write_into(const std::string& directory, bool measure, double seconds) {
  constexpr size_t kSmall = 4096, kBlock = 1 << 20, kLarge = size_t{64} << 20;
  constexpr int kSyncs = 7;
  std::string name;
  const Descriptor file(open_temporary(directory + "/.trireme-doctor-", name));
  if (file < 0) return {std::strerror(errno)};
  ::unlink(name.c_str());
  std::vector<char> block(kBlock);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(i * 2654435761U >> 13);  // not zeros, which a file system may not store
  Written result;
  const auto failed = [&] {
    result.error = std::strerror(errno);
    return result;
  };
  const auto begin = Clock::now();
  std::vector<double> syncs;
  do {
    const auto start = Clock::now();
    if (!write_block(file, block, kSmall) || ::fsync(file) != 0) return failed();
    syncs.push_back(since(start));
  } while (measure && syncs.size() < kSyncs && since(begin) < seconds / 4);
  if (!measure) return result;
  result.sync_seconds = bench::quantile_of(syncs, 0.5);
  const auto start = Clock::now();
  size_t bytes = 0;
  while (bytes < kLarge && (bytes == 0 || since(start) < seconds / 4)) {
    if (!write_block(file, block, kBlock)) return failed();
    bytes += kBlock;
  }
  if (::fsync(file) != 0) return failed();
  result.rate = static_cast<double>(bytes) / since(start);
  return result;
}

std::string existing_part(const std::string& path) {
  std::error_code error;
  fs::path place = fs::absolute(path, error);
  if (error) return path;
  place = place.lexically_normal();
  if (!place.has_filename()) place = place.parent_path();  // "DIR/" and "DIR/." become "DIR"
  while (!fs::exists(place, error) && place.has_relative_path()) place = place.parent_path();
  return place.string();
}

}  // namespace

DirectoryFacts probe_directory(const std::string& path, bool measure, double seconds) {
  const auto look = [path, measure, seconds] {
    DirectoryFacts facts;
    facts.path = path;
    facts.probed = existing_part(path);
    const FileSystemKind kind = kind_of(facts.probed);
    facts.kind = kind.name;
    facts.network = kind.network;
    struct stat status {};
    if (::stat(facts.probed.c_str(), &status) == 0) {
      facts.mode = static_cast<int>(status.st_mode & 07777);
      facts.own = status.st_uid == ::geteuid() || ::geteuid() == 0;
      if (!S_ISDIR(status.st_mode)) facts.error = "not a directory";
    }
    struct statvfs room {};
    if (::statvfs(facts.probed.c_str(), &room) == 0 && room.f_blocks > 0) {  // 0 blocks: no limit
      facts.free = static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize);
      if (room.f_files > 0) facts.files = static_cast<double>(room.f_favail);
    }
    if (!facts.error.empty()) return facts;
    const Written written = write_into(facts.probed, measure, seconds);
    facts.error = written.error;
    facts.write_rate = written.rate;
    facts.sync_seconds = written.sync_seconds;
    return facts;
  };
  if (std::optional<DirectoryFacts> facts = within(seconds, look)) return *facts;
  DirectoryFacts stalled;
  stalled.path = stalled.probed = path;
  stalled.kind = "a file system that does not answer";
  stalled.stalled = true;
  return stalled;
}

std::string make_mark(const std::string& directory) {
  std::string name;
  const Descriptor file(open_temporary(directory + "/.trireme-doctor-", name));
  return file < 0 ? "" : fs::path(name).filename().string();
}

bool has_mark(const std::string& directory, const std::string& mark) {
  std::error_code error;
  return fs::exists(fs::path(directory) / mark, error);
}

void remove_mark(const std::string& directory, const std::string& mark) {
  std::error_code ignored;
  if (!mark.empty()) fs::remove(fs::path(directory) / mark, ignored);
}

DataFacts probe_data(const Config& config) {
  DataFacts facts;
  try {
    const RunData data = open_run_data(config);
    facts.identity = data.train.identity();
    std::vector<std::string> files = data.train.files();
    for (const ValidationSet& set : data.validation)
      for (const std::string& file : set.data.files()) files.push_back(file);
    std::error_code ignored;
    for (const std::string& file : files) facts.bytes += static_cast<double>(fs::file_size(file, ignored));
    facts.sequences = static_cast<double>(data.train.sequences());
  } catch (const std::exception& error) {
    facts.error = printable(error);
  }
  return facts;
}

std::vector<KeyFileFacts> probe_keys(const Config& config, int rank) {
  const SecurityConfig& security = config.security;
  std::vector<KeyFileFacts> keys;
  const auto look = [&](bool used, const std::string& key, const std::optional<std::string>& path, const auto& read) {
    if (!used || !path) return;
    KeyFileFacts facts{.key = key};
    try {
      crypto::require_sodium(key);
      read(*path, key);
    } catch (const std::exception& error) {
      facts.error = printable(error);
    }
    keys.push_back(facts);
  };
  look(is_encrypted(security), "security.key_file", security.key_file, crypto::read_shared_key);
  look(is_private(security), "security.privacy.key_file", security.privacy.key_file, crypto::read_shared_key);
  look(is_federated(security) && rank == 0, "security.federation.identity_key_file", security.federation.identity_key_file, crypto::read_signing_key);
  look(security.audit.enabled && rank == 0, "security.audit.signing_key_file", security.audit.signing_key_file, crypto::read_signing_key);
  return keys;
}

}  // namespace trireme::doctor
