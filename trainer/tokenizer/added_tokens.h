#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Finds the first, and there the longest, of some tokens in a text.
class AddedTokens {
 public:
  struct Match {
    size_t begin, end;  ///< equal, at the end of the text, where there is none
    int32_t id;
  };

  AddedTokens() = default;
  /// Contents, none of them empty, and their ids.
  explicit AddedTokens(std::vector<std::pair<std::string, int32_t>> tokens);
  Match find(std::string_view text, size_t at) const;

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  ///< sorted by content
  std::array<uint32_t, 257> first_{};                    ///< those of one first byte: [first_[byte], first_[byte + 1])
};

}  // namespace trireme
