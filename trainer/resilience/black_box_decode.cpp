// The reader of black boxes, which trusts nothing in them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/resilience/black_box_file.h"

namespace trireme {
namespace {

constexpr uint64_t kLargestWorld = 1 << 17;  // bounds what a malformed file makes a reader allocate

template <size_t N>
std::string text_of(const std::array<char, N>& text) {
  return {text.data(), static_cast<size_t>(std::find(text.begin(), text.end(), '\0') - text.begin())};
}

[[noreturn]] void refuse(const std::string& where, const std::string& why) { throw DataError(where + ": " + why); }

/// A value that must be in [0, most].
uint64_t bounded(uint64_t value, uint64_t most, const std::string& where, const char* what) {
  if (value > most) refuse(where, concat("damaged black box: ", what, " is ", value, "; at most ", most));
  return value;
}

bool is_whole(std::span<const uint64_t> words) { return words.back() == black_box_check(words.first(words.size() - 1)); }

Progress::Group decode_group(const BlackBoxGroup& entry, const BlackBox& box, int world, const std::string& where) {
  Progress::Group group{text_of(entry.name), {}, entry.started, {}, {}};
  const auto most = static_cast<uint64_t>(world);
  bounded(entry.size, most, where, "the size of a group");
  if (entry.stride == 0 && entry.size > 0)
    bounded(entry.first, BlackBox::kHeap - std::min<uint64_t>(entry.size, BlackBox::kHeap), where, "a place of the heap");
  if (entry.stride == 0) bounded(entry.size, BlackBox::kHeap, where, "the size of a listed group");
  if (entry.stride != 0 && entry.size > 0) {
    bounded(entry.first, most - 1, where, "a rank");
    bounded(entry.stride, most, where, "the stride of a group");
  }
  for (uint64_t i = 0; i < entry.size; ++i) {
    const uint64_t rank = entry.stride == 0 ? box.heap[entry.first + i] : entry.first + i * entry.stride;
    group.ranks.push_back(static_cast<int>(bounded(rank, most - 1, where, "a rank")));
  }
  if (entry.messages == BlackBox::kNone) return group;
  group.sent.resize(entry.size);
  group.received.resize(entry.size);
  if (entry.messages == BlackBox::kUnknown) {  // no rank is accused of a message that is not known
    std::fill(group.sent.begin(), group.sent.end(), std::numeric_limits<uint64_t>::max());
    group.received = group.sent;
    return group;
  }
  if (2 * entry.size > BlackBox::kHeap || entry.messages > BlackBox::kHeap - 2 * entry.size)
    refuse(where, "damaged black box: counters of messages outside of the file");
  for (uint64_t i = 0; i < entry.size; ++i) {
    group.sent[i] = box.heap[entry.messages + i];
    group.received[i] = box.heap[entry.messages + entry.size + i];
  }
  return group;
}

/// The newer of two slots that is whole. Errors: DataError if neither is.
template <class T>
T newest_of(const std::array<WordsOf<T>, 2>& slots, const std::string& where, const char* what) {
  std::optional<T> newest;
  for (const auto& words : slots) {
    const auto value = std::bit_cast<T>(words);
    if (is_whole(words) && (!newest || value.sequence > newest->sequence)) newest = value;
  }
  if (!newest) refuse(where, concat("damaged black box: no whole record of ", what));
  return *newest;
}

void decode_wait(const BlackBoxWait& value, Progress::Snapshot& last, const std::string& where) {
  if (value.waits == 0) return;
  Progress::Wait& wait = last.wait.emplace(Progress::Wait{});
  wait.what = text_of(value.what);
  wait.number = value.number;
  // A group beyond the table: the entry was being added, or there was no room.
  if (value.group < last.groups.size()) wait.group = value.group;
  bounded(value.messages, value.peer.size(), where, "the number of messages");
  for (size_t i = 0; i < value.messages && wait.group; ++i) {
    const uint64_t peer = value.peer[i] & ~BlackBoxWait::kSend;
    if (peer >= last.groups[*wait.group].ranks.size()) refuse(where, "damaged black box: a message with a rank outside of its group");
    wait.messages.push_back({peer, peer != value.peer[i], value.message_number[i]});
  }
}

/// The header of a black box of `bytes` bytes. Errors: DataError if it is not one that this program can read.
BlackBoxHeader read_header(const BlackBox& box, size_t bytes, const std::string& where) {
  const auto header = std::bit_cast<BlackBoxHeader>(box.header);
  if (header.magic != kBlackBoxMagic) refuse(where, "not a black box");
  if (header.version == __builtin_bswap64(kBlackBoxVersion)) refuse(where, "a black box in the byte order of another kind of machine");
  if (header.version != kBlackBoxVersion)
    refuse(where, concat("a black box of version ", header.version, "; this program reads version ", kBlackBoxVersion));
  if (header.bytes != sizeof(BlackBox) || bytes != sizeof(BlackBox))
    refuse(where, concat("damaged black box: ", bytes, " bytes; allowed ", sizeof(BlackBox)));
  if (header.world == 0) refuse(where, "damaged black box: a world of 0 ranks");
  bounded(header.world, kLargestWorld, where, "the number of ranks");
  bounded(header.rank, header.world - 1, where, "the rank");
  return header;
}

}  // namespace

BlackBoxContents decode_black_box(std::string_view bytes, const std::string& where) {
  if (bytes.size() < sizeof(BlackBoxHeader)) refuse(where, concat("not a black box: ", bytes.size(), " bytes"));
  // The words are copied, as the bytes need not be aligned.
  const auto box = std::make_unique<BlackBox>();
  std::memcpy(box.get(), bytes.data(), std::min(bytes.size(), sizeof(BlackBox)));
  const BlackBoxHeader header = read_header(*box, bytes.size(), where);

  BlackBoxContents contents;
  const int world = static_cast<int>(header.world);
  contents.owner = {static_cast<int>(header.rank), world, text_of(header.session), text_of(header.device), text_of(header.coordinate)};
  contents.pid = header.pid;
  contents.process_start = header.process_start;
  contents.pid_namespace = header.pid_namespace;
  contents.boot = text_of(header.boot);
  contents.host = text_of(header.host);
  contents.begun = contents.moved = header.begun;
  if (header.ended > 1) {  // 1: its text was being written
    contents.ended = header.ended;
    contents.end = text_of(header.end);
  }

  const uint64_t groups = bounded(header.groups, BlackBox::kGroups, where, "the number of groups");
  for (uint64_t g = 0; g < groups; ++g)
    contents.last.groups.push_back(decode_group(std::bit_cast<BlackBoxGroup>(box->groups[g]), *box, world, where));
  for (size_t place = 0; place < BlackBox::kRecords; ++place) {
    if (!is_whole(box->records[place])) continue;
    BlackBoxContents::Record record{std::bit_cast<BlackBoxRecord>(box->records[place]), {}};
    if ((record.sequence - 1) % BlackBox::kRecords != place) continue;
    record.words = text_of(record.text);
    contents.moved = std::max(contents.moved, record.time);
    contents.records.push_back(std::move(record));
  }
  std::ranges::sort(contents.records, {}, &BlackBoxContents::Record::sequence);
  // What is left of a longer past, behind a record that is being written.
  if (!contents.records.empty()) {
    const uint64_t newest = contents.records.back().sequence;
    std::erase_if(contents.records, [&](const auto& record) { return newest - record.sequence >= BlackBox::kRecords; });
  }

  const auto activity = newest_of<BlackBoxActivity>(box->activities, where, "its activity");
  const auto wait = newest_of<BlackBoxWait>(box->waits, where, "its waits");
  Progress::Snapshot& last = contents.last;
  last.count = std::max(activity.count, wait.count);
  last.step = activity.step;
  last.microbatch = activity.microbatch;
  last.action = text_of(activity.action);
  last.timeout = activity.timeout;
  last.memory_peak = activity.memory_peak;
  last.resident_peak = activity.resident_peak;
  contents.action_began = activity.time;
  contents.moved = std::max({contents.moved, activity.time, wait.time});
  decode_wait(wait, last, where);
  return contents;
}

}  // namespace trireme
