#pragma once
// A simulated machine with several GPUs, for tests: the CUDA runtime's functions at link time, kernels compiled as C++. This header is the tests' control
// of it; cuda_sim/machine.h is for the simulated libraries, cuda_sim/device_code.h for kernels.
//
// Nothing runs when it is queued: operations run when a thread waits or asks, in an adversarial order drawn from the seed. Fresh memory holds 0xFF bytes
// (NaN). Host code cannot touch device memory, a kernel no freed and no host memory.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cuda_sim {

struct Options {
  int devices = 8;
  size_t memory = size_t{16} << 30;  ///< bytes of each device; taken from the host only where written
  int64_t failing_malloc = 0;        ///< the n-th cudaMalloc from now fails (1 = the next); 0: none
  int major = 9, minor = 0;          ///< compute capability
  int driver_version = 13000;        ///< 0: no driver, cudaGetDeviceCount fails
  double stuck_seconds = 60;         ///< without progress before a wait is called a deadlock
};

/// Ends whatever is queued, frees all memory, makes all handles invalid, forgets errors. Not while other threads call CUDA.
void reset(uint64_t seed = 0, const Options& options = {});
/// Of the scheduler and of the order of blocks and threads, from now on.
void set_seed(uint64_t seed);

/// Errors of kernels and of operations since reset, and damage that it found, one line each. A test should find none at its end: bytes written behind an
/// allocation are noticed when it is freed.
std::vector<std::string> errors();

struct Statistics {
  int64_t operations = 0;     ///< run
  int64_t kernels = 0;        ///< of which launches
  int64_t switches = 0;       ///< between threads of a block
  int64_t copies = 0;         ///< of 16 bytes to shared memory that kernels started (cp.async), zeros included
  int64_t largest_queue = 0;  ///< operations waiting in all streams at once
  int64_t waits = 0;          ///< of host threads for a stream, an event or a device that was not done
  int64_t allocations = 0;    ///< live, device
  int64_t allocated = 0;      ///< bytes, all devices
};
Statistics statistics();

}  // namespace cuda_sim
