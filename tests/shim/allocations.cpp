// Preloaded into the binary: counts its allocations of at least TRIREME_SHIM_BYTES bytes from the C library, operator new included.
//   TRIREME_SHIM_COUNT_FILE  each process with such allocations appends a line when it exits: the number by oneDNN and the number by other code
// Cannot be used with a sanitizer, which defines these functions itself.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
// glibc's own allocation functions under their internal names: looking them up with dlsym would itself allocate.
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

std::atomic<long> of_library = 0, of_others = 0;

size_t threshold() {
  const char* text = std::getenv("TRIREME_SHIM_BYTES");
  return text == nullptr ? ~size_t{0} : std::strtoul(text, nullptr, 10);
}

void count(size_t bytes, const void* caller) {
  static const size_t least = threshold();
  if (bytes < least) return;
  Dl_info object{};
  const bool library = ::dladdr(caller, &object) != 0 && object.dli_fname != nullptr && std::strstr(object.dli_fname, "libdnnl") != nullptr;
  ++(library ? of_library : of_others);
}

__attribute__((destructor)) void report() {
  const char* name = std::getenv("TRIREME_SHIM_COUNT_FILE");
  if (name == nullptr || of_library + of_others == 0) return;
  if (FILE* file = std::fopen(name, "a")) {
    std::fprintf(file, "%ld %ld\n", of_library.load(), of_others.load());
    std::fclose(file);
  }
}

}  // namespace

extern "C" {

void* malloc(size_t bytes) noexcept {
  count(bytes, __builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) noexcept {
  count(number * bytes, __builtin_return_address(0));
  return __libc_calloc(number, bytes);
}
void* realloc(void* old, size_t bytes) noexcept {
  count(bytes, __builtin_return_address(0));
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  count(bytes, __builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  count(bytes, __builtin_return_address(0));
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"
