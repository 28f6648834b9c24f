#!/usr/bin/env python3
"""Makes the folders in tests/golden/peft: adapters with random weights for models of tests/golden/huggingface, saved by PEFT, and what PEFT computes.

    python3 scripts/golden_peft.py tests/golden

Needs torch, transformers 5 and peft. Each folder is what save_pretrained leaves there, and golden.json: the logits of one text in fp32; for a folder
that trains, the losses and gradient norms of ten steps of AdamW in fp64 and the gradients of the first step, from the same adapters.
"""
import contextlib
import json
import math
import os
import pathlib
import shutil
import sys

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

STEPS = 10
BATCH = 6
LENGTH = 16
OPTIMIZER = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "gradient_clip": 0.8}
# Name: base model, LoRA, whether it trains. PEFT shares A among the layers of a stacked tensor, which are apart here, so training such a tensor differs.
ADAPTERS = {
    "llama_all": ("llama3_untied", {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}, True),
    "qwen3_rslora": ("qwen3", {"r": 3, "lora_alpha": 2.5, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "model.layers.1.mlp.down_proj"]}, True),
    "gemma3_some": ("gemma3", {"r": 2, "lora_alpha": 8, "target_modules": ["k_proj", "o_proj", "up_proj"]}, True),
    "gpt2_projections": ("gpt2_tied", {"r": 5, "lora_alpha": 5, "target_modules": ["c_proj", "c_fc"], "fan_in_fan_out": True}, True),
    "gpt2_attention": ("gpt2_untied", {"r": 4, "lora_alpha": 6, "target_modules": ["c_attn"], "fan_in_fan_out": True}, False),
    "gpt_neox_all": ("gpt_neox", {"r": 2, "lora_alpha": 4, "target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]}, False),
}


def adapted(base, lora):
    """The model with random adapters."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager"), LoraConfig(task_type="CAUSAL_LM", **lora))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    return model.eval()


def widened(base, lora, model):
    """The same model in fp64. It is made anew, because buffers of angles keep the precision in which they were made."""
    wide = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=torch.float64, attn_implementation="eager")
    wide = get_peft_model(wide, LoraConfig(task_type="CAUSAL_LM", **lora), autocast_adapter_dtype=False)
    wide.load_state_dict(model.state_dict())
    return wide.eval()


@contextlib.contextmanager
def all_in_fp64():
    """transformers computes norms, angles and the softmax in fp32 whatever the model's dtype: here what it calls fp32 is fp64."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept
        torch.set_default_dtype(torch.float32)


def train(model, tokens):
    """Losses, gradient norms, and the gradients of the first step."""
    o = OPTIMIZER
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"], weight_decay=o["weight_decay"])
    losses, norms, first = [], [], {}
    for step in range(STEPS):
        batch = tokens[step]
        optimizer.zero_grad()
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        if step == 0:
            first = {name.replace(".default", ""): p.grad.tolist() for name, p in trained.items()}
        # clip_grad_norm_ adds 1e-6 to the norm; the factor here is exactly min(1, clip / norm).
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in trained.values()))
        for p in trained.values():
            p.grad.mul_(min(1.0, o["gradient_clip"] / norm))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return {"loss": losses, "grad_norm": norms, "first_gradient": first}


def main():
    output = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    for seed, (name, (base, lora, trains)) in enumerate(ADAPTERS.items()):
        torch.manual_seed(seed)
        folder = output / "peft" / name
        shutil.rmtree(folder, ignore_errors=True)
        model = adapted(output / "huggingface" / base, lora)
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = os.path.relpath(output / "huggingface" / base, folder)
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        vocabulary = model.config.vocab_size
        text = torch.randint(vocabulary, (1, LENGTH))
        with torch.no_grad():
            golden = {"peft": peft.__version__, "tokens": text[0].tolist(), "logits": model(text).logits[0].tolist()}
        if trains:
            tokens = torch.randint(vocabulary, (STEPS, BATCH, LENGTH + 1))
            with all_in_fp64():
                wide = widened(output / "huggingface" / base, lora, model)
                golden |= {"optimizer": OPTIMIZER, "batches": tokens.tolist(), **train(wide, tokens)}
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        print(name, f"{sum(file.stat().st_size for file in folder.iterdir())} bytes", golden.get("loss", [None])[0], golden.get("loss", [None])[-1])


if __name__ == "__main__":
    main()
