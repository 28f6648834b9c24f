#pragma once
// What a rank is doing, for a watchdog: written by the rank's main thread, read at any time by another thread. An update costs 0.1 to 0.3 us.
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct BlackBox;
class BlackBoxWriter;

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A communicator of this rank. Its collective operations are numbered from 1. The numbers agree on all its ranks, because all of them call the
  /// same verbs in the same order. Messages from one rank to another are numbered in the same way.
  struct Group {
    std::string name;
    std::vector<int> ranks;                ///< world ranks
    uint64_t started = 0;                  ///< number of the last collective operation this rank has entered
    std::vector<uint64_t> sent, received;  ///< by index in `ranks`: number of the last message begun; empty before the first
  };
  struct Message {
    size_t peer = 0;  ///< index in Group::ranks
    bool send = false;
    uint64_t number = 0;
  };
  struct Wait {
    std::string what;               ///< "all_reduce", "exchange", "the device"
    std::optional<size_t> group;    ///< index in Snapshot::groups; empty if the wait is not for communication
    uint64_t number = 0;            ///< of a collective operation in that group
    std::vector<Message> messages;  ///< of an exchange
  };
  struct Snapshot {
    uint64_t count = 0;                          ///< incremented by every update: a rank whose count does not change makes no progress
    int64_t step = 0;                            ///< current step, from 1; 0 before the first
    std::string action;                          ///< last action begun: "forward of micro-batch 3, blocks.2", "loading step-00000100"
    int64_t microbatch = -1;                     ///< of that action; -1: none
    int64_t memory_peak = 0, resident_peak = 0;  ///< bytes at the start of the step: of the arena, of the process
    double timeout = 0;                          ///< seconds for which the count may stay unchanged; 0: unlimited
    std::optional<Wait> wait;                    ///< what the main thread is blocked in
    std::vector<Group> groups;
  };

  /// Returns the index in Snapshot::groups.
  size_t add_group(std::string name, std::vector<int> ranks);
  /// Records that a collective operation of a group begins; returns its number. `bytes`: of the tensor.
  uint64_t enter(size_t group, const char* verb = "", int64_t bytes = 0);
  /// Records that a message to or from the rank at index `peer` of a group begins.
  Message enter_message(size_t group, size_t peer, bool send, int64_t bytes = 0);
  /// Records that an operation or the messages of an exchange are over.
  void finish(const Wait& operation);
  void begin_wait(Wait wait);
  void end_wait();
  void act(std::string action, int64_t microbatch = -1);
  /// `memory_peak`, `resident_peak`: as in Snapshot.
  void begin_step(int64_t step, int64_t memory_peak = 0, int64_t resident_peak = 0);
  void set_timeout(double seconds);

  /// Also writes everything into `box` from now on (null: no longer). Its header is complete, everything else is zero. `box` must outlive this object
  /// or the next call.
  void record(BlackBox* box);

  Snapshot snapshot() const;

  /// Seconds that the main thread has spent in waits for communication so far, by index in Snapshot::groups. For the main thread.
  const std::vector<double>& waited() const { return waited_; }

 private:
  mutable std::mutex mutex_;
  Snapshot now_;
  std::unique_ptr<BlackBoxWriter> box_;  ///< null: nothing is recorded
  std::vector<double> waited_;           ///< of the main thread, as wait_begin_ is
  std::chrono::steady_clock::time_point wait_begin_;
};

/// Records a wait for the lifetime of this object.
class ScopedWait {
 public:
  ScopedWait(Progress& progress, Progress::Wait wait) : progress_(progress) { progress_.begin_wait(std::move(wait)); }
  ~ScopedWait() { progress_.end_wait(); }
  ScopedWait(const ScopedWait&) = delete;
  ScopedWait& operator=(const ScopedWait&) = delete;

 private:
  Progress& progress_;
};

}  // namespace trireme
