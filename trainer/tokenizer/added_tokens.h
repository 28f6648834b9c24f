#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A token that is matched in the text itself, before pre-tokenization. The flags are those of `tokenizers`.
struct AddedToken {
  std::string content;
  int32_t id;
  bool special = false;
  bool normalized = false;              ///< matched after normalisation, in the text between the other added tokens; the content is normalised too
  bool lstrip = false, rstrip = false;  ///< takes the white space before, behind it
  bool single_word = false;             ///< is not matched beside a letter, digit or underscore
  bool reaches() const { return lstrip || rstrip || single_word; }  ///< the text beside a match matters
};

/// Searches a text for added tokens, leftmost-longest.
class AddedTokens {
 public:
  struct Match {
    size_t begin, end;  ///< both the end of the text if there is no match
    int32_t id;
    const AddedToken* token;
  };
  /// A match with the white space that it takes.
  struct Span {
    size_t begin, end;  ///< both 0 if its neighbours forbid the match
  };

  AddedTokens() = default;
  /// `tokens` are not empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);
  /// The leftmost match at or after byte `at`; of several that begin there, the longest. Flags are not regarded.
  Match find(std::string_view text, size_t at) const;
  /// What a match takes of the text; an earlier match may have taken the white space before it already.
  static Span span(const Match& match, std::string_view text);

  /// Whether text encoded in two parts, cut at byte `cut`, has the matches of the whole, apart from matches across `cut`. `limit`: no token that begins
  /// before it can be unseen. Without flags, always.
  bool allow_cut(std::string_view text, size_t cut, size_t limit) const;
  bool reaches() const { return reaches_; }  ///< a token does

 private:
  std::vector<AddedToken> tokens_;     ///< sorted by content
  std::array<uint32_t, 257> first_{};  ///< tokens that begin with `byte`: [first_[byte], first_[byte + 1])
  bool reaches_ = false;
};

/// Calls plain(text, begin) for the text between added tokens, and appends the ids of the added tokens.
template <class Plain>
void between_tokens(const AddedTokens& added, std::string_view text, std::vector<int32_t>& tokens, Plain&& plain) {
  size_t free = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = added.find(text, at);
    at = match.end;
    if (match.begin == match.end) break;
    const AddedTokens::Span span = AddedTokens::span(match, text);
    if (span.end == 0) continue;
    if (span.begin > free) plain(text.substr(free, span.begin - free), free);
    tokens.push_back(match.id);
    free = span.end;
  }
  if (free < text.size()) plain(text.substr(free), free);
}

}  // namespace trireme
