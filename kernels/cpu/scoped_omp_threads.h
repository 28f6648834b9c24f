#pragma once
#include <omp.h>

namespace trireme::cpu {

/// Scope guard that sets the number of OpenMP threads of the calling thread, which oneDNN uses, and restores it afterwards.
class ScopedOmpThreads {
 public:
  explicit ScopedOmpThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ScopedOmpThreads() { omp_set_num_threads(before_); }
  ScopedOmpThreads(const ScopedOmpThreads&) = delete;
  ScopedOmpThreads& operator=(const ScopedOmpThreads&) = delete;

 private:
  int before_;
};

}  // namespace trireme::cpu
