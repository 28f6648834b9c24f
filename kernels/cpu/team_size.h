#pragma once
#include <omp.h>

namespace trireme::cpu {

/// oneDNN takes its team from the calling thread's OpenMP setting, which belongs to that thread alone; it is put back afterwards.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamSize() { omp_set_num_threads(before_); }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
};

}  // namespace trireme::cpu
