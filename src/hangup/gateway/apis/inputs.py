"""Counts the answers of a call that is not a generation: engines count each text of an embeddings call separately."""

from __future__ import annotations

from typing import Final

import orjson

_LISTS = (b'"input"', b'"documents"', b'"text_2"')  # embeddings and classification, reranking, scoring
BYTES_MAX: Final = 1024 * 1024  # larger bodies are not parsed: they count as one


def count(body: bytes) -> int:
    if len(body) > BYTES_MAX or b"[" not in body or not any(name in body for name in _LISTS):
        return 1
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return 1
    if not isinstance(value, dict):
        return 1
    given: list[object] = next((value[key] for name in _LISTS if isinstance(value.get(key := name[1:-1].decode()), list)), [])
    return 1 if not given or isinstance(given[0], int) else len(given)  # a list of numbers is one text, as tokens
