#pragma once
// The pieces of a text that byte-pair merges stay inside, by the regexes of a tokenizer.json.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/utf8.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace trireme {

/// A pattern that models in wide use were trained with.
struct NamedPattern {
  std::string_view name, regex;
  bool nfc;  ///< its models bring text to NFC first
};
extern const std::array<NamedPattern, 3> kNamedPatterns;  ///< gpt2, llama3, qwen2

/// How text becomes pieces: each regex in turn cuts the pieces of the one before it into its matches and what lies between them.
struct PretokenizerRules {
  std::vector<std::string> regexes;  ///< in Oniguruma's Ruby syntax, as `tokenizers` reads them
  int prefix_before = -1;            ///< a space goes ahead of each piece that has none before this regex (their number: after the last); -1: nowhere
};

/// A copy shares the compiled regexes; each thread needs one of its own.
class Pretokenizer {
 public:
  /// `where` opens every message. Errors: DataError for a regex that is wrong, or that could mean something else here than in `tokenizers`.
  Pretokenizer(PretokenizerRules rules, const std::string& where);
  Pretokenizer(const Pretokenizer& other);
  Pretokenizer& operator=(const Pretokenizer& other);
  Pretokenizer(Pretokenizer&&) noexcept = default;
  Pretokenizer& operator=(Pretokenizer&&) noexcept = default;

  /// Calls piece(std::string_view) for the pieces of `text` in order; together they are the text, and the spaces put ahead. Any bytes are text: one
  /// that is not part of valid UTF-8 is a piece of its own. `begins`: not the rest of a text that was cut, so that its first piece may get a space.
  /// Errors: DataError where a regex gives up.
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

  /// Whether the begin of a text may get a space of its own.
  bool prefixes_text() const { return rules_.prefix_before == 0; }
  /// The last place in a text that goes on where the pieces before it are those of any longer text, and those behind it depend on nothing before it.
  /// `begins`: as of pieces(). `nfc`: and where what follows is normalised alone as it is here. 0 where there is none.
  size_t last_boundary(std::string_view text, bool begins, bool nfc) const;
  /// The same, found from the end without matching: a line that begins there, unless a space goes ahead of the white space before it. 0 where there
  /// is none, or the regex is none of kNamedPatterns.
  size_t last_line(std::string_view text) const;

 private:
  struct Match {
    size_t begin, end;  ///< equal, at the end of the text, where there is none
  };
  struct Boundary {
    size_t end;        ///< of a match
    uint64_t matches;  ///< a hash of where it and all before it begin and end
    bool operator==(const Boundary&) const = default;
  };
  struct MatchState {
    MatchState();
    std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> data;
    std::unique_ptr<pcre2_real_match_context_8, void (*)(pcre2_real_match_context_8*)> context;
    std::unique_ptr<pcre2_real_jit_stack_8, void (*)(pcre2_real_jit_stack_8*)> stack;  ///< made when 32 KiB have not been enough
  };

  /// The first match in text[at..]. `partial`: one that has looked at the end of the text counts as none.
  Match find(MatchState& state, size_t step, std::string_view text, size_t at, bool partial) const;
  /// The ends of the last matches of the first regex in a run of characters, a few.
  std::vector<Boundary> last_boundaries(MatchState& state, std::string_view run, bool partial) const;
  static std::string_view with_prefix(std::string_view text, std::string& room);

  template <class Piece>
  void split(size_t step, std::string_view text, Piece& piece) {
    if (step == regexes_.size()) return piece(text);
    for (size_t at = 0; at < text.size();) {
      const Match match = find(state_, step, text, at, false);
      if (match.begin > at) next(step, text.substr(at, match.begin - at), piece);
      if (match.end > match.begin) next(step, text.substr(match.begin, match.end - match.begin), piece);
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
  std::vector<std::shared_ptr<const pcre2_real_code_8>> regexes_;
  std::string where_;
  MatchState state_;
  bool named_ = false;         ///< the first regex is one of kNamedPatterns
  bool names_feeds_ = false;   ///< and one that ends a piece at the last line feed of any white space
  bool looks_behind_ = false;  ///< the first regex does: what is before a place counts behind it
};

}  // namespace trireme
