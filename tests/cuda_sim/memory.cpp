#include "tests/cuda_sim/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_sim/sanitizer.h"

namespace cuda_sim {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;
constexpr unsigned char kPoison = 0xFF;
constexpr size_t kPoisonFile = size_t{4} << 20;

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

/// A file in memory. Mapped copy-on-write, it fills memory that uses no pages of its own until written.
int file_of(const std::vector<unsigned char>& bytes) {
  const int descriptor = memfd_create("cuda_sim", MFD_CLOEXEC);
  if (descriptor < 0) die("cuda_sim: memfd_create");
  if (write(descriptor, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) die("cuda_sim: write");
  return descriptor;
}

void map_copies(uintptr_t begin, uintptr_t end, int file, size_t file_bytes, int protection) {
  for (uintptr_t at = begin; at < end; at += file_bytes) {
    const size_t bytes = std::min(file_bytes, end - at);
    if (mmap(reinterpret_cast<void*>(at), bytes, protection, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED) die("cuda_sim: mmap");
  }
}

void map_poison(uintptr_t begin, uintptr_t end, int protection) {
  static const int file = file_of(std::vector<unsigned char>(kPoisonFile, kPoison));
  map_copies(begin, end, file, kPoisonFile, protection);
}

void map_nothing(uintptr_t begin, uintptr_t end) {
  if (mmap(reinterpret_cast<void*>(begin), end - begin, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
    die("cuda_sim: mmap");
}

void protect(const Allocation& allocation, int protection) {
  if (mprotect(reinterpret_cast<void*>(allocation.first_page), allocation.end_page - allocation.first_page, protection) != 0)
    die("cuda_sim: mprotect");
}

}  // namespace

void Arena::reserve() {
  if (base_ != 0) return;
  void* range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) die("cuda_sim: cannot reserve address space");
  base_ = next_ = reinterpret_cast<uintptr_t>(range);
}

void* Arena::allocate(size_t bytes, bool stream_ordered) {
  const size_t span = round_up(std::max<size_t>(bytes, 1), kAlignment);
  const size_t pages = round_up(span, kPage);
  if (next_ + pages + 2 * kPage > base_ + kRange) {  // reuses old addresses once the range is exhausted
    freed_.clear();
    if (allocations_.empty()) next_ = base_;
    if (next_ + pages + 2 * kPage > base_ + kRange) return nullptr;
  }
  Allocation allocation;
  allocation.first_page = next_ + kPage;
  allocation.end_page = allocation.first_page + pages;
  allocation.begin = allocation.end_page - span;
  allocation.bytes = bytes;
  allocation.stream_ordered = stream_ordered;
  next_ = allocation.end_page;
  map_poison(allocation.first_page, allocation.end_page, open_ ? PROT_READ | PROT_WRITE : PROT_NONE);
  asan_poison(allocation.first_page, allocation.begin);
  asan_poison(allocation.begin + bytes, allocation.end_page);
  allocations_[allocation.first_page] = allocation;
  used_ += round_up(bytes, 512);
  ++live_;
  return reinterpret_cast<void*>(allocation.begin);
}

void Arena::fill_with_copies(uintptr_t memory, size_t bytes, const std::vector<unsigned char>& pattern) {
  if (memory % kPage != 0 || bytes % kPage != 0 || pattern.size() % kPage != 0 || !contains(memory, bytes)) {
    std::fprintf(stderr, "cuda_sim: copies of a pattern fill whole pages of one allocation\n");
    std::abort();
  }
  const int file = file_of(pattern);
  map_copies(memory, memory + bytes, file, pattern.size(), open_ ? PROT_READ | PROT_WRITE : PROT_NONE);
  ::close(file);  // the mappings keep it
}

/// A page that was written is no longer one of the mapped file (Linux, Documentation/admin-guide/mm/pagemap.rst: bit 63 present, 62 swapped, 61 file).
std::vector<size_t> Arena::written_pages(uintptr_t memory, size_t bytes) {
  constexpr uint64_t kThere = uint64_t{3} << 62, kFile = uint64_t{1} << 61;
  const int file = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (file < 0) die("cuda_sim: /proc/self/pagemap");
  std::vector<size_t> offsets;
  std::vector<uint64_t> entries;
  const size_t pages = (bytes + kPage - 1) / kPage;
  for (size_t first = 0; first < pages; first += entries.size()) {
    entries.resize(std::min<size_t>(pages - first, 1 << 16));
    const size_t wanted = entries.size() * sizeof(uint64_t);
    if (pread(file, entries.data(), wanted, static_cast<off_t>((memory / kPage + first) * sizeof(uint64_t))) != static_cast<ssize_t>(wanted))
      die("cuda_sim: /proc/self/pagemap");
    for (size_t i = 0; i < entries.size(); ++i)
      if ((entries[i] & kThere) != 0 && (entries[i] & kFile) == 0) offsets.push_back((first + i) * kPage);
  }
  ::close(file);
  return offsets;
}

const Allocation* Arena::find(uintptr_t address) const {
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return nullptr;
  const Allocation& found = std::prev(next)->second;
  return address >= found.begin && address - found.begin < std::max<size_t>(found.bytes, 1) ? &found : nullptr;
}

bool Arena::contains(uintptr_t address, size_t bytes) const {
  if (bytes == 0) return true;
  const Allocation* found = find(address);
  return found != nullptr && bytes <= found->bytes - (address - found->begin);
}

std::string Arena::damage_of(const Allocation& allocation) const {
  auto damaged = [](uintptr_t begin, uintptr_t end) {
    for (uintptr_t at = begin; at < end; ++at)
      if (*reinterpret_cast<const unsigned char*>(at) != kPoison) return true;
    return false;
  };
  if (!open_) protect(allocation, PROT_READ);
  asan_unpoison(allocation.first_page, allocation.end_page);
  std::string text;
  if (damaged(allocation.first_page, allocation.begin)) text = "bytes before an allocation were written";
  if (damaged(allocation.begin + allocation.bytes, allocation.end_page)) text = "bytes past the end of an allocation were written";
  if (!text.empty()) text += ": " + std::to_string(allocation.bytes) + " bytes at " + std::to_string(allocation.begin);
  return text;
}

void Arena::unmap(Allocation& allocation) {
  map_nothing(allocation.first_page, allocation.end_page);
  freed_[allocation.first_page] = allocation;
  used_ -= round_up(allocation.bytes, 512);
  --live_;
}

bool Arena::release(const void* memory, std::string* damage) {
  const Allocation* found = find(reinterpret_cast<uintptr_t>(memory));
  if (found == nullptr || found->begin != reinterpret_cast<uintptr_t>(memory)) return false;
  Allocation& allocation = allocations_[found->first_page];
  *damage = damage_of(allocation);
  unmap(allocation);
  allocations_.erase(allocation.first_page);
  return true;
}

void Arena::release_all(std::string* damage) {
  for (auto& [address, allocation] : allocations_) {
    const std::string text = damage_of(allocation);
    if (!text.empty()) *damage = text;
    unmap(allocation);
  }
  allocations_.clear();
}

std::string Arena::describe(uintptr_t address) const {
  // The last allocation that begins before the address.
  auto before = [address](const std::map<uintptr_t, Allocation>& map) {
    auto next = map.upper_bound(address);
    return next == map.begin() ? nullptr : &std::prev(next)->second;
  };
  const Allocation *live = before(allocations_), *freed = before(freed_);
  if (live == nullptr && freed == nullptr) return "no allocation";
  const bool is_freed = live == nullptr || (freed != nullptr && freed->first_page > live->first_page);
  const Allocation& found = is_freed ? *freed : *live;
  const std::string what = (is_freed ? "freed allocation of " : "allocation of ") + std::to_string(found.bytes) + " bytes";
  if (address < found.begin) return std::to_string(found.begin - address) + " bytes before the " + what;
  const uintptr_t offset = address - found.begin;
  if (offset < found.bytes) return "byte " + std::to_string(offset) + " of the " + what;
  return std::to_string(offset - found.bytes) + " bytes past the end of the " + what;
}

void Arena::open() {
  if (open_) return;
  open_ = true;
  for (const auto& [address, allocation] : allocations_) protect(allocation, PROT_READ | PROT_WRITE);
}

void Arena::close() {
  if (!open_) return;
  open_ = false;
  for (const auto& [address, allocation] : allocations_) protect(allocation, PROT_NONE);
}

std::string Memory::reset(int devices) {
  std::string damage;
  for (Arena& arena : devices_) {
    arena.release_all(&damage);
    arena.close();
  }
  pinned_.release_all(&damage);
  if (!damage.empty()) std::fprintf(stderr, "cuda_sim: %s\n", damage.c_str());
  if (static_cast<int>(devices_.size()) < devices) devices_.resize(static_cast<size_t>(devices));  // ranges stay reserved
  for (Arena& arena : devices_) arena.reserve();
  pinned_.reserve();
  pinned_.open();
  born_ = Clock::now();
  spent_ = {};
  return damage;
}

int Memory::device_of(uintptr_t address) const {
  for (size_t i = 0; i < devices_.size(); ++i)
    if (devices_[i].holds(address)) return static_cast<int>(i);
  return -1;
}

std::string Memory::describe(uintptr_t address) const {
  const int device = device_of(address);
  if (device >= 0) return "device " + std::to_string(device) + ", " + devices_[static_cast<size_t>(device)].describe(address);
  if (pinned_.holds(address)) return "pinned memory, " + pinned_.describe(address);
  return "neither device nor pinned memory";
}

void Memory::open(int device) {
  Arena& arena = devices_[static_cast<size_t>(device)];
  if (arena.is_open()) return;
  const auto start = Clock::now();
  arena.open();
  spent_ += Clock::now() - start;
}

void Memory::close_all() {
  const auto start = Clock::now();
  if (spent_ > std::chrono::milliseconds(200) && spent_ * 16 > start - born_) return;
  for (Arena& arena : devices_) arena.close();
  spent_ += Clock::now() - start;
}

}  // namespace cuda_sim
