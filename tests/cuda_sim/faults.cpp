// Memory faults. A kernel's fault becomes an error of its device, as on a GPU. A fault of host code is explained before the process terminates.
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>

#include "tests/cuda_sim/block.h"
#include "tests/cuda_sim/state.h"

namespace cuda_sim {
namespace {

thread_local const Operation* running_operation = nullptr;
thread_local uintptr_t fault_address = 0, fault_place = 0;
thread_local int fault_signal = 0;

/// After a stack overflow of a fiber, the fault handler needs another stack.
struct SignalStack {
  static constexpr size_t kBytes = size_t{64} << 10;
  void* memory = nullptr;
  SignalStack() {
    stack_t now{};
    sigaltstack(nullptr, &now);
    if ((now.ss_flags & SS_DISABLE) == 0) return;
    memory = std::malloc(kBytes);
    stack_t mine{};
    mine.ss_sp = memory;
    mine.ss_size = kBytes;
    sigaltstack(&mine, nullptr);
  }
  ~SignalStack() {
    if (memory == nullptr) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    std::free(memory);
  }
};

struct sigaction previous[NSIG];

/// Continues after a kernel's fault, on the runner's emergency stack.
void leave_kernel() {
  BlockRunner& runner = *static_cast<Fiber*>(this_thread)->runner;
  const auto* const place = reinterpret_cast<const void*>(fault_place + 1);
  if (fault_signal == SIGFPE)
    runner.fail(cudaErrorLaunchFailure, "divides an integer by zero", 0, place);
  else if (fault_signal == SIGILL || fault_signal == SIGBUS || fault_address == 0)
    runner.fail(cudaErrorMisalignedAddress, "accesses memory through a null or misaligned pointer", 0, place);
  else
    runner.fail(cudaErrorIllegalAddress, "accesses invalid memory", fault_address, place);
}

void handle(int signal, siginfo_t* info, void* context) {
  if (this_thread != nullptr) {
    fault_signal = signal;
    fault_address = reinterpret_cast<uintptr_t>(info->si_addr);
    const auto stack = reinterpret_cast<uintptr_t>(static_cast<Fiber*>(this_thread)->runner->emergency_stack());
    auto& machine_context = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    fault_place = static_cast<uintptr_t>(machine_context.gregs[REG_RIP]);
    machine_context.gregs[REG_RIP] = reinterpret_cast<greg_t>(&leave_kernel);
    machine_context.gregs[REG_RSP] = static_cast<greg_t>(stack - 8);  // as after a call
    return;
#elif defined(__aarch64__)
    fault_place = machine_context.pc;
    machine_context.pc = reinterpret_cast<uintptr_t>(&leave_kernel);
    machine_context.sp = stack;
    return;
#endif
  }
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (running_operation != nullptr)
    std::fprintf(stderr, "cuda_sim: %s accesses invalid memory: %s\n", running_operation->name().c_str(), machine().memory.describe(address).c_str());
  else if (!machine().memory.is_host(address))
    std::fprintf(stderr, "cuda_sim: host code accesses device memory: %s\n", machine().memory.describe(address).c_str());
  sigaction(signal, &previous[signal], nullptr);  // the access faults again, with the previous handler
}

struct Symbol {
  uintptr_t begin;
  std::string name;
};

/// Function symbols of this program, including static functions.
std::vector<Symbol> read_symbols() {
  std::vector<Symbol> symbols;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (bytes.size() < sizeof(ElfW(Ehdr))) return symbols;
  auto at = [&]<class T>(size_t offset, T* out) {
    const bool inside = offset + sizeof(T) <= bytes.size();
    if (inside) std::memcpy(out, bytes.data() + offset, sizeof(T));
    return inside;
  };
  ElfW(Ehdr) header;
  at(0, &header);
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uintptr_t*>(out) = info->dlpi_addr;
        return 1;  // the first object is the program
      },
      &base);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    ElfW(Shdr) section, strings;
    if (!at(header.e_shoff + i * sizeof section, &section) || section.sh_type != SHT_SYMTAB) continue;
    if (!at(header.e_shoff + section.sh_link * sizeof strings, &strings)) continue;
    for (size_t offset = 0; offset + sizeof(ElfW(Sym)) <= section.sh_size; offset += sizeof(ElfW(Sym))) {
      ElfW(Sym) symbol;
      if (!at(section.sh_offset + offset, &symbol) || (symbol.st_info & 15) != STT_FUNC || symbol.st_value == 0) continue;
      symbols.push_back({base + symbol.st_value, bytes.c_str() + strings.sh_offset + symbol.st_name});
    }
  }
  return symbols;
}

}  // namespace

std::string name_of_function(const void* entry) {
  static const std::vector<Symbol> symbols = read_symbols();
  for (const Symbol& symbol : symbols) {
    if (symbol.begin != reinterpret_cast<uintptr_t>(entry)) continue;
    int status = 0;
    char* const readable = abi::__cxa_demangle(symbol.name.c_str(), nullptr, nullptr, &status);
    std::string name = status == 0 ? readable : symbol.name;
    std::free(readable);
    return name;
  }
  char address[32];
  std::snprintf(address, sizeof address, "at %p", entry);
  return address;
}

FaultScope::FaultScope(const Operation* operation) : before_(running_operation) {
  thread_local const SignalStack stack;
  running_operation = operation;
  install_fault_handler();  // repeated: test frameworks install their own handler for every test
}
FaultScope::~FaultScope() { running_operation = before_; }

void install_fault_handler() {
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_sigaction == handle) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGBUS, SIGILL, SIGFPE, SIGSEGV}) {
    sigaction(signal, nullptr, &now);
    if (now.sa_sigaction == handle) continue;
    previous[signal] = now;
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace cuda_sim
