#include "trainer/resilience/monitor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <fstream>
#include <thread>

#include "kernels/core/check.h"
#include "kernels/core/joined.h"
#include "parallel/comm/addresses.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/running_clock.h"
#include "trainer/resilience/wire.h"

namespace trireme {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kLongestLine = 4096;
constexpr auto kReportInterval = milliseconds(250);
constexpr int kLeaveCode = static_cast<int>(ExitCode::kInternal);

int milliseconds_until(Clock::time_point time) {
  return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<milliseconds>(time - Clock::now()).count()));
}

/// Returns a non-blocking socket connected to "A.B.C.D:PORT", or -1 with errno.
int connect_to(const std::string& address, Clock::time_point deadline) {
  const int file = start_connecting(address);
  if (file < 0) return -1;
  pollfd ready{file, POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t size = sizeof error;
  if (::poll(&ready, 1, milliseconds_until(deadline)) != 0) ::getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return file;
  ::close(file);
  errno = error;
  return -1;
}

/// The next complete line, or "" if none arrives before the deadline.
std::string await_line(LineSocket& socket, Clock::time_point deadline) {
  std::vector<std::string> lines;
  for (bool open = true; lines.empty() && open && Clock::now() < deadline;) {
    pollfd ready{socket.file(), POLLIN, 0};
    ::poll(&ready, 1, milliseconds_until(deadline));
    open = socket.receive(lines, kLongestLine);
  }
  return lines.empty() ? "" : lines.front();
}

/// Enables keep-alive timeouts. The kernel also answers for a stopped process, so a timeout means that the host or the link is lost.
void end_with_link(int file, double seconds) {
  const int on = 1, interval = 1, probes = std::max(1, static_cast<int>(seconds)), limit = static_cast<int>(seconds * 1000);
  ::setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(file, IPPROTO_TCP, TCP_KEEPIDLE, &interval, sizeof interval);
  ::setsockopt(file, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(file, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(file, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
  ::setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

class Monitor::Impl {
 public:
  Impl(const std::string& hub_address, int rank, RankRecord& record, std::shared_ptr<const crypto::Key> key)
      : rank_(rank), record_(record), key_(std::move(key)), socket_(join(hub_address)) {
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) throw IoError(concat("rank ", rank_, ": cannot create an eventfd for the job monitor: ", std::strerror(errno)));
    report({});  // immediately, because the hub counts a rank as joined from its first report on
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    failed_ = std::uncaught_exceptions() > exceptions_;
    stop_ = true;
    ::eventfd_write(wake_, 1);
    thread_.join();
    ::close(wake_);
  }

 private:
  /// Tries the hub's addresses in turn, each with its own timeout, because firewalls may drop packets to some. Stores the hub's limits from its
  /// welcome.
  LineSocket join(const std::string& hub_address) {
    const Endpoint hub = parse_endpoint(hub_address);
    const json hello{{"token", hub.token}, {"rank", rank_}, {"host", host_name()}, {"pid", ::getpid()}};
    std::string why = "no address";
    for (const std::string& address : hub.addresses) {
      const bool is_last = &address == &hub.addresses.back();
      const int file = connect_to(address, Clock::now() + std::chrono::seconds(2));
      if (file < 0) {
        why = concat(address, ": ", std::strerror(errno));
        continue;
      }
      LineSocket socket(file);
      if (key_ && !encrypt(socket, Clock::now() + std::chrono::seconds(is_last ? 10 : 3))) {
        why = concat(address, ": the monitor does not encrypt (security.encryption)");
        continue;
      }
      socket.send(hello);
      const json welcome = parse_line(await_line(socket, Clock::now() + std::chrono::seconds(is_last ? 10 : 3)));
      if (welcome.contains("leave")) leave(welcome);
      if (welcome.contains("silence") && welcome["silence"].is_number() && welcome.contains("keeper") && welcome["keeper"].is_string()) {
        silence_seconds_ = welcome["silence"].get<double>();
        keeper_ = welcome["keeper"].get<std::string>();
        keeper_is_rank_ = welcome.contains("keeper_is_rank") && welcome["keeper_is_rank"] == true;
        end_with_link(file, silence_seconds_);
        return socket;
      }
      why = concat(address, ": connection refused, the monitor belongs to another job", key_ ? " or has another key (security.key_file)" : "");
    }
    throw IoError(concat("rank ", rank_, " on host ", host_name(), " cannot connect to the job monitor at ", joined(hub.addresses, ","), " (", why,
                         "): the hosts of a job must be able to connect to each other"));
  }

  /// False if the hub does not answer in time.
  bool encrypt(LineSocket& socket, Clock::time_point deadline) const {
    const crypto::Handshake handshake;
    socket.send(seal_line(handshake.hello()));
    const std::optional<crypto::Hello> answer = parse_seal(parse_line(await_line(socket, deadline)));
    if (!answer) return false;
    std::optional<crypto::Channel> keys = seal_keys(handshake, *key_, *answer, crypto::Side::kFirst);
    if (keys) socket.encrypt(std::move(*keys));
    return keys.has_value();
  }

  void run() {
    auto next_report = Clock::now();
    RunningClock clock;
    double beaten = 0;
    while (!stop_ && !released_) {
      std::array<pollfd, 2> sources{pollfd{wake_, POLLIN, 0}, {socket_.file(), static_cast<short>(socket_.unsent() ? POLLIN | POLLOUT : POLLIN), 0}};
      ::poll(sources.data(), sources.size(), milliseconds_until(next_report));
      socket_.flush();
      bool asked = false;
      if (!listen(asked) && !released_ && !stop_) lose_hub(false);
      const double now = clock.tick();
      if (std::exchange(beat_, false)) beaten = now;
      if (keeper_is_rank_ && !released_ && !stop_ && now - beaten >= silence_seconds_) lose_hub(true);
      if (const auto stacks = record_.take_stacks()) report({{"stacks", *stacks}});
      if (!asked && Clock::now() < next_report) continue;
      next_report = Clock::now() + kReportInterval;
      // A suspended hub does not read: reports would fill the kernel's buffers.
      if (!released_ && now - beaten < 2.5 * heartbeat_interval(silence_seconds_)) report({});
    }
    if (!released_) say_goodbye();
  }

  /// Returns false once the connection has ended.
  bool listen(bool& asked) {
    std::vector<std::string> lines;
    const bool open = socket_.receive(lines, kLongestLine);
    for (const std::string& text : lines) {
      const json line = parse_line(text);
      if (line.contains("leave")) leave(line);
      if (line.contains("stacks") && line["stacks"].is_string()) record_.request_stacks(line["stacks"].get<std::string>());
      released_ = released_ || line.contains("bye");
      asked = asked || line.contains("report");
    }
    beat_ = beat_ || !lines.empty();
    return open;
  }

  void report(const json& more) {
    const Progress::Snapshot now = record_.progress().snapshot();
    json line = encode_report(now, groups_known_);
    if (!more.is_null()) line.update(more);
    if (socket_.send(line)) groups_known_ = now.groups.size();
  }

  /// Sends the goodbye and waits until the hub has read it: closing a connection with unread data resets it, and the goodbye may be lost.
  void say_goodbye() {
    report({{"goodbye", failed_ ? "failed" : "well"}});
    socket_.finish();
    const auto deadline = Clock::now() + std::chrono::seconds(1);
    for (bool open = true, asked = false; open && Clock::now() < deadline;) {
      pollfd ready{socket_.file(), POLLIN, 0};
      ::poll(&ready, 1, milliseconds_until(deadline));
      open = listen(asked);
    }
  }

  [[noreturn]] void leave(const json& line) {
    const std::string why = line["leave"].is_string() ? line["leave"].get<std::string>() : "";
    record_.end_in_time(concat("ordered to exit by the job monitor", why.empty() ? "" : ": ", why));
    ::_exit(kLeaveCode);
  }

  [[noreturn]] void lose_hub(bool silent) {
    silent = silent || socket_.error() == ETIMEDOUT || socket_.error() == EHOSTUNREACH || socket_.error() == ENETUNREACH;
    // Staggered by rank: the first rank that exits usually ends the others, and one message is enough.
    std::this_thread::sleep_for(milliseconds(std::min(rank_ * 20, 500)));
    const bool forged = socket_.error() == EBADMSG;
    const std::string why = forged   ? std::string(" has sent a message that is not authentic (security.encryption)")
                            : silent ? concat(" has not responded for ", silence_seconds_, " s")
                                     : std::string(" has died");
    const std::string line = concat("rank ", rank_, ": lost the job monitor, because ", keeper_, why, "; exiting\n");
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    (void)written;  // an error cannot be reported any more
    record_.end_in_time(concat("lost the job monitor, because ", keeper_, why));
    end_orphaned_daemon();
    ::_exit(kLeaveCode);
  }

  /// Open MPI's daemon on a disconnected host would run forever.
  static void end_orphaned_daemon() {
    const pid_t parent = ::getppid();
    std::string name;
    std::getline(std::ifstream(concat("/proc/", parent, "/comm")), name);
    if (name == "orted") ::kill(parent, SIGTERM);
  }

  int rank_;
  RankRecord& record_;
  std::shared_ptr<const crypto::Key> key_;
  double silence_seconds_ = 10;
  std::string keeper_;
  bool keeper_is_rank_ = false;
  LineSocket socket_;
  int exceptions_ = std::uncaught_exceptions();
  int wake_ = -1;
  size_t groups_known_ = 0;
  bool beat_ = false;      ///< the hub has sent something since the last turn
  bool released_ = false;  ///< the hub has ended normally
  bool failed_ = false;    ///< written before stop_ is set, read after
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Monitor::Monitor(const std::string& hub_address, int rank, RankRecord& record, std::shared_ptr<const crypto::Key> key)
    : impl_(std::make_unique<Impl>(hub_address, rank, record, std::move(key))) {}
Monitor::~Monitor() = default;

}  // namespace trireme
