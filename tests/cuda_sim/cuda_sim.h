#pragma once
// A simulated machine with several GPUs, for tests: it replaces the CUDA runtime's functions at link time, and kernels are compiled as C++. Tests
// control it through this header; cuda_sim/machine.h is for the simulated libraries, cuda_sim/device_code.h for kernels.
//
// Queued operations do not run immediately: they run when a thread waits or polls, in an adversarial order drawn from the seed. Fresh memory contains
// 0xFF bytes (NaN). Host code cannot access device memory; kernels cannot access freed or host memory.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cuda_sim {

constexpr int kMultiprocessors = 4;  ///< of each device

struct Options {
  int devices = 8;
  size_t memory = size_t{16} << 30;  ///< bytes per device; host memory is used only where it is written
  int64_t failing_malloc = 0;        ///< the n-th cudaMalloc from now fails (1 = the next); 0: none
  int major = 9, minor = 0;          ///< compute capability
  int multiprocessors = kMultiprocessors;
  int driver_version = 13000;  ///< 0: no driver, cudaGetDeviceCount fails
  bool mig = false;            ///< the devices are MIG instances of one GPU: they have the same PCI address
  double stuck_seconds = 60;   ///< time without progress after which a wait is reported as a deadlock
  /// Seconds that every operation takes on the machine's own clock, which cudaEventElapsedTime then reads: an operation begins when its stream's
  /// previous one and all events that it waits for are done. The order in which they really run does not matter. 0: the host's clock at completion.
  double operation_seconds = 0;
  /// Tensor cores and approximate functions round as on GPUs instead of as well as possible: mma truncates the sum of each eight products, and ex2 and
  /// what is computed from it differ from the nearest number by up to two units in the last place.
  bool hardware_rounding = false;
  /// More than 0: of a launch of more than 4,096 blocks, only the first block, the last block and this number of random ones run, for tensors of the
  /// size of real models. The choice depends on the number of blocks alone, so that kernels with equal grids process the same rows.
  int sampled_blocks = 0;
  /// Not empty: of the launches of each kernel, numbered from 0 since these options were set, only these run. For an operation that divides a large
  /// tensor among many launches.
  std::vector<int64_t> sampled_launches = {};
  double refused_products = 0;  ///< probability that the heuristic of cuBLASLt finds no algorithm for a problem that it could solve
};

/// Drops everything queued, frees all memory, invalidates all handles and clears errors. Must not run while other threads call CUDA.
void reset(uint64_t seed = 0, const Options& options = {});
Options options();
/// Changes options without a reset. Must not run while other threads call CUDA.
void change_options(const Options& options);
/// This thread sees only that device, as device 0, like a process with a CUDA_VISIBLE_DEVICES of its own. -1: all devices again.
void show_only(int device);
/// Sets the seed of the scheduler and of the order of blocks and threads.
void set_seed(uint64_t seed);

/// Errors of kernels and operations since reset, and damage that reset found, one line each. A test should check at its end that there are none:
/// bytes written past an allocation are detected when it is freed.
std::vector<std::string> errors();

constexpr size_t kPageBytes = 4096;
/// Fills device memory with copies of `pattern`. Both are whole pages. A page takes host memory only once a kernel or copy has written to it.
void fill_with_copies(void* memory, size_t bytes, const std::vector<unsigned char>& pattern);
/// Offsets of the pages of fresh or filled device memory that were written since. `memory` is the beginning of a page.
std::vector<size_t> written_pages(const void* memory, size_t bytes);

struct Statistics {
  int64_t operations = 0;     ///< operations run
  int64_t kernels = 0;        ///< kernel launches among them
  int64_t switches = 0;       ///< switches between threads of a block
  int64_t copies = 0;         ///< 16-byte copies to shared memory started by kernels (cp.async), zero fills included
  int64_t largest_queue = 0;  ///< largest number of operations queued in all streams at once
  int64_t waits = 0;          ///< waits of host threads for an unfinished stream, event or device
  int64_t allocations = 0;    ///< live device allocations
  int64_t allocated = 0;      ///< their bytes, on all devices
};
Statistics statistics();
/// Kernels launched since reset, by demangled name, with the largest dynamic shared memory of their launches, bytes.
std::map<std::string, int64_t> launched_kernels();

}  // namespace cuda_sim
