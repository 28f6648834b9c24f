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

/// Calls plain(text, begin) for the text between added tokens, and appends the ids of the added tokens.
template <class Plain>
void between_tokens(const AddedTokens& added, std::string_view text, std::vector<int32_t>& tokens, Plain&& plain) {
  for (size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = added.find(text, at);
    if (match.begin > at) plain(text.substr(at, match.begin - at), at);
    if (match.end > match.begin) tokens.push_back(match.id);
    at = match.end;
  }
}

}  // namespace trireme
