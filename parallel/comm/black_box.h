#pragma once
// The black box of a rank: what Progress notes, in a fixed layout for a file that is mapped into memory. The kernel keeps the written pages when the
// process is killed. docs/seeing.md shows what a user sees of it; a reader is in trainer/resilience/black_box_file.h.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/comm/progress.h"

namespace trireme {

// All parts consist of 64-bit little-endian words. Text is padded with NUL bytes and is cut where it does not fit. Times are nanoseconds since 1970.

/// Written once, before the file gets its name, except for `groups`, `ended` and `end`.
struct BlackBoxHeader {
  std::array<char, 8> magic{};         ///< "TRIRMBOX"
  uint64_t version = 0;                ///< kBlackBoxVersion
  uint64_t bytes = 0;                  ///< of the file
  uint64_t rank = 0, world = 0;        ///< world rank, number of ranks
  int64_t pid = 0;                     ///< process of the rank
  uint64_t process_start = 0;          ///< field 22 of /proc/PID/stat: tells it from a later process with the same number
  uint64_t pid_namespace = 0;          ///< in which `pid` is valid: inode of /proc/self/ns/pid
  int64_t begun = 0;                   ///< time at which the black box was created
  std::array<char, 40> boot{};         ///< /proc/sys/kernel/random/boot_id of the host
  std::array<char, 40> session{};      ///< equal on all ranks of a job, different in every job
  std::array<char, 256> host{};        ///< host name
  std::array<char, 128> device{};      ///< "cpu, 4 threads"
  std::array<char, 128> coordinate{};  ///< "pipeline 0, replicate 0, shard 1, tensor 0"
  uint64_t groups = 0;                 ///< number of complete entries of BlackBox::groups
  int64_t ended = 0;                   ///< time of `end`; 0: the rank has not said how it ends
  std::array<char, 512> end{};         ///< "done", "fatal signal 11 (Segmentation fault)": written before `ended`
};

// What the rank does now is in two parts, because the second one changes more often. Each has two slots, which are written in turn, so that one of
// them is complete whenever the process is killed.

struct BlackBoxActivity {
  uint64_t sequence = 0;  ///< number of this value, from 1; it is in slot sequence % 2
  uint64_t count = 0;     ///< Progress::Snapshot::count
  int64_t time = 0;       ///< at which `action` began
  int64_t step = 0, microbatch = 0;
  double timeout = 0;
  int64_t memory_peak = 0, resident_peak = 0;
  std::array<char, 128> action{};
  uint64_t check = 0;  ///< black_box_check() of the words before
};

struct BlackBoxWait {
  static constexpr uint64_t kSend = uint64_t{1} << 63;

  uint64_t sequence = 0;
  uint64_t count = 0;
  int64_t time = 0;    ///< of this value, to a few milliseconds
  uint64_t waits = 0;  ///< 1: the rank is blocked in the operation below
  std::array<char, 24> what{};
  uint64_t group = 0;  ///< index in BlackBox::groups; kNoGroup: not a communication
  uint64_t number = 0;
  uint64_t messages = 0;           ///< used entries of the two arrays
  std::array<uint64_t, 6> peer{};  ///< index in the group, plus kSend for a message to that rank
  std::array<uint64_t, 6> message_number{};
  uint64_t check = 0;
};

/// A communicator. Entries are only added; `started` and the counters of messages are the only words that change later.
struct BlackBoxGroup {
  std::array<char, 32> name{};
  uint64_t size = 0;
  uint64_t first = 0, stride = 0;  ///< the members are first, first + stride, ...; stride 0: they are `size` words of the heap, from index `first` on
  uint64_t messages = 0;  ///< index in the heap of `size` words sent and `size` words received; kNone: no message yet; kUnknown: no room for them
  uint64_t started = 0;
};

/// One of the last things that the rank did.
struct BlackBoxRecord {
  enum Kind : uint64_t {
    kStep = 1,      ///< a step begins: `number`
    kAction = 2,    ///< an action begins: `text`, `number` is the micro-batch or -1
    kBegun = 3,     ///< an operation begins: `text` is the verb, and group, number, peer, payload describe it
    kFinished = 4,  ///< the same operation is over; on a GPU, the compute stream has been made to wait for it
  };
  uint64_t sequence = 0;  ///< number of this record, from 1; it is at place (sequence - 1) % capacity
  int64_t time = 0;
  uint64_t kind = 0;
  uint64_t group = 0;
  int64_t number = 0;
  int64_t peer = 0;      ///< world rank of the other end of a message; -1: a collective operation
  uint64_t payload = 0;  ///< bytes of the tensor
  std::array<char, 64> text{};
  uint64_t check = 0;  ///< black_box_check() of the words before
};

template <class T>
using WordsOf = std::array<uint64_t, sizeof(T) / sizeof(uint64_t)>;

constexpr uint64_t kBlackBoxVersion = 1;
constexpr std::array<char, 8> kBlackBoxMagic{'T', 'R', 'I', 'R', 'M', 'B', 'O', 'X'};

/// The file. The parts are words, which are read and written one by one, because a reader may look at any time.
struct BlackBox {
  static constexpr uint64_t kNone = 0, kUnknown = ~uint64_t{0}, kNoGroup = ~uint64_t{0};
  static constexpr size_t kGroups = 64, kRecords = 256, kHeap = 4096;

  WordsOf<BlackBoxHeader> header;
  std::array<WordsOf<BlackBoxActivity>, 2> activities;
  std::array<WordsOf<BlackBoxWait>, 2> waits;
  std::array<WordsOf<BlackBoxGroup>, kGroups> groups;
  std::array<WordsOf<BlackBoxRecord>, kRecords> records;
  std::array<uint64_t, kHeap> heap;  ///< index 0 is not used
};
static_assert(std::endian::native == std::endian::little && sizeof(BlackBox) == 72104, "the format of version 1");

/// Detects a record that is only partly written: the sum of words[i] * (2 i + 1) * 0x9E3779B97F4A7C15, plus 1, modulo 2^64. One changed word always
/// changes it, because the factors are odd; a record of zeros is not valid.
constexpr uint64_t black_box_check(std::span<const uint64_t> words) {
  uint64_t sum = 1;
  for (size_t i = 0; i < words.size(); ++i) sum += words[i] * ((2 * i + 1) * 0x9E3779B97F4A7C15);
  return sum;
}

/// Writes how the rank ends. Safe in a signal handler. Only the first call for a box has an effect.
void write_end(BlackBox& box, std::string_view how);

/// Nanoseconds since 1970.
int64_t wall_nanoseconds();

/// Writes what a Progress notes, on its main thread: there is one writer, without locks, and it never waits for a reader.
class BlackBoxWriter {
 public:
  /// `box` must outlive it; its header is complete and everything else is zero.
  explicit BlackBoxWriter(BlackBox& box) : box_(box) {}

  void add_group(const Progress::Group& group);
  /// The group has entered its collective operation `group.started`.
  void begin(size_t index, const Progress::Group& group, const char* verb, int64_t bytes);
  void begin_message(size_t index, const Progress::Group& group, const Progress::Message& message, int64_t bytes);
  void finish(const Progress::Wait& operation, const std::vector<Progress::Group>& groups);
  /// The members of `now` that belong to BlackBoxActivity have changed, because a step or an action has begun or for another reason.
  enum class Change : uint8_t { kStep, kAction, kOther };
  void activity(const Progress::Snapshot& now, Change change);
  /// The rank begins or ends a wait.
  void wait(const Progress::Snapshot& now);

 private:
  uint64_t take_heap(size_t words);
  void store_messages(size_t index, const Progress::Group& group, size_t peer, bool sent);
  void add_message(BlackBoxRecord::Kind kind, size_t index, const Progress::Group& group, const Progress::Message& message, int64_t bytes);
  int64_t add(BlackBoxRecord record, std::string_view text);

  BlackBox& box_;
  uint64_t activities_ = 0, waits_ = 0, records_ = 0;
  size_t groups_ = 0, heap_ = 1;
  int64_t action_time_ = 0;
};

}  // namespace trireme
