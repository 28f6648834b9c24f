#pragma once
// Line protocol of the side channel: one JSON object per line, over a non-blocking TCP connection.
//
// With security.encryption each side first sends {"seal": HELLO} in clear, the Monitor before the Hub. HELLO is that of crypto/handshake.h as hexadecimal
// digits. All later lines are frames of such lines, as hexadecimal digits; the nonce of a frame is its number in its direction.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "parallel/comm/progress.h"
#include "parallel/crypto/handshake.h"

namespace trireme {

/// Owns one end of a connection. Poll it for POLLIN, and for POLLOUT while unsent().
class LineSocket {
 public:
  explicit LineSocket(int file);
  ~LineSocket();
  LineSocket(LineSocket&& other) noexcept;
  LineSocket& operator=(LineSocket&& other) noexcept;

  /// From now on lines are encrypted in both directions.
  void encrypt(crypto::Channel keys);
  bool encrypted() const { return seal_ != nullptr; }

  int file() const { return file_; }
  bool unsent() const { return !out_.empty(); }
  /// Sends as much as the kernel accepts now, the rest at the next call. Returns false and sends nothing while more than 4 MiB are unsent.
  bool send(const nlohmann::json& line);
  void flush();
  /// Closes the sending side after the remaining lines.
  void finish();
  /// Appends the received lines, without newlines. Returns false at the end of the stream: the peer has closed, the link is lost (error() is then the
  /// errno), a line exceeds `longest` bytes, or a frame does not open (error() is then EBADMSG).
  bool receive(std::vector<std::string>& lines, size_t longest);
  int error() const { return error_; }

 private:
  struct Seal;
  std::string sealed(const std::string& line) const;
  /// Nothing if the frame does not open.
  std::optional<std::string> opened(const std::string& line) const;

  int file_ = -1;
  int error_ = 0;
  std::string in_, out_;
  std::unique_ptr<Seal> seal_;  ///< null: not encrypted
};

/// The line that begins encryption.
nlohmann::json seal_line(const crypto::Hello& hello);
/// The hello of such a line; nothing for another line.
std::optional<crypto::Hello> parse_seal(const nlohmann::json& line);
/// The keys of a connection between a Monitor, which is the first side, and its Hub. Nothing if `other` is not of this version. Whether the other side
/// has the same key shows when its first frame opens.
std::optional<crypto::Channel> seal_keys(const crypto::Handshake& handshake, const crypto::Key& shared, const crypto::Hello& other,
                                         crypto::Side side);

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
