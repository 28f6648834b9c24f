#pragma once
// The keys of `model`, as visit.h has them.
#include "trainer/config/config.h"
#include "trainer/config/field.h"

namespace trireme {

/// A section that only RoPE reads.
struct RopeScalingSection {
  RopeScalingConfig& values;
  bool rope;
};

template <class V>
void visit(V& v, RopeScalingSection& c) {
  RopeScalingConfig& s = c.values;
  const char* const no_rope = c.rope ? nullptr : "architecture gpt2 learns its positions";
  const char* const unscaled = no_rope ? no_rope : s.type == RopeScaling::kNone ? "rope_scaling.type is none" : nullptr;
  const char* const other = unscaled ? unscaled : s.type == RopeScaling::kLinear ? "rope_scaling.type linear scales all frequencies alike" : nullptr;
  v(Field{.key = "type",
          .doc = "Stretches RoPE for sequences longer than a model was trained for: linear divides every frequency by factor, llama3 the low ones.",
          .without_effect = no_rope},
    s.type);
  v(Field{.key = "factor", .doc = "Divides the frequencies.", .min = 1, .without_effect = unscaled}, s.factor);
  v(Field{.key = "low_frequency_factor",
          .doc = "llama3: wavelengths above original_max_positions / this are scaled in full.",
          .min = 0,
          .above_min = true,
          .without_effect = other},
    s.low_frequency_factor);
  v(Field{.key = "high_frequency_factor",
          .doc = "llama3: wavelengths below original_max_positions / this are left alone; those between are interpolated.",
          .min = 0,
          .above_min = true,
          .without_effect = other},
    s.high_frequency_factor);
  v(Field{.key = "original_max_positions",
          .doc = "llama3: positions the model was first trained for.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = other},
    s.original_max_positions);
}

template <class V>
void visit(V& v, ModelConfig& c) {
  const bool llama = c.architecture == "llama";
  v(Field{.key = "architecture",
          .doc = "llama: RMSNorm, RoPE, SwiGLU, grouped-query attention. gpt2: LayerNorm, learned positions, GELU, biases.",
          .choices = {"llama", "gpt2"}},
    c.architecture);
  v(Field{.key = "layers", .doc = "Transformer blocks.", .min = 1, .max = 1024}, c.layers);
  v(Field{.key = "hidden_size", .doc = "Width of the residual stream.", .min = 1, .max = 1 << 20}, c.hidden_size);
  v(Field{.key = "heads", .doc = "Query heads.", .min = 1, .max = 1 << 16}, c.heads);
  v(Field{.key = "kv_heads", .doc = "Key and value heads; heads / kv_heads query heads share one.", .min = 1, .max = 1 << 16, .auto_rule = "heads"},
    c.kv_heads);
  v(Field{.key = "head_size", .doc = "Width of one head.", .min = 1, .max = 1 << 16, .auto_rule = "hidden_size / heads"}, c.head_size);
  v(Field{.key = "ffn_size",
          .doc = "Inner width of the feed-forward block.",
          .min = 1,
          .max = 1 << 22,
          .auto_rule = llama ? "8/3 hidden_size, rounded up to a multiple of 64" : "4 hidden_size"},
    c.ffn_size);
  v(Field{.key = "vocab_size",
          .doc = "Rows of the embedding; more than the tokenizer has is padding that is never a target.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "the tokenizer's"},
    c.vocab_size);
  v(Field{.key = "max_positions",
          .doc = "Longest sequence the model can read.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "training.sequence_length"},
    c.max_positions);
  v(Field{.key = "tied_embeddings", .doc = "The output head shares the weights of the embedding."}, c.tied_embeddings);
  v(Field{.key = "dropout",
          .doc = "Dropped share of the embedding and of each residual branch.",
          .min = 0,
          .max = 1,
          .below_max = true,
          .training_only = true},
    c.dropout);
  v(Field{.key = "qkv_bias", .doc = "Biases on the query, key and value projections; gpt2 always has them."}, c.qkv_bias);
  v(Field{.key = "qk_norm",
          .doc = "RMSNorm over each query and key head, before RoPE.",
          .without_effect = llama ? nullptr : "architecture gpt2 has none"},
    c.qk_norm);
  v(Field{.key = "window",
          .doc = "Sliding-window attention: a token attends to itself and the window - 1 tokens before it.",
          .min = 1,
          .max = kMaxExtent,
          .or_null = true},
    c.window);
  v(Field{.key = "window_layers",
          .doc = "Layers with the window, counted from 0; the others attend to all tokens before.",
          .min = 0,
          .max = 1023,
          .auto_rule = "every layer",
          .auto_word = "all",
          .without_effect = c.window ? nullptr : "there is no model.window"},
    c.window_layers);
  v(Field{.key = "rope_theta",
          .doc = "Base of the rotary position frequencies.",
          .min = 0,
          .above_min = true,
          .without_effect = llama ? nullptr : "architecture gpt2 learns its positions"},
    c.rope_theta);
  RopeScalingSection rope_scaling{c.rope_scaling, llama};
  v.section("rope_scaling", "RoPE for sequences longer than those of a model's first training.", rope_scaling);
  v(Field{.key = "norm_epsilon", .doc = "Added to the variance inside each norm.", .min = 0, .above_min = true}, c.norm_epsilon);
  v(Field{.key = "init_std", .doc = "Standard deviation of the initial weights.", .min = 0, .above_min = true, .training_only = true}, c.init_std);
}

}  // namespace trireme
