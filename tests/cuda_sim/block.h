#pragma once
// Runs the blocks of one launch, one after another. The threads of a block are fibers on this host thread and run in an order drawn from the seed;
// each runs until it must wait for others. A kernel whose threads never synchronise needs one fiber and no switch.
#if !defined(__x86_64__)
#include <boost/context/detail/fcontext.hpp>
#endif
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda_sim/device_thread.h"
#include "tests/cuda_sim/random.h"
#include "tests/cuda_sim/sanitizer.h"
#include "tests/cuda_sim/warpgroup.h"

namespace cuda_sim {

constexpr size_t kSharedDefault = size_t{48} << 10;  ///< maximum static memory of a kernel
constexpr size_t kSharedLimit = size_t{227} << 10;   ///< maximum of static and dynamic memory

constexpr size_t kPage = 4096;
constexpr unsigned char kPoison = 0xFF;
// Shared memory: a zone of static variables, a guard page, the dynamic memory up to the end, another guard page.
constexpr size_t kStaticZone = size_t{64} << 10;
constexpr size_t kDynamicZone = size_t{228} << 10;
constexpr size_t kGap = 16;  // after each variable
/// The dynamic memory begins at a multiple of this and of no larger power of two, in the host's memory and as PTX counts.
constexpr size_t kDynamicAlignment = 1024;

struct AsyncCopy {
  void* shared;
  const void* global;
  bool valid;
  int group;
};

class BlockRunner;

struct Fiber : DeviceThread {
  BlockRunner* runner = nullptr;
  void* context = nullptr;  // where it continues: its stack pointer, or a context of Boost
  unsigned char* stack = nullptr;
  StackMark mark;
  int thread = 0;  // within the block
  // What the fiber waits for.
  bool waits = false;
  Meeting meeting{};
  unsigned mask = 0;
  Site site{};
  void* slot = nullptr;
  int barrier = 0;  // named, at which it waits
  // Pending asynchronous copies.
  std::vector<AsyncCopy> copies;
  int groups = 0;
  // Bulk operations not waited for.
  std::vector<BulkOperation> bulk;
  int bulk_groups = 0;
};

/// Lanes that are arriving at one synchronisation point.
struct Arrival {
  Meeting meeting;
  unsigned mask;
  Site site;
  unsigned arrived;
};

struct Warp {
  Fiber* lanes[32];
  unsigned absent;  // lanes that have exited or never existed
  std::vector<Arrival> arrivals;
};

/// A barrier of barrier_sync and barrier_arrive, in its present phase.
struct NamedBarrier {
  int threads = 0;     // that the phase counts; 0 before the first arrival
  int arrived = 0;     // of them
  uint32_t warps = 0;  // that have arrived, a bit each
  std::vector<Warp*> waiting;
  Meeting meeting{};  // of the last arrival
  Site site{};
};
constexpr int kNamedBarriers = 16;  // 0 is __syncthreads

struct KernelFault {
  cudaError_t error = cudaSuccess;
  std::string text;
  uintptr_t address = 0;        // address of a memory fault
  const void* place = nullptr;  // of the instruction that faulted, plus 1
};

class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  /// Runs all blocks, or those of Options::sampled_blocks, or stops at the first fault.
  KernelFault run(const KernelCall& call, uint64_t seed, int sampled_blocks, int capability);
  int capability() const { return capability_; }  ///< compute capability of the GPU, times ten
  int64_t switches() const { return switches_; }
  int64_t copies() const { return copies_; }
  void count_copy() { ++copies_; }

  // For the functions of device_thread.h.
  void sync_block(Fiber& self, Site site);
  /// Meeting: kBarrierSync, which waits, or kBarrierArrive.
  void pass_barrier(Fiber& self, Meeting meeting, int id, int threads, Site site, BarrierArrival arrived);
  /// Meeting: kRaiseRegisters or kLowerRegisters.
  void change_registers(Fiber& self, Meeting meeting, int count, Site site);
  /// Waits until all lanes of the mask have arrived. Returns true to the last, which exchanges the data of the lanes' slots and then calls `release`.
  bool meet(Fiber& self, Meeting meeting, unsigned mask, Site site, void* slot);
  Warp& warp_of(const Fiber& self) { return warps_[static_cast<size_t>(self.thread) / 32]; }
  void release(Warp& warp, unsigned mask, const Fiber& self);
  /// The same for the threads of a warpgroup. Returns the warpgroup to the last thread, otherwise null.
  Warpgroup* meet_warpgroup(Fiber& self, Meeting meeting, Site site, void* slot);
  void release(Warpgroup& group, const Fiber& self);
  Warpgroup& warpgroup_of(const Fiber& self) { return warpgroups_[static_cast<size_t>(self.thread) / kWarpgroup]; }
  /// Does not return. (Not marked [[noreturn]]: AddressSanitizer would then look for the bounds of a stack it does not know.)
  void fail(cudaError_t error, std::string text, uintptr_t address = 0, const void* place = nullptr);
  void* static_shared(const void* tag, size_t bytes, size_t alignment);
  void* dynamic_shared() const { return dynamic_; }
  bool is_shared(const void* address, size_t bytes) const;
  /// Whether the bytes lie in one static variable or in the dynamic shared memory.
  bool holds_shared(const void* address, size_t bytes) const;
  /// Address of a byte of the dynamic shared memory, as PTX counts.
  uint32_t shared_address(const void* address, Site site);
  /// The bytes at such an address; null if they are not all in the dynamic shared memory.
  const unsigned char* shared_at(uint32_t address, size_t bytes) const;
  void maybe_copy(Fiber& self);
  void copy_until(Fiber& self, int group);
  bool copies_at_once() const { return copy_mode_ == 0; }
  /// When products and bulk operations run: 0 immediately, 1 at the wait, 2 at random points before.
  int late_mode();
  void run_some(Fiber& self, size_t one_in);  ///< in mode 2: of the thread and its warpgroup
  void multiply(Product& product);
  void run(BulkOperation& operation);
  /// Stack on which a memory fault is handled, separate from the faulting stack.
  void* emergency_stack();  ///< returns its top, ready for use

 private:
  struct Variable {
    const void* tag;
    unsigned char* memory;
    size_t bytes;
  };
#if defined(__x86_64__)
  static void fiber_main();
#else
  static void fiber_main(boost::context::detail::transfer_t transfer);
#endif
  [[noreturn]] static void run_threads();
  void run_block();
  void prepare_threads();
  void prepare_shared();
  void check_shared();
  void check_finished(const Fiber& self);
  Fiber& fresh_fiber();
  void begin_thread(Fiber& fiber, int thread);
  void switch_to(Fiber& from, Fiber& to);
  void suspend(Fiber& self);
  void finish_thread(Fiber& self);
  Fiber* next(Fiber* reuse);
  void release_barrier();
  void raise_waiting();
  std::string stuck_text() const;
  __attribute__((noinline, cold)) void fail_stuck();
  __attribute__((noinline, cold)) void fail_meeting(const Fiber& self, const char* what);
  __attribute__((noinline, cold)) void fail_apart(const Fiber& self, const Fiber& other);
  std::string where(const Fiber& fiber) const;

  const KernelCall* call_ = nullptr;
  int capability_ = 0;
  BlockShape shape_{};
  Random random_;
  Fiber main_;
  Fiber* left_ = nullptr;  // the fiber that ran before the last switch
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;      // in their loop, without a thread to run
  std::vector<Fiber*> runnable_;  // with a thread that may continue
  std::vector<int> unstarted_;    // threads not yet started, the next one last
  std::vector<Fiber*> barrier_;   // waiting at __syncthreads
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  NamedBarrier named_[kNamedBarriers];
  std::vector<Warpgroup*> raising_;  // wait for registers
  int free_registers_ = 0;           // that warpgroups of the block have given up, for each thread of one
  int threads_ = 0, live_ = 0;
  bool newest_first_ = false;
  int copy_mode_ = 0;   // asynchronous copies run: 0 immediately, 1 at the wait, 2 at random points before
  int late_mode_ = -1;  // -1: not drawn yet
  unsigned char* shared_ = nullptr;
  unsigned char *dynamic_ = nullptr, *dynamic_end_ = nullptr;
  size_t static_used_ = 0;
  std::vector<Variable> variables_;
  unsigned char* emergency_ = nullptr;
  KernelFault fault_;
  int64_t switches_ = 0;
  int64_t copies_ = 0;
};

/// Runners are reused because creating stacks is slow.
std::unique_ptr<BlockRunner> take_runner();
void give_runner(std::unique_ptr<BlockRunner> runner);

const char* name_of(Meeting meeting);
/// Returns "WHAT at MEETING in line 1 of FILE, mask 0x0000ffff".
std::string text_of(std::string_view what, Meeting meeting, unsigned mask, Site site);

}  // namespace cuda_sim
