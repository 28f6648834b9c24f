#pragma once
// Line protocol of the side channel: one JSON object per line, over a non-blocking TCP connection.
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "parallel/comm/progress.h"

namespace trireme {

/// Owns one end of a connection. Poll it for POLLIN, and for POLLOUT while unsent().
class LineSocket {
 public:
  explicit LineSocket(int file) : file_(file) {}
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&& other) noexcept;

  int file() const { return file_; }
  bool unsent() const { return !out_.empty(); }
  /// Sends as much as the kernel accepts now, the rest at the next call. Returns false and sends nothing while more than 4 MiB are unsent.
  bool send(const nlohmann::json& line);
  void flush();
  /// Closes the sending side after the remaining lines.
  void finish();
  /// Appends the received lines, without newlines. Returns false at the end of the stream: the peer has closed, the link is lost (error() is then the
  /// errno), or a line exceeds `longest` bytes.
  bool receive(std::vector<std::string>& lines, size_t longest);
  int error() const { return error_; }

 private:
  int file_ = -1;
  int error_ = 0;
  std::string in_, out_;
};

/// Parses an object; null if the line is not one.
nlohmann::json parse_line(std::string_view line);

/// Encodes a report. Groups from `groups_known` on are described in full, earlier ones only by their counters.
nlohmann::json encode_report(const Progress::Snapshot& now, size_t groups_known);
/// Decodes a report into `known`, the previous one. Returns false and leaves `known` unchanged if it is malformed or names ranks outside a world of
/// `world_size`.
bool decode_report(const nlohmann::json& report, int world_size, Progress::Snapshot& known);

/// Seconds between heartbeats of the hub.
double heartbeat_interval(double silence_seconds);

}  // namespace trireme
