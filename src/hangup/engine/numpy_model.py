"""The built-in model on the CPU: a Llama in numpy that batches every product over all slots.

A step with eight slots costs little more than a step with one, since a small model spends most of its time on the fixed
overhead of some hundred numpy calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hangup.engine.model import Batch, Floats, Ints, Luck, Scores
from hangup.engine.tokenizer import Bpe, Tokenizer
from hangup.engine.weights import BUILT_IN, ModelShape, read_safetensors


@dataclass(frozen=True, slots=True)
class _NumpyLayer:
    norm: Floats
    qkv: Floats
    out: Floats
    mlp_norm: Floats
    gate_up: Floats
    down: Floats


class NumpyModel:
    def __init__(self, folder: Path = BUILT_IN, name: str = "hangup-shakespeare") -> None:
        self.name = name
        self.shape = shape = ModelShape.load(folder)
        self.vocab, self.context, self.eos = shape.vocab, shape.context, shape.eos
        self.tokenizer: Tokenizer = Bpe.load(BUILT_IN / "bpe.json")
        tensors = read_safetensors(folder / "model.safetensors")
        self.has_mtp = "mtp.state_norm.weight" in tensors
        self._embedding = tensors["model.embed_tokens.weight"]
        self._norm = tensors["model.norm.weight"]
        head = self._embedding if shape.tied else tensors["lm_head.weight"]
        # In two halves: up to a million products, OpenBLAS multiplies without repacking, which is twice as fast.
        self._head = [_product(part) for part in np.array_split(head, 2)]
        self._layers = [_layer(tensors, f"model.layers.{index}.") for index in range(shape.layers)]
        if self.has_mtp:
            self._mtp_norms = tensors["mtp.state_norm.weight"], tensors["mtp.token_norm.weight"]
            self._mtp_gate_up = _product(tensors["mtp.mlp.gate_proj.weight"], tensors["mtp.mlp.up_proj.weight"])
            self._mtp_down = _product(tensors["mtp.mlp.down_proj.weight"])
        angles = shape.angles()
        self._cos, self._sin = np.cos(np.tile(angles, 2)), np.sin(np.tile(angles, 2))

    def make_cache(self, slots: int, blocks: int, block_tokens: int) -> None:
        shape = self.shape
        # Heads first: one head's part of a block is contiguous, and one `take` gathers it for all slots.
        size = (shape.layers, 2, shape.kv_heads, blocks + 1, block_tokens, shape.head_size)
        self._cache = np.zeros(size, np.float32)
        self._block_tokens = block_tokens
        self._states = np.zeros((slots, shape.width), np.float32)

    def forward(self, batch: Batch) -> Scores:
        rows, width = batch.tokens.shape
        columns = np.arange(width, dtype=np.int32)
        positions = np.minimum(batch.starts[:, None] + columns, self.context - 1)
        padding = columns >= batch.counts[:, None]
        block, offset = np.divmod(positions, self._block_tokens)
        block = np.take_along_axis(batch.blocks, np.minimum(block, batch.blocks.shape[1] - 1), 1)
        places = np.where(padding, 0, block * self._block_tokens + offset).ravel()
        seen = np.arange(batch.blocks.shape[1] * self._block_tokens, dtype=np.int32)
        mask = np.where(seen <= positions[:, :, None], np.float32(0), np.float32(-1e30))[:, :, None, :]
        cos, sin = self._cos[positions.ravel(), None], self._sin[positions.ravel(), None]
        x = self._embedding[batch.tokens.ravel()]
        for layer, cache in zip(self._layers, self._cache, strict=True):
            x = x + self._attend(layer, cache, self._normed(x, layer.norm), batch.blocks, places, mask, cos, sin) @ layer.out
            x = x + _swiglu(self._normed(x, layer.mlp_norm) @ layer.gate_up) @ layer.down
        states = x.reshape(rows, width, -1)
        sums = partial(self._sums, states, padding)
        if not batch.every:
            states = states[np.arange(rows), batch.counts - 1][:, None]
        return NumpyScores(self._logits(states), states, sums)

    def _sums(self, states: Floats, padding: NDArray[np.bool_]) -> Floats:
        return cast(Floats, np.where(padding[:, :, None], np.float32(0), self._normed(states, self._norm)).sum(1))

    def _attend(
        self, layer: _NumpyLayer, cache: Floats, x: Floats, blocks: Ints, places: Ints, mask: Floats, cos: Floats, sin: Floats
    ) -> Floats:
        shape, rows, (_, width) = self.shape, len(blocks), mask.shape[:2]
        shared = shape.heads // shape.kv_heads  # query heads per head of keys
        heads = (x @ layer.qkv).reshape(rows * width, shape.heads + 2 * shape.kv_heads, shape.head_size)
        turned = heads[:, : shape.heads + shape.kv_heads]
        half = shape.head_size // 2
        turned = turned * cos + np.concatenate([-turned[..., half:], turned[..., :half]], -1) * sin
        new = np.stack([turned[:, shape.heads :], heads[:, shape.heads + shape.kv_heads :]])
        cache.reshape(2, shape.kv_heads, -1, shape.head_size)[:, :, places] = new.swapaxes(1, 2)
        keys, values = np.take(cache, blocks, axis=2).reshape(2, shape.kv_heads, rows, -1, shape.head_size)
        queries = turned[:, : shape.heads].reshape(rows, width, shape.kv_heads, shared, -1).transpose(2, 0, 1, 3, 4)
        queries = queries.reshape(shape.kv_heads, rows, width * shared, -1) * np.float32(shape.head_size**-0.5)
        found = (queries @ keys.swapaxes(-1, -2)).reshape(shape.kv_heads, rows, width, shared, -1)
        found += mask
        found -= found.max(-1, keepdims=True)
        np.exp(found, out=found)
        found = found.reshape(shape.kv_heads, rows, width * shared, -1)
        out = found @ values
        out /= found.sum(-1, keepdims=True)
        out = out.reshape(shape.kv_heads, rows, width, shared, -1)
        return cast(Floats, out.transpose(1, 2, 0, 3, 4).reshape(rows * width, -1))

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        size = np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1]
        return cast(Floats, x * (weight / np.sqrt(size + np.float32(self.shape.epsilon))))

    def _logits(self, states: Floats) -> Floats:
        normed = self._normed(states, self._norm).reshape(-1, self.shape.width)
        out = np.concatenate([normed @ part for part in self._head], -1)
        return out.reshape(*states.shape[:-1], self.vocab)

    def keep_states(self, scores: Scores, slots: Ints, places: Ints) -> None:
        assert isinstance(scores, NumpyScores)
        self._states[slots] = scores.states[np.arange(len(slots)), places]

    def mtp(self, slots: Ints, tokens: Ints, luck: Luck) -> Ints:
        state = self._states[slots]
        normed = [self._normed(x, w) for x, w in zip((state, self._embedding[tokens]), self._mtp_norms, strict=True)]
        state = state + _swiglu(np.concatenate(normed, -1) @ self._mtp_gate_up) @ self._mtp_down
        self._states[slots] = state
        return choose(self._logits(state)[:, None], luck)[:, 0]


@dataclass(frozen=True, slots=True)
class NumpyScores:
    logits: Floats  # [rows, places, vocab]
    states: Floats  # [rows, places, width]
    sums: Callable[[], Floats]  # computed on demand

    def choose(self, luck: Luck) -> Ints:
        return choose(self.logits, luck)

    def logprobs(self, row: int, place: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        return logprobs(self.logits[row, place], token, top)


def choose(logits: Floats, luck: Luck) -> Ints:
    """Sample tokens by a race: each token gets a random time, shorter if it is likelier, and the shortest time wins.

    This samples the distribution exactly. Scores that differ by a rounding error choose the same token, except with a
    probability no larger than that error. (Inverting the cumulative distribution would be a thousand times more sensitive.)
    """
    chosen = logits.argmax(-1).astype(np.int32)
    rows = np.flatnonzero(luck.temperature)
    if len(rows):
        weights = _softmax(logits[rows] / luck.temperature[rows, None, None])
        if (luck.top_p[rows] < 1).any():
            weights = weights * _nucleus(weights, luck.top_p[rows, None, None])
        chosen[rows] = (weights / _times(luck.seeds[rows], logits.shape[-1])).argmax(-1)
    return cast(Ints, chosen)


_BELOW_ONE = np.float32(1 - 2**-24)  # the highest hash would round to 1, and give a time of 0, by which nothing can be divided


def _times(seeds: NDArray[np.uint32], vocab: int) -> Floats:
    """Return exponential times, [rows, places, vocab], by hashing each seed with each token (murmur3's last steps)."""
    mixed = seeds[..., None] + np.arange(vocab, dtype=np.uint32) * np.uint32(0x9E3779B9)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    even = ((mixed >> np.uint32(8)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-24)
    return cast(Floats, -np.log(np.minimum(even, _BELOW_ONE)))


def _nucleus(weights: Floats, top_p: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask of the smallest set of most likely tokens that adds up to `top_p`, at least one token."""
    order = np.argsort(-weights, -1, kind="stable")
    ranked = np.take_along_axis(weights, order, -1)
    kept = np.cumsum(ranked, -1) - ranked < top_p
    mask = np.zeros(weights.shape, np.bool_)
    np.put_along_axis(mask, order, kept, -1)
    return mask


def logprobs(logits: Floats, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    values = logits - logits.max()
    values = values - np.log(np.exp(values).sum())
    best = np.argsort(-values, kind="stable")[:top].tolist()
    return float(values[token]), [(index, float(values[index])) for index in best]


def _softmax(x: Floats) -> Floats:
    x = np.exp(x - x.max(-1, keepdims=True))
    return cast(Floats, x / x.sum(-1, keepdims=True))


def _swiglu(gate_up: Floats) -> Floats:
    inner = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :inner], gate_up[..., inner:]
    out = np.exp(-gate)
    out += 1
    np.divide(gate, out, out=out)
    out *= up
    return cast(Floats, out)


def _product(*weights: Floats) -> Floats:
    """Return several projections of one input as one matrix, for multiplication from the right."""
    return np.ascontiguousarray(np.concatenate(weights).T)


def _layer(tensors: dict[str, Floats], prefix: str) -> _NumpyLayer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return _NumpyLayer(
        norm=tensors[prefix + "input_layernorm.weight"],
        qkv=_product(*[tensors[f"{attention}{name}_proj.weight"] for name in "qkv"]),
        out=_product(tensors[attention + "o_proj.weight"]),
        mlp_norm=tensors[prefix + "post_attention_layernorm.weight"],
        gate_up=_product(tensors[mlp + "gate_proj.weight"], tensors[mlp + "up_proj.weight"]),
        down=_product(tensors[mlp + "down_proj.weight"]),
    )
