#pragma once
// Stacks of the threads of another process. A process does not look at itself by signals: oneDNN's generated kernels use the stack pointer as a
// general register, and a signal delivered to a thread inside one makes the kernel write over the heap (trainer/job/stop_signals.h). Instead a second
// process stops one thread after the other through ptrace, for about a millisecond each, and reads its stack; nothing runs in the threads themselves.
#include <sys/types.h>

#include <string>
#include <vector>

namespace trireme {

struct ListedThread {
  pid_t id;
  std::string name;  ///< printable
};
/// The threads of a process, ascending. Errors: MissingFileError if there is no such process.
std::vector<ListedThread> threads_of(pid_t process);

/// Writes the name and the stack of every thread of a process of this user, innermost function first, as text. A thread that cannot be stopped or
/// read has a line with the reason. Without libdw in this build there are only the names. Errors: MissingFileError if there is no such process;
/// IoError if no thread of it can be stopped. A thread caught in generated code, as oneDNN's, which nothing can unwind, is stopped again until its
/// stack is whole, for a second at most for all threads together.
std::string stacks_of(pid_t process);

/// What a program needs to start to have the stacks of its own threads written to a descriptor: `PROGRAM inspect --process PID`.
class StackWriter {
 public:
  explicit StackWriter(const char* program = "/proc/self/exe");

  /// Starts the program, waits for its end, at most `seconds`, and allows it to stop the threads of this process meanwhile. Returns false if it
  /// cannot be started, fails or takes longer. Safe in a signal handler, as it neither allocates nor locks.
  bool write(int descriptor, int seconds) const;

 private:
  const char* program_;
  char pid_[16];
};

}  // namespace trireme
