#include "trainer/job/omp_spinning.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "trainer/machine/environment.h"

namespace trireme {

void limit_spinning(char** argv, const LaunchEnvironment& environment) {
  if (environment.spinning_is_limited) {
    ::unsetenv(kSpinningVariable);  // what this process starts, such as ranks, chooses by itself
    ::unsetenv("GOMP_SPINCOUNT");
    return;
  }
  if (environment.spinning_is_chosen || environment.omp_threads.value_or(usable_cores()) == 1) return;
  std::error_code unknown;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", unknown).string();
  if (unknown) return;
  ::setenv("GOMP_SPINCOUNT", kSpinCount, 1);
  ::setenv(kSpinningVariable, "limited", 1);
  ::execv(program.c_str(), argv);
  ::unsetenv(kSpinningVariable);  // the program's file was replaced; it runs as well without
  ::unsetenv("GOMP_SPINCOUNT");
}

}  // namespace trireme
