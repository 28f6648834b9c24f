#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme {

/// Memory that processes of one host share, zeros at first. It has no name (memfd): the size of /dev/shm does not bound it, and nothing is left of it
/// when the last process that maps it is gone, however it went.
class SharedMemory {
 public:
  /// By which another process finds it until its maker has sealed it.
  struct Address {
    int64_t process = 0;
    int64_t descriptor = -1;
    uint64_t nonce = 0;  ///< the first word of the memory: another namespace may have another process of that number
  };

  /// Null where the system gives none.
  static std::unique_ptr<SharedMemory> make(int64_t bytes);
  /// Null where it cannot be reached.
  static std::unique_ptr<SharedMemory> open(const Address& address, int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Address address() const;
  /// Nobody else can open it any more.
  void seal();
  /// `bytes` of it, aligned to a page.
  std::byte* data() const { return mapped_ + kHeader; }

 private:
  static constexpr int64_t kHeader = 4096;
  SharedMemory(int descriptor, std::byte* mapped, int64_t bytes) : descriptor_(descriptor), mapped_(mapped), bytes_(bytes) {}
  static std::unique_ptr<SharedMemory> map(int descriptor, int64_t bytes);

  int descriptor_;  ///< -1: sealed
  std::byte* mapped_;
  int64_t bytes_;
};

}  // namespace trireme
