#pragma once
// An address trace of the kernels on the simulated GPU. Device code that is compiled with -fsanitize=thread calls the functions of tsan_runtime.cpp at
// every load and store. A recorder keeps lane, address, size and place in the code of each, and derives for every launch:
//   - data races within a block, by happens-before, and conflicts between blocks, independently of the order in which the threads happened to run;
//   - sectors of 32 bytes that each instruction of a warp requests of global memory, and passes over the 32 banks of shared memory;
//   - bytes of global memory that the launch reads and writes.
// What orders two accesses: __syncthreads, __syncwarp of the whole warp, and for the bytes of cp.async the wait of the thread that copies. Shuffles,
// votes, mma and ldmatrix make lanes meet but order no memory (CUDA Programming Guide, "Warp Shuffle Functions", "Warp Vote Functions"). Between blocks:
// release_value and wait_for_value, from the barrier before the release to the barrier after the wait, and for the two threads themselves at once.
// Named barriers order what the warps of a phase did before they arrived, before what those of them that wait do behind it, and nothing of other warps.
// Products of warpgroups and bulk operations read shared memory behind fence_proxy_async of each writer and a barrier. They may read it until the wait.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cuda_trace {

enum class Kind : uint8_t { kGlobalLoad, kGlobalStore, kSharedLoad, kSharedStore };
constexpr int kKinds = 4;
constexpr bool is_shared(Kind kind) { return kind >= Kind::kSharedLoad; }

struct Traffic {
  int64_t requests = 0;  ///< instructions of a warp
  int64_t bytes = 0;     ///< distinct bytes of each request, summed over the requests
  int64_t units = 0;     ///< global: sectors of 32 bytes. Shared: passes over the banks
  int64_t ideal = 0;     ///< the fewest units: sectors that the bytes fill, or passes without bank conflicts

  void add(const Traffic& other);
  double excess() const { return ideal == 0 ? 1 : static_cast<double>(units) / static_cast<double>(ideal); }  ///< 1: ideal
};

/// Two accesses to a byte, one of them a store, that nothing orders.
struct Race {
  std::string what;  ///< "shared memory, threads 3 and 40: write, then read"
  const void* earlier = nullptr;
  const void* later = nullptr;  ///< code after the access
};

struct Launch {
  std::string kernel;  ///< demangled, with the types of its parameters
  std::map<std::pair<const void*, Kind>, Traffic> places;
  std::array<Traffic, kKinds> traffic;        ///< sums over the places
  int64_t bytes_read = 0, bytes_written = 0;  ///< distinct bytes of global memory, in units of two
  std::vector<Race> races;                    ///< one for each pair of places

  const Traffic& of(Kind kind) const { return traffic[static_cast<size_t>(kind)]; }
};

/// Launches that begin between start() and stop() are recorded. No kernel may run during either call.
void start();
std::vector<Launch> stop();

std::string text_of(const Race& race);

}  // namespace cuda_trace
