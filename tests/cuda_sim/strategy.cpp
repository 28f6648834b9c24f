// Selection of the next operation among the ready ones, with a strategy that changes at random.
#include <algorithm>

#include "tests/cuda_sim/state.h"

namespace cuda_sim {
namespace {

/// True while arrive() or ready() runs on this thread: fail() must not acquire the lock again.
thread_local bool in_callback = false;
struct CallbackScope {
  CallbackScope() { in_callback = true; }
  ~CallbackScope() { in_callback = false; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
};

}  // namespace

bool is_in_callback() { return in_callback; }

/// A record that the head still waits for; null if none. Drops those that are done behind it, so that none is looked at again: the end of a graph waits
/// for hundreds.
Record* Machine::pending_wait(Stream& stream) {
  Queued& head = stream.queue.front();
  std::vector<RecordPtr>& waits = head.waits;
  for (; !waits.empty() && waits.back()->done; waits.pop_back()) head.ready_time = std::max(head.ready_time, waits.back()->own_time);
  return waits.empty() ? nullptr : waits.back().get();
}

bool Machine::head_is_ready(Stream& stream) {
  if (stream.running || stream.queue.empty()) return false;
  Queued& head = stream.queue.front();
  if (pending_wait(stream) != nullptr) return false;
  if (head.operation == nullptr || devices[static_cast<size_t>(stream.device)].error != cudaSuccess) return true;
  if (!head.arrived) {
    head.arrived = true;
    for (int i = 0; i < static_cast<int>(devices.size()); ++i)
      if (i == stream.device || head.operation->all_devices()) memory.open(i);
    const FaultScope scope(head.operation.get());
    const CallbackScope inside;
    head.operation->arrive();
  }
  const CallbackScope inside;
  return head.operation->ready();
}

void Machine::collect_ready(std::vector<Stream*>& ready) {
  std::erase_if(candidates_, [](Stream* stream) {
    Record* const wait = pending_wait(*stream);
    if (wait != nullptr) wait->blocked.push_back(stream);
    return wait != nullptr;
  });
  for (Stream* stream : candidates_)
    if (head_is_ready(*stream)) ready.push_back(stream);
}

/// Collects the ready operations that the target depends on, through streams and events.
void Machine::collect_needed(const RecordPtr& target, std::set<const Stream*>& seen, std::vector<Stream*>& ready) {
  const auto stream = target->stream.lock();
  if (target->done || stream == nullptr || stream->queue.empty() || !seen.insert(stream.get()).second) return;
  if (head_is_ready(*stream)) ready.push_back(stream.get());
  for (const RecordPtr& wait : stream->queue.front().waits) collect_needed(wait, seen, ready);
}

/// Selects the stream whose head runs next; null if none can run now. `others` is the number of further streams that could run concurrently.
Stream* Machine::pick(const RecordPtr& target, size_t* others) {
  *others = 0;
  if (alone_) return nullptr;
  if (random.below(64) == 0) {
    strategy_ = static_cast<Strategy>(random.below(6));
    favourite_ = 0;
  }
  std::vector<Stream*> ready;
  if (strategy_ == Strategy::kNeeded && target != nullptr) {
    std::set<const Stream*> seen;
    collect_needed(target, seen, ready);
  }
  if (ready.empty()) collect_ready(ready);
  std::erase_if(ready, [&](const Stream* stream) {
    const Operation* operation = stream->queue.front().operation.get();
    if (operation == nullptr) return false;
    if (operation->all_devices()) return running_ > 0;
    return devices[static_cast<size_t>(stream->device)].busy;
  });
  if (ready.empty()) return nullptr;
  *others = ready.size() - 1;
  auto by_id = [](const Stream* a, const Stream* b) { return a->id < b->id; };
  auto favourite = std::find_if(ready.begin(), ready.end(), [&](const Stream* stream) { return stream->id == favourite_; });
  switch (strategy_) {
    case Strategy::kNewest: return *std::max_element(ready.begin(), ready.end(), by_id);
    case Strategy::kOldest: return *std::min_element(ready.begin(), ready.end(), by_id);
    case Strategy::kStarve:
      if (favourite_ == 0) favourite_ = active_[random.below(active_.size())]->id;
      if (favourite != ready.end() && ready.size() > 1) ready.erase(favourite);
      break;
    case Strategy::kOneStream:
      if (favourite != ready.end()) return *favourite;
      break;
    default: break;
  }
  Stream* const chosen = ready[random.below(ready.size())];
  if (strategy_ == Strategy::kOneStream) favourite_ = chosen->id;
  return chosen;
}

}  // namespace cuda_sim
