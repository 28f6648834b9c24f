// Preloaded into the binary: counts its calls that change files under a directory, and makes one of them fail or kills the process before it.
//   TRIREME_SHIM_DIRECTORY   absolute path without symbolic links; calls on anything under it are numbered from 1
//   TRIREME_SHIM_RANK        the rank whose calls count (OMPI_COMM_WORLD_RANK; default: all ranks; outside MPI every process counts)
//   TRIREME_SHIM_KILL_AT=n   SIGKILL instead of call n
//   TRIREME_SHIM_FAIL_AT=n   call n fails with TRIREME_SHIM_ERRNO (ENOSPC, EDQUOT, EIO, EMFILE, EROFS, EINVAL; default EIO); with
//                            TRIREME_SHIM_FAIL_FROM=1 all later calls fail too
//   TRIREME_SHIM_DAMAGE=1    the last byte of every .safetensors file is corrupted after its fsync
//   TRIREME_SHIM_COUNT_FILE  each process that made such calls appends their number when it exits
// Writes to C streams after their fopen are not seen: the C library makes them internally.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

struct Settings {
  std::string_view directory;
  const char* count_file = std::getenv("TRIREME_SHIM_COUNT_FILE");
  long kill_at = number("TRIREME_SHIM_KILL_AT"), fail_at = number("TRIREME_SHIM_FAIL_AT");
  bool fail_from = number("TRIREME_SHIM_FAIL_FROM") != 0, damage = number("TRIREME_SHIM_DAMAGE") != 0;
  int error = EIO;
  std::atomic<long> calls = 0;

  Settings() {
    const char *rank = std::getenv("OMPI_COMM_WORLD_RANK"), *wanted = std::getenv("TRIREME_SHIM_RANK"),
               *place = std::getenv("TRIREME_SHIM_DIRECTORY");
    if (place != nullptr && (rank == nullptr || wanted == nullptr || std::strcmp(rank, wanted) == 0)) directory = place;
    const char* name = std::getenv("TRIREME_SHIM_ERRNO");
    constexpr std::array<std::pair<const char*, int>, 6> errors{
        {{"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EIO", EIO}, {"EMFILE", EMFILE}, {"EROFS", EROFS}, {"EINVAL", EINVAL}}};
    for (const auto& [known, value] : errors)
      if (name != nullptr && std::strcmp(name, known) == 0) error = value;
  }
  static long number(const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::atol(text);
  }
};

Settings& settings() {
  static Settings value;
  return value;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

using Path = std::array<char, 4096>;

bool inside(std::string_view path) {
  const std::string_view directory = settings().directory;
  return !directory.empty() && path.substr(0, directory.size()) == directory && (path.size() == directory.size() || path[directory.size()] == '/');
}

bool inside(int file) {
  if (settings().directory.empty()) return false;
  Path link{}, path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", file);
  const ssize_t length = ::readlink(link.data(), path.data(), path.size());
  return length > 0 && inside(std::string_view(path.data(), static_cast<size_t>(length)));
}

/// While a tensor file is written it has a temporary name: "rank-00000.safetensors.tmp".
bool is_tensor_file(int file) {
  Path link{}, path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", file);
  const ssize_t length = ::readlink(link.data(), path.data(), path.size());
  return length > 0 && inside(file) && std::string_view(path.data(), static_cast<size_t>(length)).ends_with(".safetensors.tmp");
}

void damage(int file) {
  struct stat status {};
  const char other = 0x5a;  // changes the file: no squared gradient is as large as a float whose last byte is 0x5a
  if (::fstat(file, &status) == 0 && status.st_size > 0)
    next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(file, &other, 1, status.st_size - 1);
}

bool inside(int at, const char* path) {
  if (settings().directory.empty() || path == nullptr) return false;
  if (path[0] == '/') return inside(std::string_view(path));
  Path link{}, whole{};
  std::snprintf(link.data(), link.size(), at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
  const ssize_t length = ::readlink(link.data(), whole.data(), whole.size() / 2);
  if (length < 0) return false;
  std::snprintf(whole.data() + length, whole.size() - static_cast<size_t>(length), "/%s", path);
  return inside(std::string_view(whole.data()));
}

/// Counts a call. Returns true if it must fail.
bool refused(bool counts) {
  if (!counts) return false;
  Settings& given = settings();
  const long call = ++given.calls;
  if (call == given.kill_at) ::kill(::getpid(), SIGKILL);
  if (given.fail_at == 0 || (given.fail_from ? call < given.fail_at : call != given.fail_at)) return false;
  errno = given.error;
  return true;
}

bool changes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0; }

mode_t mode_of(int flags, va_list arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0; }

__attribute__((destructor)) void report() {
  const Settings& given = settings();
  if (given.count_file == nullptr || given.calls == 0) return;
  if (FILE* file = std::fopen(given.count_file, "a")) {
    std::fprintf(file, "%ld\n", given.calls.load());
    std::fclose(file);
  }
}

}  // namespace

extern "C" {

#define TRIREME_SHIM_OPEN(name)                                        \
  int name(const char* path, int flags, ...) {                         \
    va_list arguments;                                                 \
    va_start(arguments, flags);                                        \
    const mode_t mode = mode_of(flags, arguments);                     \
    va_end(arguments);                                                 \
    if (refused(changes(flags) && inside(AT_FDCWD, path))) return -1;  \
    return next<int(const char*, int, ...)>(#name)(path, flags, mode); \
  }
TRIREME_SHIM_OPEN(open)
TRIREME_SHIM_OPEN(open64)

#define TRIREME_SHIM_OPENAT(name)                                               \
  int name(int at, const char* path, int flags, ...) {                          \
    va_list arguments;                                                          \
    va_start(arguments, flags);                                                 \
    const mode_t mode = mode_of(flags, arguments);                              \
    va_end(arguments);                                                          \
    if (refused(changes(flags) && inside(at, path))) return -1;                 \
    return next<int(int, const char*, int, ...)>(#name)(at, path, flags, mode); \
  }
TRIREME_SHIM_OPENAT(openat)
TRIREME_SHIM_OPENAT(openat64)

#define TRIREME_SHIM_FOPEN(name)                                           \
  FILE* name(const char* path, const char* mode) {                         \
    if (refused(mode[0] != 'r' && inside(AT_FDCWD, path))) return nullptr; \
    return next<FILE*(const char*, const char*)>(#name)(path, mode);       \
  }
TRIREME_SHIM_FOPEN(fopen)
TRIREME_SHIM_FOPEN(fopen64)

#define TRIREME_SHIM_CALL(type, name, where, parameters, arguments) \
  type name parameters {                                            \
    if (refused(where)) return -1;                                  \
    return next<type parameters>(#name) arguments;                  \
  }
TRIREME_SHIM_CALL(ssize_t, write, inside(file), (int file, const void* data, size_t bytes), (file, data, bytes))
TRIREME_SHIM_CALL(ssize_t, writev, inside(file), (int file, const iovec* parts, int count), (file, parts, count))
TRIREME_SHIM_CALL(ssize_t, pwrite, inside(file), (int file, const void* data, size_t bytes, off_t at), (file, data, bytes, at))
TRIREME_SHIM_CALL(ssize_t, pwrite64, inside(file), (int file, const void* data, size_t bytes, off64_t at), (file, data, bytes, at))
TRIREME_SHIM_CALL(int, fdatasync, inside(file), (int file), (file))
TRIREME_SHIM_CALL(int, ftruncate, inside(file), (int file, off_t bytes), (file, bytes))
TRIREME_SHIM_CALL(int, ftruncate64, inside(file), (int file, off64_t bytes), (file, bytes))
TRIREME_SHIM_CALL(int, fallocate, inside(file), (int file, int mode, off_t at, off_t bytes), (file, mode, at, bytes))
TRIREME_SHIM_CALL(int, fallocate64, inside(file), (int file, int mode, off64_t at, off64_t bytes), (file, mode, at, bytes))
TRIREME_SHIM_CALL(int, unlink, inside(AT_FDCWD, path), (const char* path) noexcept, (path))
TRIREME_SHIM_CALL(int, unlinkat, inside(at, path), (int at, const char* path, int flags) noexcept, (at, path, flags))
TRIREME_SHIM_CALL(int, rmdir, inside(AT_FDCWD, path), (const char* path) noexcept, (path))
TRIREME_SHIM_CALL(int, remove, inside(AT_FDCWD, path), (const char* path) noexcept, (path))
TRIREME_SHIM_CALL(int, mkdir, inside(AT_FDCWD, path), (const char* path, mode_t mode) noexcept, (path, mode))
TRIREME_SHIM_CALL(int, mkdirat, inside(at, path), (int at, const char* path, mode_t mode) noexcept, (at, path, mode))
TRIREME_SHIM_CALL(int, symlink, inside(AT_FDCWD, path), (const char* target, const char* path) noexcept, (target, path))
TRIREME_SHIM_CALL(int, symlinkat, inside(at, path), (const char* target, int at, const char* path) noexcept, (target, at, path))
TRIREME_SHIM_CALL(int, link, inside(AT_FDCWD, to), (const char* from, const char* to) noexcept, (from, to))
TRIREME_SHIM_CALL(int, rename, inside(AT_FDCWD, from) || inside(AT_FDCWD, to), (const char* from, const char* to) noexcept, (from, to))
TRIREME_SHIM_CALL(int, renameat, inside(from_at, from) || inside(to_at, to), (int from_at, const char* from, int to_at, const char* to) noexcept,
                  (from_at, from, to_at, to))
TRIREME_SHIM_CALL(int, renameat2, inside(from_at, from) || inside(to_at, to),
                  (int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept, (from_at, from, to_at, to, flags))

int fsync(int file) {
  if (refused(inside(file))) return -1;
  const int result = next<int(int)>("fsync")(file);
  if (settings().damage && is_tensor_file(file)) damage(file);
  return result;
}

/// If it must fail, it closes the file anyway, as the system does.
int close(int file) {
  const int flags = ::fcntl(file, F_GETFL);
  const bool fails = refused(flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && inside(file));
  const int error = errno, result = next<int(int)>("close")(file);
  if (!fails) return result;
  errno = error;
  return -1;
}

}  // extern "C"
