"""Which backends can answer a call: those that speak its API and have its model.

What is not known is not absent. A backend that was not asked yet, or that has no list, may serve anything; and most engines
answer to more names than they list. A model is unknown only when every backend that could be asked for it has said, or was
configured to say, exactly what it has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

_FOUND_MAX = 4096  # answers kept: names come from clients
_REFUSED_MAX = 1024
_NEAREST = 3
_NAME_CHARS_MAX = 300  # a longer name is near to nothing


@dataclass(frozen=True, slots=True)
class Offer:
    """What one backend answers, as far as is known."""

    apis: frozenset[str] | None = None  # that it speaks for sure; None: not known
    apis_only: bool = False  # and no others: the configuration says so
    models: frozenset[str] | None = None  # that it lists; None: it does not, or was not asked yet
    patterns: tuple[str, ...] = ()  # that it is configured to have: names, in which * stands for anything
    complete: bool = False  # it refuses what it does not list
    asked: bool = False  # whether it has a list is known
    tagged: bool = False  # "name:tag" belongs to "name"

    def has(self, model: str) -> bool:
        """Whether it has the model for sure."""
        if self.patterns:
            return any(_matches(pattern, model) for pattern in self.patterns)
        if self.models is None:
            return False
        return model in self.models or (self.tagged and model.partition(":")[0] in self.models)

    @property
    def exact(self) -> bool:
        """Whether what it does not have for sure it has not."""
        return bool(self.patterns) or (self.complete and self.models is not None)

    @property
    def unlisted(self) -> bool:
        """It was asked and has no list: it is taken for one that has everything."""
        return self.asked and self.models is None and not self.patterns


class Found(NamedTuple):
    """Where a call can go."""

    seats: frozenset[str] | None  # None: anywhere; empty: nobody has the model
    model: str  # its name there
    alias: bool  # which is not the one that the client used


class Catalog:
    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}  # by backend
        self.aliases: dict[str, str] = {}
        self._found: dict[tuple[str, str], Found] = {}
        self._refused: dict[tuple[str, str, str], float] = {}  # backend, API, model: until when others are preferred

    def configure(self, offers: Mapping[str, Offer], aliases: Mapping[str, str]) -> None:
        self.offers, self.aliases = dict(offers), dict(aliases)
        self._refused = {key: until for key, until in self._refused.items() if key[0] in self.offers}
        self._found.clear()

    def learn(self, backend: str, offer: Offer) -> bool:
        """What a backend has told; whether that is new."""
        if self.offers.get(backend) == offer:
            return False
        self.offers[backend] = offer
        self._found.clear()
        return True

    # Where a call can go

    def find(self, api: str, model: str) -> Found:
        """For a call of this API ("" if it has none that is known) and model ("" if it names none)."""
        found = self._found.get((api, model))
        if found is None:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            real = self.aliases.get(model, model)
            found = self._found[(api, model)] = Found(self._seats(api, real), real, real != model)
        return found

    def _seats(self, api: str, model: str) -> frozenset[str] | None:
        able = self._able(self._speakers(api), model)
        willing = [name for name in able if (name, api, model) not in self._refused]
        seats = willing or able
        return None if len(seats) == len(self.offers) else frozenset(seats)

    def _speakers(self, api: str) -> list[str]:
        offers = self.offers.items()
        if not api:
            return [name for name, _ in offers]
        speak = [name for name, offer in offers if offer.apis is None or api in offer.apis]
        return speak or [name for name, offer in offers if not offer.apis_only]

    def _able(self, speakers: list[str], model: str) -> list[str]:
        offers = [(name, self.offers[name]) for name in speakers]
        if not model:
            return speakers
        if any(offer.has(model) for _, offer in offers):
            return [name for name, offer in offers if offer.has(model) or offer.unlisted]
        return [name for name, offer in offers if not offer.exact]

    def speaks(self, api: str) -> bool:
        """Whether any backend may speak it."""
        return bool(self._speakers(api))

    # What backends refused

    def refused(self, backend: str, api: str, model: str, until: float) -> None:
        """A backend did not know the path or the model: others are asked first, until then."""
        key = (backend, api, model)
        self._refused.pop(key, None)
        if len(self._refused) >= _REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = until
        self._found.clear()

    def expire(self, now: float) -> None:
        over = [key for key, until in self._refused.items() if until <= now]
        for key in over:
            del self._refused[key]
        if over:
            self._found.clear()

    # What there is

    def names(self, api: str = "") -> list[str]:
        """All models that can be asked for, in order."""
        listed: set[str] = set()
        for name in self._speakers(api):
            offer = self.offers[name]
            listed |= {pattern for pattern in offer.patterns if "*" not in pattern}
            if offer.models is not None:
                listed |= {model for model in offer.models if not offer.patterns or offer.has(model)}
        usable = [alias for alias, real in self.aliases.items() if self._able(self._speakers(api), real)]
        return sorted(listed.union(usable))

    def nearest(self, model: str, api: str = "") -> list[str]:
        """Names that are like this one, the most alike first."""
        if len(model) > _NAME_CHARS_MAX:
            return []
        folded: dict[str, str] = {}
        for name in self.names(api):
            folded.setdefault(name.lower(), name)
            folded.setdefault(name.lower().rpartition("/")[2], name)  # many leave the owner's name away
        near = difflib.get_close_matches(model.lower(), folded, 2 * _NEAREST, 0.5)
        return list(dict.fromkeys(folded[name] for name in near))[:_NEAREST]


def pattern_problem(pattern: str) -> str:
    """What is wrong with a configured name, or nothing."""
    return "" if pattern.strip() == pattern and pattern else f"expected names of models, with * for any text, got {pattern!r}"


def _matches(pattern: str, model: str) -> bool:
    return pattern == model or ("*" in pattern and _compiled(pattern).fullmatch(model) is not None)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
