#include "trainer/resilience/fatal_signals.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "kernels/core/check.h"
#include "trainer/files/clock_text.h"

namespace trireme {
namespace {

constexpr std::array kFatal{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::array kSignalNames{"Segmentation fault", "Bus error", "Floating point exception", "Illegal instruction", "Aborted"};
constexpr int kCrashStackSeconds = 10;

struct Recorder {
  int log;
  BlackBox* box;
  const StackWriter* writer;
  std::array<struct sigaction, kFatal.size()> before;
};
std::atomic<Recorder*> recorder = nullptr;

/// Text without allocations.
class FixedText {
 public:
  FixedText& operator<<(std::string_view text) {
    for (const char c : text)
      if (size_ < bytes_.size()) bytes_[size_++] = c;
    return *this;
  }
  FixedText& operator<<(uint64_t number) { return padded(number, 1); }
  /// The number with at least `width` digits.
  FixedText& padded(uint64_t number, size_t width) {
    std::array<char, 20> digits{};
    size_t first = digits.size();
    for (; number > 0 || digits.size() - first < width; number /= 10) digits[--first] = static_cast<char>('0' + number % 10);
    return *this << std::string_view(digits.data() + first, digits.size() - first);
  }
  /// As utc_text(), which allocates.
  FixedText& utc(WallClock::time_point time) {
    const auto now = std::chrono::floor<std::chrono::milliseconds>(time);
    const auto day = std::chrono::floor<std::chrono::days>(now);
    const std::chrono::year_month_day date(day);
    const std::chrono::hh_mm_ss clock(now - day);
    padded(static_cast<uint64_t>(static_cast<int>(date.year())), 4) << "-";
    padded(static_cast<unsigned>(date.month()), 2) << "-";
    padded(static_cast<unsigned>(date.day()), 2) << "T";
    padded(static_cast<uint64_t>(clock.hours().count()), 2) << ":";
    padded(static_cast<uint64_t>(clock.minutes().count()), 2) << ":";
    padded(static_cast<uint64_t>(clock.seconds().count()), 2) << ".";
    return padded(static_cast<uint64_t>(clock.subseconds().count()), 3) << "Z";
  }
  std::string_view text() const { return {bytes_.data(), size_}; }

 private:
  std::array<char, 256> bytes_{};
  size_t size_ = 0;
};

void write_text(int descriptor, std::string_view text) {
  const ssize_t written = ::write(descriptor, text.data(), text.size());
  (void)written;  // an error cannot be reported any more
}

/// The thread that meets a damaged black box continues in memory of its own.
bool is_lost_box(int signal, const siginfo_t& info, const Recorder& now) {
  const auto* const address = static_cast<const std::byte*>(info.si_addr);
  const auto* const begin = reinterpret_cast<const std::byte*>(now.box);
  if (signal != SIGBUS || begin == nullptr || address < begin || address >= begin + sizeof(BlackBox)) return false;
  const auto page = static_cast<size_t>(::getpagesize());
  const size_t bytes = (sizeof(BlackBox) + page - 1) / page * page;
  if (::mmap(now.box, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) return false;
  FixedText line;
  line.utc(WallClock::now()) << " warning  the file of the black box is lost; it is no longer written\n";
  write_text(now.log, line.text());
  return true;
}

void record_fatal_signal(int signal, siginfo_t* info, void* /*context*/) {
  static std::atomic<bool> begun = false;
  Recorder* const now = recorder;
  if (now != nullptr && is_lost_box(signal, *info, *now)) return;
  if (begun.exchange(true))
    for (;;) ::pause();  // another thread is reporting, and ends the process
  size_t place = 0;
  while (kFatal[place] != signal) ++place;
  if (now != nullptr) {
    FixedText what;
    what << "fatal signal " << static_cast<uint64_t>(signal) << " (" << kSignalNames[place] << ") in thread "
         << static_cast<uint64_t>(::syscall(SYS_gettid));
    FixedText line;
    line.utc(WallClock::now()) << " error    " << what.text() << "; stacks of all threads:\n";
    write_text(now->log, line.text());
    if (now->box != nullptr) write_end(*now->box, what.text());
    if (!now->writer->write(now->log, kCrashStackSeconds)) write_text(now->log, "  the stacks could not be read\n");
    ::sigaction(signal, &now->before[place], nullptr);
  } else {
    ::signal(signal, SIG_DFL);
  }
  ::raise(signal);  // delivered when this handler returns
}

}  // namespace

FatalSignals::FatalSignals(int log, BlackBox* box, const StackWriter& writer) {
  TRIREME_CHECK(recorder == nullptr, "fatal signals are already recorded");
  // The main thread may have overflowed its own stack.
  alignas(16) static std::array<char, 65536> stack;
  const stack_t alternative{stack.data(), 0, stack.size()};
  ::sigaltstack(&alternative, nullptr);
  auto* const made = new Recorder{log, box, &writer, {}};
  recorder = made;
  struct sigaction action {};
  action.sa_sigaction = record_fatal_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (size_t i = 0; i < kFatal.size(); ++i) ::sigaction(kFatal[i], &action, &made->before[i]);
}

FatalSignals::~FatalSignals() {
  Recorder* const made = recorder;
  for (size_t i = 0; i < kFatal.size(); ++i) ::sigaction(kFatal[i], &made->before[i], nullptr);
  recorder = nullptr;
  delete made;
}

}  // namespace trireme
