#include "trainer/resilience/black_box_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/writable_file.h"
#include "trainer/files/mapped_file.h"
#include "trainer/machine/environment.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

template <size_t N>
void set_text(std::array<char, N>& to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(N - 1, text.size()));
}

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

/// State ('R', 'T', ...) and start time of a process; {0, 0} if there is none.
std::pair<char, uint64_t> process_stat(int64_t pid) {
  const std::string stat = first_line(concat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(") ");  // a name may contain anything
  if (name_end == stat.npos) return {};
  const char* field = stat.c_str() + name_end + 2;  // field 3
  for (int skipped = 3; skipped < 22 && field != nullptr; ++skipped)
    if ((field = std::strchr(field, ' ')) != nullptr) ++field;
  return {stat[name_end + 2], field == nullptr ? 0 : std::strtoull(field, nullptr, 10)};
}

uint64_t own_pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string own_boot() { return first_line("/proc/sys/kernel/random/boot_id"); }

}  // namespace

MappedBlackBox::MappedBlackBox(const fs::path& path, const BlackBoxOwner& owner) {
  const std::string temporary = path.string() + ".tmp";
  const auto fail = [&](const char* what, int error) {
    ::unlink(temporary.c_str());
    throw IoError(concat(path.string(), ": ", what, ": ", std::strerror(error)));
  };
  const int file = try_open_writable(temporary, Existing::kReplaced);
  if (file < 0) throw IoError(concat(path.string(), ": cannot create the black box: ", temporary, " ", why_not_writable(errno)));
  const int full = ::posix_fallocate(file, 0, sizeof(BlackBox));
  void* const memory = full == 0 ? ::mmap(nullptr, sizeof(BlackBox), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  const int unmapped = errno;
  ::close(file);
  if (full != 0) fail("no space for the black box", full);
  if (memory == MAP_FAILED) fail("cannot map the black box into memory", unmapped);
  box_ = static_cast<BlackBox*>(memory);

  BlackBoxHeader header{};
  header.magic = kBlackBoxMagic;
  header.version = kBlackBoxVersion;
  header.bytes = sizeof(BlackBox);
  header.rank = static_cast<uint64_t>(owner.rank);
  header.world = static_cast<uint64_t>(owner.world);
  header.pid = ::getpid();
  header.process_start = process_stat(header.pid).second;
  header.pid_namespace = own_pid_namespace();
  header.begun = wall_nanoseconds();
  set_text(header.boot, own_boot());
  set_text(header.session, owner.session);
  set_text(header.host, host_name());
  set_text(header.device, owner.device);
  set_text(header.coordinate, owner.coordinate);
  box_->header = std::bit_cast<WordsOf<BlackBoxHeader>>(header);

  ::rename(path.c_str(), previous_black_box(path).c_str());  // fails if there is none
  if (::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  ::munmap(box_, sizeof(BlackBox));
  fail("cannot create the black box", error);
}

MappedBlackBox::~MappedBlackBox() { ::munmap(box_, sizeof(BlackBox)); }

fs::path black_box_path(const fs::path& run_directory, int rank) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "rank-%04d.blackbox", rank);
  return run_directory / "logs" / name.data();
}

fs::path previous_black_box(const fs::path& path) { return fs::path(path).replace_extension(".previous.blackbox"); }

BlackBoxContents read_black_box(const fs::path& path) {
  constexpr int kTries = 20;  // a reader may be slower than the writer is with both states
  for (int tried = 1;; ++tried) {
    const OpenedFile file = open_regular_file(path.string(), Links::kFollow);
    std::string bytes(std::min<size_t>(static_cast<size_t>(file.bytes), sizeof(BlackBox) + 1), '\0');
    const ssize_t count = ::pread(file.descriptor, bytes.data(), bytes.size(), 0);
    const int error = errno;
    ::close(file.descriptor);
    if (count < 0) throw_file_error(path.string(), "cannot read the black box", error);
    bytes.resize(static_cast<size_t>(count));
    try {
      return decode_black_box(bytes, path.string());
    } catch (const DataError&) {
      if (tried == kTries || bytes.size() != sizeof(BlackBox)) throw;  // a file of another size is not being written by this program
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

ProcessLife life_of(const BlackBoxContents& box) {
  if (box.host != host_name() || box.boot != own_boot() || box.pid_namespace != own_pid_namespace()) return ProcessLife::kUnknown;
  const auto [state, start] = process_stat(box.pid);
  if (state == '\0' || state == 'Z' || state == 'X' || start != box.process_start) return ProcessLife::kGone;
  return state == 'T' || state == 't' ? ProcessLife::kStopped : ProcessLife::kAlive;
}

}  // namespace trireme
