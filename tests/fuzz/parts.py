"""Fuzzes the parsers in this process: they may raise only their own errors, and must judge every split of an input the same."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from fuzz.grammar import KEPT, Dice
from hangup.config import LimitSettings
from hangup.config.load import load
from hangup.errors import ConfigError, Refusal, WireError
from hangup.gateway.apis.routes import BUILT_IN
from hangup.gateway.http.body import Chunked
from hangup.gateway.http.head import RequestHead, ResponseHead
from hangup.gateway.http.jsonbody import decode
from hangup.gateway.http.sse import SSE, Splitter

LIMITS = LimitSettings()


def request_head(dice: Dice, number: int) -> None:
    _read_request(dice.request(number))


def _read_request(data: bytes) -> None:
    with contextlib.suppress(WireError):
        RequestHead(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", count_max=128, url_bytes_max=8192)


def response_head(dice: Dice, number: int) -> None:
    _read_answer(dice.answer(number))


def _read_answer(data: bytes) -> None:
    with contextlib.suppress(WireError):
        ResponseHead(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")


def chunks(dice: Dice, number: int) -> None:
    data = dice.chunked(dice.odd_body(number))
    data = dice.mutilated(data) if dice.maybe(0.5) else data
    assert _decoded(Chunked(), [data]) == _decoded(Chunked(), dice.pieces(data)), data


def _decoded(decoder: Chunked, pieces: list[bytes]) -> tuple[bytes, bool] | None:
    payload = b""
    try:
        for piece in pieces:
            if not decoder.done:
                payload += decoder.feed(piece)
    except WireError:
        return None
    return payload, decoder.done


def events(dice: Dice, number: int) -> None:
    data = dice.events(number)
    _read_events(data, dice.pieces(data))


def _read_events(data: bytes, pieces: list[bytes]) -> None:
    whole, cut = Splitter(SSE, 10**6), Splitter(SSE, 10**6)
    at_once = whole.feed(data)
    assert [event for piece in pieces for event in cut.feed(piece)] == at_once, data
    for event in at_once:
        SSE.data(event)


def body(dice: Dice, number: int) -> None:
    data = dice.odd_body(number)
    try:
        value = decode(data, None, 1000)
    except Refusal:
        return
    assert value == orjson.loads(data)
    assert len(json.loads(data)) == len(value)
    for route in BUILT_IN.values():
        if route.api.generates:
            api = route.api_for(value)
            if api.generates:
                with contextlib.suppress(Refusal):
                    ask = api.read(route.path, value, LIMITS, True)
                    assert isinstance(orjson.loads(ask.body(data, value, {"request_id": "x"})), dict)


def configuration(dice: Dice, number: int) -> None:
    _load(dice.configuration())


def _load(text: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(text)
        file.flush()
        with contextlib.suppress(ConfigError):
            load(Path(file.name))


_TRY: dict[str, Callable[[bytes], None]] = {
    "request": _read_request,
    "answer": _read_answer,
    "events": lambda data: _read_events(data, [bytes([byte]) for byte in data]),
    "configuration": _load,
}
PARTS: dict[str, Callable[[Dice, int], None]] = {
    part.__name__: part for part in (request_head, response_head, chunks, events, body, configuration)
}


def try_parts(numbers: Iterator[int], more: Callable[[], bool]) -> list[str]:
    """Return what was found, each with how to repeat it."""
    found: list[str] = []
    while more() and len(found) < 20:
        number = next(numbers)
        found += try_one(number)
    return found


def try_corpus() -> list[str]:
    """Try everything in the corpus, unchanged."""
    found = []
    for kind, datas in KEPT.items():
        for data in datas:
            try:
                _TRY[kind](data)
            except Exception as error:
                found.append(f"corpus {kind} {data[:60]!r}: {type(error).__name__}: {str(error)[:300]}")
    return found


def try_one(number: int, parts: dict[str, Any] = PARTS) -> list[str]:
    found = []
    for name, part in parts.items():
        try:
            part(Dice(number), number)
        except Exception as error:
            found.append(f"part {name}, case {number}: {type(error).__name__}: {str(error)[:300]}")
    return found
