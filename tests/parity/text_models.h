#pragma once
// Small models of every kind that attention knows, with weights in which nothing is zero or one by accident.
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme::test {

/// llama (biases) | grouped (12 heads, 2 kv heads) | qk_norm (grouped, wide heads) | linear, llama3 (grouped, RoPE scaled) | gpt2 |
/// window (grouped, of 5 tokens on some layers).
/// 13 positions, 61 tokens.
extern const std::vector<std::string> kTextModels;
/// Laid out for `tensor` ranks, one sequence in a batch.
Config text_config(const std::string& name, int tensor, const std::string& precision);

/// Weights, biases and norms drawn by name and place in the whole parameter, the same in every layout.
void draw_weights(Trainer& trainer);

/// `count` tokens of a text's own.
std::vector<int32_t> text_tokens(int64_t text, int64_t count);

}  // namespace trireme::test
