// The log of a rank: its lines, the stacks of its threads, and fatal signals.
#include "trainer/resilience/rank_record.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <regex>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/scratch.h"

using namespace trireme;
using test::Scratch;
using test::slurp;

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

const BlackBoxOwner kRank{2, 4, "session", "cpu, 1 thread", "pipeline 0, replicate 0, shard 1, tensor 0"};

volatile int sink = 0;
volatile int* volatile nowhere = nullptr;
volatile uint64_t turns = 0;

__attribute__((noinline)) void spin_in_a_named_function() {
  for (;;) turns = turns + 1;
}

#ifdef __x86_64__
/// Two thirds of its time in code without tables to unwind by, as oneDNN's kernels are.
__attribute__((noinline)) void call_generated_code() {
  constexpr unsigned char kCountDown[] = {0xff, 0xcf, 0x75, 0xfc, 0xc3};  // dec edi; jnz to the dec; ret
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memcpy(page, kCountDown, sizeof(kCountDown));
  ::mprotect(page, 4096, PROT_READ | PROT_EXEC);
  const auto count_down = reinterpret_cast<void (*)(unsigned)>(page);
  for (;;) {
    const auto begin = std::chrono::steady_clock::now();
    count_down(1u << 20);
    for (const auto end = std::chrono::steady_clock::now() + (std::chrono::steady_clock::now() - begin) / 2; std::chrono::steady_clock::now() < end;)
      turns = turns + 1;
  }
}
#endif

__attribute__((noinline)) void crash_in_a_named_function() { *nowhere = 1; }

/// A child process without Catch's own signal handlers.
pid_t start(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGTERM, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SIG_DFL);
  try {
    body();
  } catch (const std::exception&) {
    ::_exit(99);
  }
  ::_exit(0);
}

/// Its exit code, 128 + n for signal n.
int end_of(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool reads_stacks(const std::string& text) { return !has(text, "this build has no libdw"); }

}  // namespace

TEST_CASE("rank record: each line of the log has time and level, and says where the rank is") {
  const Scratch scratch;
  {
    RankRecord record;
    record.write(RankRecord::Level::kInfo, "before it is open: dropped");
    CHECK(record.open(scratch / "run", kRank, true).empty());
    record.write(RankRecord::Level::kWarning, "one\ntwo\x1b[2J");
    record.end(RankRecord::Level::kError, "failed: why");
    record.end(RankRecord::Level::kInfo, "done");
  }
  const std::string log = slurp(scratch / "run/logs/rank-0002.log");
  INFO(log);
  const std::string time = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z )";
  CHECK(std::regex_match(
      log, std::regex(time + R"(info     start of rank 2 of 4: host \S+, process \d+, cpu, 1 thread, pipeline 0, replicate 0, shard 1, )" +
                      R"(tensor 0, version .*\n)" + time + R"(warning  one\n  two\\x1b\[2J\n)" + time + R"(error    end: failed: why\n)")));
  CHECK(read_black_box(scratch / "run/logs/rank-0002.blackbox").end == "failed: why");
  {
    RankRecord again;
    CHECK(again.open(scratch / "run", kRank, false).empty());
  }
  CHECK(test::slurp(scratch / "run/logs/rank-0002.log").substr(0, log.size()) == log);  // appended to
  CHECK(read_black_box(scratch / "run/logs/rank-0002.blackbox").end == "failed: why");  // no black box was wanted
}

TEST_CASE("rank record: a rank without a place for its files runs") {
  const Scratch scratch;
  scratch.write("run/logs", "a file");
  RankRecord record;
  CHECK(has(record.open(scratch / "run", kRank, true), "run/logs: is not a directory"));
  record.write(RankRecord::Level::kInfo, "dropped");
  record.end(RankRecord::Level::kInfo, "done");
  fs::remove(scratch / "run/logs");
  fs::create_directories(scratch / "run/logs/rank-0002.blackbox.tmp");
  RankRecord without_box;
  CHECK(has(without_box.open(scratch / "run", kRank, true), "run/logs/rank-0002.blackbox: cannot create the black box"));
  without_box.progress().act("forward");
  CHECK(has(slurp(scratch / "run/logs/rank-0002.log"), "warning  "));
}

TEST_CASE("stacks: those of all threads of another process, which continues") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = start([&] {
    std::thread spinner(spin_in_a_named_function);
    char byte = 0;
    (void)!::read(ends[0], &byte, 1);
    const uint64_t before = turns;
    std::this_thread::sleep_for(milliseconds(200));
    ::_exit(turns > before ? 0 : 1);
  });
  while (true) {
    std::string text;
    try {
      text = stacks_of(child);
    } catch (const MissingFileError&) {
      FAIL("the child has ended");
    }
    INFO(text);
    if (!reads_stacks(text)) break;
    if (!has(text, "spin_in_a_named_function") || !has(text, "read")) continue;  // its threads are still starting
    CHECK(std::regex_search(text, std::regex("  thread " + std::to_string(child) + " .*\n    .*read.* in libc")));
    CHECK(test::slurp("/proc/" + std::to_string(child) + "/status").find("TracerPid:\t0") != std::string::npos);
    break;
  }
  REQUIRE(::write(ends[1], "x", 1) == 1);
  CHECK(end_of(child) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK_THROWS_AS(stacks_of(child), MissingFileError);
}

#ifdef __x86_64__
TEST_CASE("stacks: a thread in generated code is looked at again until its stack is whole") {
  const pid_t child = start(call_generated_code);
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);  // until the child has begun
  while (!has(text = stacks_of(child), "call_generated_code") && reads_stacks(text) && std::chrono::steady_clock::now() < deadline) {
  }
  for (int sample = 0; sample < 20 && reads_stacks(text); ++sample) {
    INFO(text);
    CHECK(has(text, "call_generated_code"));
    text = stacks_of(child);
  }
  ::kill(child, SIGKILL);
  CHECK(end_of(child) == 128 + SIGKILL);
}
#endif

TEST_CASE("stacks: the name of a thread does not control a terminal") {
  const pid_t child = start([] {
    ::prctl(PR_SET_NAME, "a\x1b[2Jb");
    ::raise(SIGSTOP);
  });
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  const std::string text = stacks_of(child);
  INFO(text);
  CHECK(has(text, concat("  thread ", child, " a\\x1b[2Jb\n")));
  ::kill(child, SIGKILL);
  end_of(child);
}

TEST_CASE("stacks: a stopped process stays stopped") {
  const pid_t child = start([] { ::raise(SIGSTOP); });
  int status = 0;
  REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
  const std::string text = stacks_of(child);
  INFO(text);
  CHECK((!reads_stacks(text) || has(text, "raise")));
  const std::string stat = slurp("/proc/" + std::to_string(child) + "/stat");
  CHECK(has(stat, ") T "));
  ::kill(child, SIGCONT);
  CHECK(end_of(child) == 0);
}

TEST_CASE("rank record: a request writes the stacks of all its threads to the log, and the rank continues") {
  const Scratch scratch;
  const pid_t child = start([&] {
    RankRecord record(test::trireme_program());
    record.open(scratch / "run", kRank, true);
    std::thread spinner(spin_in_a_named_function);
    record.request_stacks("requested by a test");
    record.request_stacks("and once more");  // no effect while the first is being served
    std::optional<std::string> file;
    while (!(file = record.take_stacks())) std::this_thread::sleep_for(milliseconds(5));
    if (*file != scratch / "run/logs/rank-0002.log" || record.take_stacks()) ::_exit(1);
    record.request_stacks("a second one");
    while (!record.take_stacks()) std::this_thread::sleep_for(milliseconds(5));
    record.end(RankRecord::Level::kInfo, "done");
    ::_exit(0);
  });
  CHECK(end_of(child) == 0);
  const std::string log = slurp(scratch / "run/logs/rank-0002.log");
  INFO(log);
  CHECK(has(log, "warning  requested by a test; stacks of all threads:\n  thread "));
  CHECK_FALSE(has(log, "once more"));
  CHECK(has(log, "a second one"));
  CHECK(has(log, "end of the stacks"));
  CHECK((!reads_stacks(log) || has(log, "spin_in_a_named_function")));
}

TEST_CASE("rank record: without the program that reads stacks the log says so") {
  const Scratch scratch;
  RankRecord record("/nowhere/trireme");
  record.open(scratch / "run", kRank, false);
  record.request_stacks("requested by a test");
  std::optional<std::string> file;
  while (!(file = record.take_stacks())) std::this_thread::sleep_for(milliseconds(5));
  CHECK(file->empty());  // an answer, but no file
  CHECK(has(slurp(scratch / "run/logs/rank-0002.log"), "the stacks could not be read"));
}

TEST_CASE("rank record: a fatal signal leaves its stack in the log and its name in the black box") {
  const Scratch scratch;
  struct Case {
    int signal;
    const char* name;
    std::function<void()> deed;
    const char* function;
  };
  for (const Case& each : {Case{SIGSEGV, "11 (Segmentation fault)", crash_in_a_named_function, "crash_in_a_named_function"},
                           Case{SIGABRT, "6 (Aborted)", [] { std::abort(); }, "abort"}}) {
    CAPTURE(each.name);
    const std::string run = scratch / each.name;
    const pid_t child = start([&] {
      RankRecord record(test::trireme_program());
      record.open(run, kRank, true);
      record.progress().act("forward of micro-batch 1, blocks.2", 1);
      each.deed();
    });
    CHECK(end_of(child) == 128 + each.signal);
    const std::string log = slurp(run + "/logs/rank-0002.log");
    INFO(log);
    CHECK(std::regex_search(log, std::regex(R"(\n\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z error    fatal signal )")));
    CHECK(has(log, std::string("fatal signal ") + each.name + " in thread "));
    CHECK((!reads_stacks(log) || has(log, each.function)));
    const BlackBoxContents box = read_black_box(run + "/logs/rank-0002.blackbox");
    CHECK(box.end.find(std::string("fatal signal ") + each.name + " in thread ") == 0);
    CHECK(box.last.action == "forward of micro-batch 1, blocks.2");
  }
}

TEST_CASE("rank record: a handler that a library had installed runs after the record") {
  const Scratch scratch;
  const pid_t child = start([&] {
    std::signal(SIGSEGV, [](int) { ::_exit(42); });
    RankRecord record(test::trireme_program());
    record.open(scratch / "run", kRank, false);
    crash_in_a_named_function();
  });
  CHECK(end_of(child) == 42);
  CHECK(has(slurp(scratch / "run/logs/rank-0002.log"), "fatal signal 11"));
}

TEST_CASE("rank record: a black box whose file is cut short ends the record, and not the run") {
  const Scratch scratch;
  const pid_t child = start([&] {
    RankRecord record(test::trireme_program());
    record.open(scratch / "run", kRank, true);
    record.progress().act("before");
    fs::resize_file(scratch / "run/logs/rank-0002.blackbox", 0);
    for (int i = 0; i < 1000; ++i) record.progress().act("after", i);
    record.end(RankRecord::Level::kInfo, "done");
    ::_exit(7);
  });
  CHECK(end_of(child) == 7);
  const std::string log = slurp(scratch / "run/logs/rank-0002.log");
  INFO(log);
  CHECK(has(log, "warning  the file of the black box is lost; it is no longer written\n"));
  CHECK(has(log, "info     end: done"));
  CHECK_FALSE(has(log, "fatal signal"));
}
