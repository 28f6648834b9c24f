#include "trainer/tokenizer/pretokenizer.h"

#include <algorithm>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kernels/core/check.h"

namespace trireme {

const std::array<NamedPattern, 3> kNamedPatterns = {{
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", false},
    {"llama3", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", false},
    {"qwen2", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", true},
}};

namespace {

bool looks_behind(const pcre2_code* code) {
  uint32_t characters = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MAXLOOKBEHIND, &characters);
  return characters > 0;
}

}  // namespace

Pretokenizer::MatchState::MatchState()
    : data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free),
      context(pcre2_match_context_create(nullptr), pcre2_match_context_free),
      stack(nullptr, pcre2_jit_stack_free) {
  TRIREME_CHECK(data && context, "out of memory for regex matching");
}

Pretokenizer::Pretokenizer(PretokenizerRules rules, const std::string& where) : rules_(std::move(rules)), where_(where) {
  for (const SplitRule& rule : rules_.splits) codes_.push_back(compile_regex(rule.regex, where_));
  if (codes_.empty()) return;
  const SplitRule& first = rules_.splits.front();
  const bool apart = first.behavior == SplitBehavior::kIsolated || first.behavior == SplitBehavior::kRemoved;
  named_ =
      apart && std::any_of(kNamedPatterns.begin(), kNamedPatterns.end(), [&](const NamedPattern& pattern) { return pattern.regex == first.regex; });
  splits_after_newlines_ = named_ && first.regex.find(R"([\r\n]+)") != std::string::npos;
  whole_only_ = !apart || looks_behind(codes_.front().get());
}

Pretokenizer::Pretokenizer(const Pretokenizer& other)
    : rules_(other.rules_),
      codes_(other.codes_),
      where_(other.where_),
      named_(other.named_),
      splits_after_newlines_(other.splits_after_newlines_),
      whole_only_(other.whole_only_) {}

Pretokenizer& Pretokenizer::operator=(const Pretokenizer& other) { return *this = Pretokenizer(other); }

Pretokenizer::Match Pretokenizer::find(MatchState& state, size_t step, std::string_view text, size_t at, bool partial) const {
  // A hundred million spaces in a row are legitimate text. A regex that needs far more steps than the text has bytes is backtracking exponentially.
  constexpr size_t kLeast = 10'000'000, kMost = 1'000'000'000, kOfAByte = 10;
  pcre2_set_match_limit(state.context.get(), static_cast<uint32_t>(std::min(kLeast + kOfAByte * text.size(), kMost)));
  const auto match = [&] {
    return pcre2_match(codes_[step].get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK | (partial ? PCRE2_PARTIAL_HARD : 0), state.data.get(), state.context.get());
  };
  int count = match();
  if (count == PCRE2_ERROR_JIT_STACKLIMIT && !state.stack) {
    state.stack.reset(pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr));
    pcre2_jit_stack_assign(state.context.get(), nullptr, state.stack.get());
    count = match();
  }
  if (count == PCRE2_ERROR_NOMATCH || count == PCRE2_ERROR_PARTIAL) return {text.size(), text.size()};
  if (count < 0) throw DataError(concat(where_, ": regex ", rules_.splits[step].regex, " failed on a text: ", regex_error(count)));
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state.data.get());
  return {offsets[0], offsets[1]};
}

std::vector<Pretokenizer::Segment> Pretokenizer::merged(size_t step, std::string_view text) {
  const SplitRule& rule = rules_.splits[step];
  std::vector<Segment> parts;  // all of the text
  for (size_t at = 0; at < text.size();) {
    const Match match = find(state_, step, text, at, false);
    if (match.begin > at) parts.push_back({at, match.begin, rule.invert});
    if (match.end > match.begin) parts.push_back({match.begin, match.end, !rule.invert});
    at = match.end;
  }
  const bool backwards = rule.behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Segment> made;
  bool previous = false;
  for (const Segment& part : parts) {
    const bool joins = rule.behavior == SplitBehavior::kContiguous ? part.match == previous : part.match && !previous;
    previous = part.match;
    if (!joins || made.empty())
      made.push_back(part);
    else
      made.back() = {std::min(made.back().begin, part.begin), std::max(made.back().end, part.end), part.match};
  }
  if (backwards) std::reverse(made.begin(), made.end());
  return made;
}

std::string_view Pretokenizer::with_prefix(std::string_view text, std::string& room) {
  if (text.empty() || text.front() == ' ') return text;
  return room.assign(" ").append(text);
}

size_t Pretokenizer::last_boundary(std::string_view text, bool begins, bool nfc) const {
  if (prefixes_text() && begins) {
    std::string room;
    const std::string_view prefixed = with_prefix(text, room);
    const size_t added = prefixed.size() - text.size();
    return std::max(last_boundary(prefixed, false, nfc), added) - added;
  }
  const auto fits = [&](size_t place) { return !nfc || is_nfc_boundary(text.substr(place)); };
  const std::string_view whole = text.substr(0, text.size() - unfinished_utf8(text));
  size_t begin = 0, last = 0;  // `begin`: after the last byte that is not valid UTF-8; `last`: the boundary found so far
  for (size_t valid = valid_utf8(whole); begin + valid < whole.size(); valid = valid_utf8(whole.substr(begin))) begin += valid + 1;
  if (fits(begin)) last = begin;
  if (whole_only_ || codes_.empty()) return last;

  MatchState state;
  const std::string_view run = whole.substr(begin);
  // Matches that did not inspect the end of the text are the same in any longer text. But a match may have inspected text beyond its own end, and
  // could differ if the text ended there: match again up to each candidate.
  const std::vector<Boundary> boundaries = last_boundaries(state, run, true);
  for (auto place = boundaries.rbegin(); place != boundaries.rend(); ++place) {
    if (!fits(begin + place->end)) continue;
    const std::vector<Boundary> ended = last_boundaries(state, run.substr(0, place->end), false);  // empty if the only match looked ahead
    if (!ended.empty() && ended.back() == *place) return begin + place->end;
  }
  return last;
}

std::vector<Pretokenizer::Boundary> Pretokenizer::last_boundaries(MatchState& state, std::string_view run, bool partial) const {
  constexpr size_t kMost = 8;
  std::vector<Boundary> last;
  constexpr uint64_t kPrime = 0x100000001B3u;  // of 64-bit FNV-1a
  Boundary boundary{0, 0xCBF29CE484222325u};
  for (Match match = find(state, 0, run, 0, partial); match.begin < match.end; match = find(state, 0, run, match.end, partial)) {
    boundary = {match.end, (((boundary.matches ^ match.begin) * kPrime) ^ match.end) * kPrime};
    if (last.size() == kMost) last.erase(last.begin());
    last.push_back(boundary);
  }
  return last;
}

size_t Pretokenizer::last_line(std::string_view text) const {
  if (!named_) return 0;
  // All of kNamedPatterns end a piece at a line feed between two characters that are not white space, and none looks across it from either side.
  // Those that name line feeds end a piece at the last line feed of any run of white space.
  for (size_t feed = text.rfind('\n'); feed != std::string_view::npos && feed > 0; feed = text.rfind('\n', feed - 1)) {
    CodePoint after = first_code_point(text.substr(feed + 1));
    for (size_t at = feed + 1; splits_after_newlines_ && is_white_space(after.value) && after.value != '\r' && after.value != '\n';) {
      at += after.bytes;
      after = first_code_point(text.substr(at));
    }
    if (after.bytes == 0 || is_white_space(after.value)) continue;
    if (splits_after_newlines_) return feed + 1;
    const CodePoint before = last_code_point(text.substr(0, feed));
    if (before.bytes > 0 && !is_white_space(before.value)) return feed + 1;
  }
  return 0;
}

}  // namespace trireme
