#include <algorithm>
#include <cstdio>
#include <thread>

#include "tests/cuda_sim/device_thread.h"
#include "tests/cuda_sim/state.h"

namespace cuda_sim {
namespace {

int drivers_at_most() {
  static const int limit = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  return limit;
}

}  // namespace

Machine& machine() {
  static auto* const instance = new Machine;  // never destroyed: threads may outlive main
  return *instance;
}

Machine::Machine() {
  install_fault_handler();
  reset(0, {});
}

void Machine::seed(uint64_t value) {
  random = Random(value * 0x2545F4914F6CDD1Du + 1);
  constexpr double kEagerness[] = {0, 0.05, 0.3, 1};
  eagerness_ = kEagerness[random.below(4)];
  strategy_ = static_cast<Strategy>(random.below(6));
}

void Machine::set_options(const Options& wanted) {
  options = wanted;
  hardware_rounding = wanted.hardware_rounding;
  launches.clear();
}

void Machine::reset(uint64_t new_seed, const Options& wanted) {
  set_options(wanted);
  streams.clear();
  active_.clear();
  candidates_.clear();
  events.clear();
  graphs.clear();
  executables.clear();
  dynamic_shared.clear();
  launched_shared.clear();
  messages.clear();
  statistics = {};
  queued_ = 0;
  mallocs = 0;
  if (const std::string damage = memory.reset(wanted.devices); !damage.empty()) messages.push_back(damage);
  devices.assign(static_cast<size_t>(wanted.devices), {});
  for (int i = 0; i < wanted.devices; ++i) {
    devices[static_cast<size_t>(i)].default_stream = make_stream(i, false);
    devices[static_cast<size_t>(i)].default_stream->label = "default stream of device " + std::to_string(i);
  }
  seed(new_seed);
}

std::shared_ptr<Stream> Machine::make_stream(int device, bool ordered_by_default_stream) {
  auto stream = std::make_shared<Stream>();
  stream->id = ++streams_made_;
  stream->device = device;
  stream->ordered_by_default_stream = ordered_by_default_stream;
  stream->label = "stream " + std::to_string(stream->id) + " of device " + std::to_string(device);
  return stream;
}

RecordPtr Machine::push(Stream& stream, std::unique_ptr<Operation> operation, std::vector<RecordPtr> waits) {
  double ready_time = 0;
  for (const RecordPtr& wait : waits)
    if (wait != nullptr && wait->done) ready_time = std::max(ready_time, wait->own_time);
  std::erase_if(waits, [](const RecordPtr& record) { return record == nullptr || record->done; });
  auto record = std::make_shared<Record>();
  if (stream.queue.empty()) {
    active_.push_back(stream.shared_from_this());
    candidates_.push_back(&stream);
  }
  record->stream = stream.weak_from_this();
  stream.queue.push_back({std::move(operation), std::move(waits), record, false, ready_time});
  stream.last = record;
  ++progress_;
  statistics.largest_queue = std::max(statistics.largest_queue, ++queued_);
  if (running_ < drivers_at_most()) wake_one_idle();
  return record;
}

void Machine::run(Lock& lock, Stream& stream) {
  const auto keep = stream.shared_from_this();
  Operation* const operation = stream.queue.front().operation.get();
  Device& device = devices[static_cast<size_t>(stream.device)];
  if (operation != nullptr && device.error == cudaSuccess) {
    const bool all = operation->all_devices();
    stream.running = true;
    device.busy = true;
    alone_ = all;
    ++running_;
    ++statistics.operations;
    for (int i = 0; i < static_cast<int>(devices.size()); ++i)
      if (all || i == stream.device) memory.open(i);
    lock.unlock();
    {
      const FaultScope scope(operation);
      operation->run();
    }
    lock.lock();
    stream.running = false;
    device.busy = false;
    alone_ = false;
    --running_;
  }
  finish(stream);
}

void Machine::finish(Stream& stream) {
  Queued head = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (stream.queue.empty()) {
    std::erase_if(active_, [&](const auto& other) { return other.get() == &stream; });
    std::erase(candidates_, &stream);
  }
  head.end->done = true;
  candidates_.insert(candidates_.end(), head.end->blocked.begin(), head.end->blocked.end());
  head.end->blocked.clear();
  head.end->time = Clock::now();
  stream.own_time = std::max(stream.own_time, head.ready_time);
  if (head.operation != nullptr) stream.own_time += head.operation->own_seconds().value_or(options.operation_seconds);
  head.end->own_time = stream.own_time;
  --queued_;
  ++progress_;
  for (Waiter* waiter : waiters_)
    if (waiter->target->done) waiter->wakes.notify_one();
}

void Machine::wake_one_idle() {
  for (Waiter* waiter : waiters_) {
    if (!waiter->idle) continue;
    waiter->idle = false;
    waiter->wakes.notify_one();
    return;
  }
}

cudaError_t Machine::wait(Lock& lock, const RecordPtr& target) {
  if (target != nullptr && !target->done) ++statistics.waits;
  if (target == nullptr) return cudaSuccess;
  Waiter self{target, {}, false};
  waiters_.push_back(&self);
  uint64_t seen = progress_ + outside_;
  auto since = Clock::now();
  cudaError_t result = cudaSuccess;
  while (!target->done) {
    size_t others = 0;
    Stream* const stream = running_ < drivers_at_most() ? pick(target, &others) : nullptr;
    if (stream != nullptr) {
      if (others > 0 && running_ + 1 < drivers_at_most()) wake_one_idle();
      run(lock, *stream);
      continue;
    }
    if (running_ == 0) close_memory();
    self.idle = true;
    const auto timeout = std::chrono::duration<double>(std::min(0.02, options.stuck_seconds / 4));
    self.wakes.wait_for(lock, timeout, [&] { return target->done || !self.idle; });
    self.idle = false;
    if (progress_ + outside_ != seen || running_ > 0) {
      seen = progress_ + outside_;
      since = Clock::now();
    } else if (Clock::now() - since > std::chrono::duration<double>(options.stuck_seconds)) {
      report_stuck(target->stream.lock().get());
      result = cudaErrorLaunchTimeout;
      break;
    }
  }
  std::erase(waiters_, &self);
  wake_one_idle();  // another waiting thread must run the operations
  close_memory();
  return result;
}

void Machine::close_memory() {
  if (running_ == 0) memory.close_all();
}

void Machine::poll(Lock& lock) {
  for (size_t left = random.below(4); left > 0; --left) {
    size_t others = 0;
    Stream* const stream = running_ < drivers_at_most() ? pick(nullptr, &others) : nullptr;
    if (stream == nullptr) {
      note_no_progress();
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
      break;
    }
    run(lock, *stream);
  }
  close_memory();
}

/// Detects a stuck machine while threads only poll: they would poll forever.
void Machine::note_no_progress() {
  if (progress_ + outside_ != poll_progress_ || running_ > 0 || active_.empty()) {
    poll_progress_ = progress_ + outside_;
    poll_since_ = Clock::now();
  } else if (Clock::now() - poll_since_ > std::chrono::duration<double>(options.stuck_seconds)) {
    report_stuck(nullptr);
    poll_since_ = Clock::now();
  }
}

void Machine::maybe_run(Lock& lock) {
  if (eagerness_ == 0 || !random.chance(eagerness_)) return;
  size_t others = 0;
  for (size_t left = eagerness_ == 1 ? 1000 : 1 + random.below(3); left > 0; --left) {
    Stream* const stream = running_ < drivers_at_most() ? pick(nullptr, &others) : nullptr;
    if (stream == nullptr) break;
    run(lock, *stream);
  }
  close_memory();
}

void Machine::fail(int device, cudaError_t error, const std::string& what) {
  messages.push_back(what);
  std::fprintf(stderr, "cuda_sim: %s\n", what.c_str());
  if (devices[static_cast<size_t>(device)].error == cudaSuccess) devices[static_cast<size_t>(device)].error = error;
}

/// Reports what every stream waits for and fails all devices, so that all waits end.
void Machine::report_stuck(const Stream* target) {
  std::string text = "nothing can run";
  if (target != nullptr) text += ", and a thread waits for " + target->label;
  for (const auto& stream : active_) {
    const Queued& head = stream->queue.front();
    text += "; " + stream->label + ": " + std::to_string(stream->queue.size()) + " queued, first ";
    text += head.operation != nullptr ? head.operation->name() : "an event";
    for (const RecordPtr& wait : head.waits) {
      if (wait->done) continue;
      const auto from = wait->stream.lock();
      text += " (waits for an event of " + (from != nullptr ? from->label : "a destroyed stream") + ")";
    }
  }
  fail(0, cudaErrorLaunchTimeout, text);
  for (Device& device : devices)
    if (device.error == cudaSuccess) device.error = cudaErrorLaunchTimeout;
}

}  // namespace cuda_sim
