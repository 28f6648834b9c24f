#pragma once
// The machine: devices, streams, events, and the scheduler that runs queued operations. Everything here is guarded by `mutex`.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>

#include "tests/cuda_sim/cuda_sim.h"
#include "tests/cuda_sim/machine.h"
#include "tests/cuda_sim/memory.h"
#include "tests/cuda_sim/random.h"

namespace cuda_sim {

using Lock = std::unique_lock<std::mutex>;
using Clock = std::chrono::steady_clock;
struct Stream;

/// Completion of a queued operation, and thus of a recorded event.
struct Record {
  bool done = false;
  Clock::time_point time{};
  double own_time = 0;           // seconds, see Options::operation_seconds
  std::weak_ptr<Stream> stream;  // the stream it is queued on
  std::vector<Stream*> blocked;  // streams whose head waits for it
};
using RecordPtr = std::shared_ptr<Record>;

struct Queued {
  std::unique_ptr<Operation> operation;  // null: only the waits and the record
  std::vector<RecordPtr> waits;
  RecordPtr end;
  bool arrived = false;
  double ready_time = 0;  // own_time of the last wait that is done
};

/// A node of a captured graph. Graph::nodes is a topological order.
struct Node {
  std::unique_ptr<Operation> operation;
  std::vector<size_t> after;
  int device = 0;
};
struct Graph {
  std::vector<Node> nodes;
};
struct Capture {
  Graph graph;
  Stream* origin = nullptr;
  std::thread::id thread;
  cudaStreamCaptureMode mode{};
  std::vector<std::shared_ptr<Stream>> streams;
  bool broken = false;
};

struct Stream : std::enable_shared_from_this<Stream> {
  uint64_t id = 0;
  int device = 0;
  bool ordered_by_default_stream = false;
  bool running = false;
  std::string label;
  std::deque<Queued> queue;
  RecordPtr last;       // record of the operation queued last
  double own_time = 0;  // of the operation finished last
  std::shared_ptr<Capture> capture;
  std::vector<size_t> frontier;  // nodes that the next captured node depends on
};

struct Event {
  int device = 0;
  bool timing = true;
  RecordPtr record;  // null: never recorded
  std::weak_ptr<Capture> capture;
  std::vector<size_t> frontier;
};

struct Device {
  cudaError_t error = cudaSuccess;  // sticky
  bool busy = false;
  std::shared_ptr<Stream> default_stream;
};

enum class Strategy : uint8_t { kAny, kNeeded, kStarve, kNewest, kOldest, kOneStream };

class Machine {
 public:
  Machine();
  std::mutex mutex;
  Options options;
  Memory memory;
  std::vector<Device> devices;
  std::unordered_map<uintptr_t, std::shared_ptr<Stream>> streams;
  std::unordered_map<uintptr_t, std::shared_ptr<Event>> events;
  std::unordered_map<uintptr_t, std::shared_ptr<Graph>> graphs;
  std::unordered_map<uintptr_t, std::shared_ptr<Graph>> executables;
  std::map<std::pair<int, const void*>, size_t> dynamic_shared;  // limits of kernels that opted in to more, by device
  std::map<const void*, size_t> launched_shared;                 // the largest dynamic shared memory of each kernel's launches
  std::vector<std::string> messages;
  std::map<const void*, int64_t> launches;  // of each kernel since the options were set
  Statistics statistics;
  Random random;
  int64_t mallocs = 0;

  void reset(uint64_t seed, const Options& wanted);
  void set_options(const Options& wanted);
  void seed(uint64_t value);
  uintptr_t new_handle() { return handles_ += 64; }
  std::shared_ptr<Stream> make_stream(int device, bool ordered_by_default_stream);
  std::shared_ptr<Stream> find_stream(cudaStream_t handle);  ///< null: no such stream

  /// Queues at the end of the stream. Returns the record of the operation's completion.
  RecordPtr push(Stream& stream, std::unique_ptr<Operation> operation, std::vector<RecordPtr> waits = {});
  /// Runs operations of any device until the record is done. Returns cudaErrorLaunchTimeout if the machine is stuck.
  cudaError_t wait(Lock& lock, const RecordPtr& target);
  /// Runs a few ready operations or none: used by calls that only query.
  void poll(Lock& lock);
  /// Called after something was queued; runs operations at random.
  void maybe_run(Lock& lock);
  void fail(int device, cudaError_t error, const std::string& what);
  void changed_outside() { ++outside_; }

 private:
  struct Waiter {
    RecordPtr target;
    std::condition_variable wakes;
    bool idle = false;
  };
  bool head_is_ready(Stream& stream);
  void collect_ready(std::vector<Stream*>& ready);
  static Record* pending_wait(Stream& stream);
  void collect_needed(const RecordPtr& target, std::set<const Stream*>& seen, std::vector<Stream*>& ready);
  Stream* pick(const RecordPtr& target, size_t* others);
  void run(Lock& lock, Stream& stream);
  void finish(Stream& stream);
  void wake_one_idle();
  void report_stuck(const Stream* stream);
  void close_memory();
  void note_no_progress();

  uintptr_t handles_ = 0x51000000;
  uint64_t streams_made_ = 0;
  std::vector<std::shared_ptr<Stream>> active_;  // streams with queued operations
  std::vector<Stream*> candidates_;  // those that no Record::blocked lists: a graph launch queues hundreds of streams, of which few can run
  std::vector<Waiter*> waiters_;
  int running_ = 0;
  bool alone_ = false;  // an operation on all devices is running
  int64_t queued_ = 0;
  uint64_t progress_ = 0, poll_progress_ = 0;
  Clock::time_point poll_since_ = Clock::now();
  std::atomic<uint64_t> outside_ = 0;
  Strategy strategy_ = Strategy::kAny;
  uint64_t favourite_ = 0;  // a stream's id, for strategies that single one out
  double eagerness_ = 0;
};

Machine& machine();
bool is_in_callback();  ///< this thread holds the lock, in arrive() or ready()

/// Name of the function at an address, for reports of a stuck machine and of faults.
std::string name_of_function(const void* entry);
/// "file:line" of the code before this address, by addr2line; its offset in the program without that tool.
std::string source_of(const void* code);

/// While it exists, memory faults on this thread are attributed to `operation`.
class FaultScope {
 public:
  explicit FaultScope(const Operation* operation);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

 private:
  const Operation* before_;
};
/// Memory faults of kernels become errors of their device; those of host code are explained before the process terminates.
void install_fault_handler();

}  // namespace cuda_sim
