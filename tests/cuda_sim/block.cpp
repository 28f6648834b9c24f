// The block runner: a fiber for each waiting thread, and the choice of the thread that runs next.
#include "tests/cuda_sim/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>

#include "tests/cuda_sim/fiber_switch.h"

namespace cuda_sim {

constinit thread_local DeviceThread* this_thread = nullptr;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStack = size_t{256} << 10;
#else
constexpr size_t kStack = size_t{64} << 10;
#endif
constexpr size_t kEmergencyStack = size_t{64} << 10;
constexpr int kRegistersOfMultiprocessor = 65536;

unsigned char* map_guarded(size_t bytes) {  // with a guard page on both sides
  void* memory = mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(static_cast<unsigned char*>(memory) + kPage, bytes, PROT_READ | PROT_WRITE) != 0) {
    std::perror("cuda_sim: mmap");
    std::abort();
  }
  return static_cast<unsigned char*>(memory) + kPage;
}
void unmap_guarded(unsigned char* memory, size_t bytes) { munmap(memory - kPage, bytes + 2 * kPage); }

/// Implements Options::sampled_blocks.
std::vector<size_t> blocks_to_run(size_t blocks, int sampled) {
  constexpr size_t kAll = 4096;  // launches of at most this many blocks run completely
  std::vector<size_t> order;
  if (sampled == 0 || blocks <= kAll) {
    order.resize(blocks);
    std::iota(order.begin(), order.end(), size_t{0});
    return order;
  }
  order = {0, blocks - 1};
  Random places;
  for (int i = 0; i < sampled; ++i) order.push_back(1 + places.next() % (blocks - 2));
  std::sort(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  return order;
}

}  // namespace

BlockRunner::BlockRunner() {
  shared_ = map_guarded(kStaticZone + kPage + kDynamicZone);
  dynamic_end_ = shared_ + kStaticZone + kPage + kDynamicZone;
  mprotect(shared_ + kStaticZone, kPage, PROT_NONE);
  emergency_ = map_guarded(kEmergencyStack);
  main_.runner = this;
}

BlockRunner::~BlockRunner() {
  for (auto& fiber : fibers_) {
    fiber->mark.destroy();
    asan_unpoison(reinterpret_cast<uintptr_t>(fiber->stack), reinterpret_cast<uintptr_t>(fiber->stack) + kStack);
    unmap_guarded(fiber->stack, kStack);
  }
  asan_unpoison(reinterpret_cast<uintptr_t>(shared_), reinterpret_cast<uintptr_t>(dynamic_end_));
  unmap_guarded(shared_, kStaticZone + kPage + kDynamicZone);
  unmap_guarded(emergency_, kEmergencyStack);
}

void* BlockRunner::emergency_stack() {
  asan_unpoison(reinterpret_cast<uintptr_t>(emergency_), reinterpret_cast<uintptr_t>(emergency_) + kEmergencyStack);
  return emergency_ + kEmergencyStack;
}

KernelFault BlockRunner::run(const KernelCall& call, uint64_t seed, int sampled_blocks, int capability) {
  call_ = &call;
  random_ = Random(seed);
  capability_ = capability;
  fault_ = {};
  variables_.clear();
  static_used_ = 0;
  asan_unpoison(reinterpret_cast<uintptr_t>(shared_), reinterpret_cast<uintptr_t>(dynamic_end_));
  dynamic_ = dynamic_end_ - (call.dynamic_shared / kDynamicAlignment | 1) * kDynamicAlignment;
  if (dynamic_ + call.dynamic_shared > dynamic_end_) dynamic_ -= 2 * kDynamicAlignment;
  asan_poison(reinterpret_cast<uintptr_t>(dynamic_) + call.dynamic_shared, reinterpret_cast<uintptr_t>(dynamic_end_));
  asan_poison(reinterpret_cast<uintptr_t>(shared_), reinterpret_cast<uintptr_t>(shared_) + kStaticZone);
  shape_.block = call.block;
  shape_.grid = call.grid;
  main_.shape = &shape_;
  threads_ = static_cast<int>(call.block.x * call.block.y * call.block.z);
  std::vector<size_t> order = blocks_to_run(size_t{call.grid.x} * call.grid.y * call.grid.z, sampled_blocks);
  random_.shuffle(order);
  for (const size_t block : order) {
    shape_.index = {static_cast<unsigned>(block % call.grid.x), static_cast<unsigned>(block / call.grid.x % call.grid.y),
                    static_cast<unsigned>(block / call.grid.x / call.grid.y)};
    run_block();
    if (fault_.error != cudaSuccess) break;
  }
  return fault_;
}

void BlockRunner::prepare_threads() {
  live_ = threads_;
  unstarted_.resize(static_cast<size_t>(threads_));
  std::iota(unstarted_.begin(), unstarted_.end(), 0);
  const size_t order = random_.below(16);  // mostly random
  if (order == 0) std::reverse(unstarted_.begin(), unstarted_.end());
  if (order > 1) random_.shuffle(unstarted_);
  newest_first_ = random_.below(2) == 0;  // faster: lanes of one warp run one after another
  copy_mode_ = static_cast<int>(random_.below(3));
  late_mode_ = -1;
  runnable_.clear();
  barrier_.clear();
  warps_.resize(static_cast<size_t>(threads_ + 31) / 32);
  for (size_t i = 0; i < warps_.size(); ++i) {
    const int lanes = std::min(32, threads_ - static_cast<int>(i) * 32);
    warps_[i].absent = lanes == 32 ? 0u : ~0u << lanes;
    warps_[i].arrivals.clear();
  }
  warpgroups_.clear();
  warpgroups_.resize((static_cast<size_t>(threads_) + kWarpgroup - 1) / kWarpgroup);
  for (NamedBarrier& barrier : named_) barrier = {};
  // The registers of a launch whose kernel is compiled for as many as a block of this size can have: those of __launch_bounds__ are not known here.
  for (Warpgroup& group : warpgroups_) group.registers = std::min(kRegistersOfMultiprocessor / threads_ / 8 * 8, 256);
  raising_.clear();
  free_registers_ = 0;
}

void BlockRunner::run_block() {
  prepare_shared();
  prepare_threads();
  DeviceThread* const before = this_thread;
  this_thread = &main_;
  switch_to(main_, *next(nullptr));
  this_thread = before;
  if (fault_.error == cudaSuccess)
    check_shared();
  else {  // stacks of threads that will never continue
    for (auto& fiber : fibers_) {
      asan_unpoison(reinterpret_cast<uintptr_t>(fiber->stack), reinterpret_cast<uintptr_t>(fiber->stack) + kStack);
      fiber->mark.destroy();
      unmap_guarded(fiber->stack, kStack);
    }
    fibers_.clear();
    idle_.clear();
  }
}

Fiber& BlockRunner::fresh_fiber() {
  if (!idle_.empty()) {
    Fiber* fiber = idle_.back();
    idle_.pop_back();
    return *fiber;
  }
  auto fiber = std::make_unique<Fiber>();
  fiber->runner = this;
  fiber->stack = map_guarded(kStack);
  fiber->mark.bottom = fiber->stack;
  fiber->mark.size = kStack;
  // Stack tops at different page offsets: equal offsets would compete for a few cache sets.
  unsigned char* const top = fiber->stack + kStack - fibers_.size() * 192 % kPage;
#if defined(__x86_64__)
  // What switch_stack pops, below a return address that is never used: a function begins with its stack 8 bytes off a multiple of 16.
  auto* const context = reinterpret_cast<void**>(top) - 2;
  context[0] = reinterpret_cast<void*>(&BlockRunner::fiber_main);
  context[1] = nullptr;
  fiber->context = context;
#else
  fiber->context = boost::context::detail::make_fcontext(top, kStack - kPage, &BlockRunner::fiber_main);
#endif
  fibers_.push_back(std::move(fiber));
  return *fibers_.back();
}

void BlockRunner::begin_thread(Fiber& fiber, int thread) {
  const auto t = static_cast<unsigned>(thread);
  fiber.thread = thread;
  fiber.shape = &shape_;
  const bool flat = shape_.block.y == 1 && shape_.block.z == 1;  // which needs no division
  fiber.index = flat ? uint3{t, 0, 0} : uint3{t % shape_.block.x, t / shape_.block.x % shape_.block.y, t / shape_.block.x / shape_.block.y};
  fiber.waits = false;
  fiber.copies.clear();
  fiber.groups = 0;
  fiber.bulk.clear();
  fiber.bulk_groups = 0;
  warps_[t / 32].lanes[t % 32] = &fiber;
}

#if defined(__x86_64__)
void BlockRunner::fiber_main() { run_threads(); }
#else
void BlockRunner::fiber_main(boost::context::detail::transfer_t transfer) {
  static_cast<Fiber*>(this_thread)->runner->left_->context = transfer.fctx;
  run_threads();
}
#endif

void BlockRunner::run_threads() {
  Fiber& self = *static_cast<Fiber*>(this_thread);
  BlockRunner& runner = *self.runner;
  self.mark.arrive(runner.left_->mark);
  for (;;) {
    (*runner.call_)();
    runner.finish_thread(self);
  }
}

/// Returns when this fiber has another thread to run.
void BlockRunner::finish_thread(Fiber& self) {
  Warp& warp = warp_of(self);
  const unsigned bit = 1u << (self.thread % 32);
  warp.absent |= bit;
  for (const Arrival& arrival : warp.arrivals)
    if ((arrival.mask & bit) != 0)
      fail(cudaErrorLaunchFailure, text_of("returned while lanes wait for it", arrival.meeting, arrival.mask, arrival.site));
  check_finished(self);
  --live_;
  if (live_ > 0 && static_cast<int>(barrier_.size()) == live_) release_barrier();
  Fiber* const to = next(&self);
  if (to == &self) return;
  if (to == nullptr && live_ > 0) fail(cudaErrorLaunchFailure, stuck_text());
  idle_.push_back(&self);
  switch_to(self, to != nullptr ? *to : main_);
}

namespace {
std::mutex& runners_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::vector<std::unique_ptr<BlockRunner>>& runners() {
  static std::vector<std::unique_ptr<BlockRunner>> kept;
  return kept;
}
}  // namespace

std::unique_ptr<BlockRunner> take_runner() {
  const std::lock_guard lock(runners_mutex());
  if (runners().empty()) return std::make_unique<BlockRunner>();
  auto runner = std::move(runners().back());
  runners().pop_back();
  return runner;
}

void give_runner(std::unique_ptr<BlockRunner> runner) {
  const std::lock_guard lock(runners_mutex());
  runners().push_back(std::move(runner));
}

}  // namespace cuda_sim
