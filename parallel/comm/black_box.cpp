#include "parallel/comm/black_box.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

namespace trireme {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void store(uint64_t& to, uint64_t value) { std::atomic_ref(to).store(value, std::memory_order_release); }

/// Copies `value`, with its check, over the words of an earlier value. A reader that meets it half-way finds a check that does not fit.
template <class T>
void publish(WordsOf<T>& to, const T& value) {
  auto words = std::bit_cast<WordsOf<T>>(value);
  words.back() = black_box_check(std::span(words).first(words.size() - 1));
  for (size_t i = 0; i < words.size(); ++i) std::atomic_ref(to[i]).store(words[i], kRelaxed);
}

template <size_t N>
void set_text(std::array<char, N>& to, std::string_view text) {
  std::memcpy(to.data(), text.data(), std::min(N - 1, text.size()));
}

int64_t clock_nanoseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// The distance between successive members; 0 if they differ in it.
int stride_of(const std::vector<int>& ranks) {
  if (ranks.size() < 2) return 1;
  const int stride = ranks[1] - ranks[0];
  for (size_t i = 2; i < ranks.size(); ++i)
    if (ranks[i] - ranks[i - 1] != stride) return 0;
  return stride > 0 ? stride : 0;
}

constexpr size_t kGroupsWord = offsetof(BlackBoxHeader, groups) / 8, kEndedWord = offsetof(BlackBoxHeader, ended) / 8,
                 kEndWord = offsetof(BlackBoxHeader, end) / 8;
constexpr size_t kMessagesWord = offsetof(BlackBoxGroup, messages) / 8, kStartedWord = offsetof(BlackBoxGroup, started) / 8;

}  // namespace

int64_t wall_nanoseconds() { return clock_nanoseconds(CLOCK_REALTIME); }

void write_end(BlackBox& box, std::string_view how) {
  // The first of several threads that end this process takes the time's place with a 1.
  uint64_t none = 0;
  if (!std::atomic_ref(box.header[kEndedWord]).compare_exchange_strong(none, 1)) return;
  std::array<char, sizeof(BlackBoxHeader::end)> text{};
  set_text(text, how);
  const auto words = std::bit_cast<std::array<uint64_t, sizeof(text) / 8>>(text);
  for (size_t i = 0; i < words.size(); ++i) store(box.header[kEndWord + i], words[i]);
  store(box.header[kEndedWord], static_cast<uint64_t>(wall_nanoseconds()));
}

/// Returns an index of `words` zeros in the heap, or kUnknown if there is no room.
uint64_t BlackBoxWriter::take_heap(size_t words) {
  if (words > BlackBox::kHeap - heap_) return BlackBox::kUnknown;
  heap_ += words;
  return heap_ - words;
}

void BlackBoxWriter::add_group(const Progress::Group& group) {
  if (groups_ == BlackBox::kGroups) return;
  BlackBoxGroup entry{};
  set_text(entry.name, group.name);
  entry.size = group.ranks.size();
  entry.stride = static_cast<uint64_t>(stride_of(group.ranks));
  entry.first = group.ranks.empty() ? 0 : static_cast<uint64_t>(group.ranks.front());
  entry.started = group.started;
  if (entry.stride == 0) {
    entry.first = take_heap(group.ranks.size());
    if (entry.first == BlackBox::kUnknown) entry.size = 0;
    for (size_t i = 0; i < entry.size; ++i) store(box_.heap[entry.first + i], static_cast<uint64_t>(group.ranks[i]));
  }
  box_.groups[groups_] = std::bit_cast<WordsOf<BlackBoxGroup>>(entry);
  const size_t index = groups_++;
  if (!group.sent.empty()) {
    for (size_t peer = 0; peer < group.ranks.size(); ++peer) {
      store_messages(index, group, peer, true);
      store_messages(index, group, peer, false);
    }
  }
  store(box_.header[kGroupsWord], groups_);
}

/// Writes the number of the last message between this rank and a peer.
void BlackBoxWriter::store_messages(size_t index, const Progress::Group& group, size_t peer, bool sent) {
  WordsOf<BlackBoxGroup>& entry = box_.groups[index];
  if (entry[kMessagesWord] == BlackBox::kNone) store(entry[kMessagesWord], take_heap(2 * group.ranks.size()));
  const uint64_t place = entry[kMessagesWord];
  if (place == BlackBox::kUnknown) return;
  store(box_.heap[place + (sent ? 0 : group.ranks.size()) + peer], (sent ? group.sent : group.received)[peer]);
}

void BlackBoxWriter::begin(size_t index, const Progress::Group& group, const char* verb, int64_t bytes) {
  if (index >= groups_) return;
  store(box_.groups[index][kStartedWord], group.started);
  add({.kind = BlackBoxRecord::kBegun,
       .group = index,
       .number = static_cast<int64_t>(group.started),
       .peer = -1,
       .payload = static_cast<uint64_t>(bytes)},
      verb);
}

void BlackBoxWriter::begin_message(size_t index, const Progress::Group& group, const Progress::Message& message, int64_t bytes) {
  if (index >= groups_) return;
  store_messages(index, group, message.peer, message.send);
  add_message(BlackBoxRecord::kBegun, index, group, message, bytes);
}

void BlackBoxWriter::add_message(BlackBoxRecord::Kind kind, size_t index, const Progress::Group& group, const Progress::Message& message,
                                 int64_t bytes) {
  add({.kind = kind,
       .group = index,
       .number = static_cast<int64_t>(message.number),
       .peer = group.ranks[message.peer],
       .payload = static_cast<uint64_t>(bytes)},
      message.send ? "send" : "receive");
}

void BlackBoxWriter::finish(const Progress::Wait& operation, const std::vector<Progress::Group>& groups) {
  if (!operation.group || *operation.group >= groups_) return;
  const size_t index = *operation.group;
  for (const Progress::Message& message : operation.messages) add_message(BlackBoxRecord::kFinished, index, groups[index], message, 0);
  if (operation.messages.empty())
    add({.kind = BlackBoxRecord::kFinished, .group = index, .number = static_cast<int64_t>(operation.number), .peer = -1}, operation.what);
}

/// Returns the time of the record.
int64_t BlackBoxWriter::add(BlackBoxRecord record, std::string_view text) {
  record.sequence = ++records_;
  record.time = wall_nanoseconds();
  set_text(record.text, text);
  publish(box_.records[(records_ - 1) % BlackBox::kRecords], record);
  return record.time;
}

void BlackBoxWriter::activity(const Progress::Snapshot& now, Change change) {
  if (change == Change::kStep) add({.kind = BlackBoxRecord::kStep, .group = BlackBox::kNoGroup, .number = now.step, .peer = -1}, "");
  if (change == Change::kAction)
    action_time_ = add({.kind = BlackBoxRecord::kAction, .group = BlackBox::kNoGroup, .number = now.microbatch, .peer = -1}, now.action);
  BlackBoxActivity activity{.sequence = ++activities_,
                            .count = now.count,
                            .time = action_time_,
                            .step = now.step,
                            .microbatch = now.microbatch,
                            .timeout = now.timeout,
                            .memory_peak = now.memory_peak,
                            .resident_peak = now.resident_peak};
  set_text(activity.action, now.action);
  publish(box_.activities[activities_ % 2], activity);
}

void BlackBoxWriter::wait(const Progress::Snapshot& now) {
  BlackBoxWait wait{.sequence = ++waits_, .count = now.count, .time = clock_nanoseconds(CLOCK_REALTIME_COARSE), .group = BlackBox::kNoGroup};
  if (now.wait) {
    wait.waits = 1;
    set_text(wait.what, now.wait->what);
    if (now.wait->group && *now.wait->group < groups_) wait.group = *now.wait->group;
    wait.number = now.wait->number;
    wait.messages = std::min(now.wait->messages.size(), wait.peer.size());
    for (size_t i = 0; i < wait.messages; ++i) {
      const Progress::Message& message = now.wait->messages[i];
      wait.peer[i] = message.peer | (message.send ? BlackBoxWait::kSend : 0);
      wait.message_number[i] = message.number;
    }
  }
  publish(box_.waits[waits_ % 2], wait);
}

}  // namespace trireme
