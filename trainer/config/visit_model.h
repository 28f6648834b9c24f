#pragma once
// Keys of the sections `model` and `adapter`; see visit.h.
#include "trainer/config/config.h"
#include "trainer/config/field.h"

namespace trireme {

/// Why a key of RoPE has no effect.
inline constexpr const char* kNoRope = "architecture gpt2 has learned positions, not RoPE";

/// The section rope_scaling; it has no effect without RoPE.
struct RopeScalingSection {
  RopeScalingConfig& values;
  bool rope;
};

template <class V>
void visit(V& v, RopeScalingSection& c) {
  RopeScalingConfig& s = c.values;
  const char* const no_rope = c.rope ? nullptr : kNoRope;
  const char* const unscaled = no_rope ? no_rope : s.type == RopeScaling::kNone ? "rope_scaling.type is none" : nullptr;
  const char* const other = unscaled                         ? unscaled
                            : s.type == RopeScaling::kLinear ? "rope_scaling.type linear scales all frequencies equally"
                                                             : nullptr;
  v(Field{.key = "type",
          .doc = "Scaling of RoPE frequencies for sequences longer than in training. linear divides every frequency by factor, llama3 only low ones.",
          .without_effect = no_rope},
    s.type);
  v(Field{.key = "factor", .doc = "Divisor of the RoPE frequencies.", .min = 1, .without_effect = unscaled}, s.factor);
  v(Field{.key = "low_frequency_factor",
          .doc = "llama3: frequencies with wavelengths above original_max_positions / low_frequency_factor are divided by factor.",
          .min = 0,
          .above_min = true,
          .without_effect = other},
    s.low_frequency_factor);
  v(Field{.key = "high_frequency_factor",
          .doc = "llama3: frequencies with wavelengths below original_max_positions / high_frequency_factor are unchanged. Those between the two "
                 "limits are interpolated.",
          .min = 0,
          .above_min = true,
          .without_effect = other},
    s.high_frequency_factor);
  v(Field{.key = "original_max_positions",
          .doc = "llama3: sequence length in tokens that the model was originally trained with.",
          .min = 1,
          .max = kMaxExtent,
          .without_effect = other},
    s.original_max_positions);
}

template <class V>
void visit(V& v, ModelConfig& c) {
  const ArchitecturePreset& preset = c.preset();
  const bool rope = preset.positions == PositionKind::kRope;
  v(Field{.key = "architecture",
          .doc = "llama: RMSNorm, RoPE, SwiGLU, grouped-query attention. gpt2: LayerNorm, learned positions, GELU, biases. "
                 "gpt_neox: LayerNorm, RoPE on a quarter of each head, GELU, biases, parallel branches. "
                 "gemma3: RMSNorm with 1 + weight before and behind each branch, qk_norm, scaled embedding, RoPE, GeGLU."},
    c.architecture);
  v(Field{.key = "layers", .doc = "Number of transformer blocks.", .min = 1, .max = 1024}, c.layers);
  v(Field{.key = "hidden_size", .doc = "Width of the residual stream.", .min = 1, .max = 1 << 20}, c.hidden_size);
  v(Field{.key = "heads", .doc = "Number of query heads.", .min = 1, .max = 1 << 16}, c.heads);
  v(Field{.key = "kv_heads",
          .doc = "Number of key and value heads. Each one is shared by heads / kv_heads query heads.",
          .min = 1,
          .max = 1 << 16,
          .auto_rule = "heads"},
    c.kv_heads);
  v(Field{.key = "head_size", .doc = "Width of one attention head.", .min = 1, .max = 1 << 16, .auto_rule = "hidden_size / heads"}, c.head_size);
  v(Field{.key = "ffn_size",
          .doc = "Inner width of the feed-forward network.",
          .min = 1,
          .max = 1 << 22,
          .auto_rule = preset.gated ? "8/3 hidden_size, rounded up to a multiple of 64" : "4 hidden_size"},
    c.ffn_size);
  v(Field{.key = "vocab_size",
          .doc = "Number of rows of the embedding. Rows beyond the tokenizer's vocabulary are padding and never targets.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "the tokenizer's vocabulary size"},
    c.vocab_size);
  v(Field{.key = "max_positions",
          .doc = "Maximum sequence length of the model, in tokens.",
          .min = 1,
          .max = kMaxExtent,
          .auto_rule = "training.sequence_length"},
    c.max_positions);
  v(Field{.key = "tied_embeddings", .doc = "Share one weight matrix between the embedding and the output head."}, c.tied_embeddings);
  v(Field{.key = "residual",
          .doc =
              "sequential: the MLP reads the residual stream after attention's result was added. parallel: attention and MLP read the same stream.",
          .auto_rule = "parallel for gpt_neox, else sequential"},
    c.residual);
  v(Field{.key = "activation",
          .doc = "Activation function of the feed-forward network. gelu_tanh is the approximation of gelu by tanh.",
          .auto_rule = "silu for llama, gelu_tanh for gpt2 and gemma3, gelu for gpt_neox"},
    c.activation);
  v(Field{.key = "dropout",
          .doc = "Dropout probability on the embedding and on each residual branch.",
          .min = 0,
          .max = 1,
          .below_max = true,
          .training_only = true},
    c.dropout);
  v(Field{.key = "qkv_bias", .doc = "Add biases to the query, key and value projections. gpt2 and gpt_neox always have them."}, c.qkv_bias);
  v(Field{.key = "qk_norm",
          .doc = "Apply RMSNorm to each query and key head, before RoPE. gemma3 always does.",
          .without_effect = preset.norm == NormKind::kLayer ? "architectures with LayerNorm have no qk_norm" : nullptr},
    c.qk_norm);
  v(Field{.key = "attention_scale",
          .doc = "Factor of attention scores, before the softmax. null: 1 / sqrt(head_size).",
          .min = 0,
          .above_min = true,
          .or_null = true},
    c.attention_scale);
  v(Field{.key = "window",
          .doc = "Sliding-window attention: a token attends to itself and the window - 1 tokens before it. null: attention to all tokens before.",
          .min = 1,
          .max = kMaxExtent,
          .or_null = true},
    c.window);
  v(Field{.key = "window_layers",
          .doc = "Layers that use the window, counted from 0, in increasing order. The other layers attend to all tokens before.",
          .min = 0,
          .max = 1023,
          .auto_rule = "every layer",
          .auto_name = "all",
          .without_effect = c.window ? nullptr : "model.window is not set"},
    c.window_layers);
  v(Field{.key = "rope_theta", .doc = "Base of the RoPE frequencies.", .min = 0, .above_min = true, .without_effect = rope ? nullptr : kNoRope},
    c.rope_theta);
  v(Field{.key = "window_rope_theta",
          .doc = "Base of the RoPE frequencies in layers with a window, to which rope_scaling is then not applied. null: as in the other layers.",
          .min = 0,
          .above_min = true,
          .without_effect = !rope      ? kNoRope
                            : c.window ? nullptr
                                       : "model.window is not set",
          .or_null = true},
    c.window_rope_theta);
  v(Field{.key = "rope_share",
          .doc = "Part of each head that RoPE rotates: its first rope_share x head_size elements.",
          .min = 0,
          .max = 1,
          .above_min = true,
          .auto_rule = "0.25 for gpt_neox, else 1",
          .without_effect = rope ? nullptr : kNoRope},
    c.rope_share);
  RopeScalingSection rope_scaling{c.rope_scaling, rope};
  v.section("rope_scaling", "RoPE scaling for sequences longer than in the original training.", rope_scaling);
  v(Field{.key = "norm_epsilon", .doc = "Constant added to the variance in each norm.", .min = 0, .above_min = true}, c.norm_epsilon);
  v(Field{.key = "init_std", .doc = "Standard deviation of the initial weights.", .min = 0, .above_min = true, .training_only = true}, c.init_std);
  v(Field{.key = "frozen",
          .doc = "Parameters that training leaves as they are, by name; * and ? stand for any characters and one: embedding.weight, blocks.0.*, "
                 "*.bias. They have no gradient and no optimizer state, and in 16 bits no fp32 copy. Parameters of adapters are never frozen; with "
                 "them an "
                 "empty list stands for all others.",
          .items = "name",
          .training_only = true},
    c.frozen);
}

template <class V>
void visit(V& v, AdapterConfig& c) {
  const char* const none = c.rank > 0 ? nullptr : "adapter.rank is 0";
  v(Field{.key = "rank",
          .doc =
              "Rank of the adapters (LoRA): y = W x + scale * B A x, with A of rank x inputs and B of outputs x rank. A begins as random numbers, B "
              "as zeros. 0: no adapters.",
          .min = 0,
          .max = AdapterConfig::kMostRank},
    c.rank);
  v(Field{.key = "alpha", .doc = "Numerator of the scale.", .min = 0, .above_min = true, .without_effect = none}, c.alpha);
  v(Field{.key = "scale", .doc = "Denominator of the scale: the rank, or its square root (rsLoRA).", .without_effect = none}, c.scale);
  v(Field{.key = "targets",
          .doc =
              "Linear layers of the blocks that get an adapter; * and ? stand for any characters and one. Each entry is compared with the whole name "
              "(blocks.0.attention.query) and with its last part: query, key, value, output, gate, up, down.",
          .without_effect = none,
          .items = "layer"},
    c.targets);
}

}  // namespace trireme
