#pragma once
// A loop on several threads, each with a worker of its own.
#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme {

/// Calls work(i, worker) for every i below `count`, on one thread for each worker. Rethrows the first error.
template <class Worker, class Work>
void in_parallel(size_t count, std::deque<Worker>& workers, const Work& work) {
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto run = [&](Worker& worker) {
    try {
      for (size_t i = next++; i < count; i = next++) work(i, worker);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t w = 1; w < std::min(count, workers.size()); ++w) threads.emplace_back(run, std::ref(workers[w]));
    run(workers.front());
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace trireme
