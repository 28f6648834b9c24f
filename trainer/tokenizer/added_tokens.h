#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Searches a text for added tokens, leftmost-longest.
class AddedTokens {
 public:
  struct Match {
    size_t begin, end;  ///< both the end of the text if there is no match
    int32_t id;
  };

  AddedTokens() = default;
  /// `tokens`: non-empty contents with their ids.
  explicit AddedTokens(std::vector<std::pair<std::string, int32_t>> tokens);
  /// The leftmost match at or after byte `at`; of several that begin there, the longest.
  Match find(std::string_view text, size_t at) const;

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  ///< sorted by content
  std::array<uint32_t, 257> first_{};                    ///< tokens that begin with `byte`: [first_[byte], first_[byte + 1])
};

}  // namespace trireme
