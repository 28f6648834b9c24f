#pragma once
// The lines of the side channel: one JSON object each, over a TCP connection that never blocks.
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "parallel/comm/progress.h"

namespace trireme {

/// One end of a connection, which it owns. Whoever polls it asks for POLLIN, and for POLLOUT while `unsent`.
class LineSocket {
 public:
  explicit LineSocket(int file) : file_(file) {}
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&& other) noexcept;

  int file() const { return file_; }
  bool unsent() const { return !out_.empty(); }
  /// As much as the kernel takes now, the rest with the next call. False, and nothing sent, while too much waits already.
  bool send(const nlohmann::json& line);
  void flush();
  /// No more is sent; the peer reads to the end.
  void finish();
  /// Appends what has come in, without newlines. False once there will be no more: the peer has ended, the link is lost (then `error` is its errno), or a line
  /// exceeds `longest` bytes.
  bool receive(std::vector<std::string>& lines, size_t longest);
  int error() const { return error_; }

 private:
  int file_ = -1;
  int error_ = 0;
  std::string in_, out_;
};

/// An object, or null where the line is none.
nlohmann::json parse_line(std::string_view line);

/// What is new in a report: groups from `groups_known` on are described, those before only counted.
nlohmann::json encode_report(const Progress::Snapshot& now, size_t groups_known);
/// Writes a report over the one before. False, and `known` as it was, if it is malformed or names ranks outside a world of `world_size`.
bool decode_report(const nlohmann::json& report, int world_size, Progress::Snapshot& known);

/// The hub says every so many seconds that it runs.
double beat_interval(double silence_seconds);

}  // namespace trireme
