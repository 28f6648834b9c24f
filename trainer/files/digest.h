#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace trireme {

/// 128-bit XXH3: finds damage, proves no authorship. Some 19 GB/s on one core of 2022, so it does not slow a save.
class Digest {
 public:
  Digest();
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string str() const;  ///< "xxh3-128:" and 32 hexadecimal digits

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// Of all of a text.
std::string digest_of(std::string_view text);

}  // namespace trireme
