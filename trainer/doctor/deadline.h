#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace trireme::doctor {

/// Calls `expired` on a thread of its own, with the last stage, unless it is destroyed within `seconds`. For probes that may never return.
class Deadline {
 public:
  Deadline(double seconds, std::function<void(const std::string& stage)> expired)
      : expired_(std::move(expired)), thread_([this, seconds] { run(seconds); }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  /// What this process does from now on.
  void stage(const std::string& text) {
    const std::lock_guard lock(mutex_);
    stage_ = text;
  }

 private:
  void run(double seconds) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return over_; })) return;
    const std::string stage = stage_;
    lock.unlock();
    expired_(stage);
  }

  std::function<void(const std::string& stage)> expired_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string stage_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace trireme::doctor
