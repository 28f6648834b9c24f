#include "trainer/resilience/wire.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "parallel/crypto/sodium.h"
#include "trainer/files/strict_json.h"

namespace trireme {

using nlohmann::json;

struct LineSocket::Seal {
  crypto::Channel keys;
  uint64_t sent = 0, received = 0;
};

LineSocket::LineSocket(int file) : file_(file) {}

LineSocket::~LineSocket() {
  if (file_ >= 0) ::close(file_);
}

LineSocket::LineSocket(LineSocket&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      error_(other.error_),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)),
      seal_(std::move(other.seal_)) {}

LineSocket& LineSocket::operator=(LineSocket&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(error_, other.error_);
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  std::swap(seal_, other.seal_);
  return *this;
}

void LineSocket::encrypt(crypto::Channel keys) { seal_ = std::make_unique<Seal>(Seal{std::move(keys)}); }

std::string LineSocket::sealed(const std::string& line) const {
  std::vector<uint8_t> frame(line.size() + crypto::kTagBytes);
  seal_->keys.sends.seal(crypto::nonce_of(0, seal_->sent++), {}, std::as_bytes(std::span(line)), std::as_writable_bytes(std::span(frame)));
  return crypto::hex(frame);
}

std::optional<std::string> LineSocket::opened(const std::string& line) const {
  std::vector<uint8_t> frame(line.size() / 2);
  if (frame.size() < crypto::kTagBytes || !crypto::from_hex(line, frame)) return std::nullopt;
  std::string text(frame.size() - crypto::kTagBytes, '\0');
  if (!seal_->keys.receives.open(crypto::nonce_of(0, seal_->received++), {}, std::as_bytes(std::span(frame)),
                                 std::as_writable_bytes(std::span(text))))
    return std::nullopt;
  return text;
}

bool LineSocket::send(const json& line) {
  constexpr size_t kMostUnsent = size_t{4} << 20;
  if (out_.size() > kMostUnsent) return false;
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace);
  out_ += seal_ ? sealed(text) : text;
  out_ += '\n';
  flush();
  return true;
}

void LineSocket::flush() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(file_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) out_.clear();  // the connection is lost; receive() reports it
    if (sent < 0) return;
    out_.erase(0, static_cast<size_t>(sent));
  }
}

void LineSocket::finish() {
  flush();
  ::shutdown(file_, SHUT_WR);
}

bool LineSocket::receive(std::vector<std::string>& lines, size_t longest) {
  std::array<char, 16384> bytes;
  if (seal_) longest = 2 * (longest + crypto::kTagBytes);
  // Bounded, so that a peer that sends continuously cannot block the caller.
  for (int rounds = 0; rounds < 64; ++rounds) {
    const ssize_t count = ::recv(file_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return true;
    if (count < 0) error_ = errno;
    if (count <= 0) return false;
    in_.append(bytes.data(), static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end = in_.find('\n'); end != in_.npos; begin = end + 1, end = in_.find('\n', begin)) {
      if (end - begin > longest) return false;
      std::string line = in_.substr(begin, end - begin);
      if (seal_) {
        std::optional<std::string> text = opened(line);
        if (!text) error_ = EBADMSG;
        if (!text) return false;
        line = std::move(*text);
      }
      lines.push_back(std::move(line));
    }
    in_.erase(0, begin);
    if (in_.size() > longest) return false;
  }
  return true;
}

json seal_line(const crypto::Hello& hello) { return {{"seal", crypto::hex(hello)}}; }

std::optional<crypto::Hello> parse_seal(const json& line) {
  crypto::Hello hello;
  if (!line.contains("seal") || !line["seal"].is_string() || !crypto::from_hex(line["seal"].get<std::string>(), hello)) return std::nullopt;
  return hello;
}

std::optional<crypto::Channel> seal_keys(const crypto::Handshake& handshake, const crypto::Key& shared, const crypto::Hello& other,
                                         crypto::Side side) {
  const std::optional<crypto::Agreement> agreement = handshake.agree(shared, other, side, "job monitor");
  if (!agreement) return std::nullopt;
  return agreement->channel("lines");
}

json parse_line(std::string_view line) { return json_line(line); }

json encode_report(const Progress::Snapshot& now, size_t groups_known) {
  json report{{"count", now.count}, {"step", now.step}, {"action", now.action}, {"timeout", std::isfinite(now.timeout) ? now.timeout : 1e9}};
  json& started = report["started"] = json::array();
  for (size_t g = 0; g < now.groups.size(); ++g) {
    const Progress::Group& group = now.groups[g];
    started.push_back(group.started);
    if (g >= groups_known) report["groups"].push_back({{"name", group.name}, {"ranks", group.ranks}});
    if (!group.sent.empty()) report["messages"].push_back({g, group.sent, group.received});
  }
  if (now.wait) {
    json& wait = report["wait"] = {{"what", now.wait->what}, {"number", now.wait->number}};
    if (now.wait->group) wait["group"] = *now.wait->group;
    for (const Progress::Message& message : now.wait->messages) wait["messages"].push_back({message.peer, message.send, message.number});
  }
  return report;
}

namespace {

/// Errors: json::exception, std::out_of_range.
Progress::Snapshot decode(const json& report, int world_size, const Progress::Snapshot& known) {
  Progress::Snapshot now;
  now.count = report.at("count").get<uint64_t>();
  now.step = report.at("step").get<int64_t>();
  now.action = report.at("action").get<std::string>();
  now.timeout = report.at("timeout").get<double>();
  now.groups = known.groups;
  for (const json& group : report.value("groups", json::array())) {
    Progress::Group added{group.at("name").get<std::string>(), group.at("ranks").get<std::vector<int>>(), 0, {}, {}};
    for (const int rank : added.ranks)
      if (rank < 0 || rank >= world_size) throw std::out_of_range("rank");
    now.groups.push_back(std::move(added));
  }
  const auto started = report.at("started").get<std::vector<uint64_t>>();
  if (started.size() != now.groups.size()) throw std::out_of_range("groups");
  for (size_t g = 0; g < started.size(); ++g) now.groups[g].started = started[g];
  for (const json& messages : report.value("messages", json::array())) {
    Progress::Group& group = now.groups.at(messages.at(0).get<size_t>());
    group.sent = messages.at(1).get<std::vector<uint64_t>>();
    group.received = messages.at(2).get<std::vector<uint64_t>>();
  }
  if (!report.contains("wait")) return now;
  const json& wait = report["wait"];
  now.wait = {wait.at("what").get<std::string>(), {}, wait.at("number").get<uint64_t>(), {}};
  if (wait.contains("group")) now.wait->group = wait["group"].get<size_t>();
  for (const json& message : wait.value("messages", json::array()))
    now.wait->messages.push_back({message.at(0).get<size_t>(), message.at(1).get<bool>(), message.at(2).get<uint64_t>()});
  return now;
}

}  // namespace

bool decode_report(const json& report, int world_size, Progress::Snapshot& known) {
  try {
    known = decode(report, world_size, known);
    return true;
  } catch (const json::exception&) {
  } catch (const std::out_of_range&) {
  }
  return false;
}

double heartbeat_interval(double silence_seconds) { return std::min(1.0, silence_seconds / 10); }

}  // namespace trireme
