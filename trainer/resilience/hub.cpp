#include "trainer/resilience/hub.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/comm/addresses.h"
#include "parallel/comm/refused_connections.h"
#include "trainer/files/open_file_limit.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/running_clock.h"
#include "trainer/resilience/wire.h"

namespace trireme {
namespace {

using nlohmann::json;

constexpr size_t kLongestHello = 4096, kLongestReport = size_t{1} << 22;
constexpr double kHelloTimeout = 5;
constexpr double kAskedStackSeconds = 3;  ///< for the ranks to write their stacks
constexpr size_t kMostReasons = 2000;     ///< bytes of a verdict that the ranks are told: less than a Monitor's longest line
constexpr int kMostStrangers = 512;       ///< connections without a hello
constexpr double kLeastHelloTime = 1;     ///< seconds that a connection has for its hello, however many others wait
constexpr int kMostAccepts = 64;          ///< per turn, so that a flood of connections cannot block the ranks

bool is_hang(Verdict::Kind kind) { return kind == Verdict::Kind::kHung || kind == Verdict::Kind::kDeadlock || kind == Verdict::Kind::kDisagreement; }

struct Connection {
  LineSocket socket;
  double since;  ///< time of accept()
  std::string address;
  int rank = -1;        ///< -1 before its hello
  bool joined = false;  ///< has sent a report. Before that its rank may switch to another address of the hub
  bool over = false;
};

}  // namespace

class Hub::Impl {
 public:
  Impl(const HubOptions& options, std::function<void(const Verdict&)> on_verdict)
      : options_(options),
        limits_{options.silence_seconds, options.join_seconds, options.failed_seconds},
        on_verdict_(std::move(on_verdict)),
        ranks_(static_cast<size_t>(options.ranks)),
        token_(random_token()) {
    raise_open_file_limit(static_cast<uint64_t>(options.ranks) + kMostStrangers + 256);  // one connection per rank
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(options.one_host ? INADDR_LOOPBACK : INADDR_ANY);
    socklen_t size = sizeof at;
    if (listener_ < 0 || wake_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(listener_, SOMAXCONN) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
      const std::string why = std::strerror(errno);
      close_all();
      throw IoError(concat("cannot open a port for the job monitor: ", why));
    }
    Endpoint endpoint{token_, own_addresses(!options.one_host)};
    for (std::string& address : endpoint.addresses) address += concat(":", ntohs(at.sin_port));
    address_ = text_of(endpoint);
    const std::string keeper = options.own_rank < 0 ? "the launcher" : concat("rank ", options.own_rank);
    welcome_ = {{"silence", options.silence_seconds},
                {"keeper", concat(keeper, " (host ", host_name(), ", process ", ::getpid(), ")")},
                {"keeper_is_rank", options.own_rank >= 0}};
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    stop_ = true;
    ::eventfd_write(wake_, 1);
    thread_.join();
    close_all();
  }

  const std::string& address() const { return address_; }
  int64_t furthest_step() const { return furthest_step_; }
  void request_stacks(Answer done) {
    const std::lock_guard lock(request_mutex_);
    if (!request_) request_ = std::move(done);
    ::eventfd_write(wake_, 1);
  }

 private:
  void run() {
    while (!stop_) {
      const bool asks = now_ < ask_until_;
      turn(asks ? 20 : 50);
      if (asks && now_ >= next_ask_) {
        next_ask_ = now_ + 0.02;
        tell_ranks({{"report", true}});
      }
      if (now_ >= next_beat_) {
        next_beat_ = now_ + heartbeat_interval(options_.silence_seconds);
        tell_ranks({{"beat", true}});
      }
      if (judged_) continue;
      if (!verdict_) {
        serve_request();
        verdict_ = judge(ranks_, now_, limits_);
        if (verdict_ && is_hang(verdict_->kind)) ask_for_stacks(verdict_->ranks, verdict_->text);
      }
      if (!verdict_ || !have_answered()) continue;
      judged_ = true;
      if (is_hang(verdict_->kind)) verdict_->text += place_of_stacks(ranks_, verdict_->ranks);
      tell_ranks({{"leave", verdict_->text.substr(0, kMostReasons)}});
      set_wall_times(*verdict_, now_, std::chrono::system_clock::now());
      on_verdict_(*verdict_);
    }
    tell_ranks({{"bye", true}});
    for (Connection& connection : connections_) connection.socket.finish();
    // Wait until the peers close: a connection closed with unread bytes is reset, and the last line may be lost.
    for (const double until = now_ + 0.2; !connections_.empty() && now_ < until;) turn(20);
    for (const Connection& connection : connections_) note_stranger(connection);
    write_without_waiting(refused_.take_warning(now_, true));
  }

  static bool is_stranger(const Connection& connection) { return connection.rank < 0; }
  void note_stranger(const Connection& connection) {
    if (is_stranger(connection)) refused_.add(connection.address, now_);
  }

  /// Begins what request_stacks() has asked for, and ends it.
  void serve_request() {
    Answer done;
    {
      const std::lock_guard lock(request_mutex_);
      if (!request_) return;
      if (!std::exchange(serves_request_, true)) {
        std::vector<int> all(ranks_.size());
        std::iota(all.begin(), all.end(), 0);
        ask_for_stacks(all, "requested by SIGQUIT to the launcher");
      }
      if (!have_answered()) return;
      done = *std::exchange(request_, std::nullopt);
      serves_request_ = false;
    }
    done(ranks_, now_);  // without the mutex, so that request_stacks() never waits for it
  }

  void ask_for_stacks(const std::vector<int>& ranks, const std::string& why) {
    asked_ = ranks;
    asked_until_ = now_ + kAskedStackSeconds;
    for (const int rank : asked_) ranks_[static_cast<size_t>(rank)].stacks.reset();
    for (Connection& connection : connections_)
      if (connection.joined && !connection.over && std::find(ranks.begin(), ranks.end(), connection.rank) != ranks.end())
        connection.socket.send({{"stacks", why.substr(0, kMostReasons)}});
  }

  /// True if every rank that was asked for its stacks has answered or ended, or has had enough time.
  bool have_answered() const {
    return now_ >= asked_until_ || std::all_of(asked_.begin(), asked_.end(), [&](int rank) {
             const RankState& state = ranks_[static_cast<size_t>(rank)];
             return state.life != RankState::Life::kAlive || state.stacks.has_value();
           });
  }

  /// Waits for events, handles them, and advances the clock.
  void turn(int milliseconds) {
    std::vector<pollfd> sources{{wake_, static_cast<short>(stop_ ? 0 : POLLIN), 0}, {has_place() ? listener_ : -1, POLLIN, 0}};
    for (const Connection& connection : connections_)
      sources.push_back({connection.socket.file(), static_cast<short>(connection.socket.unsent() ? POLLIN | POLLOUT : POLLIN), 0});
    ::poll(sources.data(), sources.size(), milliseconds);
    now_ = clock_.tick();
    if (eventfd_t count = 0; sources[0].revents != 0 && !stop_) ::eventfd_read(wake_, &count);
    for (size_t i = 2; i < sources.size(); ++i) {
      if (sources[i].revents != 0) serve(connections_[i - 2]);
    }
    for (Connection& connection : connections_)
      if (is_stranger(connection) && now_ - connection.since > kHelloTimeout) connection.over = true;
    std::erase_if(connections_, [&](const Connection& connection) {
      if (connection.over) note_stranger(connection);
      return connection.over;
    });
    if (sources[1].revents != 0) accept_all();
    write_without_waiting(refused_.take_warning(now_));
  }

  /// True if another connection may be accepted, which ends the oldest one without a hello if there are too many.
  bool has_place() const {
    if (std::count_if(connections_.begin(), connections_.end(), is_stranger) < kMostStrangers) return true;
    return now_ - std::find_if(connections_.begin(), connections_.end(), is_stranger)->since >= kLeastHelloTime;
  }
  void drop_oldest_stranger() {
    const auto oldest = std::find_if(connections_.begin(), connections_.end(), is_stranger);
    if (oldest == connections_.end()) return;
    note_stranger(*oldest);
    connections_.erase(oldest);
  }

  void accept_all() {
    for (int i = 0; i < kMostAccepts && has_place(); ++i) {
      sockaddr_storage from{};
      socklen_t size = sizeof from;
      const int file = ::accept4(listener_, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (file < 0 && (errno == EMFILE || errno == ENFILE)) {
        drop_oldest_stranger();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // avoids a busy loop
      }
      if (file < 0) return;
      if (std::count_if(connections_.begin(), connections_.end(), is_stranger) >= kMostStrangers) drop_oldest_stranger();
      const int on = 1;
      ::setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      connections_.push_back({LineSocket(file), now_, address_text(from)});
    }
  }

  void serve(Connection& connection) {
    connection.socket.flush();
    std::vector<std::string> lines;
    const bool open = connection.socket.receive(lines, connection.rank < 0 ? kLongestHello : kLongestReport);
    const bool unsealed = options_.key && !connection.socket.encrypted();
    for (const std::string& line : lines) {
      if (unsealed)
        connection.over = connection.over || lines.size() > 1 || !seal(connection, parse_line(line));
      else if (!connection.over)
        take(connection, parse_line(line));
    }
    if (open || connection.over) return;
    connection.over = true;
    if (!connection.joined || stop_) return;
    end(connection.rank, RankState::Life::kDead);
    date_death(connection);
    ask_until_ = now_ + 0.2;  // the other ranks will wait for it soon, and may be killed by mpirun
  }

  /// Answers the line that begins encryption. False: it is another one.
  bool seal(Connection& connection, const json& line) {
    const std::optional<crypto::Hello> hello = parse_seal(line);
    if (!hello) return false;
    const crypto::Handshake handshake;
    std::optional<crypto::Channel> keys = seal_keys(handshake, *options_.key, *hello, crypto::Side::kSecond);
    if (!keys) return false;
    connection.socket.send(seal_line(handshake.hello()));
    connection.socket.encrypt(std::move(*keys));
    return true;
  }

  void take(Connection& connection, const json& line) {
    if (connection.rank < 0) return greet(connection, line);
    const auto rank = static_cast<size_t>(connection.rank);
    if (!connection.joined && !join(connection)) return;
    Progress::Snapshot report = ranks_[rank].last;
    if (decode_report(line, options_.ranks, report)) {
      furthest_step_ = std::max<int64_t>(furthest_step_, report.step);
      note_report(ranks_, rank, std::move(report), now_);
    }
    if (line.contains("stacks") && line["stacks"].is_string()) ranks_[rank].stacks = line["stacks"].get<std::string>();
    if (!line.contains("goodbye")) return;
    connection.over = true;
    end(connection.rank, line["goodbye"] == "failed" ? RankState::Life::kFailed : RankState::Life::kLeft);
  }

  /// Handles the first line of a connection. A wrong token, or a rank that is already connected, closes the connection without an answer.
  void greet(Connection& connection, const json& hello) {
    connection.over = true;
    const auto text = [&](const char* key) { return hello.contains(key) && hello[key].is_string() ? hello[key].get<std::string>() : ""; };
    if (!is_token(text("token"), token_) || !hello.contains("rank") || !hello["rank"].is_number_unsigned()) return;
    const auto rank = hello["rank"].get<uint64_t>();
    if (rank >= ranks_.size() || ranks_[rank].life != RankState::Life::kAbsent) return;
    connection.over = false;
    connection.rank = static_cast<int>(rank);
    ranks_[rank].host = text("host");
    ranks_[rank].pid = hello.contains("pid") && hello["pid"].is_number_integer() ? hello["pid"].get<int64_t>() : 0;
    connection.socket.send(judged_ ? json{{"leave", true}} : welcome_);
  }

  /// Handles the first line after the hello. Returns false if the rank has already joined.
  bool join(Connection& connection) {
    RankState& state = ranks_[static_cast<size_t>(connection.rank)];
    connection.over = state.life != RankState::Life::kAbsent;
    if (connection.over) return false;
    connection.joined = true;
    state.life = RankState::Life::kAlive;
    state.heard = state.moved = now_;
    return true;
  }

  void end(int rank, RankState::Life life) {
    ranks_[static_cast<size_t>(rank)].life = life;
    ranks_[static_cast<size_t>(rank)].ended = now_;
  }

  /// Estimates the time of death. On a busy machine the first death and its consequences are detected together, but the kernel records within a few
  /// milliseconds when it last received from the peer: the end of the connection, or, before a reset, the last sign of life.
  void date_death(const Connection& connection) {
    RankState& state = ranks_[static_cast<size_t>(connection.rank)];
    state.died_after = state.heard;
    state.died_by = now_;  // no better than `heard` if the last report and the end are read together
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(connection.socket.file(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
    const double last = now_ - info.tcpi_last_ack_recv / 1000.0;
    if (connection.socket.error() == 0) state.died_by = last;
    state.died_after = last - 0.005;
  }

  void tell_ranks(const json& line) {
    for (Connection& connection : connections_) {
      const bool spared = connection.rank == options_.own_rank && line.contains("leave");
      if (connection.rank >= 0 && !connection.over && !spared) connection.socket.send(line);
    }
  }

  void close_all() {
    if (listener_ >= 0) ::close(listener_);
    if (wake_ >= 0) ::close(wake_);
  }

  HubOptions options_;
  Limits limits_;
  std::function<void(const Verdict&)> on_verdict_;
  std::vector<RankState> ranks_;
  std::vector<Connection> connections_;
  std::string token_, address_;
  json welcome_;
  RefusedConnections refused_{"the job monitor", "which did not identify themselves as ranks of this job"};
  int listener_ = -1, wake_ = -1;
  RunningClock clock_;
  double now_ = 0, next_beat_ = 0, next_ask_ = 0, ask_until_ = 0;
  std::optional<Verdict> verdict_;  ///< found, and told once judged_
  bool judged_ = false;
  std::vector<int> asked_;  ///< ranks that were asked for their stacks last
  double asked_until_ = 0;
  std::mutex request_mutex_;
  std::optional<Answer> request_;
  bool serves_request_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> furthest_step_ = 0;
  std::thread thread_;
};

Hub::Hub(const HubOptions& options, std::function<void(const Verdict&)> on_verdict) : impl_(std::make_unique<Impl>(options, std::move(on_verdict))) {}
Hub::~Hub() = default;
std::string Hub::address() const { return impl_->address(); }
void Hub::request_stacks(Answer done) { impl_->request_stacks(std::move(done)); }
int64_t Hub::furthest_step() const { return impl_->furthest_step(); }

}  // namespace trireme
