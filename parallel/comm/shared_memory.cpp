#include "parallel/comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

namespace trireme {

std::unique_ptr<SharedMemory> SharedMemory::map(int descriptor, int64_t bytes) {
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    ::close(descriptor);
    return nullptr;
  }
  return std::unique_ptr<SharedMemory>(new SharedMemory(descriptor, static_cast<std::byte*>(mapped), bytes));
}

std::unique_ptr<SharedMemory> SharedMemory::make(int64_t bytes) {
  const int descriptor = ::memfd_create("trireme", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  if (::ftruncate(descriptor, bytes + kHeader) != 0) {
    ::close(descriptor);
    return nullptr;
  }
  auto memory = map(descriptor, bytes + kHeader);
  if (!memory) return nullptr;
  uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) return nullptr;
  nonce |= 1U;
  std::memcpy(memory->mapped_, &nonce, sizeof nonce);
  return memory;
}

std::unique_ptr<SharedMemory> SharedMemory::open(const Address& address, int64_t bytes) {
  if (address.descriptor < 0) return nullptr;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%lld", static_cast<long long>(address.process), static_cast<long long>(address.descriptor));
  const int descriptor = ::open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return nullptr;
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != bytes + kHeader) {
    ::close(descriptor);
    return nullptr;
  }
  auto memory = map(descriptor, bytes + kHeader);
  if (!memory || memory->address().nonce != address.nonce) return nullptr;
  return memory;
}

SharedMemory::~SharedMemory() {
  seal();
  ::munmap(mapped_, static_cast<size_t>(bytes_));
}

SharedMemory::Address SharedMemory::address() const {
  Address address{::getpid(), descriptor_, 0};
  std::memcpy(&address.nonce, mapped_, sizeof address.nonce);
  return address;
}

void SharedMemory::seal() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

}  // namespace trireme
