// Preloaded into the binary: a file system that cannot map files into shared memory, as FUSE with direct I/O. Writable shared mappings of files whose path
// contains TRIREME_SHIM_NO_MAP fail with ENODEV.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool refused(int protection, int flags, int file) {
  const char* const part = std::getenv("TRIREME_SHIM_NO_MAP");
  if (part == nullptr || file < 0 || (protection & PROT_WRITE) == 0 || (flags & MAP_SHARED) == 0) return false;
  std::array<char, 64> link{};
  std::array<char, 4096> path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", file);
  return ::readlink(link.data(), path.data(), path.size() - 1) > 0 && std::strstr(path.data(), part) != nullptr;
}

}  // namespace

#define TRIREME_SHIM_MAP(name)                                                                       \
  extern "C" void* name(void* at, size_t bytes, int protection, int flags, int file, off_t offset) { \
    using Function = void* (*)(void*, size_t, int, int, int, off_t);                                 \
    static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, #name));                  \
    if (!refused(protection, flags, file)) return real(at, bytes, protection, flags, file, offset);  \
    errno = ENODEV;                                                                                  \
    return MAP_FAILED;                                                                               \
  }
TRIREME_SHIM_MAP(mmap)
TRIREME_SHIM_MAP(mmap64)
