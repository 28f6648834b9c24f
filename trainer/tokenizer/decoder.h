#pragma once
// The decoder of a tokenizer.json: what makes a text of tokens.
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme {

/// Steps that follow each other, each from a list of texts to another. Thread-safe.
class TokenDecoder {
 public:
  TokenDecoder() = default;
  /// `component`: null, a decoder or a Sequence of them. Errors: DataError, prefixed with `where`, for what is not supported.
  static TokenDecoder parse(const nlohmann::json& component, const std::string& where);

  std::string apply(std::vector<std::string> tokens) const;

 private:
  using Step = std::function<void(std::vector<std::string>&)>;
  void add(const nlohmann::json& part, const std::string& where);

  std::vector<Step> steps_;  ///< none: spaces come between the tokens
};

/// Replaces each byte that is not UTF-8 by U+FFFD, and the bytes of an unfinished character by one of them.
std::string with_replacements(std::string_view bytes);
/// Replaces every occurrence of `from`, which is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

}  // namespace trireme
