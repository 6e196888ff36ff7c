"""Runs a Llama from a safetensors directory in torch: on the CPU, or on CUDA in bf16 with a captured graph per batch shape.

The cache is paged: attention gathers each row's blocks and masks everything after the row's position, for all rows in one
kernel. On CUDA a forward replays a graph, which is captured when its shape first occurs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (everyone's name for it)
from safetensors.torch import load_file
from torch import Tensor

from hangup.engine.hf_tokenizer import HfTokenizer
from hangup.engine.model import Batch, Floats, Ints, Luck, Scores
from hangup.engine.numpy_model import logprobs
from hangup.engine.tokenizer import Bpe, Tokenizer
from hangup.engine.weights import ModelShape
from hangup.errors import ConfigError

_CAPTURED_WIDTH_MAX = 512  # tokens per row; up to here kernel launches, not arithmetic, would dominate
_SEEN_AHEAD = 3  # warm-up forwards before a capture; torch needs them


@dataclass(frozen=True, slots=True)
class _TorchLayer:
    norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class TorchModel:
    def __init__(
        self, shape: ModelShape, tensors: dict[str, Tensor], tokenizer: Tokenizer, name: str, device: str = "auto"
    ) -> None:
        self.device = torch.device(device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.shape, self.name, self.tokenizer = shape, name, tokenizer
        self.vocab, self.context, self.eos = shape.vocab, shape.context, shape.eos
        take = _Taker(tensors, self.device, self.dtype)
        self._embedding = take("model.embed_tokens.weight")
        self._head = self._embedding if shape.tied else take("lm_head.weight")
        self._norm = take("model.norm.weight")
        self._layers = [take.layer(f"model.layers.{index}.") for index in range(shape.layers)]
        self.has_mtp = "mtp.state_norm.weight" in tensors
        if self.has_mtp:
            self._mtp_norms = take("mtp.state_norm.weight"), take("mtp.token_norm.weight")
            self._mtp_gate_up = take("mtp.mlp.gate_proj.weight", "mtp.mlp.up_proj.weight")
            self._mtp_down = take("mtp.mlp.down_proj.weight")
        angles = torch.from_numpy(shape.angles()).to(self.device)
        self._cos, self._sin = angles.cos().repeat(1, 2).to(self.dtype), angles.sin().repeat(1, 2).to(self.dtype)
        self._graphs: dict[tuple[int, int, int, bool], _Captured] = {}

    @classmethod
    def load(cls, folder: Path, device: str) -> TorchModel:
        shape = ModelShape.load(folder)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConfigError([f"model: no safetensors files in {folder}"])
        tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
        own = folder / "bpe.json"
        tokenizer: Tokenizer = Bpe.load(own) if own.exists() else HfTokenizer(folder)
        return cls(shape, tensors, tokenizer, folder.resolve().name, device)

    def make_cache(self, slots: int, blocks: int, block_tokens: int) -> None:
        shape = self.shape
        size = (shape.layers, 2, (blocks + 1) * block_tokens, shape.kv_heads, shape.head_size)
        self._cache = torch.zeros(size, dtype=self.dtype, device=self.device)
        self._block_tokens = block_tokens
        self._graphs.clear()  # they use the old cache
        self._states = torch.zeros(slots, shape.width, dtype=self.dtype, device=self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Scores:
        rows, width = batch.tokens.shape
        if self.device.type == "cuda" and width <= _CAPTURED_WIDTH_MAX:
            return self._replay(batch)
        packed = _packed(batch, rows, width, batch.blocks.shape[1])
        logits, states, last = self._compute(torch.from_numpy(packed).to(self.device), width, batch.every)
        return TorchScores(logits, states, partial(self._sums, last, batch.counts))

    def _replay(self, batch: Batch) -> Scores:
        rows, width = batch.tokens.shape
        # Round shapes up so that there are few of them. Decode shapes are rounded more finely, since decoding pays for padding.
        step = 2 if batch.every else 4
        shape = _rounded(rows, step), width if batch.every else _rounded(width, 2), _rounded(batch.blocks.shape[1], step)
        graph = self._graphs.get((*shape, batch.every))
        if graph is None:
            graph = self._graphs[(*shape, batch.every)] = _Captured(self, *shape, batch.every)
        logits, states, last = graph.run(_packed(batch, *shape), rows)
        return TorchScores(logits, states, partial(self._sums, last, batch.counts))

    @torch.inference_mode()
    def _sums(self, last: Tensor, counts: Ints) -> Floats:
        columns, until = torch.arange(last.shape[1]), torch.from_numpy(counts)
        within = (columns < until[:, None]).to(self.device)[:, :, None]
        sums: Floats = (self._normed(last, self._norm).float() * within).sum(1).cpu().numpy()
        return sums

    def _compute(self, packed: Tensor, width: int, every: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits and states of the scored tokens, and the states of all tokens.

        `packed` is [rows, start | count | tokens | blocks]: the whole input of a forward, in one copy.
        """
        starts, counts, tokens, blocks = packed[:, :1], packed[:, 1:2], packed[:, 2 : 2 + width], packed[:, 2 + width :]
        rows, size = len(packed), self._block_tokens
        columns = torch.arange(width, device=self.device)
        positions = (starts + columns).clamp(max=self.context - 1)
        block = blocks.gather(1, (positions // size).clamp(max=blocks.shape[1] - 1).long())
        places = torch.where(columns < counts, block * size + positions % size, 0).flatten()
        seen = (blocks[:, :, None] * size + torch.arange(size, device=self.device)).flatten(1)
        visible = torch.arange(seen.shape[1], device=self.device) <= positions[:, :, None]
        shared = self.shape.heads // self.shape.kv_heads
        mask = visible.repeat_interleave(shared, 1)[:, None]  # query heads that share keys are adjacent rows
        cos, sin = self._cos[positions.flatten(), None], self._sin[positions.flatten(), None]
        x = self._embedding[tokens.flatten()]
        for layer, cache in zip(self._layers, self._cache, strict=True):
            x = x + F.linear(self._attend(layer, cache, self._normed(x, layer.norm), places, seen, mask, cos, sin), layer.out)
            x = x + F.linear(_swiglu(F.linear(self._normed(x, layer.mlp_norm), layer.gate_up)), layer.down)
        states = last = x.view(rows, width, -1)
        if not every:
            states = states[torch.arange(rows, device=self.device), (counts[:, 0] - 1).clamp(min=0)][:, None]
        return self._logits(states), states, last

    def _attend(
        self, layer: _TorchLayer, cache: Tensor, x: Tensor, places: Tensor, seen: Tensor, mask: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        shape, rows = self.shape, len(seen)
        heads = F.linear(x, layer.qkv).view(len(x), -1, shape.head_size)
        turned, fresh = heads.split([shape.heads + shape.kv_heads, shape.kv_heads], 1)
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat([-second, first], -1) * sin
        cache[0].index_copy_(0, places, turned[:, shape.heads :])
        cache[1].index_copy_(0, places, fresh)
        keys, values = cache[0][seen].transpose(1, 2), cache[1][seen].transpose(1, 2)
        queries = turned[:, : shape.heads].reshape(rows, -1, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_size)
        width = queries.shape[1]
        queries = queries.transpose(1, 2).reshape(rows, shape.kv_heads, -1, shape.head_size)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return out.view(rows, shape.kv_heads, width, -1).transpose(1, 2).reshape(len(x), -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.shape.epsilon)

    def _logits(self, states: Tensor) -> Tensor:
        return F.linear(self._normed(states, self._norm), self._head).float()

    @torch.inference_mode()
    def keep_states(self, scores: Scores, slots: Ints, places: Ints) -> None:
        assert isinstance(scores, TorchScores)
        where = torch.from_numpy(np.stack([slots, np.arange(len(slots), dtype=np.int32), places])).to(self.device).long()
        self._states[where[0]] = scores.states[where[1], where[2]]

    @torch.inference_mode()
    def mtp(self, slots: Ints, tokens: Ints, luck: Luck) -> Ints:
        where = torch.from_numpy(np.stack([slots, tokens])).to(self.device).long()
        state = self._states[where[0]]
        inputs = [self._normed(x, w) for x, w in zip((state, self._embedding[where[1]]), self._mtp_norms, strict=True)]
        state = state + F.linear(_swiglu(F.linear(torch.cat(inputs, -1), self._mtp_gate_up)), self._mtp_down)
        self._states[where[0]] = state
        return choose(self._logits(state)[:, None], luck)[:, 0]


class _Captured:
    """A captured forward of one shape. Rows beyond the batch are padding."""

    def __init__(self, model: TorchModel, rows: int, width: int, blocks: int, every: bool) -> None:
        self._packed = torch.zeros(rows, 2 + width + blocks, dtype=torch.int32, device=model.device)
        self._host = torch.zeros_like(self._packed, device="cpu").pin_memory()
        compute = model._compute  # noqa: SLF001 (the same module)
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(_SEEN_AHEAD):
                compute(self._packed, width, every)
        torch.cuda.current_stream().wait_stream(side_stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = compute(self._packed, width, every)

    def run(self, packed: np.ndarray[Any, Any], rows: int) -> tuple[Tensor, Tensor, Tensor]:
        self._host.numpy()[:] = packed
        self._packed.copy_(self._host, non_blocking=True)
        self._graph.replay()
        logits, states, last = self._outputs
        return logits[:rows], states[:rows], last[:rows]


@dataclass(frozen=True, slots=True)
class TorchScores:
    logits: Tensor
    states: Tensor
    sums: Callable[[], Floats]

    def choose(self, luck: Luck) -> Ints:
        return choose(self.logits, luck)

    def logprobs(self, row: int, place: int, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
        return logprobs(self.logits[row, place].cpu().numpy(), token, top)


@torch.inference_mode()
def choose(logits: Tensor, luck: Luck) -> Ints:
    """Sample tokens by the same race as `numpy_model.choose`, on the device that holds the scores."""
    chosen = logits.argmax(-1)
    if luck.temperature.any():
        rows = torch.from_numpy(np.flatnonzero(luck.temperature)).to(logits.device)
        temperature, top_p = (torch.from_numpy(x).to(logits.device)[rows, None, None] for x in (luck.temperature, luck.top_p))
        weights = (logits[rows] / temperature).softmax(-1)
        if (luck.top_p < 1).any():
            ranked, order = weights.sort(dim=-1, descending=True, stable=True)
            kept = ranked.cumsum(-1) - ranked < top_p
            weights = weights * torch.zeros_like(kept).scatter(-1, order, kept)
        seeds = torch.from_numpy(luck.seeds.astype(np.int64)).to(logits.device)[rows]
        chosen[rows] = (weights / _times(seeds, logits.shape[-1])).argmax(-1)
    return chosen.to(torch.int32).cpu().numpy()


def _times(seeds: Tensor, vocab: int) -> Tensor:
    low = 0xFFFFFFFF
    mixed = seeds[..., None] + torch.arange(vocab, device=seeds.device) * 0x9E3779B9 & low
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & low
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & low
    mixed = mixed ^ (mixed >> 16)
    return -(((mixed >> 8).float() + 0.5) * 2**-24).clamp(max=1 - 2**-24).log()  # as in numpy_model


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _packed(batch: Batch, rows: int, width: int, blocks: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    count, given = batch.tokens.shape
    packed = np.zeros((rows, 2 + width + blocks), np.int32)
    packed[:count, 0], packed[:count, 1] = batch.starts, batch.counts
    packed[:count, 2 : 2 + given] = batch.tokens
    packed[:count, 2 + width : 2 + width + batch.blocks.shape[1]] = batch.blocks
    return packed


def _rounded(number: int, base: int) -> int:
    """Round up to a power of `base`."""
    power = 1
    while power < number:
        power *= base
    return power


class _Taker:
    """Moves tensors to the device; several tensors become one matrix."""

    def __init__(self, tensors: dict[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
        self._tensors, self._device, self._dtype = tensors, device, dtype

    def __call__(self, *names: str) -> Tensor:
        missing = [name for name in names if name not in self._tensors]
        if missing:
            raise ConfigError([f"model: the tensor {missing[0]} is missing; is this a Llama model?"])
        return torch.cat([self._tensors[name].to(self._device, self._dtype) for name in names]).contiguous()

    def layer(self, prefix: str) -> _TorchLayer:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return _TorchLayer(
            norm=self(prefix + "input_layernorm.weight"),
            qkv=self(*[f"{attention}{name}_proj.weight" for name in "qkv"]),
            out=self(attention + "o_proj.weight"),
            mlp_norm=self(prefix + "post_attention_layernorm.weight"),
            gate_up=self(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
            down=self(mlp + "down_proj.weight"),
        )
