#include "trainer/resilience/stacks.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"

namespace trireme {
namespace {

constexpr size_t kMostFrames = 128;

struct Frame {
  Dwarf_Addr address;
  bool is_call;  ///< the address is behind a call, which may be the last instruction of its function
  Dwarf_Addr inside() const { return address - (is_call ? 1 : 0); }
};

struct Stack {
  std::vector<Frame> frames;
  std::string problem;  ///< why there are no frames, or no more of them
};

/// Only the programs' own symbol tables: separate debugging information would be looked for on servers in the network.
int find_no_debug_information(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) { return -1; }

int add_frame(Dwfl_Frame* state, void* argument) {
  auto& frames = *static_cast<std::vector<Frame>*>(argument);
  Dwarf_Addr address = 0;
  bool interrupted = false;
  if (!dwfl_frame_pc(state, &address, &interrupted)) return DWARF_CB_ABORT;
  frames.push_back({address, !interrupted});
  return frames.size() < kMostFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

using Clock = std::chrono::steady_clock;

/// For all threads of a process together, so that one with thousands of them is read in bounded time too.
struct Deadlines {
  /// The process may still be about to allow ptrace (PR_SET_PTRACER).
  Clock::time_point permission = Clock::now() + std::chrono::milliseconds(500);
  /// In uninterruptible sleep, as in a failed file system, a thread never stops.
  Clock::time_point stop = Clock::now() + std::chrono::seconds(10);
  /// A thread in generated code, which has no tables to unwind by, is looked at again: it soon returns to a function that has them.
  Clock::time_point second_looks = Clock::now() + std::chrono::seconds(1);
};

/// A thread that ptrace holds. Unlike SIGSTOP it needs no signal, and the thread continues when the object or this process ends.
class StoppedThread {
 public:
  StoppedThread(pid_t thread, const Deadlines& deadlines) : thread_(thread) {
    for (;;) {
      seized_ = ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0;
      error_ = errno;
      if (seized_ || error_ != EPERM || Clock::now() >= deadlines.permission) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!seized_ || ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0) return;
    for (int tries = 0; !stopped_ && tries < 100; ++tries) {
      int status = 0;
      const pid_t changed = ::waitpid(thread, &status, __WALL | WNOHANG);
      if (changed == thread && !WIFSTOPPED(status)) break;  // it has ended
      stopped_ = changed == thread;
      if (stopped_ || (tries >= 20 && Clock::now() >= deadlines.stop)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(tries < 20 ? 1 : 10));
    }
    if (!stopped_) error_ = EBUSY;
  }
  ~StoppedThread() {
    if (stopped_) ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  bool stopped() const { return stopped_; }
  std::string problem() const { return error_ == EBUSY ? "it does not stop: in uninterruptible sleep" : std::strerror(error_); }

 private:
  pid_t thread_;
  bool seized_ = false, stopped_ = false;
  int error_ = 0;
};

using Session = std::unique_ptr<Dwfl, decltype(&dwfl_end)>;

/// Loads everything that unwinding needs, so that threads are stopped for a short time only.
Session open_session(pid_t process) {
  static char* no_path = nullptr;
  static const Dwfl_Callbacks callbacks{
      .find_elf = dwfl_linux_proc_find_elf, .find_debuginfo = find_no_debug_information, .section_address = nullptr, .debuginfo_path = &no_path};
  Session session(dwfl_begin(&callbacks), dwfl_end);
  if (!session) throw IoError(concat("cannot read stacks: ", dwfl_errmsg(-1)));
  dwfl_report_begin(session.get());
  const int unreadable = dwfl_linux_proc_report(session.get(), process);
  dwfl_report_end(session.get(), nullptr, nullptr);
  if (unreadable != 0 || dwfl_linux_proc_attach(session.get(), process, true) != 0)
    throw IoError(concat("process ", process, ": cannot read its memory map: ", unreadable > 0 ? std::strerror(unreadable) : dwfl_errmsg(-1)));
  const auto load = [](Dwfl_Module* module, void**, const char*, Dwarf_Addr, void*) -> int {
    GElf_Addr bias = 0;
    dwfl_module_getelf(module, &bias);
    dwfl_module_eh_cfi(module, &bias);
    return DWARF_CB_OK;
  };
  dwfl_getmodules(session.get(), load, nullptr, 0);
  return session;
}

Stack read_stack(Dwfl* session, pid_t thread, const Deadlines& deadlines) {
  const StoppedThread held(thread, deadlines);
  if (!held.stopped()) return {{}, held.problem()};
  Stack stack;
  if (dwfl_getthread_frames(session, thread, add_frame, &stack.frames) == -1) stack.problem = dwfl_errmsg(-1);
  return stack;
}

/// The module that an address lies in; null for generated code. libdw rounds the ends of modules, and would give their neighbours' pages to them.
Dwfl_Module* module_at(Dwfl* session, Dwarf_Addr address) {
  Dwfl_Module* const module = dwfl_addrmodule(session, address);
  Dwarf_Addr begin = 0, end = 0;
  if (module != nullptr) dwfl_module_info(module, nullptr, &begin, &end, nullptr, nullptr, nullptr, nullptr);
  return begin <= address && address < end ? module : nullptr;
}

/// True if the stack ends at a frame in generated code.
bool is_cut(Dwfl* session, const Stack& stack) {
  return !stack.problem.empty() && !stack.frames.empty() && module_at(session, stack.frames.back().inside()) == nullptr;
}

std::string text_of(Dwfl* session, const Frame& frame) {
  Dwfl_Module* const module = module_at(session, frame.inside());
  if (module == nullptr) return concat("0x", std::hex, frame.address, " in generated code");
  const char* file = dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  const std::string path = file == nullptr ? "?" : file;
  GElf_Off offset = 0;
  GElf_Sym symbol{};
  const char* const name = dwfl_module_addrinfo(module, frame.inside(), &offset, &symbol, nullptr, nullptr, nullptr);
  const std::string where = concat(" in ", path.substr(path.rfind('/') + 1));
  if (name == nullptr) return concat("0x", std::hex, frame.address, where);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return concat(readable ? readable.get() : name, " + 0x", std::hex, offset + (frame.is_call ? 1 : 0), where);
}

}  // namespace

std::string stacks_of(pid_t process) {
  const std::vector<ListedThread> threads = threads_of(process);
  const Session session = open_session(process);
  std::vector<Stack> stacks;
  const Deadlines deadlines;
  for (const ListedThread& thread : threads) stacks.push_back(read_stack(session.get(), thread.id, deadlines));
  for (bool looks = true; std::exchange(looks, false) && Clock::now() < deadlines.second_looks;) {
    for (size_t i = 0; i < threads.size(); ++i) {
      if (!is_cut(session.get(), stacks[i])) continue;
      looks = true;
      if (Stack again = read_stack(session.get(), threads[i].id, deadlines); !again.frames.empty()) stacks[i] = std::move(again);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (std::ranges::all_of(stacks, [](const Stack& stack) { return stack.frames.empty(); }))
    throw IoError(concat("process ", process, ": cannot read the stack of any thread: ", stacks.front().problem));
  std::string text;
  for (size_t i = 0; i < threads.size(); ++i) {
    text += concat("  thread ", threads[i].id, " ", threads[i].name, "\n");
    for (const Frame& frame : stacks[i].frames) text += concat("    ", printable(text_of(session.get(), frame)), "\n");
    if (!stacks[i].problem.empty()) text += concat("    (", stacks[i].frames.empty() ? "no stack: " : "no more: ", stacks[i].problem, ")\n");
  }
  return text;
}

}  // namespace trireme
