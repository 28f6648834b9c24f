#!/usr/bin/env python3
"""Regenerates the golden losses and gradient norms of tests/golden with PyTorch.

    python3 scripts/golden.py [output directory, default tests/golden]

Needs numpy and torch (CPU). Nothing here is shared with the C++ code: the random numbers, the models and the clipping are written a second time from
their definitions, gradients come from autograd, updates from torch.optim.AdamW and a Muon in the precision of the run. Each file holds the model, the hyperparameters and, for ten
steps, the loss before the update and the global gradient norm before clipping.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

SEED = 1234
STEPS = 10
GLOBAL_BATCH = 6
SEQUENCE = 16
# The clip lies between the gradient norms these runs see, so that some steps are clipped and some are not.
OPTIMIZER = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "gradient_clip": 0.8}
MUON = OPTIMIZER | {"name": "muon", "momentum": 0.95, "update_scale": "rms"}
MODELS = {
    "llama": {"architecture": "llama", "layers": 3, "hidden_size": 24, "heads": 6, "kv_heads": 2, "head_size": 4, "ffn_size": 40, "vocab_size": 61,
              "max_positions": SEQUENCE, "tied_embeddings": False, "rope_theta": 10000.0, "norm_epsilon": 1e-5, "init_std": 0.02},
    # As Qwen3: norms of queries and keys, heads that do not fill the hidden size.
    "qwen3": {"architecture": "llama", "layers": 3, "hidden_size": 20, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn_size": 40, "vocab_size": 61,
              "max_positions": SEQUENCE, "tied_embeddings": True, "qk_norm": True, "rope_theta": 1e6, "norm_epsilon": 1e-6, "init_std": 0.02},
    # As Qwen2: biases on queries, keys and values alone.
    "qwen2": {"architecture": "llama", "layers": 3, "hidden_size": 24, "heads": 6, "kv_heads": 3, "head_size": 4, "ffn_size": 40, "vocab_size": 59,
              "max_positions": SEQUENCE, "tied_embeddings": True, "qkv_bias": True, "rope_theta": 1e6, "norm_epsilon": 1e-6, "init_std": 0.02,
              "bias_std": 0.02},
    # As Llama 3.1: of the wavelengths 2 pi 10^i one stays, one is interpolated, two are stretched.
    "llama3": {"architecture": "llama", "layers": 3, "hidden_size": 24, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn_size": 40, "vocab_size": 61,
               "max_positions": SEQUENCE, "tied_embeddings": False, "rope_theta": 10000.0, "norm_epsilon": 1e-5, "init_std": 0.02,
               "rope_scaling": {"type": "llama3", "factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0,
                                "original_max_positions": 128}},
    "gpt2": {"architecture": "gpt2", "layers": 3, "hidden_size": 24, "heads": 4, "kv_heads": 4, "head_size": 6, "ffn_size": 96, "vocab_size": 53,
             "max_positions": SEQUENCE, "tied_embeddings": True, "norm_epsilon": 1e-5, "init_std": 0.02, "bias_std": 0.02},
    # 4 of the 16 elements of each head are rotated.
    "gpt_neox": {"architecture": "gpt_neox", "layers": 3, "hidden_size": 48, "heads": 3, "kv_heads": 3, "head_size": 16, "ffn_size": 96,
                 "vocab_size": 53, "max_positions": SEQUENCE, "tied_embeddings": False, "rope_theta": 10000.0, "norm_epsilon": 1e-5, "init_std": 0.02,
                 "bias_std": 0.02},
    # Every third layer attends to all tokens, with a RoPE base of its own; scores are divided by sqrt(6), not by the root of the head size.
    "gemma3": {"architecture": "gemma3", "layers": 3, "hidden_size": 24, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn_size": 40, "vocab_size": 53,
               "max_positions": SEQUENCE, "tied_embeddings": True, "rope_theta": 1e6, "window": 5, "window_layers": [0, 1],
               "window_rope_theta": 10000.0, "attention_scale": 6.0**-0.5, "norm_epsilon": 1e-6, "init_std": 0.02},
}
PRESETS = {  # what the names stand for
    "llama": {"layer_norm": False, "learned": False, "biases": False, "parallel": False, "rope_share": 1.0, "activation": "swiglu"},
    "gpt2": {"layer_norm": True, "learned": True, "biases": True, "parallel": False, "rope_share": 0.0, "activation": "gelu_tanh"},
    "gpt_neox": {"layer_norm": True, "learned": False, "biases": True, "parallel": True, "rope_share": 0.25, "activation": "gelu"},
    "gemma3": {"layer_norm": False, "learned": False, "biases": False, "parallel": False, "rope_share": 1.0, "activation": "geglu_tanh",
               "plus_one": True, "post_norms": True, "head_norms": True, "scaled_embedding": True},
}
PRECISIONS = {"fp64": torch.float64, "fp32": torch.float32}

# ---- counter-based random numbers (Philox4x32-10) ----


def philox4x32(counter, key):
    """counter: four arrays of 32-bit values held in uint64; key: two integers."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    for _ in range(10):
        product0 = counter[0] * np.uint64(0xD2511F53)
        product1 = counter[2] * np.uint64(0xCD9E8D57)
        counter = [(product1 >> shift) ^ counter[1] ^ np.uint64(key[0]), product1 & low,
                   (product0 >> shift) ^ counter[3] ^ np.uint64(key[1]), product0 & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def splitmix64(value):
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def random_key(seed, purpose):
    fnv1a = 0xCBF29CE484222325
    for byte in purpose.encode():
        fnv1a = ((fnv1a ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return splitmix64(splitmix64(seed) ^ fnv1a)


def random_words(key, count):
    """Two arrays of `count` 64-bit values: words 0-1 and words 2-3 of counters 0..count."""
    index = np.arange(count, dtype=np.uint64)
    zero = np.zeros_like(index)
    words = philox4x32([index & np.uint64(0xFFFFFFFF), index >> np.uint64(32), zero, zero], [key & 0xFFFFFFFF, key >> 32])
    return words[0] | words[1] << np.uint64(32), words[2] | words[3] << np.uint64(32)


def random_normal(key, count):
    first, second = random_words(key, count)
    u1 = ((first >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
    u2 = (second >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.sqrt(-2 * np.log(u1)) * np.cos(2 * math.pi * u2)


# ---- the models ----


def has_head_norms(m):
    return m.get("qk_norm", False) or PRESETS[m["architecture"]].get("head_norms", False)


def parameter_table(m):
    """(name, shape, standard deviation or the constant it starts as); matrices are the two-dimensional ones."""
    d, f, kv = m["hidden_size"], m["ffn_size"], m["kv_heads"] * m["head_size"]
    inner = m["heads"] * m["head_size"]
    preset = PRESETS[m["architecture"]]
    qkv_bias = preset["biases"] or m.get("qkv_bias", False)
    unit = 0.0 if preset.get("plus_one") else 1.0  # the weight of a norm that multiplies by 1
    std = m["init_std"]
    output_std = std / math.sqrt(2 * m["layers"]) if m["architecture"] == "gpt2" else std
    table = []

    def linear(name, rows, columns, weight_std, bias=preset["biases"]):
        table.append((name + ".weight", (rows, columns), ("normal", weight_std)))
        if bias:
            table.append((name + ".bias", (rows,), ("normal", m["bias_std"])))

    def norm(name):
        table.append((name + ".weight", (d,), ("constant", unit)))
        if preset["layer_norm"]:
            table.append((name + ".bias", (d,), ("constant", 0.0)))

    table.append(("embedding.weight", (m["vocab_size"], d), ("normal", std)))
    if preset["learned"]:
        table.append(("positions.weight", (m["max_positions"], d), ("normal", std)))
    for i in range(m["layers"]):
        block = f"blocks.{i}."
        norm(block + "attention_norm")
        linear(block + "attention.query", inner, d, std, qkv_bias)
        linear(block + "attention.key", kv, d, std, qkv_bias)
        linear(block + "attention.value", kv, d, std, qkv_bias)
        if has_head_norms(m):
            table.append((block + "attention.query_norm.weight", (m["head_size"],), ("constant", unit)))
            table.append((block + "attention.key_norm.weight", (m["head_size"],), ("constant", unit)))
        linear(block + "attention.output", d, inner, output_std)
        if preset.get("post_norms"):
            norm(block + "attention_post_norm")
        norm(block + "mlp_norm")
        if "glu" in preset["activation"]:
            linear(block + "mlp.gate", f, d, std)
        linear(block + "mlp.up", f, d, std)
        linear(block + "mlp.down", d, f, output_std)
        if preset.get("post_norms"):
            norm(block + "mlp_post_norm")
    norm("final_norm")
    if not m["tied_embeddings"]:
        table.append(("head.weight", (m["vocab_size"], d), ("normal", std)))
    return table


def initial_parameters(m, dtype):
    parameters = {}
    for name, shape, (kind, value) in parameter_table(m):
        count = math.prod(shape)
        data = value * random_normal(random_key(SEED, "init:" + name), count) if kind == "normal" else np.full(count, value)
        parameters[name] = torch.tensor(data.reshape(shape), dtype=torch.float64).to(dtype).requires_grad_()
    return parameters


def frequencies(m, windowed):
    """Radians a position, one for each pair of a head; scaled as the Llama 3.1 models are."""
    turned = round(m["head_size"] * PRESETS[m["architecture"]]["rope_share"])
    base = m["window_rope_theta"] if windowed else m["rope_theta"]
    plain = [base ** (-2.0 * i / turned) for i in range(turned // 2)]
    s = m.get("rope_scaling")
    if s is None:
        return plain

    def scale(f):
        wavelength = 2 * math.pi / f
        if wavelength < s["original_max_positions"] / s["high_frequency_factor"]:
            return f
        if wavelength > s["original_max_positions"] / s["low_frequency_factor"]:
            return f / s["factor"]
        smooth = (s["original_max_positions"] / wavelength - s["low_frequency_factor"]) / (s["high_frequency_factor"] - s["low_frequency_factor"])
        return (1 - smooth) * f / s["factor"] + smooth * f

    return [scale(f) for f in plain]


def rotate(x, m, windowed):
    """x [B,T,heads,H], half-split pairs (i, i + R/2) of the first R; the table in double, then in x's dtype."""
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * torch.tensor(frequencies(m, windowed), dtype=torch.float64)
    half = angle.shape[1]
    cos, sin = angle.cos().to(x.dtype)[None, :, None, :], angle.sin().to(x.dtype)[None, :, None, :]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def forward(m, p, tokens):
    """Logits [B,T,V]."""
    preset = PRESETS[m["architecture"]]
    heads, kv_heads, size = m["heads"], m["kv_heads"], m["head_size"]
    batch, length = tokens.shape

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def norm(x, name):
        if preset["layer_norm"]:
            return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], m["norm_epsilon"])
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + m["norm_epsilon"]) * (p[name + ".weight"] + (1 if preset.get("plus_one") else 0))

    x = p["embedding.weight"][tokens]
    if preset.get("scaled_embedding"):
        x = x * torch.tensor(math.sqrt(m["hidden_size"]), dtype=x.dtype)
    if preset["learned"]:
        x = x + p["positions.weight"][:length]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    outside = torch.ones(length, length, dtype=torch.bool).tril(-m.get("window", length))
    for i in range(m["layers"]):
        block = f"blocks.{i}."
        windowed = i in m.get("window_layers", [])
        h = norm(x, block + "attention_norm")
        q = linear(h, block + "attention.query").view(batch, length, heads, size)
        k = linear(h, block + "attention.key").view(batch, length, kv_heads, size)
        v = linear(h, block + "attention.value").view(batch, length, kv_heads, size)
        if has_head_norms(m):
            q, k = norm(q, block + "attention.query_norm"), norm(k, block + "attention.key_norm")
        if preset["rope_share"] > 0:
            q, k = rotate(q, m, windowed), rotate(k, m, windowed)
        k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * m.get("attention_scale", size**-0.5)
        weights = scores.masked_fill(future | outside if windowed else future, -math.inf).softmax(-1)
        attended = torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, heads * size)
        stream = x
        branch = linear(attended, block + "attention.output")
        x = x + (norm(branch, block + "attention_post_norm") if preset.get("post_norms") else branch)
        h = norm(stream if preset["parallel"] else x, block + "mlp_norm")
        if preset["activation"] == "swiglu":
            h = F.silu(linear(h, block + "mlp.gate")) * linear(h, block + "mlp.up")
        elif preset["activation"] == "geglu_tanh":
            h = F.gelu(linear(h, block + "mlp.gate"), approximate="tanh") * linear(h, block + "mlp.up")
        else:
            h = F.gelu(linear(h, block + "mlp.up"), approximate="tanh" if preset["activation"] == "gelu_tanh" else "none")
        branch = linear(h, block + "mlp.down")
        x = x + (norm(branch, block + "mlp_post_norm") if preset.get("post_norms") else branch)
    x = norm(x, "final_norm")
    return F.linear(x, p["embedding.weight" if m["tied_embeddings"] else "head.weight"])


def batch_of(step, vocab_size):
    """Tokens and targets [GLOBAL_BATCH, SEQUENCE] of a step counted from 0; masked targets are -1."""
    rows = STEPS * GLOBAL_BATCH
    bits, _ = random_words(random_key(SEED, "golden"), rows * (SEQUENCE + 1))
    tokens = (bits % np.uint64(vocab_size)).astype(np.int64).reshape(STEPS, GLOBAL_BATCH, SEQUENCE + 1)[step]
    row, position = np.ogrid[:GLOBAL_BATCH, :SEQUENCE]
    targets = np.where((step + 3 * row + 5 * position) % 7 == 0, -1, tokens[:, 1:])
    return torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(targets)


class Muon:
    """Momentum in Nesterov's form, of which each step takes the nearest orthogonal matrix by the singular values' fifth-degree iteration."""

    def __init__(self, parameters, o):
        self.parameters, self.o = parameters, o
        self.momentum = [torch.zeros_like(t) for t in parameters]

    @staticmethod
    def orthogonal(update):
        x = update / (torch.linalg.matrix_norm(update) + 1e-7)
        for _ in range(5):  # X (a + b X^T X + c (X^T X)^2): the product from the other side than that of its usual form
            gram = x.mT @ x
            x = 3.4445 * x + x @ (-4.7750 * gram + 2.0315 * gram @ gram)
        return x

    @torch.no_grad()
    def step(self):
        for t, m in zip(self.parameters, self.momentum):
            m.mul_(self.o["momentum"]).add_(t.grad)
            update = self.orthogonal(t.grad + self.o["momentum"] * m)
            rows, columns = t.shape
            length = 0.2 * max(rows, columns)**0.5 if self.o["update_scale"] == "rms" else max(1, rows / columns)**0.5
            t.mul_(1 - self.o["learning_rate"] * self.o["weight_decay"]).sub_(self.o["learning_rate"] * length * update)


def optimizers_of(p, o):
    hidden = {name for name, t in p.items() if o.get("name") == "muon" and name.startswith("blocks.") and t.dim() == 2}
    others = {name: t for name, t in p.items() if name not in hidden}
    groups = [{"params": [t for t in others.values() if t.dim() == 2], "weight_decay": o["weight_decay"]},
              {"params": [t for t in others.values() if t.dim() == 1], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"])
    return [adamw, Muon([p[name] for name in sorted(hidden)], o)] if hidden else [adamw]


def train(m, dtype, o):
    p = initial_parameters(m, dtype)
    optimizers = optimizers_of(p, o)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batch_of(step, m["vocab_size"])
        loss = F.cross_entropy(forward(m, p, tokens).flatten(0, 1), targets.flatten(), ignore_index=-1)
        for t in p.values():
            t.grad = None
        loss.backward()
        # clip_grad_norm_ adds 1e-6 to the norm; the factor here is exactly min(1, clip / norm).
        norm = math.sqrt(sum(t.grad.double().square().sum().item() for t in p.values()))
        for t in p.values():
            t.grad.mul_(min(1.0, o["gradient_clip"] / norm))
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms


def main():
    output = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden")
    torch.set_num_threads(1)
    runs = [(name, model, OPTIMIZER) for name, model in MODELS.items()]
    runs += [("muon", MODELS["llama"], MUON), ("muon_spectral", MODELS["gpt2"], MUON | {"update_scale": "spectral"})]
    for name, model, optimizer in runs:
        for precision, dtype in PRECISIONS.items():
            losses, norms = train(model, dtype, optimizer)
            result = {"model": model, "precision": precision, "seed": SEED, "steps": STEPS, "global_batch_size": GLOBAL_BATCH,
                      "sequence_length": SEQUENCE, "optimizer": optimizer, "torch": torch.__version__.split("+")[0], "loss": losses, "grad_norm": norms}
            path = output / f"{name}_{precision}.json"
            path.write_text(json.dumps(result, indent=1) + "\n")
            print(f"{path}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, gradient norm {norms[0]:.6f} -> {norms[-1]:.6f}")


if __name__ == "__main__":
    main()
