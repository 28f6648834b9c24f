#pragma once
// The normalizer of a tokenizer.json: what happens to a text before it is split into pieces.
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme {

/// Steps that follow each other. Thread-safe. Bytes that are not UTF-8 stay as they are.
class Normalizer {
 public:
  Normalizer() = default;
  /// `component`: null, a normalizer or a Sequence of them. Errors: DataError, prefixed with `where`, for what is not supported.
  static Normalizer parse(const nlohmann::json& component, const std::string& where);
  /// NFC, or nothing.
  static Normalizer nfc(bool on);

  bool empty() const { return steps_.empty(); }
  /// Nothing beyond NFC happens, whose effect on a text that is cut is known (Pretokenizer::last_boundary).
  bool at_most_nfc() const { return steps_.size() == nfc_steps_; }
  /// The result refers to `text` if nothing changes, else to `room`.
  std::string_view apply(std::string_view text, std::string& room) const;

 private:
  using Step = std::function<std::string(std::string_view)>;
  void add(const nlohmann::json& part, const std::string& where);

  std::vector<Step> steps_;
  size_t nfc_steps_ = 0;
};

}  // namespace trireme
