#pragma once
#include <map>
#include <string>
#include <string_view>

struct sockaddr_storage;

namespace trireme {

/// Counts the connections that a listening socket has refused, for one warning in place of a line for each. The first warning comes a second after
/// the first refusal, later ones at most every ten minutes, and the last one at the end. Addresses beyond the first sixteen are counted together.
class RefusedConnections {
 public:
  /// `listener`: subject of the warning, as "the job monitor". `why`: end of its sentence.
  RefusedConnections(std::string listener, std::string why) : listener_(std::move(listener)), why_(std::move(why)) {}
  void add(const std::string& address, double now);
  /// The warning that is due, with a newline; empty if none is. `ends`: nothing follows.
  std::string take_warning(double now, bool ends = false);
  /// False if no warning can become due without another refusal.
  bool pending() const { return count_ > 0; }

 private:
  std::string listener_, why_;
  std::map<std::string, int64_t> by_address_;
  int64_t count_ = 0;
  double due_ = 0;
  bool has_warned_ = false;
};

/// The address in digits, without the port.
std::string address_text(const sockaddr_storage& address);

/// Writes to standard error, unless it would have to wait for a reader.
void write_without_waiting(std::string_view text);

}  // namespace trireme
