#pragma once
// Splits text by the regexes of a tokenizer.json into the pieces within which byte pairs are merged.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/regex.h"
#include "trainer/tokenizer/utf8.h"

struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace trireme {

/// Pre-tokenization pattern of a widely used model family.
struct NamedPattern {
  std::string_view name, regex;
  bool nfc;  ///< the models normalise text to NFC first
};
extern const std::array<NamedPattern, 3> kNamedPatterns;  ///< gpt2, llama3, qwen2

/// What becomes of the matches of a regex and of the text between them, the gaps. Source: SplitDelimiterBehavior of `tokenizers`.
enum class SplitBehavior : uint8_t {
  kIsolated,            ///< each match and each gap is a piece
  kRemoved,             ///< each gap is a piece, matches are dropped
  kMergedWithPrevious,  ///< a match behind a gap belongs to the piece of that gap
  kMergedWithNext,      ///< a match before a gap belongs to the piece of that gap
  kContiguous,          ///< matches that follow each other are one piece
};

struct SplitRule {
  std::string regex;  ///< in Oniguruma's Ruby syntax, as `tokenizers` reads them
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  ///< matches and gaps change roles
};

/// Each rule in turn splits the pieces of the previous one.
struct PretokenizerRules {
  std::vector<SplitRule> splits;
  int prefix_before = -1;  ///< rule before which each piece without a leading space gets one (splits.size(): after the last); -1: none
};

/// Copies share the compiled regexes; use one copy per thread.
class Pretokenizer {
 public:
  /// Errors: DataError, prefixed with `where`, for a regex that is invalid or could match differently than in `tokenizers`.
  Pretokenizer(PretokenizerRules rules, const std::string& where);
  Pretokenizer(const Pretokenizer& other);
  Pretokenizer& operator=(const Pretokenizer& other);
  Pretokenizer(Pretokenizer&&) noexcept = default;
  Pretokenizer& operator=(Pretokenizer&&) noexcept = default;

  /// Calls piece(std::string_view) for the pieces of `text` in order; concatenated they are the text plus the inserted leading spaces, less what rules remove. Each byte
  /// that is not part of valid UTF-8 is a separate piece. `begins`: `text` begins a document rather than continuing one that was cut; only then can
  /// its first piece get a leading space. Errors: DataError if a regex exceeds its match limits.
  template <class Piece>
  void pieces(std::string_view text, bool begins, Piece&& piece) {
    std::string prefixed;
    if (rules_.prefix_before == 0 && begins) text = with_prefix(text, prefixed);
    while (!text.empty()) {
      const size_t valid = valid_utf8(text);
      if (valid > 0) split(0, text.substr(0, valid), piece);
      if (valid < text.size()) piece(text.substr(valid, 1));
      text.remove_prefix(valid < text.size() ? valid + 1 : valid);
    }
  }

  /// True if the beginning of a text can get a leading space.
  bool prefixes_text() const { return rules_.prefix_before == 0; }
  /// The last place in `text`, a prefix of a longer text, at which it can be cut: the pieces before it do not depend on the text after it, nor those
  /// after it on the text before it. `begins`: see pieces(). `nfc`: NFC normalisation must not cross the place either. 0 if there is no such place.
  size_t last_boundary(std::string_view text, bool begins, bool nfc) const;
  /// A faster last_boundary for kNamedPatterns: searches backwards for the beginning of a line, without matching. Invalid if a leading space can be
  /// inserted before the white space that precedes the line. 0 if there is no such place, or the regex is not in kNamedPatterns.
  size_t last_line(std::string_view text) const;

 private:
  struct Match {
    size_t begin, end;  ///< both the end of the text if there is no match
  };
  struct Boundary {
    size_t end;        ///< end of a match
    uint64_t matches;  ///< hash of the begins and ends of this match and all before it
    bool operator==(const Boundary&) const = default;
  };
  struct MatchState {
    MatchState();
    std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> data;
    std::unique_ptr<pcre2_real_match_context_8, void (*)(pcre2_real_match_context_8*)> context;
    std::unique_ptr<pcre2_real_jit_stack_8, void (*)(pcre2_real_jit_stack_8*)> stack;  ///< allocated when the default 32 KiB are exceeded
  };

  /// The first match in text[at..]. `partial`: a match that inspected the end of the text does not count.
  Match find(MatchState& state, size_t step, std::string_view text, size_t at, bool partial) const;
  /// Boundaries of the last few matches of the first regex in `run`, which is valid UTF-8.
  std::vector<Boundary> last_boundaries(MatchState& state, std::string_view run, bool partial) const;
  static std::string_view with_prefix(std::string_view text, std::string& room);

  struct Segment {
    size_t begin, end;
    bool match;
  };
  /// The pieces of a rule that merges matches and gaps.
  std::vector<Segment> merged(size_t step, std::string_view text);

  template <class Piece>
  void split(size_t step, std::string_view text, Piece& piece) {
    if (step == codes_.size()) return piece(text);
    const SplitRule& rule = rules_.splits[step];
    if (rule.behavior != SplitBehavior::kIsolated && rule.behavior != SplitBehavior::kRemoved) {
      for (const Segment& segment : merged(step, text)) next(step, text.substr(segment.begin, segment.end - segment.begin), piece);
      return;
    }
    const bool removes = rule.behavior == SplitBehavior::kRemoved, keeps_matches = !removes || rule.invert, keeps_gaps = !removes || !rule.invert;
    for (size_t at = 0; at < text.size();) {
      const Match match = find(state_, step, text, at, false);
      if (keeps_gaps && match.begin > at) next(step, text.substr(at, match.begin - at), piece);
      if (keeps_matches && match.end > match.begin) next(step, text.substr(match.begin, match.end - match.begin), piece);
      at = match.end;
    }
  }
  template <class Piece>
  void next(size_t step, std::string_view text, Piece& piece) {
    std::string prefixed;
    if (rules_.prefix_before == static_cast<int>(step) + 1) text = with_prefix(text, prefixed);
    split(step + 1, text, piece);
  }

  PretokenizerRules rules_;
  std::vector<RegexCode> codes_;
  std::string where_;
  MatchState state_;
  bool named_ = false;                  ///< the first regex is in kNamedPatterns
  bool splits_after_newlines_ = false;  ///< named_, and the regex ends a piece at the last line feed of a run of white space
  bool whole_only_ = false;             ///< pieces depend on text beyond the end of a match of the first rule: a lookbehind, or merged matches
};

}  // namespace trireme
