"""The engine's requests and events: plain values that cross between threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hangup.errors import HangupError

EndReason = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRequest:
    """One generation. Its length is always bounded: the engine caps `tokens_max` at what the context holds."""

    prompt: tuple[int, ...]
    tokens_max: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    seed: int = 0  # the same request with the same seed gives the same tokens
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # how many alternatives to report per token; None reports no logprobs
    ignore_eos: bool = False
    embed: bool = False  # turn the prompt into a vector; generate nothing
    name: str = ""  # the caller's id for the call; shown in the status


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, with its log probability and the most likely alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of one step. The text may be empty while a character or a possible stop string is incomplete."""

    text: str
    tokens: int
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationEnded:
    """The last event of a call. The call's slot and blocks are free."""

    reason: EndReason
    prompt_tokens: int
    tokens: int
    drafted: int
    accepted: int
    stop: str = ""  # the stop string that ended it


@dataclass(frozen=True, slots=True)
class Vector:
    """The embedding of a prompt, normalized to length 1."""

    values: NDArray[np.float32]


Event = Progress | Vector | GenerationEnded


class Busy(HangupError):
    """The queue is full, or the engine has stopped."""


class Unfit(HangupError):
    """The engine can never serve this request."""
