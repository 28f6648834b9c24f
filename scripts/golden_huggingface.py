#!/usr/bin/env python3
"""Makes the folders in tests/golden/huggingface: small models with random weights, saved by Hugging Face transformers, and what transformers computes with them.

    python3 scripts/golden_huggingface.py tests/golden/huggingface

Needs torch and transformers 5. Each folder is what save_pretrained leaves there, and logits.json: {"tokens": [T], "logits": [T][V]}, in fp32 on the CPU.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

VOCABULARY = 97
BYTES = 259  # a vocabulary in which the bytes tokenizer finds room
TOKENS = 16


def sizes(vocab_size=VOCABULARY, **others):
    return dict(vocab_size=vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=64, **others)


def gpt2(vocab_size=VOCABULARY, **others):
    return GPT2LMHeadModel, GPT2Config(vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_inner=48, n_positions=64, bos_token_id=0,
                                       eos_token_id=0, **others)


def gpt_neox(vocab_size=VOCABULARY, **others):
    """4 elements of each head are rotated."""
    return GPTNeoXForCausalLM, GPTNeoXConfig(vocab_size=vocab_size, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                             max_position_embeddings=64, bos_token_id=0, eos_token_id=0, **others)


def gemma3(vocab_size=VOCABULARY, **others):
    """The first layer has a window."""
    return Gemma3ForCausalLM, Gemma3TextConfig(**sizes(vocab_size, head_dim=12, sliding_window=4, query_pre_attn_scalar=20, pad_token_id=0,
                                                       layer_types=["sliding_attention", "full_attention"], **others))


def llama(vocab_size=VOCABULARY, **others):
    return LlamaForCausalLM, LlamaConfig(**sizes(vocab_size, **others))


def models():
    """name: (class, configuration), arguments of save_pretrained"""
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    # With head size 16 and theta 100 some frequencies are left alone, some interpolated and some divided.
    llama3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
    return {
        "llama_tied": (llama(tie_word_embeddings=True, rope_parameters=plain, rms_norm_eps=1e-5), {}),
        "llama3_untied": (llama(tie_word_embeddings=False, rope_parameters=llama3, head_dim=16), {}),
        "llama_linear_sharded": (llama(tie_word_embeddings=False, rope_parameters=linear), {"max_shard_size": "30KB"}),
        "llama_bf16": (llama(BYTES, tie_word_embeddings=False, rope_parameters=plain), {"dtype": torch.bfloat16}),
        "qwen2": ((Qwen2ForCausalLM, Qwen2Config(**sizes(tie_word_embeddings=False, rope_parameters={**plain, "rope_theta": 1000000.0}))), {}),
        "qwen3": ((Qwen3ForCausalLM, Qwen3Config(**sizes(tie_word_embeddings=True, rope_parameters=plain, head_dim=12))), {}),
        "gpt2_tied": (gpt2(BYTES), {}),
        "gpt2_untied": (gpt2(tie_word_embeddings=False, layer_norm_epsilon=1e-6), {}),
        "mistral": ((MistralForCausalLM, MistralConfig(**sizes(tie_word_embeddings=False, rope_parameters=plain, sliding_window=4))), {}),
        "qwen2_window": ((Qwen2ForCausalLM, Qwen2Config(**sizes(tie_word_embeddings=True, rope_parameters=plain, use_sliding_window=True, sliding_window=4,
                                                                max_window_layers=1))), {}),
        "gpt_neox": (gpt_neox(hidden_size=64), {}),
        "gpt_neox_sequential": (gpt_neox(BYTES, hidden_size=32, rotary_pct=0.5, use_parallel_residual=False, hidden_act="gelu_new",
                                         tie_word_embeddings=True), {}),
        "gemma3": (gemma3(), {}),
        "gemma3_linear": (gemma3(BYTES, tie_word_embeddings=False,
                                 rope_parameters={"full_attention": {**linear, "rope_theta": 1000000.0}, "sliding_attention": plain}), {}),
    }


def randomise(model, generator):
    """Weights of a size that no part of the model can be left out unseen; what is saved with the model is float32."""
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.25 * values if parameter.dim() == 2 else values * 0.3 + 1)


def main():
    output = pathlib.Path(sys.argv[1])
    for seed, (name, ((kind, config), options)) in enumerate(models().items()):
        generator = torch.Generator().manual_seed(seed)
        model = kind(config).eval()
        randomise(model, generator)
        model = model.to(options.get("dtype", torch.float32))
        folder = output / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, **{key: value for key, value in options.items() if key != "dtype"})
        tokens = torch.randint(config.vocab_size, (1, TOKENS), generator=generator)
        model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            logits = model(tokens).logits[0]
        rows = ",\n".join("[" + ", ".join(f"{value:.7g}" for value in row) + "]" for row in logits.tolist())
        (folder / "logits.json").write_text(f'{{"transformers": "{transformers.__version__}",\n"tokens": {json.dumps(tokens[0].tolist())},\n"logits": [\n{rows}]}}\n')
        print(name, f"{sum(file.stat().st_size for file in folder.iterdir())} bytes, logits up to {logits.abs().max():.3g}")


if __name__ == "__main__":
    main()
