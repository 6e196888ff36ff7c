"""Trains the small model that ships with the embedded engine: a Llama of 1.4 M parameters with an MTP head, and a draft model.

usage: python tools/train_embedded.py TEXT OUT [--seed 5]

Needs torch and safetensors; takes about two minutes on an H200. TEXT is the "tiny Shakespeare" selection: 1,115,394 bytes,
sha256 86c4e6aa9db7c042…, plays by William Shakespeare, in the public domain. Writes model.safetensors and config.json (with
Hugging Face's names for a Llama, so that other programs can read them), the same in draft/, bpe.json and loss.csv into OUT.
docs/engine.md has the figures of the shipped weights.
"""

from __future__ import annotations

import argparse
import copy
import csv
import hashlib
import json
import math
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
from hangup.engine.tokenizer import END_OF_SPEECH, Bpe, words

VOCAB = 1024
CONTEXT = 1024
MTP_STEPS = 3  # how far ahead the MTP head learns to predict
MTP_WEIGHT = 0.3
HELD_OUT = 0.1  # the last part of the text, for the validation loss
SHAPES = {
    "main": {"layers": 6, "width": 128, "heads": 4, "inner": 384, "mtp": True, "steps": 900, "dropout": 0.15},
    "draft": {"layers": 1, "width": 64, "heads": 2, "inner": 192, "mtp": False, "steps": 3000, "dropout": 0.0},
}


def learn_merges(text: str, size: int) -> list[tuple[int, int]]:
    """Learn byte pair encoding: repeatedly, the most frequent pair of neighbours becomes a token."""
    counts = Counter(words(text))
    pieces = {word: list(word.encode()) for word in counts if word != END_OF_SPEECH}
    merges: list[tuple[int, int]] = []
    while 257 + len(merges) < size:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, tokens in pieces.items():
            for pair in pairwise(tokens):
                pairs[pair] += counts[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        token = 257 + len(merges)
        merges.append(best)
        for tokens in pieces.values():
            at = 0
            while at < len(tokens) - 1:
                if (tokens[at], tokens[at + 1]) == best:
                    tokens[at : at + 2] = [token]
                at += 1
    return merges


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Mlp(nn.Module):
    def __init__(self, width_in: int, inner: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width_in, inner, bias=False)
        self.up_proj = nn.Linear(width_in, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Attention(nn.Module):
    """Attention with one key/value head for all query heads: on a CPU, the cache is the bottleneck, not the arithmetic."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, self.size, bias=False)
        self.v_proj = nn.Linear(width, self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q = rotate(self.q_proj(x).view(rows, length, self.heads, self.size).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(rows, length, 1, self.size).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(rows, length, 1, self.size).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        back: Tensor = self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))
        return back


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(width), Norm(width)
        self.self_attn = Attention(width, heads)
        self.mlp = Mlp(width, inner, width)


class Mtp(nn.Module):
    """Combines the trunk's state at a token with the token that followed, into the state that predicts the one after."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.state_norm, self.token_norm = Norm(width), Norm(width)
        self.mlp = Mlp(2 * width, inner, width)

    def forward(self, state: Tensor, embedded: Tensor) -> Tensor:
        out: Tensor = state + self.mlp(torch.cat([self.state_norm(state), self.token_norm(embedded)], -1))
        return out


class Llama(nn.Module):
    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.shape = shape
        width, heads = shape["width"], shape["heads"]
        self.embed_tokens = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList([Layer(width, heads, shape["inner"]) for _ in range(shape["layers"])])
        self.norm = Norm(width)
        self.mtp = Mtp(width, shape["inner"]) if shape["mtp"] else None
        self.dropout = shape["dropout"]
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        size = width // heads
        angles = torch.outer(torch.arange(CONTEXT), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def states(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.embed_tokens(tokens))
        for layer in self.layers:
            x = x + self.drop(layer.self_attn(layer.input_layernorm(x), self.cos, self.sin))
            x = x + self.drop(layer.mlp(layer.post_attention_layernorm(x)))
        return x

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.norm(states), self.embed_tokens.weight)

    def losses(self, tokens: Tensor) -> list[Tensor]:
        """Return the loss of the next token, then of the tokens that the MTP head predicts, step by step."""
        state = self.states(tokens[:, :-1])
        found = [F.cross_entropy(self.logits(state).flatten(0, 1), tokens[:, 1:].flatten())]
        for step in range(1, MTP_STEPS + 1) if self.mtp else ():
            embedded = self.embed_tokens(tokens[:, step:-1])
            state = self.mtp(state[:, :-1], embedded)
            found.append(F.cross_entropy(self.logits(state).flatten(0, 1), tokens[:, step + 1 :].flatten()))
        return found


def train(shape: dict[str, Any], data: Tensor, arguments: argparse.Namespace, log: Any, name: str) -> Llama:
    torch.manual_seed(arguments.seed)
    device = data.device
    cut, steps = int(len(data) * (1 - HELD_OUT)), shape["steps"]
    model = Llama(shape).to(device)
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {cut:,} tokens to train on", flush=True)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=arguments.rate, betas=(0.9, 0.98), fused=device.type == "cuda")
    offsets = torch.arange(CONTEXT + 1, device=device)
    best, kept, began = math.inf, None, time.monotonic()
    for step in range(steps + 1):
        if step % 100 == 0:
            losses = validate(model, data[cut:])
            log.writerow([name, step, *[f"{loss:.4f}" for loss in losses]])
            print(f"{name} {step} {time.monotonic() - began:.0f} s, held out: {losses}", flush=True)
            if losses[0] < best:
                best, kept = losses[0], copy.deepcopy(model.state_dict())
        warm = min(1.0, step / 100)
        rate = arguments.rate * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(cut - CONTEXT - 1, (arguments.batch, 1), device=device)
        with torch.autocast(device.type, torch.bfloat16):
            first, *rest = model.losses(data[starts + offsets])
        loss = first + MTP_WEIGHT * sum(rest) / max(1, len(rest))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert kept is not None
    model.load_state_dict(kept)
    return model


@torch.no_grad()
def validate(model: Llama, held_out: Tensor) -> list[float]:
    model.eval()
    rows = held_out[: len(held_out) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    losses = [float(loss) for loss in model.losses(rows)]
    model.train()
    return [round(loss, 4) for loss in losses]


def export(model: Llama, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    tensors = {
        name if name.startswith("mtp.") else f"model.{name}": value.detach().to("cpu", torch.float16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": shape["width"],
        "intermediate_size": shape["inner"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": 1,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": Bpe.eos,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    text = arguments.text.read_text()
    print("sha256", hashlib.sha256(text.encode()).hexdigest())
    merges = learn_merges(text, VOCAB)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "bpe.json").write_text(json.dumps({"merges": merges}) + "\n")
    tokens = Bpe(merges).encode(text)
    print(f"{len(text):,} characters are {len(tokens):,} tokens")
    data = torch.tensor(tokens, device="cuda" if torch.cuda.is_available() else "cpu")
    with (arguments.out / "loss.csv").open("w", newline="") as file:
        log = csv.writer(file, lineterminator="\n")
        log.writerow(["model", "step", "next", *[f"mtp_{step}" for step in range(1, MTP_STEPS + 1)]])
        export(train(SHAPES["main"], data, arguments, log, "main"), arguments.out)
        export(train(SHAPES["draft"], data, arguments, log, "draft"), arguments.out / "draft")


if __name__ == "__main__":
    main()
