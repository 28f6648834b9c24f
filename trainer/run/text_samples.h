#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/run/run_context.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme {

/// Samples of text during training: observe.samples.
class TextSamples {
 public:
  explicit TextSamples(RunContext& run) : run_(run) {}

  /// Encodes the prompts. Errors: ConfigError if one is empty, too long, or has tokens that the model has not.
  void open();
  bool is_due(int64_t step) const { return run_.config.observe.samples.every > 0 && step % run_.config.observe.samples.every == 0; }
  /// Continues every prompt with the weights after `step` and reports the texts. Collective.
  void write(int64_t step);

 private:
  std::vector<int32_t> continue_text(std::vector<int32_t> text);

  RunContext& run_;
  std::optional<Tokenizer> tokenizer_;  ///< with observe.samples
  std::vector<std::vector<int32_t>> prompts_;
};

}  // namespace trireme
