#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace trireme::doctor {

/// Runs `work` on a thread and returns its result, or nullopt if there is none after `seconds`: the thread then continues unobserved, because nothing
/// can end a thread that waits for a disk. `work` must own what it uses.
template <class Work>
auto within(double seconds, Work work) -> std::optional<decltype(work())> {
  using Result = decltype(work());
  struct Shared {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Result> result;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, work = std::move(work)]() mutable {
    Result result = work();
    const std::lock_guard lock(shared->mutex);
    shared->result = std::move(result);
    shared->done.notify_one();
  }).detach();
  std::unique_lock lock(shared->mutex);
  shared->done.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return shared->result.has_value(); });
  return std::exchange(shared->result, std::nullopt);
}

}  // namespace trireme::doctor
