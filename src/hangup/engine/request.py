"""What is asked of the engine and what comes back. Plain values; they cross between threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hangup.errors import HangupError

EndReason = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRequest:
    """One generation. Its length is always bounded: the engine cuts `tokens_max` down to what the context holds."""

    prompt: tuple[int, ...]
    tokens_max: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    seed: int = 0  # the same request with the same seed gets the same tokens
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # alternatives to tell per token; None tells nothing
    ignore_eos: bool = False
    embed: bool = False  # the prompt is read and becomes a vector; nothing is generated
    name: str = ""  # whoever asked knows it by this; shown in the status


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that was chosen, with its log probability and the most likely alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of one step; their text may be empty while a character or a stop string could still be completed."""

    text: str
    tokens: int
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationEnded:
    """The last event of a call. Its slot and its blocks are free."""

    reason: EndReason
    prompt_tokens: int
    tokens: int
    drafted: int
    accepted: int
    stop: str = ""  # the stop string that ended it


@dataclass(frozen=True, slots=True)
class Vector:
    """What became of a prompt that was to be embedded: of length 1."""

    values: NDArray[np.float32]


Event = Progress | Vector | GenerationEnded


class Busy(HangupError):
    """The waiting list is full."""


class Unfit(HangupError):
    """The request can never be served here."""
