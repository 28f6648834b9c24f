#pragma once
// Small models of every kind of attention, with random weights, biases and norms.
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme::test {

/// llama (biases) | grouped (12 heads, 2 kv heads) | qk_norm (grouped, wide heads) | linear, llama3 (grouped, RoPE scaled) | gpt2 |
/// window (grouped, window of 5 tokens on some layers) | gemma3 (the same window, with a RoPE base of its own). All have 13 positions and a vocabulary of 61.
extern const std::vector<std::string> kTextModels;
/// Configuration for `tensor` tensor ranks and a global batch of one sequence.
Config text_config(const std::string& name, int tensor, const std::string& precision);

/// Draws weights, biases and norms by name and global index, so that every layout gets the same values.
void draw_weights(Trainer& trainer);

/// The first `count` tokens of text number `text`.
std::vector<int32_t> text_tokens(int64_t text, int64_t count);

}  // namespace trireme::test
