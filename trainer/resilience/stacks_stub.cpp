// For a build without libdw.
#include "kernels/core/check.h"
#include "trainer/resilience/stacks.h"

namespace trireme {

std::string stacks_of(pid_t process) {
  std::string text = "  (this build has no libdw, which reads stacks)\n";
  for (const ListedThread& thread : threads_of(process)) text += concat("  thread ", thread.id, " ", thread.name, "\n");
  return text;
}

}  // namespace trireme
