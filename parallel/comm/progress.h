#pragma once
// What a rank is doing, for whoever watches it: written by the rank's main thread, read at any time by another thread. A note costs 0.1 to 0.3 us.
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class Progress {
 public:
  /// A communicator of this rank. Its collective operations are numbered from 1, alike on all its ranks, because all of them call the same verbs in the
  /// same order; so are the messages from each rank to each other.
  struct Group {
    std::string name;
    std::vector<int> ranks;                ///< of the world
    uint64_t started = 0;                  ///< number of the last collective operation this rank has entered
    std::vector<uint64_t> sent, received;  ///< by place in `ranks`: number of the last message begun; empty before the first
  };
  struct Message {
    size_t peer = 0;  ///< place in Group::ranks
    bool send = false;
    uint64_t number = 0;
  };
  struct Wait {
    std::string what;               ///< "all_reduce", "exchange", "the device"
    std::optional<size_t> group;    ///< place in Snapshot::groups; none for what is no communication
    uint64_t number = 0;            ///< of a collective operation in that group
    std::vector<Message> messages;  ///< of an exchange
  };
  struct Snapshot {
    uint64_t count = 0;        ///< grows with every note of any kind: a rank whose count stands still does nothing
    int64_t step = 0;          ///< being done, from 1; 0 before the first
    std::string action;        ///< begun last: "forward of micro-batch 3, blocks.2", "loading step-00000100"
    double timeout = 0;        ///< seconds for which the count may stand still; 0: not to be judged by it
    std::optional<Wait> wait;  ///< what the main thread is blocked in
    std::vector<Group> groups;
  };

  /// Returns the place in Snapshot::groups.
  size_t add_group(std::string name, std::vector<int> ranks);
  /// A collective operation of a group begins; its number.
  uint64_t enter(size_t group);
  /// A message to or from the rank at place `peer` of a group begins.
  Message enter_message(size_t group, size_t peer, bool send);
  void begin_wait(Wait wait);
  void end_wait();
  void act(std::string action);
  void begin_step(int64_t step);
  void set_timeout(double seconds);

  Snapshot snapshot() const;

 private:
  mutable std::mutex mutex_;
  Snapshot now_;
};

/// Notes a wait for as long as it lives.
class NotedWait {
 public:
  NotedWait(Progress& progress, Progress::Wait wait) : progress_(progress) { progress_.begin_wait(std::move(wait)); }
  ~NotedWait() { progress_.end_wait(); }
  NotedWait(const NotedWait&) = delete;
  NotedWait& operator=(const NotedWait&) = delete;

 private:
  Progress& progress_;
};

}  // namespace trireme
