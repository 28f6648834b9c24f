// Records the accesses of the launch that runs on this host thread. The threads of its blocks are fibers of that host thread.
#include "tests/trace/recorder.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "tests/cuda_sim/block.h"
#include "tests/cuda_sim/state.h"
#include "tests/trace/async_reads.h"
#include "tests/trace/device_calls.h"
#include "tests/trace/requests.h"
#include "tests/trace/shadow.h"

namespace cuda_trace {
namespace {

using cuda_sim::Fiber;

std::atomic<uint64_t> generation = 0;  // odd while launches are recorded
std::mutex finished_mutex;
std::vector<Launch>& finished() {
  static std::vector<Launch> launches;
  return launches;
}

/// Each lookup walks all symbols of the program.
std::string name_of(const void* entry) {
  static std::mutex mutex;
  static std::map<const void*, std::string> names;
  const std::lock_guard lock(mutex);
  std::string& name = names[entry];
  if (name.empty()) name = cuda_sim::name_of_function(entry);
  return name;
}

struct Copy {
  uintptr_t shared;
  int group;
};

/// A call of fence_proxy_async: where in the order of its thread and block.
struct Fence {
  uint32_t step, epoch, warp_epoch, arrivals;
};
struct BulkWrite {
  uintptr_t global;
  size_t bytes;
  int group;
};

/// The phase of a named barrier that is incomplete: what those that have arrived did, and which warps wait to see it.
struct Phase {
  std::vector<uint32_t> known;  ///< as Party::known
  std::vector<Seen> waited;     ///< of other blocks, if a thread has waited for one
  std::vector<size_t> waiting;
};

/// The state of a thread of the block that runs.
struct Thread {
  uint32_t epoch = 0, warp_epoch = 0;
  uint32_t order = 0;  ///< meetings passed
  bool atomic = false;
  std::vector<Copy> copies;  ///< not waited for
  int groups = 0;
  uint32_t step = 0;  ///< see Party::step
  std::vector<Fence> fences;
  std::vector<BulkWrite> bulk;  ///< not waited for
  int bulk_groups = 0;
  std::vector<Seen> waited;  ///< of other blocks, if this thread has waited for one since its last barrier
};

class Recorder {
 public:
  Recorder(const cuda_sim::KernelCall& call, uint64_t of_generation) : generation_(of_generation) {
    launch_.kernel = name_of(call.entry);
    threads_per_block_ = size_t{call.block.x} * call.block.y * call.block.z;
    blocks_ = size_t{call.grid.x} * call.grid.y * call.grid.z;
  }
  uint64_t of_generation() const { return generation_; }

  void begin_thread() {
    if (begun_++ > 0) return;
    ++block_;
    seen_.assign(blocks_ + 1, {});
    waited_.assign(blocks_ + 1, {});
    reads_.clear();
    phases_.clear();
    arrivals_.assign((threads_per_block_ + 31) / 32, 0);
    known_.clear();
    seen_epoch_ = 0;
    threads_.assign(threads_per_block_, {});
    warps_.resize((threads_per_block_ + 31) / 32);
  }
  /// Returns true if this was the last thread of the launch.
  bool end_thread() {
    if (++ended_ < threads_per_block_) return false;
    begun_ = ended_ = 0;
    for (std::vector<Access>& accesses : warps_) {
      add_requests(accesses, launch_.places);
      accesses.clear();
    }
    return block_ == blocks_;
  }
  Launch take() {
    for (const auto& [place, traffic] : launch_.places) launch_.traffic[static_cast<size_t>(place.second)].add(traffic);
    launch_.bytes_read = global_.bytes_read();
    launch_.bytes_written = global_.bytes_written();
    return std::move(launch_);
  }

  Thread& thread(const Fiber& self) { return threads_[static_cast<size_t>(self.thread)]; }

  void access(const Fiber& self, const void* place, uintptr_t address, size_t bytes, bool is_write, bool pending = false) {
    const bool shared = self.runner->is_shared(reinterpret_cast<const void*>(address), bytes);
    if (!shared && cuda_sim::machine().memory.device_of(address) < 0) return;
    const Thread& own = thread(self);
    Party now = party(self, own, place);
    now.pending = pending;
    Shadow& shadow = shared ? shared_ : global_;
    const auto conflict = [&](const Party& earlier, bool wrote) { report(shared, earlier, wrote, now, is_write); };
    if (is_write) {
      shadow.write(address, bytes, now, conflict);
      if (shared) check_reads(address, bytes, now);
    } else {
      shadow.read(address, bytes, now, conflict);
    }
    const Kind kind = shared ? is_write ? Kind::kSharedStore : Kind::kSharedLoad : is_write ? Kind::kGlobalStore : Kind::kGlobalLoad;
    const auto thread = static_cast<size_t>(self.thread);
    for (size_t done = 0; done < bytes; done += 16)  // larger only where the compiler copies a struct
      warps_[thread / 32].push_back(
          {place, address + done, own.order, kind, static_cast<uint8_t>(thread % 32), static_cast<uint8_t>(std::min<size_t>(16, bytes - done))});
  }

  /// The thread has passed a barrier. The first thread that does so adds to what its block has seen: none runs before the barrier any more.
  void pass_barrier(Thread& own) {
    ++own.epoch;
    if (std::exchange(seen_epoch_, own.epoch) != own.epoch) raise(seen_, waited_);
    own.waited.clear();
  }
  /// A warp arrives at a named barrier, all of whose lanes have called. What it did and what it knows is ordered before what the warps that wait there do
  /// behind the phase, and orders nothing for others.
  void arrive(const Fiber& self, int id, bool waits, bool complete) {
    const auto warp = static_cast<size_t>(self.thread) / 32;
    Phase& phase = phases_[id];
    phase.known.resize(arrivals_.size());
    raise(phase.known, known_by(warp));
    phase.known[warp] = ++arrivals_[warp];
    for (size_t lane = 32 * warp; lane < 32 * (warp + 1); ++lane) raise_seen(phase.waited, threads_[lane].waited);
    if (waits) phase.waiting.push_back(warp);
    if (!complete) return;
    for (const size_t waiting : phase.waiting) {
      raise(known_by(waiting), phase.known);
      for (size_t lane = 32 * waiting; lane < 32 * (waiting + 1); ++lane) raise_seen(threads_[lane].waited, phase.waited);
    }
    phase = {};
  }

  /// What a block has seen and what it did before its last barrier, and what the releasing thread did or knows by named barriers, is ordered before what
  /// the waiting thread of another block does, and before what its block does behind the next barrier.
  void release(const Fiber& self, const void* place, const uint32_t* counter) {
    access_atomic(self, place, counter, true);
    Thread& own = thread(self);
    std::vector<Seen>& released = released_[counter];
    released = own.waited.empty() ? seen_ : own.waited;
    released[block_] = {own.epoch, ++own.step, static_cast<uint16_t>(self.thread), nullptr};
    if (!known_.empty()) released[block_].known = released_known_.emplace_back(known_by(static_cast<size_t>(self.thread) / 32)).data();
  }
  void wait_for_value(const Fiber& self, const void* place, const uint32_t* counter) {
    access_atomic(self, place, counter, false);
    const auto found = released_.find(counter);
    if (found == released_.end()) return;
    raise(waited_, found->second);
    raise_seen(thread(self).waited, found->second);
  }

  void copy(const Fiber& self, const void* place, void* to, const void* global, bool valid) {
    const auto shared = reinterpret_cast<uintptr_t>(to);
    if (valid) access(self, place, reinterpret_cast<uintptr_t>(global), 16, false);
    access(self, place, shared, 16, true, /*pending=*/true);
    thread(self).copies.push_back({shared, thread(self).groups});
  }
  void wait(const Fiber& self, int groups_left) {
    Thread& own = thread(self);
    std::erase_if(own.copies, [&](const Copy& copy) {
      if (copy.group >= own.groups - groups_left) return false;
      shared_.complete(copy.shared, 16, party(self, own, nullptr));
      return true;
    });
  }

  void fence_proxy(const Fiber& self) {
    Thread& own = thread(self);
    own.fences.push_back({own.step++, own.epoch, own.warp_epoch, arrivals_[static_cast<size_t>(self.thread) / 32]});
  }
  void product(const Fiber& self, const void* place, const cuda_sim::ProductPart& part) {
    const Reader reader = Reader::of_warpgroup(self.thread);
    const Party now = party(self, thread(self), place);
    reads_.begin(reader, now);
    const auto read = [&](const cuda_sim::SharedOperand& operand) {
      operand.each_chunk([&](uint32_t address) { read_late(reader, reinterpret_cast<uintptr_t>(self.runner->shared_at(address, 16)), 16, now); });
    };
    if (part.a == nullptr) read({part.a_descriptor, part.transposed_a, cuda_sim::kProductRows});
    read({part.b_descriptor, part.transposed_b, part.columns});
  }
  void commit_products(const Fiber& self) { reads_.commit(Reader::of_warpgroup(self.thread)); }
  void wait_for_products(const Fiber& self, int groups_left) {
    const Reader reader = Reader::of_warpgroup(self.thread);
    ArrivalsOfGroup arrivals;
    for (size_t warp = 0; warp < kWarpsOfGroup; ++warp) arrivals[warp] = arrivals_[static_cast<size_t>(reader.first_thread()) / 32 + warp];
    reads_.wait(reader, groups_left, party(self, thread(self), nullptr), arrivals);
  }

  /// An addition reads and writes global memory. It counts as one request for all of its bytes.
  void bulk(const Fiber& self, const void* place, float* to, const float* from, int count, bool add) {
    Thread& own = thread(self);
    const auto global = reinterpret_cast<uintptr_t>(to), shared = reinterpret_cast<uintptr_t>(from);
    const auto bytes = static_cast<size_t>(count);
    Party now = party(self, own, place);
    const Reader reader = Reader::of_thread(self.thread);
    reads_.begin(reader, now);
    read_late(reader, shared, bytes, now);
    if (cuda_sim::machine().memory.device_of(global) < 0) return;
    now.atomic = add;
    now.pending = now.bulk = true;
    global_.write(global, bytes, now, [&](const Party& earlier, bool wrote) { report(false, earlier, wrote, now, true); });
    const int64_t sectors = static_cast<int64_t>((global + bytes - 1) / 32 - global / 32) + 1;
    const Traffic request{1, count, sectors, (int64_t{count} + 31) / 32};
    launch_.places[{place, Kind::kGlobalStore}].add(request);
    if (add) {
      global_.count_read(global, bytes);
      launch_.places[{place, Kind::kGlobalLoad}].add(request);
    }
    own.bulk.push_back({global, bytes, own.bulk_groups});
  }
  void commit_bulk(const Fiber& self) {
    ++thread(self).bulk_groups;
    reads_.commit(Reader::of_thread(self.thread));
  }
  void wait_for_bulk(const Fiber& self, int groups_left) {
    Thread& own = thread(self);
    const Party now = party(self, own, nullptr);
    reads_.wait(Reader::of_thread(self.thread), groups_left, now);
    std::erase_if(own.bulk, [&](const BulkWrite& write) {
      if (write.group >= own.bulk_groups - groups_left) return false;
      global_.complete(write.global, write.bytes, now);
      return true;
    });
  }

 private:
  Party party(const Fiber& self, const Thread& own, const void* place) const {
    Party result;
    result.place = place;
    result.block = static_cast<uint32_t>(block_);
    result.epoch = own.epoch;
    result.warp_epoch = own.warp_epoch;
    result.arrivals = arrivals_[static_cast<size_t>(self.thread) / 32];
    result.step = own.step;
    result.thread = static_cast<uint16_t>(self.thread);
    result.atomic = own.atomic;
    result.seen = own.waited.empty() ? &seen_ : &own.waited;
    if (!known_.empty()) result.known = known_[static_cast<size_t>(self.thread) / 32].data();
    return result;
  }
  void access_atomic(const Fiber& self, const void* place, const uint32_t* counter, bool is_write) {
    thread(self).atomic = true;
    access(self, place, reinterpret_cast<uintptr_t>(counter), sizeof *counter, is_write);
    thread(self).atomic = false;
  }
  static void raise(std::vector<Seen>& most, const std::vector<Seen>& other) {
    for (size_t block = 0; block < most.size(); ++block) most[block].raise(other[block]);
  }
  static void raise(std::vector<uint32_t>& most, const std::vector<uint32_t>& other) {
    for (size_t warp = 0; warp < most.size(); ++warp) most[warp] = std::max(most[warp], other[warp]);
  }
  /// Either is empty while no thread has waited for another block.
  void raise_seen(std::vector<Seen>& waited, const std::vector<Seen>& other) {
    if (other.empty()) return;
    if (waited.empty()) waited = seen_;
    raise(waited, other);
  }
  /// Party::known of the warp.
  std::vector<uint32_t>& known_by(size_t warp) {
    if (known_.empty()) known_.assign(arrivals_.size(), std::vector<uint32_t>(arrivals_.size()));
    return known_[warp];
  }

  /// An asynchronous operation reads shared memory behind this call, by the asynchronous proxy. What threads have written must be behind a
  /// fence_proxy_async of the writer, and that behind a barrier, which a named one must be for each warp of a warpgroup. To a bulk operation the order of
  /// its thread and of its warp is enough.
  void read_late(Reader reader, uintptr_t address, size_t bytes, const Party& now) {
    shared_.each_write(address, bytes, [&](const Party& write) {
      if (write.block != now.block) return;
      const char* missing = nullptr;
      const std::vector<Fence>& fences = threads_[write.thread].fences;
      const auto fence = std::lower_bound(fences.begin(), fences.end(), write.step, [](const Fence& f, uint32_t step) { return f.step < step; });
      if (write.pending) {
        missing = "cp.async without a wait";
      } else if (fence == fences.end()) {
        missing = "write without fence_proxy_async";
      } else {
        Party fenced = write;
        fenced.epoch = fence->epoch;
        fenced.warp_epoch = fence->warp_epoch;
        fenced.arrivals = fence->arrivals;
        if (reader.is_warpgroup() ? !is_before_warpgroup(fenced, reader, now) : !shared_.ordered(fenced, now))
          missing = "write, fence_proxy_async without a barrier";
      }
      if (missing == nullptr || !is_first(write, now)) return;
      launch_.races.push_back({"shared memory, thread " + std::to_string(write.thread) + " and " + reader.name() + " of a block: " + missing +
                                   ", then " + reader.operation(),
                               write.place, now.place});
    });
    reads_.read(reader, address, bytes);
  }
  /// Whether a barrier orders the access before what all warps of the warpgroup do now.
  bool is_before_warpgroup(const Party& earlier, Reader reader, const Party& now) {
    if (earlier.epoch < now.epoch) return true;
    const auto first = static_cast<size_t>(reader.first_thread()) / 32;
    for (size_t warp = first; warp < first + kWarpsOfGroup; ++warp)
      if (known_.empty() || known_[warp][earlier.thread / 32] <= earlier.arrivals) return false;
    return true;
  }
  /// Whether a barrier orders the waits of all warps of the warpgroup before what this thread does now. None is needed within the warpgroup.
  static bool is_behind_warpgroup(const End& end, Reader reader, const Party& now) {
    if (end.epoch < now.epoch || reader == Reader::of_warpgroup(now.thread)) return true;
    for (size_t warp = 0; warp < kWarpsOfGroup; ++warp)
      if (!now.knows(static_cast<unsigned>(reader.first_thread()) + 32 * static_cast<unsigned>(warp), end.arrivals_of_warps[warp])) return false;
    return true;
  }
  /// A write must be behind the wait for each asynchronous operation that reads its bytes.
  void check_reads(uintptr_t address, size_t bytes, const Party& now) {
    reads_.write(address, bytes, [&](Reader reader, const End& read) {
      if (!read.pending && (reader.is_warpgroup() ? is_behind_warpgroup(read, reader, now) : shared_.ordered(read, now))) return;
      if (!is_first(read, now)) return;
      launch_.races.push_back({"shared memory, " + reader.name() + " and thread " + std::to_string(now.thread) + " of a block: " +
                                   reader.operation() + (read.pending ? " without a wait" : " and a wait without a barrier") + ", then write",
                               read.place, now.place});
    });
  }
  bool is_first(const Party& earlier, const Party& now) { return reported_.insert({earlier.place, now.place}).second; }

  void report(bool shared, const Party& earlier, bool wrote, const Party& now, bool writes) {
    if (!is_first(earlier, now)) return;
    std::string what = shared ? "shared memory, " : "global memory, ";
    if (earlier.block != now.block) {
      what += "two blocks";
    } else {
      what += "threads " + std::to_string(earlier.thread) + " and " + std::to_string(now.thread) + " of a block";
    }
    what += std::string(": ") +
            (earlier.pending ? earlier.bulk ? "bulk operation without a wait" : "cp.async without a wait"
             : wrote         ? "write"
                             : "read") +
            ", then " + (writes ? "write" : "read");
    launch_.races.push_back({what, earlier.place, now.place});
  }

  uint64_t generation_;
  Launch launch_;
  size_t threads_per_block_ = 0, blocks_ = 0;
  size_t block_ = 0, begun_ = 0, ended_ = 0;
  std::vector<Thread> threads_;
  std::vector<std::vector<Access>> warps_;
  // Happens-before between blocks, see Party::seen: of the block that runs, what its waits have added since its last barrier, and of each counter.
  std::vector<Seen> seen_, waited_;
  uint32_t seen_epoch_ = 0;  ///< barriers passed by any thread of the block that runs
  std::map<const uint32_t*, std::vector<Seen>> released_;
  // Happens-before by named barriers, of the block that runs: see Party. known_ is empty while no warp has arrived at any.
  std::map<int, Phase> phases_;
  std::vector<uint32_t> arrivals_;
  std::vector<std::vector<uint32_t>> known_;
  std::deque<std::vector<uint32_t>> released_known_;  ///< Seen::known, of all blocks
  AsyncReads reads_;                                  ///< of the block that runs
  Shadow shared_{true}, global_{false};
  std::set<std::pair<const void*, const void*>> reported_;
};

thread_local std::optional<Recorder> recorder;

Fiber* device_thread() { return static_cast<Fiber*>(cuda_sim::this_thread); }

/// The recorder of the launch, for the thread that runs; null in host code and in launches that are not recorded.
Recorder* recording() { return device_thread() != nullptr && recorder.has_value() ? &*recorder : nullptr; }

/// Runs a meeting of lanes on the machine and then after(thread): by then every lane has arrived, so what it did before is behind all of them.
template <class Meet, class After>
auto meet(Meet&& meet_lanes, After&& after) {
  struct Then {
    After& after;
    ~Then() {
      Recorder* const to = recording();
      if (to == nullptr) return;
      ++to->thread(*device_thread()).order;
      after(to->thread(*device_thread()));
    }
  };
  const Then then{after};
  return meet_lanes();
}
template <class Meet>
auto meet(Meet&& meet_lanes) {
  return meet(meet_lanes, [](Thread&) {});
}

void record_arrival(int id, bool waits, bool complete) {
  if (Recorder* const to = recording()) to->arrive(*device_thread(), id, waits, complete);
}

}  // namespace

void record(const void* place, const void* address, size_t bytes, bool is_write) {
  if (cuda_sim::this_thread == nullptr) return;
  if (Recorder* const to = recording()) to->access(*device_thread(), place, reinterpret_cast<uintptr_t>(address), bytes, is_write);
}

ThreadScope::ThreadScope(const cuda_sim::KernelCall& call) {
  const uint64_t now = generation;
  if (recorder.has_value() && recorder->of_generation() != now) recorder.reset();  // a launch that failed
  if (now % 2 == 0) return;
  if (!recorder.has_value()) recorder.emplace(call, now);
  recorder->begin_thread();
}
ThreadScope::~ThreadScope() {
  Recorder* const to = recording();
  if (to == nullptr || !to->end_thread()) return;
  const std::lock_guard lock(finished_mutex);
  finished().push_back(to->take());
  recorder.reset();
}

AtomicScope::AtomicScope() {
  if (Recorder* const to = recording()) to->thread(*device_thread()).atomic = true;
}
AtomicScope::~AtomicScope() {
  if (Recorder* const to = recording()) to->thread(*device_thread()).atomic = false;
}

void sync_block(Site site) {
  meet([&] { cuda_sim::sync_block(site); }, [](Thread& own) { recording()->pass_barrier(own); });
}
void sync_warp(unsigned mask, Site site) {
  meet([&] { cuda_sim::sync_warp(mask, site); }, [mask](Thread& own) { own.warp_epoch += mask == ~0u; });  // a part of a warp orders nothing here
}
uint64_t shuffle(unsigned mask, uint64_t value, int source, Site site) {
  return meet([&] { return cuda_sim::shuffle(mask, value, source, site); });
}
unsigned vote(unsigned mask, bool predicate, Site site) {
  return meet([&] { return cuda_sim::vote(mask, predicate, site); });
}
void mma(float* d, const uint32_t* a, const uint32_t* b, float (*widen)(uint16_t), Site site) {
  meet([&] { cuda_sim::mma(d, a, b, widen, site); });
}
void ldmatrix(uint32_t* r, const void* row, bool transposed, Site site) {
  record(__builtin_return_address(0), row, 16, false);
  meet([&] { cuda_sim::ldmatrix(r, row, transposed, site); });
}
void async_copy(void* shared, const void* global, bool valid, Site site) {
  if (Recorder* const to = recording()) to->copy(*device_thread(), __builtin_return_address(0), shared, global, valid);
  cuda_sim::async_copy(shared, global, valid, site);
}
void async_commit() {
  if (Recorder* const to = recording()) ++to->thread(*device_thread()).groups;
  cuda_sim::async_commit();
}
void async_wait(int groups_left) {
  cuda_sim::async_wait(groups_left);
  if (Recorder* const to = recording()) to->wait(*device_thread(), groups_left);
}
bool wgmma(const cuda_sim::ProductPart& part, Site site) {
  const bool last = meet([&] { return cuda_sim::wgmma(part, site); });
  if (Recorder* const to = recording(); to != nullptr && last) to->product(*device_thread(), __builtin_return_address(0), part);
  return last;
}
bool wgmma_fence(Site site) {
  return meet([&] { return cuda_sim::wgmma_fence(site); });
}
bool wgmma_commit(Site site) {
  const bool last = meet([&] { return cuda_sim::wgmma_commit(site); });
  if (Recorder* const to = recording(); to != nullptr && last) to->commit_products(*device_thread());
  return last;
}
bool wgmma_wait(int groups_left, Site site) {
  const bool last = meet([&] { return cuda_sim::wgmma_wait(groups_left, site); });
  if (Recorder* const to = recording(); to != nullptr && last) to->wait_for_products(*device_thread(), groups_left);
  return last;
}
void bulk_operation(float* global, const float* shared, int bytes, bool add, Site site) {
  cuda_sim::bulk_operation(global, shared, bytes, add, site);
  if (Recorder* const to = recording()) to->bulk(*device_thread(), __builtin_return_address(0), global, shared, bytes, add);
}
void bulk_commit() {
  cuda_sim::bulk_commit();
  if (Recorder* const to = recording()) to->commit_bulk(*device_thread());
}
void bulk_wait(int groups_left) {
  cuda_sim::bulk_wait(groups_left);
  if (Recorder* const to = recording()) to->wait_for_bulk(*device_thread(), groups_left);
}
void fence_proxy_async() {
  if (Recorder* const to = recording()) to->fence_proxy(*device_thread());
}

void barrier_sync(int id, int threads, Site site) {
  meet([&] { cuda_sim::barrier_sync(id, threads, site, record_arrival); });
}
void barrier_arrive(int id, int threads, Site site) {
  meet([&] { cuda_sim::barrier_arrive(id, threads, site, record_arrival); });
}
void raise_registers(int count, Site site) {
  meet([&] { cuda_sim::raise_registers(count, site); });
}
void lower_registers(int count, Site site) {
  meet([&] { cuda_sim::lower_registers(count, site); });
}

void wait_for_value(const uint32_t* counter, uint32_t value, Site site) {
  cuda_sim::wait_for_value(counter, value, site);
  if (Recorder* const to = recording()) to->wait_for_value(*device_thread(), __builtin_return_address(0), counter);
}
void release_value(uint32_t* counter, uint32_t value, Site site) {
  if (Recorder* const to = recording()) to->release(*device_thread(), __builtin_return_address(0), counter);
  cuda_sim::release_value(counter, value, site);
}

std::string text_of(const Race& race) {
  return race.what + "\n    earlier: " + cuda_sim::source_of(race.earlier) + "\n    later:   " + cuda_sim::source_of(race.later);
}

void start() {
  finished().clear();
  generation += 1 + generation % 2;  // odd, and not the one before
}
std::vector<Launch> stop() {
  const std::lock_guard lock(finished_mutex);
  generation += generation % 2;
  return std::exchange(finished(), {});
}

}  // namespace cuda_trace
