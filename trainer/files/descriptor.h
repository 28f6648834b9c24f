#pragma once
#include <unistd.h>

namespace trireme {

/// Owns a file descriptor, or none if it is negative.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return value_; }

 private:
  int value_;
};

}  // namespace trireme
