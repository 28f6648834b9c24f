#pragma once
#include <deque>
#include <string>
#include <vector>

namespace trireme::test {

/// Hostile connections to a port of this host, of each kind in turn: closed at once, silent, garbage, a byte now and then, a line without an end, a
/// message that is forged, reset within a message, and half closed.
class Strangers {
 public:
  static constexpr int kKinds = 8;
  /// `forged`: whole messages, which are sent in turn.
  Strangers(int port, std::vector<std::string> forged);
  ~Strangers();
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  /// Opens `count` more. Of those that stay open at most 500 do: the oldest are closed.
  void connect(int count);
  /// Another byte from each that stays open.
  void drip() const;
  /// Those that the other end still has open, after waiting up to `seconds` for it to close them.
  size_t open(double seconds) const;
  /// Those that could be opened.
  int64_t opened() const { return opened_; }

 private:
  void close_oldest();

  int port_;
  std::vector<std::string> forged_;
  std::deque<int> held_;
  int64_t next_ = 0, opened_ = 0;
};

/// Open descriptors and resident bytes of a process, to be compared before and after.
struct Footprint {
  size_t descriptors = 0;
  int64_t bytes = 0;
};
Footprint footprint_of(int process);

}  // namespace trireme::test
