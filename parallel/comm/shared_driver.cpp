#include "parallel/comm/shared_driver.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <utility>

#include "parallel/comm/shared_group.h"

namespace trireme {
namespace {

/// Iterations for which a waiting rank spins before it sleeps, if every rank has a core: about 20 us, less than the cost of a sleep and a wake-up.
constexpr int kSpins = 500;
/// Bounds a sleep, because what poll() progresses (MPI messages to and from this rank) does not ring.
constexpr long kLongestSleep = 1'000'000;  // ns

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct alignas(64) SharedDriver::Bell {
  uint32_t rings;  ///< the futex on which its rank sleeps
  uint32_t asleep;
};

int64_t SharedDriver::bytes(int ranks) { return ranks * static_cast<int64_t>(sizeof(Bell)); }

SharedDriver::SharedDriver(std::unique_ptr<SharedMemory> bells, int rank, int ranks, std::function<void()> poll)
    : bells_(std::move(bells)), rank_(rank), spins_(::sysconf(_SC_NPROCESSORS_ONLN) >= ranks ? kSpins : 0), poll_(std::move(poll)) {}

SharedDriver::Bell& SharedDriver::bell(int rank) const { return reinterpret_cast<Bell*>(bells_->data())[rank]; }

bool SharedDriver::advance() {
  bool moved = false;
  for (SharedGroup* group : groups_) moved |= group->advance();
  std::erase_if(groups_, [](const SharedGroup* group) { return !group->busy(); });
  return moved;
}

void SharedDriver::wait(const std::function<bool()>& done) {
  for (int idle = 0; !done(); ++idle) {
    if (advance()) {
      idle = -1;
    } else if (idle < spins_) {
      relax();
      if (polled > 0) poll_();
    } else if (polled > 0) {
      poll_();
      ::sched_yield();
    } else {
      sleep();
      poll_();
    }
  }
}

void SharedDriver::finish() {
  wait([&] { return !busy(); });
}

void SharedDriver::ring(int rank) {
  const std::atomic_ref asleep(bell(rank).asleep);
  if (asleep.load(std::memory_order_relaxed) == 0) return;
  const std::atomic_ref rings(bell(rank).rings);
  rings.fetch_add(1);
  ::syscall(SYS_futex, &bell(rank).rings, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

/// Sets `asleep` before checking once more: a rank that progresses something afterwards sees the flag and rings.
void SharedDriver::sleep() {
  const std::atomic_ref rings(bell(rank_).rings);
  const uint32_t heard = rings.load();
  const struct Asleep {  // cleared even if advance() throws: otherwise peers would never stop ringing
    explicit Asleep(uint32_t& at) : word(at) { word.store(1); }
    ~Asleep() { word.store(0); }
    std::atomic_ref<uint32_t> word;
  } asleep(bell(rank_).asleep);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!advance()) {
    const timespec longest{0, kLongestSleep};
    ::syscall(SYS_futex, &bell(rank_).rings, FUTEX_WAIT, heard, &longest, nullptr, 0);
  }
}

}  // namespace trireme
