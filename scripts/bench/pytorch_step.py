#!/usr/bin/env python3
"""Measures the training step of `trireme bench step` in PyTorch, with the same model, shapes, precision, optimizer and gradient clip, on random tokens.

  trireme bench step CONFIG --json > step.json
  pytorch_step.py --like step.json [--variant autocast|master|plain] [--eager] [--steps N] [--threads N]

Uses torch.compile, fused scaled-dot-product attention and fused AdamW. bf16 variants: `autocast` keeps fp32 weights and casts them at each use; `master` has
bf16 weights and gradients, and fp32 master weights in the optimizer. fp32 has the variant `plain`. Prints one JSON object. To install PyTorch for CPUs:
  python3 -m venv torch && . torch/bin/activate && pip install torch"""
import argparse
import ctypes
import gc
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, m, sequence, gqa):
        super().__init__()
        self.gqa = gqa
        self.gpt2 = m["architecture"] == "gpt2"
        self.heads, self.kv_heads, self.size = m["heads"], m["kv_heads"], m["head_size"]
        width, bias = m["hidden_size"], self.gpt2
        norm = lambda: (nn.LayerNorm if self.gpt2 else nn.RMSNorm)(width, m["norm_epsilon"])
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.size, bias=m["qkv_bias"])
        self.out = nn.Linear(self.heads * self.size, width, bias=bias)
        self.up = nn.Linear(width, m["ffn_size"] * (1 if self.gpt2 else 2), bias=bias)
        self.down = nn.Linear(m["ffn_size"], width, bias=bias)
        if not self.gpt2:
            half = self.size // 2
            angles = torch.arange(sequence)[:, None] * m["rope_theta"] ** (-torch.arange(half) / half)[None, :]
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x):  # [B, N, T, H]; rotates halves, as in LLaMA
        a, b = x.float().chunk(2, -1)
        cos, sin = self.cos.float(), self.sin.float()
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split([self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size], -1)
        q, k, v = (t.view(batch, length, -1, self.size).transpose(1, 2) for t in (q, k, v))
        if not self.gpt2:
            q, k = self.rotate(q), self.rotate(k)
        if self.kv_heads < self.heads and not self.gqa:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.gqa)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))

    def mlp(self, x):
        x = self.up(x)
        if self.gpt2:
            return self.down(F.gelu(x, approximate="tanh"))
        gate, up = x.chunk(2, -1)
        return self.down(F.silu(gate) * up)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, m, sequence, gqa):
        super().__init__()
        self.embedding = nn.Embedding(m["vocab_size"], m["hidden_size"])
        gpt2 = m["architecture"] == "gpt2"
        self.positions = nn.Embedding(m["max_positions"], m["hidden_size"]) if gpt2 else None
        self.blocks = nn.ModuleList(Block(m, sequence, gqa) for _ in range(m["layers"]))
        self.norm = (nn.LayerNorm if gpt2 else nn.RMSNorm)(m["hidden_size"], m["norm_epsilon"])
        self.head = nn.Linear(m["hidden_size"], m["vocab_size"], bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if m["tied_embeddings"]:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


class Step:
    """One optimizer step over `microbatches`."""

    def __init__(self, model, compiled, device, variant, accumulation, optimizer, clip):
        self.compiled, self.device, self.variant, self.accumulation, self.clip = compiled, device, variant, accumulation, clip
        self.weights = list(model.parameters())
        self.masters = [p.detach().float().clone() for p in self.weights] if variant == "master" else self.weights
        matrices = [p for p in self.masters if p.dim() > 1]
        vectors = [p for p in self.masters if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": optimizer["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=optimizer["learning_rate"], betas=(optimizer["beta1"], optimizer["beta2"]), eps=optimizer["epsilon"], fused=True
        )

    def __call__(self, batches):
        total = None
        for tokens, targets in batches:
            with torch.autocast(self.device, torch.bfloat16, enabled=self.variant == "autocast"):
                loss = self.compiled(tokens, targets) / self.accumulation
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        if self.variant == "master":
            for master, weight in zip(self.masters, self.weights):
                master.grad = weight.grad.float()
                weight.grad = None
        if self.clip > 0:
            nn.utils.clip_grad_norm_(self.masters, self.clip, foreach=True)
        self.gradients = {m.grad.data_ptr(): m.grad.untyped_storage().nbytes() for m in self.masters if m.grad is not None}
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.variant == "master":
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)
        return total


def resident(key):
    """Resident memory of this process in bytes: VmRSS (current) or VmHWM (peak)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key + ":"))


def settle():
    """Returns free memory to the system and resets the peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
    except OSError:
        pass  # not permitted here: the peak then covers the process from its start


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def most_beyond(run_step, step):
    """Peak bytes from PyTorch's CPU allocator in a step, without the gradients that exist at that time. The backward allocates gradients one by one, so the
    peak of all memory minus all gradients would be too low."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run_step()
    events, stack = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.typed[0] == torch._C._profiler._EventType.Allocation:
            events.append((event.start_time_ns, event.typed[1].ptr, event.typed[1].alloc_size))
    events.sort(key=lambda event: event[0])
    last = {ptr: i for i, (_, ptr, size) in enumerate(events) if step.gradients.get(ptr) == size}
    gradients = {i for i in last.values()}
    live, most, sizes = 0, 0, {}
    for i, (_, ptr, size) in enumerate(events):
        if size > 0 and i not in gradients:
            sizes[ptr] = size
            live += size
        elif size < 0:
            live -= sizes.pop(ptr, 0)
        most = max(most, live)
    return most


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--like", required=True, help="output of `trireme bench step --json`")
    parser.add_argument("--variant", choices=["autocast", "master", "plain"])
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--gqa", action="store_true", help="use enable_gqa of attention; default: repeat keys and values before attention")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads; default: those of the trireme run")
    arguments = parser.parse_args()
    with open(arguments.like) as file:
        like = json.load(file)
    training = like["training"]
    variant = arguments.variant or {"fp32": "plain", "bf16": "autocast"}[like["precision"]]
    if (variant == "plain") != (like["precision"] == "fp32"):
        parser.error(f"--variant {variant} does not support {like['precision']}")
    device = "cuda" if like["environment"]["gpu"] else "cpu"
    if device == "cpu":
        torch.set_num_threads(arguments.threads or like["environment"]["threads_per_rank"])
    torch.manual_seed(1)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def build(shape, sequence, accumulation):
        with torch.device(device):
            model = Transformer(shape, sequence, arguments.gqa)
        if variant == "master":
            model = model.bfloat16()
        compiled = model if arguments.eager else torch.compile(model, dynamic=False)
        return model, Step(model, compiled, device, variant, accumulation, training["optimizer"], training["gradient_clip"])

    def batches(vocab_size, sequence, micro, accumulation):
        for _ in range(accumulation):
            draw = torch.randint(vocab_size, (micro, sequence + 1), device=device)
            yield draw[:, :-1].contiguous(), draw[:, 1:].contiguous()

    # Run a step of a tiny model first, so that memory of libraries and compiler is not attributed to the model.
    tiny = dict(like["model"], layers=1, hidden_size=64, heads=2, kv_heads=1, head_size=32, ffn_size=64, vocab_size=64)
    build(tiny, 16, 1)[1](batches(64, 16, 2, 1))
    torch.compiler.reset()
    settle()
    before = resident("VmRSS")

    sequence, micro, vocab_size = training["sequence_length"], training["micro_batch_size"], like["model"]["vocab_size"]
    accumulation = training["global_batch_size"] // micro
    model, step = build(like["model"], sequence, accumulation)
    losses, seconds = [], []
    for i in range(arguments.warmup + arguments.steps):
        if i == arguments.warmup:
            settle()
        begin = time.perf_counter()
        loss = step(batches(vocab_size, sequence, micro, accumulation))
        synchronize()
        if i >= arguments.warmup:
            seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    peak = resident("VmHWM")
    beyond = most_beyond(lambda: step(batches(vocab_size, sequence, micro, accumulation)), step) if device == "cpu" else None
    median = statistics.median(seconds)
    weights = list(model.parameters())
    state = {
        "parameters": bytes_of(weights),
        "gradients": bytes_of(step.masters),
        "optimizer": bytes_of(t for s in step.optimizer.state.values() for t in s.values()) + (bytes_of(step.masters) if variant == "master" else 0),
    }
    result = {
        "bench": "pytorch step",
        "pytorch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "variant": variant + (" eager" if arguments.eager else " compiled") + (" gqa" if arguments.gqa else ""),
        "parameters": sum(p.numel() for p in weights),
        "steps": arguments.steps,
        "step_seconds": {"median": median, "low": min(seconds), "high": max(seconds)},
        "tokens_per_second": {"median": like["tokens_per_step"] / median},
        "memory_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "resident_bytes": {"before": before, "peak": peak, **state, "beyond": beyond},
        "loss": {"first": losses[0], "last": losses[-1]},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
