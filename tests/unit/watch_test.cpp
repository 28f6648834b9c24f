// The hub and its monitors over real sockets, each in a separate process.
#include "trainer/resilience/watch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/scratch.h"
#include "tests/support/strangers.h"

using namespace trireme;
using namespace trireme::test;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  return ends;
}

/// Text from a child process to the test.
class Pipe {
 public:
  Pipe() = default;
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int input() const { return ends_[1]; }
  void say(const std::string& text) const {
    if (::write(ends_[1], text.data(), text.size()) < 0) ::_exit(99);
  }
  /// Reads up to a newline; returns the text so far after `seconds`.
  std::string hear(double seconds) {
    const auto begin = Clock::now();
    std::string text;
    while (text.find('\n') == text.npos && since(begin) < seconds) {
      pollfd ready{ends_[0], POLLIN, 0};
      std::array<char, 1> byte{};
      if (::poll(&ready, 1, 20) == 1 && ::read(ends_[0], byte.data(), 1) == 1) text += byte[0];
    }
    return text;
  }

 private:
  std::array<int, 2> ends_ = make_pipe();
};

/// A child process, killed by the destructor; the return value of `body` is its exit code.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const int signal : {SIGTERM, SIGABRT, SIGSEGV}) std::signal(signal, SIG_DFL);
    int code = 98;
    try {
      code = body();
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  ~Child() {
    if (ended_) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  /// Its exit code, 128 + n for signal n; -1 if it is still running after `seconds`.
  int code(double seconds) {
    const auto begin = Clock::now();
    int status = 0;
    while (!ended_ && since(begin) < seconds) {
      ended_ = ::waitpid(pid_, &status, WNOHANG) == pid_;
      if (ended_) code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (!ended_) std::this_thread::sleep_for(milliseconds(5));
    }
    return ended_ ? code_ : -1;
  }

 private:
  pid_t pid_;
  bool ended_ = false;
  int code_ = -1;
};

/// A hub and `n` ranks. The hub reports its verdict as a line. Each rank runs `body` after it has joined, then stays alive until let_ranks_end().
class WatchedJob {
 public:
  using Body = std::function<void(int rank, Progress&)>;

  /// `program` reads the stacks.
  WatchedJob(int n, double silence_seconds, Body body, double timeout = 1000, const char* program = trireme_program()) {
    hub = std::make_unique<Child>([&] {
      ::dup2(warnings.input(), STDERR_FILENO);
      sigset_t request;
      sigemptyset(&request);
      sigaddset(&request, SIGUSR1);
      ::sigprocmask(SIG_BLOCK, &request, nullptr);
      Hub keeper({.ranks = n, .silence_seconds = silence_seconds},
                 [&](const Verdict& verdict) { verdicts.say(concat(verdict.step, " ", verdict.text, "\n")); });
      address_.say(keeper.address() + "\n");
      for (;;) {
        int signal = 0;
        ::sigwait(&request, &signal);
        keeper.request_stacks([&](const std::vector<RankState>& states, double) {
          std::string text = concat(states.size(), " ranks; stacks:");
          for (const RankState& state : states) text += " " + state.stacks.value_or("none");
          requested.say(text + "\n");
        });
      }
      return 0;
    });
    address = address_.hear(10);
    REQUIRE(address.back() == '\n');
    address.pop_back();
    for (int rank = 0; rank < n; ++rank) {
      ranks.push_back(std::make_unique<Child>([&, rank] {
        ::dup2(errors.input(), STDERR_FILENO);
        RankRecord record(program);
        record.open(directory / "run", {rank, n, "session", "cpu", "shard 0"}, true);
        Progress& progress = record.progress();
        const size_t world = progress.add_group("world", all(n));
        progress.begin_step(5);
        progress.act("forward of micro-batch 1, blocks.2");
        {
          Monitor monitor(address, rank, record);
          joined_.say("\n");
          body(rank, progress);
          progress.set_timeout(timeout);
          if (rank != 1) progress.begin_wait({"all_reduce", world, progress.enter(world), {}});
          char byte = 0;
          while (::read(end_[0], &byte, 1) != 1) {
          }
        }
        return 0;
      }));
    }
    for (int rank = 0; rank < n; ++rank) REQUIRE(joined_.hear(10) == "\n");
  }
  ~WatchedJob() {
    ::close(end_[0]);
    ::close(end_[1]);
  }

  static std::vector<int> all(int n) {
    std::vector<int> ranks;
    for (int rank = 0; rank < n; ++rank) ranks.push_back(rank);
    return ranks;
  }
  Child& rank(int r) { return *ranks[static_cast<size_t>(r)]; }
  void let_ranks_end() const {
    for (size_t i = 0; i < ranks.size(); ++i) REQUIRE(::write(end_[1], "x", 1) == 1);
  }

  /// The log of a rank.
  std::string log(int r) const { return test::slurp(directory / concat("run/logs/rank-000", r, ".log")); }

  test::Scratch directory;
  Pipe verdicts, errors, requested, warnings;
  std::string address;
  std::unique_ptr<Child> hub;
  std::vector<std::unique_ptr<Child>> ranks;

 private:
  Pipe address_, joined_;
  std::array<int, 2> end_ = make_pipe();
};

const WatchedJob::Body kNothing = [](int, Progress&) {};

/// A socket connected to the hub's last address (loopback).
int stranger(const std::string& address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(file, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  return file;
}

/// True if the peer closes the connection within `seconds` without sending anything.
bool is_closed(int file, double seconds) {
  pollfd ready{file, POLLIN, 0};
  char byte = 0;
  return ::poll(&ready, 1, static_cast<int>(seconds * 1000)) == 1 && ::recv(file, &byte, 1, 0) <= 0;
}

/// A hub in a separate process, for ranks created by the test.
struct Keeper {
  explicit Keeper(const HubOptions& options)
      : process([&] {
          ::dup2(warnings.input(), STDERR_FILENO);
          const Hub hub(options, [&](const Verdict& verdict) { verdicts.say(verdict.text + "\n"); });
          address_.say(hub.address() + "\n");
          for (;;) ::pause();
          return 0;
        }) {
    address = address_.hear(5);
    REQUIRE(address.back() == '\n');
    address.pop_back();
  }

 private:
  Pipe address_;

 public:
  Pipe verdicts, warnings;
  std::string address;
  Child process;
};

/// Runs as a rank that reports to `address` until the process is killed.
int be_rank(const std::string& address, int rank, const Pipe& joined) {
  RankRecord record;
  const Monitor monitor(address, rank, record);
  joined.say("\n");
  for (;;) ::pause();
  return 0;
}

}  // namespace

TEST_CASE("watch: a killed rank is named within two seconds, and the others exit") {
  WatchedJob job(4, 10, kNothing);
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Clock::now();
  job.rank(1).signal(SIGKILL);
  const std::string verdict = job.verdicts.hear(5);
  const double seconds = since(begin);
  INFO(verdict << seconds);
  CHECK(seconds < 2);
  CHECK(verdict.find(concat(
            "5 rank 1 (host ",
            [] {
              std::array<char, 256> host{};
              ::gethostname(host.data(), host.size() - 1);
              return std::string(host.data());
            }(),
            ", process ", job.rank(1).pid(), ") has died in step 5, after: forward of micro-batch 1, blocks.2; ranks 0, 2, 3 wait for it in ",
            "all_reduce 1 of group world")) == 0);
  for (const int r : {0, 2, 3}) CHECK(job.rank(r).code(2) == 70);
  CHECK(job.verdicts.hear(0.1).empty());  // only one verdict
  CHECK(job.errors.hear(0.1).empty());
}

TEST_CASE("watch: a rank that ends without a goodbye counts as dead, whatever its exit code") {
  WatchedJob job(2, 10, [](int rank, Progress&) {
    if (rank == 1) ::_exit(0);
  });
  CHECK(job.verdicts.hear(5).find("rank 1 ") == 2);
  CHECK(job.rank(0).code(2) == 70);
}

TEST_CASE("watch: a stopped rank is detected by its silence") {
  WatchedJob job(3, 1, kNothing);
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Clock::now();
  job.rank(1).signal(SIGSTOP);
  const std::string verdict = job.verdicts.hear(10);
  INFO(verdict);
  CHECK(since(begin) > 0.7);
  CHECK(verdict.find("5 rank 1 ") == 0);
  CHECK(verdict.find("has not responded for 1 s") != std::string::npos);
  CHECK(verdict.find("ranks 0, 2 wait for it in all_reduce 1 of group world") != std::string::npos);
  for (const int r : {0, 2}) CHECK(job.rank(r).code(2) == 70);
  job.rank(1).signal(SIGCONT);
  CHECK(job.rank(1).code(2) == 70);  // it was ordered to exit as well
}

TEST_CASE("watch: a hung rank is detected although its process is alive") {
  WatchedJob job(3, 10, kNothing, 1);
  const auto begin = Clock::now();
  const std::string verdict = job.verdicts.hear(10);
  INFO(verdict);
  CHECK(since(begin) > 0.7);
  CHECK(verdict.find("5 rank 1 ") == 0);
  CHECK(verdict.find("has made no progress for 1 s; it was in step 5") != std::string::npos);
  CHECK(verdict.find("ranks 0, 2 wait for it in all_reduce 1 of group world (forward of micro-batch 1, blocks.2), which it never entered") !=
        std::string::npos);
  for (const int r : {0, 1, 2}) CHECK(job.rank(r).code(2) == 70);
  // Before it was ordered to exit it has left the stacks of its threads.
  CHECK(verdict.find(concat("; stacks of its threads: ", job.directory / "run/logs/rank-0001.log", "\n")) != std::string::npos);
  const std::string log = job.log(1);
  INFO(log);
  CHECK(log.find(concat("; it was in step 5, after: forward of micro-batch 1, blocks.2; ranks 0, 2 wait for it in all_reduce 1 of group world "
                        "(forward of micro-batch 1, blocks.2), which it never entered; stacks of all threads:\n  thread ",
                        job.rank(1).pid(), " ")) != std::string::npos);
  CHECK((log.find("read") != std::string::npos && log.find("Monitor") != std::string::npos) == (log.find("no libdw") == std::string::npos));
  CHECK(log.find("error    end: ordered to exit by the job monitor: rank 1 (") != std::string::npos);
  CHECK(job.log(0).find("stacks") == job.log(0).find("stacks of its threads"));  // no other rank has been asked
}

TEST_CASE("watch: a verdict names no log for stacks that could not be read, and does not wait for them") {
  WatchedJob job(3, 10, kNothing, 1, "/nowhere/trireme");
  const auto begin = Clock::now();
  const std::string verdict = job.verdicts.hear(10);
  INFO(verdict);
  CHECK(since(begin) < 3.5);  // a rank without an answer would have three seconds after its timeout of one second
  CHECK(verdict.find("5 rank 1 ") == 0);
  CHECK(verdict.find("stacks") == std::string::npos);
  CHECK(job.log(1).find("the stacks could not be read\n") != std::string::npos);
}

TEST_CASE("watch: a request gets the stacks and the states of all ranks, and the job continues") {
  WatchedJob job(3, 10, kNothing);
  job.rank(2).signal(SIGSTOP);  // cannot answer, and does not delay the answer for long
  const auto begin = Clock::now();
  job.hub->signal(SIGUSR1);
  const std::string answer = job.requested.hear(10);
  const double seconds = since(begin);
  INFO(answer << seconds);
  CHECK(seconds < 6);
  CHECK(answer == concat("3 ranks; stacks: ", job.directory / "run/logs/rank-0000.log", " ", job.directory / "run/logs/rank-0001.log", " none\n"));
  job.rank(2).signal(SIGCONT);
  CHECK(job.log(0).find("requested by SIGQUIT to the launcher; stacks of all threads:") != std::string::npos);
  job.hub->signal(SIGUSR1);
  CHECK(job.requested.hear(10).find(" none") == std::string::npos);
  CHECK(job.verdicts.hear(0.1).empty());
  job.let_ranks_end();
  for (const int r : {0, 1, 2}) CHECK(job.rank(r).code(5) == 0);
}

TEST_CASE("watch: the furthest step of a job is that of any rank, and does not fall when another rank reports") {
  const Hub hub({.ranks = 2, .silence_seconds = 10}, [](const Verdict&) {});
  RankRecord first("/nowhere"), second("/nowhere");
  first.progress().begin_step(9);
  second.progress().begin_step(4);
  const Monitor of_first(hub.address(), 0, first), of_second(hub.address(), 1, second);
  const auto reaches = [&](int64_t step) {
    for (int tries = 0; tries < 1000 && hub.furthest_step() != step; ++tries) std::this_thread::sleep_for(milliseconds(5));
    return hub.furthest_step() == step;
  };
  CHECK(reaches(9));
  second.progress().begin_step(7);
  bool falls = false;
  for (int look = 0; look < 120; ++look, std::this_thread::sleep_for(milliseconds(5))) falls = falls || hub.furthest_step() < 9;
  CHECK_FALSE(falls);
  second.progress().begin_step(12);
  CHECK(reaches(12));
}

TEST_CASE("watch: no verdict after a pause of three seconds, nor after a normal end") {
  WatchedJob job(3, 10, kNothing);
  job.rank(2).signal(SIGSTOP);
  CHECK(job.verdicts.hear(3).empty());
  job.rank(2).signal(SIGCONT);
  job.let_ranks_end();
  for (const int r : {0, 1, 2}) CHECK(job.rank(r).code(5) == 0);
  CHECK(job.verdicts.hear(0.5).empty());
}

TEST_CASE("watch: no verdict about a rank that exits with an error, nor about those that end as a consequence") {
  WatchedJob job(3, 10, [](int rank, Progress&) {
    if (rank == 0) throw DataError("its own");
  });
  CHECK(job.rank(0).code(5) == 65);
  job.rank(2).signal(SIGKILL);
  CHECK(job.verdicts.hear(0.5).empty());
  CHECK(job.rank(1).code(0.1) == -1);
}

TEST_CASE("watch: ranks exit when the hub's process dies, and report the reason") {
  WatchedJob job(3, 10, kNothing);
  const auto begin = Clock::now();
  job.hub->signal(SIGKILL);
  for (const int r : {0, 1, 2}) CHECK(job.rank(r).code(5) == 70);
  CHECK(since(begin) < 2);
  const std::string line = job.errors.hear(1);
  CHECK(line.find("rank 0: lost the job monitor, because the launcher (host ") == 0);
  CHECK(line.find(concat(", process ", job.hub->pid(), ") has died; exiting\n")) != std::string::npos);
}

TEST_CASE("watch: ranks wait for a stopped hub, which does not count the time") {
  // Long reports would fill the kernel's buffers during this test if they were sent unread, and break the connection.
  WatchedJob job(3, 1, [](int, Progress& progress) { progress.act(std::string(20000, 'x')); });
  std::this_thread::sleep_for(milliseconds(300));
  job.hub->signal(SIGSTOP);
  CHECK(job.rank(0).code(4) == -1);
  job.hub->signal(SIGCONT);
  CHECK(job.verdicts.hear(1.5).empty());
  // Stop the complete job, and wake the hub first.
  for (const int r : {0, 1, 2}) job.rank(r).signal(SIGSTOP);
  job.hub->signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(2500));
  job.hub->signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(200));
  for (const int r : {0, 1, 2}) job.rank(r).signal(SIGCONT);
  CHECK(job.verdicts.hear(1.5).empty());
  CHECK(job.rank(0).code(0.1) == -1);
  job.rank(1).signal(SIGKILL);
  CHECK(job.verdicts.hear(3).find("rank 1 ") == 2);  // the hub continues monitoring
}

TEST_CASE("watch: ranks exit and name rank 0 when it has the hub and is stopped, but not when all ranks are stopped") {
  Pipe joined, errors;
  Keeper keeper({.ranks = 3, .silence_seconds = 1, .own_rank = 0});
  const auto make = [&](int rank) {
    return std::make_unique<Child>([&, rank] {
      ::dup2(errors.input(), STDERR_FILENO);
      return be_rank(keeper.address, rank, joined);
    });
  };
  const std::unique_ptr<Child> ranks[] = {make(1), make(2)};
  for (int i = 0; i < 2; ++i) REQUIRE(joined.hear(5) == "\n");
  for (const auto& rank : ranks) rank->signal(SIGSTOP);
  keeper.process.signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(2500));
  for (const auto& rank : ranks) rank->signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(200));
  keeper.process.signal(SIGCONT);
  CHECK(ranks[0]->code(1.5) == -1);
  const auto begin = Clock::now();
  keeper.process.signal(SIGSTOP);
  for (const auto& rank : ranks) CHECK(rank->code(10) == 70);
  CHECK(since(begin) > 0.7);
  const std::string line = errors.hear(1);
  CHECK(line.find("rank 1: lost the job monitor, because rank 0 (host ") == 0);
  CHECK(line.find(concat(", process ", keeper.process.pid(), ") has not responded for 1 s; exiting\n")) != line.npos);
}

TEST_CASE("watch: a rank that does not join in time is reported") {
  Pipe joined;
  Keeper keeper({.ranks = 2, .join_seconds = 1});
  Child rank([&] { return be_rank(keeper.address, 0, joined); });
  CHECK(keeper.verdicts.hear(5) == "rank 1 never joined: not started, or blocked before monitoring began, for 1 s; rank 0 waits\n");
  CHECK(rank.code(2) == 70);
}

TEST_CASE("watch: a rank that gave up one address of the hub may join by another") {
  Pipe joined;
  Keeper keeper({.ranks = 1});
  keeper.process.signal(SIGSTOP);  // so that the hub reads hello and end of connection together
  const std::string hello = concat("{\"token\": \"", keeper.address.substr(0, 32), "\", \"rank\": 0}\n");
  const int given_up = stranger(keeper.address);
  REQUIRE(::send(given_up, hello.data(), hello.size(), MSG_NOSIGNAL) > 0);
  ::close(given_up);
  keeper.process.signal(SIGCONT);
  CHECK(keeper.verdicts.hear(0.5).empty());
  Child rank([&] { return be_rank(keeper.address, 0, joined); });
  CHECK(joined.hear(5) == "\n");
  rank.signal(SIGKILL);
  CHECK(keeper.verdicts.hear(5).find("rank 0 ") == 0);
}

TEST_CASE("watch: many silent connections do not keep a rank from joining") {
  Pipe joined;
  Keeper keeper({.ranks = 1});
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger(keeper.address));
  Child rank([&] { return be_rank(keeper.address, 0, joined); });
  CHECK(joined.hear(4) == "\n");
  for (const int file : silent) ::close(file);
}

TEST_CASE("watch: each address of the hub has its own timeout", "[slow]") {
  Pipe joined;
  Keeper keeper({.ranks = 1});
  const std::string endpoint = keeper.address.substr(33);
  std::string addresses = keeper.address.substr(0, 33);
  std::vector<int> mute;
  for (int i = 0; i < 4; ++i) {
    mute.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(mute.back(), reinterpret_cast<const sockaddr*>(&at), size) == 0);
    REQUIRE(::listen(mute.back(), 4) == 0);  // the kernel accepts the connection, but no process answers
    REQUIRE(::getsockname(mute.back(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
    addresses += concat("127.0.0.1:", ntohs(at.sin_port), ",");
  }
  Child rank([&] { return be_rank(addresses + endpoint, 0, joined); });
  CHECK(joined.hear(25) == "\n");
  for (const int file : mute) ::close(file);
}

TEST_CASE("watch: ranks continue if their hub ends normally") {
  Pipe joined, address;
  Child keeper([&] {
    Hub mine({.ranks = 1}, [](const Verdict&) { ::_exit(1); });
    address.say(mine.address() + "\n");
    joined.hear(5);
    return 0;
  });
  std::string at = address.hear(5);
  at.pop_back();
  Child rank([&] {
    RankRecord record;
    Monitor monitor(at, 0, record);
    joined.say("\n");
    std::this_thread::sleep_for(milliseconds(700));
    return 3;
  });
  CHECK(rank.code(5) == 3);
  CHECK(keeper.code(5) == 0);
}

TEST_CASE("watch: invalid connections are refused without effect on the job") {
  WatchedJob job(2, 10, kNothing);
  const std::string token = job.address.substr(0, job.address.find('@'));
  CHECK(token.size() == 32);
  const std::string endpoint = job.address.substr(job.address.find('@') + 1);
  RankRecord record;
  CHECK_THROWS_AS(Monitor("0123456789abcdef0123456789abcdef@" + endpoint, 1, record), IoError);
  CHECK_THROWS_AS(Monitor(job.address, 1, record), IoError);  // rank 1 is already connected
  CHECK_THROWS_AS(Monitor(job.address, 2, record), IoError);
  CHECK_THROWS_AS(Monitor(job.address, -1, record), IoError);
  CHECK_THROWS_WITH(Monitor(token + "@127.0.0.1:1", 0, record), Catch::Matchers::Contains("cannot connect to the job monitor at 127.0.0.1:1"));
  for (const char* address : {"", "@", "x@", "x@y", "x@127.0.0.1", "x@127.0.0.1:99999"}) CHECK_THROWS_AS(Monitor(address, 0, record), IoError);

  const std::string hello = concat("{\"token\": \"", token, "\", \"rank\": ");
  const std::string lines[] = {std::string(65536, 'x'),
                               "{\"token\":\n",
                               "[1]\n",
                               "\n",
                               "{}\n",
                               hello + "1e300}\n",
                               hello + "\"1\"}\n",
                               hello + "99999999999999999999999}\n",
                               std::string(4000, '[') + "\n",
                               std::string("\0\xff\n", 3)};
  for (const std::string& line : lines) {
    const int file = stranger(job.address);
    INFO(line.substr(0, 60));
    CHECK(::send(file, line.data(), line.size(), MSG_NOSIGNAL) > 0);
    CHECK(is_closed(file, 3));
    ::close(file);
  }
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger(job.address));  // more than the hub accepts
  job.rank(1).signal(SIGKILL);
  CHECK(job.verdicts.hear(2).find("rank 1 ") == 2);
  for (const int file : silent) ::close(file);
}

namespace {

int port_of(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

/// Hellos of strangers: with wrong tokens, and with the right one of a rank that is already connected or does not exist.
std::vector<std::string> forged_hellos(const std::string& address) {
  const std::string token = address.substr(0, address.find('@'));
  const auto hello = [](const std::string& with, const std::string& rank) {
    return concat("{\"token\": \"", with, "\", \"rank\": ", rank, ", \"host\": \"x\", \"pid\": 1}\n{\"goodbye\": \"well\"}\n");
  };
  return {hello(std::string(32, '0'), "1"),
          hello("", "1"),
          hello(token.substr(0, 31), "1"),
          hello(token + "0", "1"),
          hello(token, "1"),
          hello(token, "0"),
          hello(token, "-1"),
          hello(token, "1000000"),
          "{\"goodbye\": \"well\"}\n"};
}

void check_strangers(int count) {
  WatchedJob job(3, 5, kNothing);
  const Footprint before = footprint_of(job.hub->pid());
  const auto begin = Clock::now();
  Strangers strangers(port_of(job.address), forged_hellos(job.address));
  Footprint most = before;
  while (strangers.opened() < count) {
    strangers.connect(100);
    strangers.drip();
    const Footprint now = footprint_of(job.hub->pid());
    most = {std::max(most.descriptors, now.descriptors), std::max(most.bytes, now.bytes)};
  }
  CHECK(most.descriptors < before.descriptors + 600);
  CHECK(most.bytes < before.bytes + (int64_t{48} << 20));
  job.hub->signal(SIGUSR1);  // while 500 of them are still there
  CHECK(job.requested.hear(10).starts_with("3 ranks; stacks: "));
  while (since(begin) < 7) {  // longer than a hub without heartbeats, and ranks without reports, would be tolerated
    strangers.drip();
    std::this_thread::sleep_for(milliseconds(100));
  }
  CHECK(strangers.open(20) == 0);  // a slow one is not given more time than a silent one
  CHECK(job.verdicts.hear(0.2).empty());
  const std::string warning = job.warnings.hear(5);  // of those that were refused within the first second
  CHECK(warning.starts_with("warning: the job monitor refused "));
  CHECK(warning.ends_with(" from 127.0.0.1, which did not identify themselves as ranks of this job\n"));
  if (since(begin) < 500) CHECK(job.warnings.hear(1).empty());
  CHECK(footprint_of(job.hub->pid()).descriptors <= before.descriptors);
  job.rank(1).signal(SIGKILL);  // the ranks are still watched
  CHECK(job.verdicts.hear(10).find("rank 1 ") == 2);
}

}  // namespace

TEST_CASE("watch: hostile connections of every kind have no effect on the ranks, and the hub bounds what they take") { check_strangers(400); }
TEST_CASE("watch: 10,000 hostile connections have no effect on the ranks", "[slow]") { check_strangers(10'000); }

TEST_CASE("watch: a rank that is slow to say its hello keeps its place among many connections") {
  Keeper keeper({.ranks = 1});
  const int slow = stranger(keeper.address);
  std::vector<int> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger(keeper.address));
  std::this_thread::sleep_for(milliseconds(300));
  const std::string hello = concat("{\"token\": \"", keeper.address.substr(0, 32), "\", \"rank\": 0}\n");
  CHECK(::send(slow, hello.data(), hello.size(), MSG_NOSIGNAL) > 0);
  char byte = 0;
  pollfd ready{slow, POLLIN, 0};
  CHECK((::poll(&ready, 1, 5000) == 1 && ::recv(slow, &byte, 1, 0) == 1 && byte == '{'));
  for (int i = 0; i < 400; ++i) silent.push_back(stranger(keeper.address));
  std::this_thread::sleep_for(milliseconds(300));
  CHECK(footprint_of(keeper.process.pid()).descriptors < 600);  // the kernel's queue has the others
  for (const int file : silent) ::close(file);
  ::close(slow);
}

TEST_CASE("watch: ranks join while hostile connections come without a pause") {
  for (const bool encrypted : {false, true}) {
    INFO((encrypted ? "encrypted" : "in clear"));
    Pipe joined, going;
    HubOptions options{.ranks = 3};
    if (encrypted) options.key = std::make_shared<const crypto::Key>();
    Keeper keeper(options);
    Child attacker([&] {
      Strangers strangers(port_of(keeper.address), forged_hellos(std::string(32, '0') + "@"));
      strangers.connect(400);
      going.say("\n");
      for (;;) strangers.connect(1);
      return 0;
    });
    REQUIRE(going.hear(20) == "\n");
    std::vector<std::unique_ptr<Child>> ranks;
    for (int rank = 0; rank < options.ranks; ++rank)
      ranks.push_back(std::make_unique<Child>([&, rank] {
        RankRecord record;
        const Monitor monitor(keeper.address, rank, record, options.key);
        joined.say("\n");
        for (;;) ::pause();
        return 0;
      }));
    for (int rank = 0; rank < options.ranks; ++rank) CHECK(joined.hear(30) == "\n");
    CHECK(keeper.verdicts.hear(1).empty());
  }
}

TEST_CASE("watch: a rank that sends malformed lines remains monitored") {
  WatchedJob job(1, 10, kNothing);  // ends normally; the hub below is a new one
  job.let_ranks_end();
  CHECK(job.rank(0).code(5) == 0);

  Pipe verdicts, address;
  Child keeper([&] {
    Hub hub({.ranks = 1}, [&](const Verdict& verdict) { verdicts.say(verdict.text + "\n"); });
    address.say(hub.address() + "\n");
    for (;;) ::pause();
    return 0;
  });
  std::string at = address.hear(5);
  at.pop_back();
  const int file = stranger(at);
  const std::string words = concat("{\"token\": \"", at.substr(0, 32), "\", \"rank\": 0, \"host\": 7, \"pid\": 1e9}\n{\"count\": -1e400}\n",
                                   "{\"count\": 3, \"step\": 1e30, \"action\": \"x\", \"timeout\": null, \"started\": []}\n", "no JSON\n");
  CHECK(::send(file, words.data(), words.size(), MSG_NOSIGNAL) > 0);
  CHECK(verdicts.hear(0.5).empty());
  ::close(file);
  CHECK(verdicts.hear(2).find("rank 0 (host , process 0) has died before the first step") == 0);
}

TEST_CASE("watch: a lost link is detected at both ends") {
  Pipe result, errors;
  Child host([&] {
    // A new network namespace, whose loopback interface can be taken down. The child of this process is needed because PR_SET_PDEATHSIG is not
    // inherited.
    if (::unshare(CLONE_NEWNET) != 0) return 77;
    const int control = ::socket(AF_INET, SOCK_DGRAM, 0);
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    if (::ioctl(control, SIOCSIFFLAGS, &loopback) != 0) return 77;
    Pipe joined;
    Hub hub({.ranks = 1, .silence_seconds = 2}, [&](const Verdict& verdict) { result.say(verdict.text + "\n"); });
    Child rank([&] {
      ::dup2(errors.input(), STDERR_FILENO);
      RankRecord record;
      Monitor monitor(hub.address(), 0, record);
      joined.say("\n");
      for (;;) ::pause();
      return 0;
    });
    joined.hear(5);
    loopback.ifr_flags = 0;
    if (::ioctl(control, SIOCSIFFLAGS, &loopback) != 0) return 77;
    return rank.code(15);
  });
  const int code = host.code(20);
  if (code == 77) {
    WARN("skipped: no permission to create a network namespace");
    return;
  }
  CHECK(code == 70);
  CHECK(result.hear(1).find("has not responded for 2 s: stopped, or host or link is lost") != std::string::npos);
  CHECK(errors.hear(1).find("has not responded for 2 s; exiting\n") != std::string::npos);
}

TEST_CASE("watch: a rank dies with its parent") {
  Pipe told;
  Child parent([&] {
    Child rank([&] {
      die_with_parent();
      told.say(std::to_string(::getpid()) + "\n");
      for (;;) ::pause();
      return 0;
    });
    for (;;) ::pause();
    return 0;
  });
  const pid_t rank = std::stoi(told.hear(5));
  parent.signal(SIGKILL);
  CHECK(parent.code(5) == 128 + SIGKILL);
  const auto begin = Clock::now();
  while (::kill(rank, 0) == 0 && since(begin) < 5) {  // a zombie that is not reaped counts as dead too
    std::string state;
    if (const int file = ::open(concat("/proc/", rank, "/stat").c_str(), O_RDONLY | O_CLOEXEC); file >= 0) {
      std::array<char, 512> bytes{};
      if (::read(file, bytes.data(), bytes.size() - 1) > 0) state = bytes.data();
      ::close(file);
    }
    if (state.find(") Z ") != state.npos) break;
    std::this_thread::sleep_for(milliseconds(10));
  }
  CHECK(since(begin) < 5);
}

TEST_CASE("watch: a delayed hub still determines which rank died first") {
  WatchedJob job(4, 10, kNothing);
  std::this_thread::sleep_for(milliseconds(400));
  job.hub->signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(400));  // by then each rank has sent a report
  for (const int r : {2, 0, 1, 3}) {
    job.rank(r).signal(SIGKILL);
    std::this_thread::sleep_for(milliseconds(30));
  }
  job.hub->signal(SIGCONT);
  const std::string verdict = job.verdicts.hear(3);
  INFO(verdict);
  CHECK(verdict.find("rank 2 (") == 2);
  CHECK(verdict.find(") has died") != std::string::npos);
}
