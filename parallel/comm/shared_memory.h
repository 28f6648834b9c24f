#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace trireme {

/// Memory shared by processes of one host, initially zero. It has no name (memfd): the size of /dev/shm does not limit it, and the kernel frees it
/// when the last process that maps it ends, even if that is killed.
class SharedMemory {
 public:
  /// Identifies the memory to other processes, until its creator has sealed it.
  struct Address {
    int64_t process = 0;
    int64_t descriptor = -1;
    uint64_t nonce = 0;  ///< first word of the memory: in another PID namespace the process id may belong to another process
  };

  /// Null if the system provides none.
  static std::unique_ptr<SharedMemory> make(int64_t bytes);
  /// Null if the memory cannot be opened.
  static std::unique_ptr<SharedMemory> open(const Address& address, int64_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  Address address() const;
  /// No other process can open the memory after this call.
  void seal();
  /// `bytes` bytes, aligned to a page.
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
