#include "trainer/files/open_file_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace trireme {

uint64_t raise_open_file_limit(uint64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;  // opening a file will report any problem
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  const rlimit raised{.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max), .rlim_max = limit.rlim_max};
  return ::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace trireme
