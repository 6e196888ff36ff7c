"""`Catalog`: knows which backends can answer a call: those that speak its API and have its model.

Unknown does not mean absent. A backend that has not been asked yet, or that has no list, may serve anything; and most engines
answer to more names than they list. A model is unknown only when every backend that could have it has reported, or was
configured with, exactly the models that it has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

_FOUND_MAX: Final = 4096  # results to cache; bounded because names come from clients
_REFUSED_MAX: Final = 1024
_SETS_MAX: Final = 1024  # sets of backends to remember
_NEAREST: Final = 3
_NAME_CHARS_MAX: Final = 300  # no suggestions for longer names


@dataclass(frozen=True, slots=True)
class Offer:
    """The APIs and models of one backend, as far as known."""

    apis: frozenset[str] | None = None  # it certainly speaks these; None: unknown
    apis_only: bool = False  # and no others, by configuration
    models: frozenset[str] | None = None  # it lists these; None: it has no list, or was not asked yet
    names: frozenset[str] = frozenset()  # configured names,
    patterns: tuple[str, ...] = ()  # and those in which * stands for any text
    complete: bool = False  # it refuses models that it does not list
    asked: bool = False  # it is known whether it has a list
    tagged: bool = False  # "name:tag" belongs to "name"

    def has(self, model: str) -> bool:
        """Return whether it certainly has the model."""
        if self.configured:
            return model in self.names or any(_compiled(pattern).fullmatch(model) is not None for pattern in self.patterns)
        if self.models is None:
            return False
        return model in self.models or (self.tagged and model.partition(":")[0] in self.models)

    @property
    def configured(self) -> bool:
        """Return whether its models are those of the configuration."""
        return bool(self.names or self.patterns)

    @property
    def exact(self) -> bool:
        """Return whether it certainly lacks every model for which `has` is False."""
        return self.configured or (self.complete and self.models is not None)

    @property
    def unlisted(self) -> bool:
        """Return whether it was asked and has no list: then it is treated as having every model."""
        return self.asked and self.models is None and not self.configured


class Found(NamedTuple):
    """Where a call can go."""

    eligible: frozenset[str] | None  # names of backends; None: any; empty: none has the model
    model: str  # the model's name at these backends
    alias: bool  # the client used another name


class Catalog:
    """The offers of all backends, and the model aliases."""

    def __init__(self) -> None:
        self.offers: dict[str, Offer] = {}  # by backend
        self.aliases: dict[str, str] = {}
        self._found: dict[tuple[str, str], Found] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}  # equal sets are one object: they are looked up for each call
        self._refused: dict[tuple[str, str, str], float] = {}  # (backend, API, model): until when other backends are preferred

    def configure(self, offers: Mapping[str, Offer], aliases: Mapping[str, str]) -> None:
        self.offers, self.aliases = dict(offers), dict(aliases)
        self._refused = {key: until for key, until in self._refused.items() if key[0] in self.offers}
        self._found.clear()

    def learn(self, backend: str, offer: Offer) -> bool:
        """Note what a backend reports; return whether that is new."""
        if self.offers.get(backend) == offer:
            return False
        self.offers[backend] = offer
        self._found.clear()
        return True

    # Where a call can go

    def find(self, api: str, model: str) -> Found:
        """Return where a call can go, by its API ("" if unknown) and model ("" if it names none)."""
        found = self._found.get((api, model))
        if found is None:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            real = self.aliases.get(model, model)
            found = self._found[(api, model)] = Found(self._eligible(api, real), real, real != model)
        return found

    def _eligible(self, api: str, model: str) -> frozenset[str] | None:
        able = self._able(self._speakers(api), model)
        willing = [name for name in able if (name, api, model) not in self._refused]
        backends = willing or able
        if len(backends) == len(self.offers):
            return None
        if len(self._sets) >= _SETS_MAX:
            self._sets.clear()
        eligible = frozenset(backends)
        return self._sets.setdefault(eligible, eligible)

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
        having = {name for name, offer in offers if offer.has(model)}
        if having:
            return [name for name, offer in offers if name in having or offer.unlisted]
        return [name for name, offer in offers if not offer.exact]

    def speaks(self, api: str) -> bool:
        """Return whether any backend may speak this API."""
        return bool(self._speakers(api))

    # Refusals by backends

    def refused(self, backend: str, api: str, model: str, until: float) -> None:
        """Note that a backend did not know the path or the model: until then, prefer other backends."""
        key = (backend, api, model)
        self._refused.pop(key, None)
        if len(self._refused) >= _REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = until
        self._found.clear()

    def expire(self, now: float) -> None:
        expired = [key for key, until in self._refused.items() if until <= now]
        for key in expired:
            del self._refused[key]
        if expired:
            self._found.clear()

    # Names of models

    def names(self, api: str = "") -> list[str]:
        """Return all models that clients can ask for, sorted."""
        listed: set[str] = set()
        for name in self._speakers(api):
            offer = self.offers[name]
            listed |= offer.names
            if offer.models is not None:
                listed |= {model for model in offer.models if not offer.configured or offer.has(model)}
        usable = [alias for alias, real in self.aliases.items() if self._able(self._speakers(api), real)]
        return sorted(listed.union(usable))

    def nearest(self, model: str, api: str = "") -> list[str]:
        """Return names similar to this one, the most similar first."""
        if len(model) > _NAME_CHARS_MAX:
            return []
        folded: dict[str, str] = {}
        for name in self.names(api):
            folded.setdefault(name.lower(), name)
            folded.setdefault(name.lower().rpartition("/")[2], name)  # many clients omit the owner's name
        near = difflib.get_close_matches(model.lower(), folded, 2 * _NEAREST, 0.5)
        return list(dict.fromkeys(folded[name] for name in near))[:_NEAREST]


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
